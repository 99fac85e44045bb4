"""Loops that two groups of nests share: how they match, and what speaks against it."""
