"""Reductions whose state is a row of results: products inside and outside of what they weigh by."""
