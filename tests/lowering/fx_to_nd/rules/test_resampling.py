"""Nearest-neighbour resampling and its gradient, for whole and for other factors."""

import pytest
import torch
from torch.nn import functional as F

CASES = {
    "double": ((2, 3, 4, 5), {"scale_factor": 2}),
    "by sizes": ((2, 3, 4, 5), {"size": (7, 12)}),
    "by a factor": ((2, 3, 4, 5), {"scale_factor": (2.6, 1.3)}),
    "down": ((2, 3, 9, 11), {"size": (4, 3)}),
    "mixed": ((2, 3, 9, 4), {"size": (4, 8)}),
    "to one": ((2, 3, 9, 4), {"size": (1, 1)}),
    "from one": ((2, 1, 1, 1), {"size": (5, 3)}),
    "line": ((2, 3, 5), {"size": 13}),
    "volume": ((1, 2, 3, 4, 2), {"size": (5, 6, 7)}),
    "many": ((1, 1, 13, 7), {"size": (100, 99)}),
}


@pytest.mark.spread
@pytest.mark.parametrize("mode", ("nearest", "nearest-exact"))
@pytest.mark.parametrize("name", CASES)
def test_nearest(check, name, mode):
    shape, options = CASES[name]

    def program(x):
        y, pull = torch.func.vjp(lambda x: F.interpolate(x, mode=mode, **options), x)
        return y, *pull(torch.arange(y.numel()).reshape(y.shape).sin().to(y.dtype))

    found = check(program, torch.randn(shape))
    assert not found.counts.extern
