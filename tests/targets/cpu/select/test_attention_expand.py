"""Attention of one or two queries as products and a softmax: against float64, over masks, types and shared heads."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import stepwell

ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}


def attend(q, k, v, mask=None, scale=None):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1])


def expanded(q, k, v, mask=None, scale=None) -> int:
    """Compare with float64; how many calls were spelled out."""
    torch._dynamo.reset()
    stepwell.reset_counters()
    with torch.no_grad():
        got = torch.compile(attend, backend="stepwell")(q, k, v, mask, scale)
        wide = mask if mask is None or mask.dtype == torch.bool else mask.double()
        want = attend(q.double(), k.double(), v.double(), wide, scale)
    torch.testing.assert_close(got.double(), want, rtol=ROUNDING[q.dtype], atol=ROUNDING[q.dtype])
    assert got.dtype == q.dtype
    return stepwell.counters["passes"]["attention-expand"].get("num-expanded", 0)


def operands(dtype, queries, keys=300, heads=6, shared=6):
    sizes = ((heads, queries), (shared, keys), (shared, keys))
    return [torch.randn(2, keys_, 2 * rows, 32)[:, :, ::2].to(dtype) for keys_, rows in sizes]


@pytest.mark.parametrize("dtype", ROUNDING)
def test_few_queries(dtype):
    torch.manual_seed(0)
    for queries in (1, 2):
        hidden = torch.rand(2, 1, queries, 300) > 0.4
        hidden[0] = False  # a row that sees nothing
        for mask in (None, hidden, torch.randn(queries, 300).to(dtype)):
            assert expanded(*operands(dtype, queries), mask, 0.3 if mask is None else None) == 1
    assert expanded(*operands(dtype, 3)) == 0


@pytest.mark.parametrize("dtype", ROUNDING)
def test_heads_that_share_keys(dtype):
    for mask in (None, torch.rand(2, 1, 1, 300) > 0.4):
        assert expanded(*operands(dtype, 1, shared=2), mask) == 1
    expanded(*operands(dtype, 2, shared=2))


def test_keys_of_any_number():
    def fn(q, both):
        return attend(q, both[0], both[1])

    torch._dynamo.reset()
    stepwell.reset_counters()
    run = torch.compile(fn, backend="stepwell")
    for keys in (300, 7, 20):
        q, both = torch.randn(2, 4, 1, 32).bfloat16(), torch.randn(2, 2, 4, keys, 32).bfloat16()
        torch._dynamo.mark_dynamic(both, 3)
        want = fn(q.double(), both.double())
        torch.testing.assert_close(run(q, both).double(), want, rtol=8e-3, atol=8e-3)
    assert stepwell.counters["graphs"] == stepwell.counters["passes"]["attention-expand"]["num-expanded"] == 1


def test_a_causal_mask_and_gradients_stay_with_the_call():
    q, k, v = operands(torch.float32, 2)
    torch._dynamo.reset()

    def causal(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    torch.testing.assert_close(torch.compile(causal, backend="stepwell")(q, k, v), causal(q, k, v))
    mine, theirs = q.clone().requires_grad_(), q.clone().requires_grad_()
    torch.compile(attend, backend="stepwell")(mine, k, v).sum().backward()
    attend(theirs, k, v).sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad)
