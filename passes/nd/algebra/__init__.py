"""Rewriting rules on tensors."""
