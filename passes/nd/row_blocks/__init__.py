"""Rows of a wide product, block by block: what a block can compute by itself, and how it is written."""
