"""Functions of one number a row, in nests of their own: values, over types, dynamic sizes and updates in place."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

SPLIT = "loop-to-mem,mem-split-scalars{always=true},mem-plan,loop-schedule,contract-select"
OPTIONS = {"pipeline": f"stepwell-cpu{{to=loop}},{SPLIT},stepwell-cpu{{from=cpu}}"}


def state_step(h, x):
    d = F.softplus(x)
    h = h * torch.exp(d[..., None] * -0.5) + (d * x)[..., None]
    return h.sum(-1) + x, h


def gated_sum(h, x):
    s = (h * torch.tanh(x)[..., None]).sum(-1)
    return torch.sigmoid(s) * x, s.relu().log1p()


def in_place(h, x):
    h.mul_(torch.sigmoid(x)[..., None])
    x.copy_(torch.tanh(h.sum(-1)) + x)
    return h.amax(-1).exp()


@pytest.mark.spread
@pytest.mark.parametrize("function", [state_step, gated_sum, in_place])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("dynamic", [False, True])
def test_values(function, dtype, dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="stepwell", options=OPTIONS, dynamic=dynamic)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
    for seed, shape in enumerate([(40, 16), (3, 17, 8), (2, 1, 5), (0, 4)]):
        torch.manual_seed(seed)
        h, x = torch.randn(shape, dtype=dtype), torch.randn(shape[:-1], dtype=dtype)
        mine, theirs = [h.clone(), x.clone()], [h.clone(), x.clone()]
        torch.testing.assert_close(compiled(*mine), function(*theirs), rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)
