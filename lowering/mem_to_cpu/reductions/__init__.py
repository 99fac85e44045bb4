"""Reductions, scans and rows kept in cache, as vector code."""
