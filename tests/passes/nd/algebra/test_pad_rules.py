"""Gradients of slices: one nest that stores each element once, with the values (and signs of zeros) of eager."""

from __future__ import annotations

import pytest
import torch

import stepwell


def gradient(function, x):
    x = x.clone().requires_grad_()
    out = function(x)
    (out * torch.arange(out.numel(), dtype=x.dtype).view(out.shape)).sum().backward()
    return x.grad


def three(x):
    return x[0].sin() * x[1].exp() + x[2]


def last_first(x):
    return x[2] * x[0].cos() + x[1]


def first_row(x):
    return x[:, 0].tanh()


def parts_with_gaps(x):
    return x[:, 2:5] * x[:, 6:7].sum(1, keepdim=True)


def every_second(x):
    return x[:, ::2] * 3


@pytest.mark.spread
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [three, last_first, first_row, parts_with_gaps, every_second])
@pytest.mark.parametrize("shape", [(3, 8, 17), (3, 8, 1), (3, 8, 0)])
def test_gradients_of_slices(function, shape, dynamic):
    torch._dynamo.reset()
    x = torch.randn(shape, dtype=torch.float64)
    got = gradient(torch.compile(function, backend="stepwell", dynamic=dynamic), x)
    torch.testing.assert_close(got, gradient(function, x))


def test_a_split_projection_has_one_nest_that_stores_each_element_once():
    def backward(a, b, c):
        parts = [torch.ops.aten.select_backward(g, [3, 64, 32], 0, k) for k, g in enumerate((a, b, c))]
        return parts[2] + parts[1] + parts[0]

    torch._dynamo.reset()
    stepwell.reset_counters()
    a, b, c = (torch.randn(64, 32) for _ in range(3))
    a[0], b[1] = -0.0, 0.0
    got, want = torch.compile(backward, backend="stepwell")(a, b, c), backward(a, b, c)
    assert torch.equal(got, want)
    assert torch.equal(got.signbit(), want.signbit())
    assert stepwell.counters["launches"] == 1
    assert stepwell.counters["bytes_written"] == 3 * 64 * 32 * 4
