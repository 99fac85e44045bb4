"""Decompositions beside torch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F


def attention(q, k, v, mask=None, causal=False):
    return F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask, is_causal=causal)


@pytest.mark.parametrize("kind", ["plain", "mask", "causal"])
def test_attention_of_doubles_trains(kind):
    """In torch 2.11 a fake kernel says that what is saved for backward is float32."""
    rng = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 5, 3, 8, dtype=torch.float64, generator=rng).requires_grad_() for _ in range(3))
    mask = torch.randn(5, 5, dtype=torch.float64, generator=rng) if kind == "mask" else None
    torch._dynamo.reset()
    got, want = (f(q, k, v, mask, kind == "causal") for f in (torch.compile(attention, backend="stepwell"), attention))
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(*(torch.autograd.grad(one.sin().sum(), (q, k, v)) for one in (got, want)))
