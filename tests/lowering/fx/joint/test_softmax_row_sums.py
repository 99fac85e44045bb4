"""Gradients of attention's softmax by sums over rows of its result."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from stepwell import counters
from stepwell.lowering.fx.joint.repeated_scores import HALVES, KERNELS, ScoreKernels
from stepwell.lowering.fx.joint.softmax_row_sums import shorten_row_sums

aten = torch.ops.aten


def every(_):
    """All scores are computed again."""
    return ScoreKernels(HALVES, 0)


def products(q, k):
    return q @ k.transpose(-1, -2)


def causal(q, k, v):
    hidden = torch.arange(k.shape[-2]) > torch.arange(q.shape[-2])[:, None]
    return torch.softmax((products(q, k) * 0.3).masked_fill(hidden, -math.inf), -1) @ v


def in_f32(q, k, v):
    return torch.softmax(torch.tanh(products(q, k).float() / 5) * 5, -1).to(v.dtype) @ v


def dropped(q, k, v):
    return F.dropout(torch.softmax(products(q, k).float(), -1).to(v.dtype), 0.3) @ v


def two_products(q, k, v):
    weights = torch.softmax(products(q, k), -1)
    return weights @ v + weights @ (v * 2).roll(1, -2)


def weights_too(q, k, v):
    weights = torch.softmax(products(q, k), -1)
    return weights @ v + weights.sum(-1, keepdim=True).tanh()


def over_columns(q, k, v):
    return torch.softmax(products(q, k), -2) @ v


def joint(function, args, used):
    """The graph of gradients, and of the result where `used`."""

    def step(*given):
        result = function(*given)
        gradients = torch.autograd.grad(result, given, torch.ones_like(result).cumsum(-1) * 0.1)
        return (*gradients, result) if used else gradients

    gm = make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)(*args)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm


def inputs(*shape, dtype=torch.float32):
    torch.manual_seed(2)
    *batch, rows, terms, depth, columns = shape
    made = [torch.randn(*batch, n, w) for n, w in ((rows, depth), (terms, depth), (terms, columns))]
    return [x.to(dtype).requires_grad_() for x in made]


@pytest.mark.spread
@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize("shape", [(2, 3, 9, 17, 4, 5), (9, 17, 4, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", [causal, in_f32, dropped])
def test_the_same_gradients(function, dtype, shape, used):
    """Where nothing else needs the result, too."""
    if function is causal:
        shape = (*shape[:-3], shape[-4], *shape[-2:])
    args = inputs(*shape, dtype=dtype)
    gm = joint(function, args, used)
    reference = copy.deepcopy(gm)
    assert shorten_row_sums(gm, every) == 1
    gm.graph.lint()
    gm.recompile()
    assert not gm.graph.find_nodes(op="call_function", target=aten._softmax_backward_data.default)
    torch.manual_seed(3)
    want = reference(*args)
    torch.manual_seed(3)
    close = 1e-5 if dtype == torch.float32 else 3e-2
    for a, b in zip(gm(*args), want, strict=True):
        assert a.dtype == b.dtype and a.stride() == b.stride()
        torch.testing.assert_close(a, b, rtol=close, atol=close)


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_gradients_are_as_near_as_eagers(scale):
    """Where the first terms of a row have most of the weight, roundings of the gradient of the weights have to cancel."""
    torch.manual_seed(0)
    args = [(torch.randn(4, 256, 32) * scale).bfloat16().requires_grad_() for _ in range(3)]
    gm = joint(causal, args, False)
    eager = gm(*args)
    assert shorten_row_sums(gm, every) == 1
    gm.recompile()
    exact = joint(causal, [x.detach().double().requires_grad_() for x in args], False)(*(x.double() for x in args))
    for a, b, want in zip(gm(*args), eager, exact, strict=True):
        assert (a - want).norm() <= 1.2 * (b - want).norm()


OTHERS = {
    "two products": (two_products, (2, 9, 17, 4, 5)),
    "something else, too": (weights_too, (2, 9, 17, 4, 5)),
    "a softmax of columns": (over_columns, (2, 9, 17, 4, 5)),
    "rows longer than those of the weights": (in_f32, (2, 9, 3, 4, 5)),
    "not weighed": (lambda q, k, v: torch.softmax(products(q, k), -1) * v.sum(), (2, 9, 17, 4, 5)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_stay_as_they_are(name):
    function, shape = OTHERS[name]
    assert shorten_row_sums(joint(function, inputs(*shape), True), every) == 0


def test_compiled(monkeypatch):
    """In a graph that is parted, and as one that has forward and backward."""
    monkeypatch.setitem(KERNELS, "nd-weigh-rows", every(None))
    args = inputs(2, 3, 20, 33, 8, 16)
    counters.clear()
    got = torch.compile(in_f32, backend="stepwell", options={"cache": "off"})(*args)
    gradients = torch.autograd.grad(got.square().sum(), args)
    assert counters["short_row_sums"] == 1
    want = in_f32(*args)
    for a, b in zip((got, *gradients), (want, *torch.autograd.grad(want.square().sum(), args)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    torch._dynamo.reset()
    torch.compile(in_f32, backend="stepwell", options={"cache": "off", "numerics": "eager"})(*args).sum().backward()
    assert counters["short_row_sums"] == 1
