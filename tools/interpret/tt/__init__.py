"""Triton kernels run block by block, with a check for races."""
