"""Weights that are results, too, the gradient of a bias of their size: they are computed once more, and no other scores are in memory."""

from __future__ import annotations

import pytest
import torch

from stepwell.dialects import loop
from stepwell.dialects.nd.types import tensor_type
from stepwell.passes.nd.products import product_choice
from stepwell.tools.interpret.loop import run_loop

from ...gpu.test_gpu_carry_softmax import lowered, numbers


def gradients(q, k, v, do, lse, shares):
    """Of queries, keys, values and a bias."""
    weights = torch.exp((q @ k.mT).float() * 0.25 - lse)
    inner = (weights * ((do @ v.mT).float() - shares)).to(q.dtype)
    return inner @ k, inner.mT @ q, weights.to(q.dtype).mT @ do, inner


def large(module, least):
    return [r for op in module.walk() if isinstance(op, loop.NestOp) for r in op.results if int(tensor_type(r).numel) >= least]


@pytest.fixture
def cheap(monkeypatch):
    monkeypatch.setattr(product_choice, "weighed_ns", lambda work, gpu: 0.0)


def test_values(cheap):
    args = [*(numbers(1, 2, n, 64) for n in (260, 200, 200, 260)), torch.full((1, 2, 260, 1), 4.0), torch.full((1, 2, 260, 1), 0.5)]
    module, remarks = lowered(gradients, *args, products="nd-library-products{tiny=0}", stages=("nd", "loop"))
    assert "applied" in [r.kind for r in remarks], [r.message for r in remarks]
    assert len(large(module, 2 * 260 * 200)) == 1
    module, _ = lowered(gradients, *args, products="nd-library-products{tiny=0}")
    for got, want in zip(run_loop(module, args, [], []), gradients(*args), strict=True):
        assert got.shape == want.shape and got.dtype == want.dtype
        torch.testing.assert_close(got.float(), want.float(), rtol=2e-2, atol=2e-2 * want.abs().max().item())


def test_price():
    shapes = [(2, 16, 1024, 64)] * 4 + [(2, 16, 1024, 1)] * 2
    args = [torch.empty(s, dtype=torch.bfloat16 if s[-1] > 1 else torch.float32, device="meta") for s in shapes]
    module, _ = lowered(gradients, *args, stages=("nd", "loop"))
    assert len(large(module, 2 * 16 * 1024 * 1024)) == 1
