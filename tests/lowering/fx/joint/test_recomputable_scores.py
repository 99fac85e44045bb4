"""AOT-03: scores of attention that backward computes again from queries and keys."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from stepwell.lowering.fx.joint.repeated_scores import HALVES, KERNELS, ScoreKernels

ROWS, TERMS = 40, 72


def products(q, k):
    return q @ k.transpose(-1, -2)


def softcap(q, k, v):
    return torch.softmax(torch.tanh(products(q, k).float() / 5) * 5, -1).to(v.dtype) @ v


def causal(q, k, v):
    hidden = torch.arange(TERMS) > torch.arange(ROWS)[:, None]
    return torch.softmax((products(q, k) * 0.3).masked_fill(hidden, -math.inf), -1) @ v


def alibi(q, k, v):
    away = torch.arange(TERMS) - torch.arange(ROWS)[:, None]
    slopes = torch.exp2(-torch.arange(1, q.shape[1] + 1) / 2)[:, None, None]
    return torch.softmax(products(q, k).float() * 0.125 + away * slopes, -1).to(v.dtype) @ v


def by_hand(q, k, v):
    scores = products(q, k).float() * 0.125
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return (powers / powers.sum(-1, keepdim=True)).to(v.dtype) @ v


def einsum(q, k, v):
    weights = torch.softmax(torch.einsum("bhid,bhjd->bhij", q, k) * 0.125, -1)
    return torch.einsum("bhij,bhjd->bihd", weights, v).flatten(2)


def sigmoid(q, k, v):
    return torch.sigmoid(products(q, k).float() - 3).to(v.dtype) @ v


def linear(q, k, v):
    seen = torch.arange(ROWS)[:, None] >= torch.arange(TERMS)
    return (products(q, k) * 0.125 * seen).to(v.dtype) @ v


def table(q, k, v):
    """Places of a table are computed again, too."""
    places = torch.arange(ROWS)[:, None] - torch.arange(TERMS) + TERMS
    slopes = q.float().mean((0, 2)).T.repeat(8, 1)
    return torch.softmax(products(q, k).float() * 0.125 + slopes[places].permute(2, 0, 1), -1).to(v.dtype) @ v


def weights_too(q, k, v):
    weights = torch.softmax(products(q, k).float(), -1)
    return weights.to(v.dtype) @ v, weights


def dropped(q, k, v):
    return F.dropout(torch.softmax(products(q, k).float(), -1).to(v.dtype), 0.3) @ v


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setitem(KERNELS, "nd-weigh-rows", ScoreKernels(HALVES, ROWS * TERMS))


@pytest.fixture
def kept(saved_tensors):
    """Tensors with as many elements as there are scores that forward keeps for backward, a list for each graph."""
    return saved_tensors(lambda made, given: [k for k, t in {**given, **made}.items() if t.numel() == 6 * ROWS * TERMS])


def inputs(dtype=torch.bfloat16):
    rng = torch.Generator().manual_seed(1)
    return [torch.randn(2, 3, n, 16, generator=rng).to(dtype).requires_grad_() for n in (ROWS, TERMS, TERMS)]


def step(function, args, compiled):
    if compiled:
        function = torch.compile(function, backend="stepwell", options={"cache": "off"})
    found = function(*args)
    found = found if isinstance(found, tuple) else (found,)
    return *found, *torch.autograd.grad(sum(x.float().square().sum() for x in found), args)


@pytest.mark.parametrize("function", [softcap, causal, alibi, by_hand, einsum, sigmoid, linear, table])
def test_forward_keeps_no_scores(function, kept):
    args = inputs()
    got = step(function, args, True)
    assert kept == [[]]
    exact = step(function, [x.detach().double().requires_grad_() for x in args], False)
    for a, eager, want in zip(got, step(function, args, False), exact, strict=True):
        assert a.dtype == eager.dtype and a.stride() == eager.stride()
        assert (a - want).norm() <= 1.2 * (eager - want).norm() + 1e-3 * want.norm()


def test_scores_that_others_need_are_kept(kept):
    step(weights_too, inputs(), True)
    assert kept != [[]]


def test_dropout_is_drawn_again(saved_tensors):
    """What is kept of it are two numbers for each place, of one tensor; masks of eager are tensors."""
    few = saved_tensors(lambda made, given: sorted(t.numel() for t in {**given, **made}.values() if t.dtype in (torch.int64, torch.bool)))

    def twice(q, k, v):
        return dropped(dropped(q, k, k), k, v)

    step(twice, inputs(), True)
    assert few == [[4]]


def test_dropout_of_eager_keeps_its_mask(kept):
    torch.compile(dropped, backend="stepwell", options={"cache": "off", "fallback_random": True})(*inputs())
    assert kept != [[]]


@pytest.mark.parametrize("few", [True, False])
def test_few_scores_or_wide_ones_are_kept(few, kept, monkeypatch):
    if few:
        monkeypatch.setitem(KERNELS, "nd-weigh-rows", ScoreKernels(HALVES, ROWS * TERMS + 1))
    step(softcap, inputs(torch.bfloat16 if few else torch.float32), True)
    assert kept != [[]]


def test_size_of_scores_decides(kept, monkeypatch):
    """Not that of gradients of values, which the last cache may hold: an einsum's products read weights themselves."""
    monkeypatch.setitem(KERNELS, "nd-weigh-rows", ScoreKernels(HALVES, ROWS * TERMS, 6 * TERMS * 16))

    def flat(q, k, v):
        scores = torch.bmm(*(x.flatten(0, 1) for x in (q, k.mT)))
        return torch.einsum("bij,bjd->bid", torch.softmax(scores * 0.25, -1), v.flatten(0, 1))

    step(flat, inputs(), True)
    assert kept == [[]]


def test_what_products_take_is_kept_as_it_is_given(saved_tensors):
    """Not as views of it with other batches, which would hide that products have the same loops."""
    ranks = saved_tensors(lambda made, given: sorted(t.dim() for t in {**given, **made}.values() if t.numel() >= 6 * ROWS * 16))
    step(alibi, inputs(), True)
    assert ranks == [[3, 4, 4, 4]]  # the result is a product's
