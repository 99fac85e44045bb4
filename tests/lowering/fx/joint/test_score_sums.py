"""Gradients of slopes, exact though the result that backward starts from is rounded."""

from __future__ import annotations

import math

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from stepwell.lowering.fx.joint.repeated_scores import HALVES, ScoreKernels
from stepwell.lowering.fx.joint.softmax_row_sums import shorten_row_sums

ROWS, HEADS = 97, 8


def attend(scores, v):
    return torch.softmax(scores, -1).to(v.dtype) @ v


def distances():
    return torch.arange(ROWS) - torch.arange(ROWS)[:, None]


def of_heads(q, k, v, slope):
    away = distances()
    return attend((q @ k.mT * 0.25 + slope[0, :, None, None] * away).masked_fill(away > 0, -math.inf), v)


def by_key(q, k, v, slope):
    return attend((q @ k.mT).float() * 0.25 - slope[:1].view(1, HEADS, 1, 1) * torch.arange(ROWS), v)


def of_batches_and_heads(q, k, v, slope):
    away = distances()
    return attend(torch.where(away > 0, -math.inf, q @ k.mT * 0.25 + slope[:, :, None, None] * away.abs() / 2), v)


def gradients(function, args, seed):
    return torch.autograd.grad(function(*args), args, seed.to(args[0].dtype))


@pytest.mark.parametrize("function", [of_heads, by_key, of_batches_and_heads])
def test_slopes_are_as_exact_as_eagers(function):
    rng = torch.Generator().manual_seed(5)
    rows = [torch.randn(2, HEADS, ROWS, 16, generator=rng).bfloat16().requires_grad_() for _ in range(3)]
    args = [*rows, (torch.randn(2, HEADS, generator=rng) * 0.1).requires_grad_()]
    seed = torch.randn(2, HEADS, ROWS, 16, generator=rng).bfloat16()
    want = gradients(function, [x.detach().double().requires_grad_() for x in args], seed)[3]
    gm = make_fx(lambda *given: gradients(function, given, seed), tracing_mode="fake", _allow_non_fake_inputs=True)(*args)
    assert shorten_row_sums(gm, lambda _: ScoreKernels(HALVES, 0)) == 1
    gm.recompile()
    eager, got = ((found[3] - want).norm() for found in (gradients(function, args, seed), gm(*args)))
    assert got <= 1.5 * eager
