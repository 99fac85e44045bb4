"""Passes on nests for GPUs; file = pass."""
