"""Cross products against eager: one kernel, no gathers, no library call."""

from __future__ import annotations

import pytest
import torch

import stepwell

SHAPES = [((5, 3), (5, 3), -1), ((3, 7), (3, 1), 0), ((2, 3, 4), (1, 3, 4), 1), ((0, 3), (0, 3), -1), ((3,), (3,), 0)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.complex64]


def cross(a, b, dim):
    return torch.linalg.cross(a, b, dim=dim) * 2


@pytest.mark.spread
@pytest.mark.parametrize("first,second,dim", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_cross(first, second, dim, dtype, dynamic):
    torch._dynamo.reset()
    a, b = (torch.randn(first) * 5).to(dtype), (torch.randn(second) * 5).to(dtype)
    compiled = torch.compile(cross, backend="stepwell", dynamic=dynamic)
    rough = dtype in (torch.bfloat16, torch.float16)
    for x in (a, a.mT.contiguous().mT if a.dim() > 1 else a):
        want, got = cross(x, b, dim), compiled(x, b, dim)
        torch.testing.assert_close(got, want, rtol=2e-2 if rough else 1e-5, atol=0.2 if rough else 1e-5)
        assert got.stride() == want.stride()


def test_one_kernel_without_gathers():
    torch._dynamo.reset()
    stepwell.counters.clear()
    a, b = torch.randn(100, 3, requires_grad=True), torch.randn(100, 3)
    compiled = torch.compile(cross, backend="stepwell")
    got = torch.autograd.grad(compiled(a, b, -1).square().sum(), a)
    assert not stepwell.counters.get("fallback") and not stepwell.counters.get("extern")
    torch.testing.assert_close(got, torch.autograd.grad(cross(a, b, -1).square().sum(), a))
