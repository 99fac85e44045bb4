"""Launches, streams and timers of a GPU in the host program."""
