"""Grids of places to sample at, also with sizes of one place, which torch's decomposition does not trace."""

import itertools

import pytest
import torch
from torch.nn import functional as F


@pytest.mark.parametrize("dynamic", (False, True))
@pytest.mark.parametrize("align", (False, True))
def test_affine_grids(check, align, dynamic):
    for size in ([2, 3, 4, 5], [2, 3, 1, 4], [1, 1, 1, 1], [2, 1, 3, 1, 4], [1, 2, 2, 3, 1]):
        rank = len(size) - 2
        found = check(
            lambda theta, size=size: F.affine_grid(theta, size, align),
            torch.randn(size[0], rank, rank + 1),
            dynamic=dynamic,
            grow=False,
        )
        assert not found.counts.extern


def test_grids_of_other_memory_and_types():
    def grids(theta):
        return F.affine_grid(theta, [3, 1, 1, 6], False), F.affine_grid(theta, [3, 1, 5, 2], True)

    theta = torch.randn(3, 3, 2).mT  # [3, 2, 3]
    for dtype, dynamic in itertools.product((torch.float32, torch.float64), (False, True)):
        torch._dynamo.reset()
        got = torch.compile(grids, backend="stepwell", dynamic=dynamic)(theta.to(dtype))
        torch.testing.assert_close(got, grids(theta.to(dtype)))
