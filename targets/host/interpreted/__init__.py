"""The host program run step by step in Python."""
