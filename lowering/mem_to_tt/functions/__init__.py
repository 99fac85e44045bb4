"""Scalar functions that Triton lacks: 8-bit floats, integer powers, random numbers, exponentials."""
