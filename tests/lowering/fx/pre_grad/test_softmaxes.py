"""Softmaxes that a program writes as exponentials and their sum: one operator, with eager's values and gradients."""

from __future__ import annotations

import math

import pytest
import torch

from stepwell.lowering.fx.pre_grad.softmaxes import name_softmaxes


def methods(x):
    p = (x - x.amax(-1, keepdim=True)).exp()
    return p / p.sum(-1, keepdim=True)


def functions(x):
    p = torch.exp(torch.sub(x, torch.max(x, dim=1, keepdim=True)[0]))
    return torch.div(p, torch.sum(p, dim=1, keepdim=True))


def detached(x):
    p = torch.exp(x - x.max(dim=-1, keepdim=True).values.detach())
    return p / p.sum(dim=(-1,), keepdim=True)


def another_dimension(x):
    p = (x - x.amax(0, keepdim=True)).exp()
    return p / p.sum(-1, keepdim=True)


def not_kept(x):
    p = (x - x.amax(-1, keepdim=True)).exp()
    return p / p.sum(-1)


def needed(x):
    p = (x - x.amax(-1, keepdim=True)).exp()
    return p / p.sum(-1, keepdim=True) + p


def of_another(x):
    p = (x * 2 - x.amax(-1, keepdim=True)).exp()
    return p / p.sum(-1, keepdim=True)


def written(x):
    x = x * 2
    top = x.amax(-1, keepdim=True)
    x.add_(1)
    p = (x - top).exp()
    return p / p.sum(-1, keepdim=True)


def wide_sum(x):
    p = (x - x.amax(-1, keepdim=True)).exp()
    return p / p.sum(-1, keepdim=True, dtype=torch.float64)


def log_sum(x):
    return torch.exp(x - torch.logsumexp(x, -1, keepdim=True)) @ x.detach().nan_to_num(0, 1, -1)


def log_sum_of_heads(x):
    x = x.view(2, 3, 6)
    p = torch.exp(x - torch.logsumexp(x, -1, keepdim=True))
    return torch.einsum("ij,jd->id", torch.dropout(p.flatten(0, 1) * 0.5, 0.0, True), x.detach().nan_to_num(0, 1, -1).view(6, 6))


def log_sum_needed(x):
    """Weights that something else reads, too."""
    p = torch.exp(x - torch.logsumexp(x, -1, keepdim=True))
    return p @ x.detach(), p


def log_sum_of_columns(x):
    p = torch.exp(x - torch.logsumexp(x, -1, keepdim=True))
    return x.detach() @ p


def divided_later(x):
    p = (x - x.amax(-1, keepdim=True)).exp()
    return (p.to(x.dtype) @ x.detach()) / p.sum(-1, keepdim=True)


def einsum_later(x):
    p = (x - x.amax(-1, keepdim=True)).exp()
    return torch.einsum("ij,jd->id", torch.dropout(p, 0.0, True), x.detach()) / p.sum(-1, keepdim=True)


def other_rows(x):
    p = (x - x.amax(-1, keepdim=True)).exp()
    return (x.detach() @ p) / p.sum(-1, keepdim=True)


def other_columns(x):
    p = (x - x.amax(-1, keepdim=True)).exp()
    return torch.einsum("ij,jd->di", p, x.detach()) / p.sum(-1, keepdim=True)


def another_sum(x):
    return torch.exp(x * 2 - torch.logsumexp(x, -1, keepdim=True))


FOUND, OTHERS = [methods, functions, detached], [another_dimension, not_kept, needed, of_another, written, wide_sum]


def numbers():
    x = torch.randn(6, 6, generator=torch.Generator().manual_seed(1)) * 3
    x[1] = -math.inf
    x[2, 3] = math.nan
    x[3, :2] = math.inf
    return x


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("function", [*FOUND, *OTHERS])
def test_what_is_a_softmax(function, trains):
    torch._dynamo.reset()
    x, graphs = numbers(), []
    torch.compile(function, backend=lambda gm, _: graphs.append(gm) or gm.forward)(x.clone().requires_grad_(trains))
    (gm,) = graphs
    found = function in FOUND and trains
    assert name_softmaxes(gm) == found
    assert ("softmax" in gm.code) == found
    (got,) = gm(x.clone())
    torch.testing.assert_close(got, function(x.clone()), equal_nan=True)


LATER = [divided_later, einsum_later]
LOG_SUMS = [log_sum, log_sum_of_heads]


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("function", [*LOG_SUMS, log_sum_needed, log_sum_of_columns, another_sum])
def test_log_sums_that_weigh_rows(function, trains):
    """With gradients and without: infinite scores give what eager gives."""
    torch._dynamo.reset()
    x, graphs = numbers(), []
    torch.compile(function, backend=lambda gm, _: graphs.append(gm) or gm.forward)(x.clone().requires_grad_(trains))
    (gm,) = graphs
    assert name_softmaxes(gm) == (function in LOG_SUMS)
    got, want = gm(x.clone()), function(x.clone())
    torch.testing.assert_close(tuple(got), want if isinstance(want, tuple) else (want,), equal_nan=True)


@pytest.mark.parametrize("function", [*LATER, other_rows, other_columns])
def test_what_is_divided_later(function):
    torch._dynamo.reset()
    x, graphs = torch.linspace(-1, 2, 16).view(4, 4), []
    torch.compile(function, backend=lambda gm, _: graphs.append(gm) or gm.forward)(x.clone().requires_grad_())
    (gm,) = graphs
    assert name_softmaxes(gm) == (function in LATER)
    (got,) = gm(x.clone())
    torch.testing.assert_close(got, function(x.clone()))


@pytest.mark.parametrize("function", [*FOUND, *LATER, *LOG_SUMS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled(function, dtype):
    torch._dynamo.reset()
    x = (numbers().nan_to_num(0, 2, -2) * torch.ones(6, 6)).to(dtype).requires_grad_()
    got = torch.compile(function, backend="stepwell", options={"cache": "off"})(x)
    exact = x.detach().double().requires_grad_()
    want = function(exact)
    close = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(got.double(), want, rtol=close, atol=close)
    weights = torch.arange(36.0, dtype=torch.float64).view(6, 6) / 10
    (gradient,), (exact_gradient,) = (torch.autograd.grad((y * weights).sum(), z) for y, z in ((got, x), (want, exact)))
    torch.testing.assert_close(gradient.double(), exact_gradient, rtol=close, atol=10 * close)
