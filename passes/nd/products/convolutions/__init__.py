"""Convolutions as products, or as sums of windows."""
