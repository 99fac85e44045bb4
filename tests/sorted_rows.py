"""Rows to sort, and what is compared of them when they are."""

from __future__ import annotations

import math

import torch


def rows_of(dtype, *shape, seed=0):
    """Few distinct elements, so that there are ties; NaN of both signs, infinities and zeros of both signs among floats."""
    x = torch.randint(0, 2 if dtype == torch.bool else 9, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    if dtype.is_floating_point:
        flat = (x := x - 4).view(-1)
        for k, special in enumerate((math.nan, -math.inf, -0.0, math.inf, -math.nan, 0.0, -0.0)):
            flat[k::11] = special
    return x


def _signs(x):
    """What tells zeros of both signs apart, and no two NaN."""
    return torch.signbit(x.where(x == x, 1))


def assert_sorted(values, indices, x, d, descending):
    """`values` and `indices` are what eager's stable sort gives."""
    expected = x.sort(dim=d, stable=True, descending=descending)
    torch.testing.assert_close(values, expected.values, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(indices, expected.indices)
    assert torch.equal(_signs(values), _signs(expected.values))
