"""Softmaxes with more in their sums than weighs rows: the scores of such attention are in no memory, forward and backward."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import stepwell
from stepwell.lowering.fx.joint import repeated_scores
from stepwell.lowering.fx.joint.composed_permutes import compose_permutes
from stepwell.lowering.fx.joint.repeated_scores import ScoreKernels
from stepwell.lowering.fx.pre_grad.softmax_sinks import part_sinks
from stepwell.lowering.fx.pre_grad.softmaxes import name_softmaxes


def scores(q, k):
    rows, keys = q.shape[-2], k.shape[-2]
    seen = (torch.arange(rows)[:, None] >= torch.arange(keys) - 3) & (torch.arange(rows) != 2)[:, None]
    return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~seen, -math.inf)


def column(c, x):
    return c.reshape(1, -1, 1, 1).expand(x.shape[0], -1, x.shape[2], -1)


def concatenated(q, k, v, c):
    """As transformers has GPT-OSS."""
    x = torch.cat([x := scores(q, k), column(c, x)], dim=-1)
    x = x - x.max(dim=-1, keepdim=True).values
    return F.dropout(F.softmax(x, dim=-1, dtype=x.dtype)[..., :-1], 0.0) @ v


def columns_in_front(q, k, v, c):
    x = scores(q, k)
    p = torch.softmax(torch.cat((column(c, x), column(c * 2, x), x), -1).float(), dim=-1).to(q.dtype)[:, :, :, 2:]
    return torch.einsum("bhij,bhjd->bihd", p, v)


def by_hand(q, k, v, c):
    x, c = scores(q, k), c[:, None, None]
    top = torch.maximum(x.amax(-1, keepdim=True), c)
    e = torch.exp(x - top)
    return (e / (torch.sum(e, -1, True) + torch.exp(c - top))) @ v


def plus_one(q, k, v, c):
    x = scores(q, k) + c[:, None, None]
    top = x.max(-1, keepdim=True)[0].clamp(min=0).detach()
    e = (x - top).exp()
    return (e / ((-top).exp() + e.sum(-1, keepdim=True))) @ v


def log_sums(q, k, v, c):
    x = scores(q, k)
    p = (x - torch.logaddexp(x.logsumexp(-1, keepdim=True), c[:, None, None])).exp()
    return torch.einsum("...ij,...jd->...id", p, v)


def log_sum_of_all(q, k, v, c):
    x = scores(q, k)
    return (x - torch.cat([x, column(c, x)], -1).logsumexp(-1, keepdim=True)).exp().flatten(0, 1) @ v.flatten(0, 1)


def gated(q, k, v, c):
    return (torch.softmax(scores(q, k).clamp(min=-9), -1) * c.sigmoid()[:, None, None]) @ v


def weights_needed(q, k, v, c):
    x = scores(q, k)
    p = torch.softmax(torch.cat([x, column(c, x)], -1), -1)[..., :-1]
    return p @ v, p


def another_part(q, k, v, c):
    x = scores(q, k)
    return torch.softmax(torch.cat([x, column(c, x)], -1), -1)[..., 1:] @ v


def another_shift(q, k, v, c):
    x, c = scores(q, k), c[:, None, None]
    e = torch.exp(x - torch.relu(x.amax(-1, keepdim=True)))
    return (e / (e.sum(-1, keepdim=True) + torch.exp(c))) @ v


def written(q, k, v, c):
    x = scores(q, k)
    z = torch.logaddexp(x.logsumexp(-1, keepdim=True), c[:, None, None])
    x.mul_(2)
    return (x - z).exp() @ v


SINKS = [concatenated, columns_in_front, by_hand, plus_one, log_sums, log_sum_of_all, gated]


def given(rows=23, keys=31, dtype=torch.float32):
    numbers = torch.Generator().manual_seed(7)
    sizes = (2, 3, rows, 8), (2, 3, keys, 8), (2, 3, keys, 8), (3,)
    return [torch.randn(size, generator=numbers).to(dtype).requires_grad_() for size in sizes]


@pytest.mark.parametrize("function", [*SINKS, weights_needed, another_part, another_shift, written])
def test_which_are_parted(function):
    torch._dynamo.reset()
    args, graphs = given(), []
    with torch.no_grad():
        torch.compile(function, backend=lambda gm, _: graphs.append(gm) or gm.forward, fullgraph=True)(*args)
        (gm,) = graphs
        name_softmaxes(gm)
        assert part_sinks(gm) == (function in SINKS)


LONG = [pytest.param(one, marks=pytest.mark.long) for one in SINKS[2:]]


@pytest.mark.parametrize("function", [*SINKS[:2], *LONG])
def test_gradients_and_memory(function, monkeypatch):
    """Rows that see nothing weigh nothing, as in eager. What is written is less than one tensor of scores."""
    torch._dynamo.reset()
    stepwell.reset_counters()
    monkeypatch.setitem(repeated_scores.KERNELS, "nd-weigh-rows", ScoreKernels((torch.float32,), 0))
    args = given(70, 150)
    got = torch.compile(function, backend="stepwell", fullgraph=True, options={"cache": "off"})(*args)
    exact = [x.detach().double().requires_grad_() for x in args]
    want = function(*exact)
    weights = torch.randn(want.shape, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    found = torch.autograd.grad((got * weights).sum(), args)
    right = torch.autograd.grad((want * weights).sum(), exact)
    torch.testing.assert_close((got, *found), (want, *right), rtol=1e-4, atol=1e-4, check_dtype=False)
    assert stepwell.counters["fallback"] == stepwell.counters["extern"] == 0
    assert stepwell.counters["bytes_written"] < 2 * 3 * 70 * 150 * 4


@pytest.mark.long
@pytest.mark.parametrize("function", [concatenated, log_sums, columns_in_front])
def test_any_sizes(function):
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="stepwell", dynamic=True, options={"cache": "off"})
    for sizes in ((5, 7), (1, 1), (4, 0), (0, 3)):
        args = [x.detach() for x in given(*sizes, torch.bfloat16)]
        torch.testing.assert_close(compiled(*args), function(*args), rtol=3e-2, atol=3e-2)


def test_permutations_of_permutations():
    def fn(x):
        return torch.ops.aten.permute(torch.ops.aten.permute(torch.ops.aten.permute(x, [0, 2, 1, 3]), [3, -2, 0, 1]), [1, 0, 3, 2])

    gm = torch.fx.symbolic_trace(fn)
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.permute):
        node.target = torch.ops.aten.permute.default
    assert compose_permutes(gm) == 2
    assert len(gm.graph.find_nodes(op="call_function", target=torch.ops.aten.permute.default)) == 1
    x = torch.arange(120).view(2, 3, 4, 5)
    assert torch.equal(gm(x), fn(x)) and gm(x).stride() == fn(x).stride()
