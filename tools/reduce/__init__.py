"""Reduction: the smallest program of ours, or graph of torch's, that still fails."""
