"""Fusion: facts, legality, search, price, directives, emission, and the passes that fuse in other ways."""
