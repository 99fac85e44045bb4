"""A program of a kernel: which block of the grid it has, how its loops run, what its threads wait for."""
