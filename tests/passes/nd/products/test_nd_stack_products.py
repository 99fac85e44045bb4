"""Sums of products as one product: values against eager, and what does not become one."""

from __future__ import annotations

import pytest
import torch

import stepwell


def weight_gradient(pairs):
    return sum(a.t() @ b for a, b in pairs[1:]) + pairs[0][0].t() @ pairs[0][1]


def batched(pairs):
    return sum(a.unsqueeze(0).transpose(1, 2) @ b.unsqueeze(0) for a, b in pairs)


def two_layouts(pairs):
    return sum(a.t() @ b for a, b in pairs) + sum(b.t().contiguous().t().t() @ a for a, b in pairs).t()


def computed(pairs):
    return sum((a.sin() * 2).t() @ (b + 1) for a, b in pairs)


def compiled(function, pairs, **options):
    torch._dynamo.reset()
    stepwell.reset_counters()
    return torch.compile(function, backend="stepwell", **options)(pairs)


@pytest.mark.parametrize(
    "function, rows, dtype, dynamic",
    [
        (weight_gradient, (4, 4, 4), torch.float32, False),
        (weight_gradient, (1, 7, 3), torch.float32, True),
        (batched, (0, 2, 2), torch.float64, False),
        (two_layouts, (1, 7, 3), torch.float32, False),
        (computed, (4, 4, 4), torch.bfloat16, True),
    ],
)
def test_values(function, rows, dtype, dynamic):
    torch.manual_seed(3)
    pairs = [(torch.randn(k, 48, dtype=dtype), torch.randn(k, 33, dtype=dtype)) for k in rows]
    want = function([(a.double(), b.double()) for a, b in pairs]).to(dtype)
    rtol, atol = (2e-2, 1e-1) if dtype == torch.bfloat16 else (1e-5, 1e-4)
    torch.testing.assert_close(compiled(function, pairs, dynamic=dynamic), want, rtol=rtol, atol=atol)


def test_one_product_moves_less():
    pairs = [(torch.randn(4, 256), torch.randn(4, 64)) for _ in range(8)]
    compiled(weight_gradient, pairs)
    stacked = stepwell.counters["bytes_written"]
    compiled(weight_gradient, pairs, options={"numerics": "eager"})
    assert stacked * 3 < stepwell.counters["bytes_written"]


def test_a_recurrent_weight_has_one_product():
    cell = torch.nn.RNNCell(24, 24)

    def run(x):
        h = x[0]
        for step in x:
            h = cell(step, h)
        return h.square().sum()

    x = torch.randn(6, 3, 24)
    run(x).backward()
    want = [p.grad.clone() for p in cell.parameters()]
    cell.zero_grad()
    torch._dynamo.reset()
    torch.compile(run, backend="stepwell")(x).backward()
    for p, grad in zip(cell.parameters(), want, strict=True):
        torch.testing.assert_close(p.grad, grad, rtol=1e-4, atol=1e-5)
