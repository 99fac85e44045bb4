"""The IR of each level run by torch, operation by operation."""
