"""Rewrites of the ATen graphs that are compiled, forward and backward."""
