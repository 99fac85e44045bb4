"""Scatters of a GPU without atomic operations."""
