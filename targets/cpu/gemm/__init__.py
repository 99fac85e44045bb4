"""The matrix product kernels of the CPU."""
