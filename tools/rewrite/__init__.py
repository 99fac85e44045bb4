"""Rewrites that users write as pairs of functions or as PDL."""
