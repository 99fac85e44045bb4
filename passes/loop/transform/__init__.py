"""Transforms of one nest: tile, interchange, collapse, expand, unroll, hoist, split."""
