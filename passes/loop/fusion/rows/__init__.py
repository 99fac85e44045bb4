"""Rows that reductions share: plan and writing."""
