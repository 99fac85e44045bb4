"""Passes on `loop.contract`: accumulation, bias, expansion into a nest."""
