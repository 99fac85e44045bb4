"""Operands that are packed before the nest that reads them across their rows: values, over types, views, dynamic sizes and updates."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

PACK = "loop-to-mem,mem-pack-operands{always=true},mem-plan,loop-schedule,contract-select"
PACKED = {"pipeline": f"stepwell-cpu{{to=loop}},{PACK},stepwell-cpu{{from=cpu}}"}


def softmax(x):
    return torch.softmax(x.transpose(-1, -2), -1)


def norm(x):
    return F.layer_norm(x.transpose(-1, -2), (x.shape[-2],))


def sums_of_slices(x):
    return x[..., 1::2, ::3].transpose(-1, -2).sum(-1) + x[..., ::3].flip(-1).amax(-2)


def updated(x):
    y = x.transpose(-1, -2)
    s = torch.softmax(y, -1)
    x.mul_(2)
    return s + x.transpose(-1, -2).cumsum(-1)


@pytest.mark.spread
@pytest.mark.parametrize("function", [softmax, norm, sums_of_slices, updated])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("dynamic", [False, True])
def test_values(function, dtype, dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="stepwell", options=PACKED, dynamic=dynamic)
    for seed, shape in enumerate([(40, 37), (3, 17, 33), (2, 1, 5), (2, 0, 4)]):
        if function is sums_of_slices and 0 in shape:
            continue  # the maximum of nothing is an error
        torch.manual_seed(seed)
        x = torch.randn(shape, dtype=dtype)
        given, expected = x.clone(), x.clone()
        got, want = compiled(given), function(expected)
        tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
        assert got.stride() == want.stride()
        torch.testing.assert_close(given, expected)
