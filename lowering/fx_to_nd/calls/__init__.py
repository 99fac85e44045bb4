"""Operators that stay calls: ATen, collectives, Triton kernels of users, objects."""
