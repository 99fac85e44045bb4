"""Who computes a matrix product, and how."""
