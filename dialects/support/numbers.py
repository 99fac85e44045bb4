"""Limits of integers."""

I32_MAX = 2**31 - 1
