"""Weights that are added up over rows, or at few places of them: gradients of slopes and of tables of buckets. No score is stored."""

from __future__ import annotations

import math

import pytest
import torch

from stepwell.dialects import loop

from ..test_gpu_attention_spellings import as_on_a_gpu, graphs_of, interpreted, lowered, step, stored  # noqa: F401

BUCKETS = 7
HEADS, WIDTH = 2, 16


def distances(n):
    return torch.arange(n) - torch.arange(n)[:, None]


def slopes(q, k, v, table):
    away = distances(q.shape[2])
    scores = q @ k.mT * WIDTH**-0.5 + table[0, :, None, None] * away
    return torch.softmax(scores.masked_fill(away > 0, -math.inf), -1).to(v.dtype) @ v


def buckets(q, k, v, table):
    places = distances(q.shape[2]).abs().clamp(max=BUCKETS - 1)
    bias = torch.nn.functional.embedding(places, table).permute(2, 0, 1)
    return torch.softmax(q @ k.mT * WIDTH**-0.5 + bias, -1).to(v.dtype) @ v


def inputs(batch, n):
    rng = torch.Generator().manual_seed(batch * n)
    rows = [torch.randn(batch, HEADS, n, WIDTH, generator=rng).to(torch.bfloat16).requires_grad_() for _ in range(3)]
    return [*rows, (torch.randn(BUCKETS, HEADS, generator=rng) * 0.1).requires_grad_()]


SIZES = [pytest.param(*one, marks=pytest.mark.long) for one in ((1, 20), (2, 37), (1, 1))]


@pytest.mark.parametrize("function", [slopes, buckets])
@pytest.mark.parametrize(("batch", "n"), SIZES)
def test_numbers(function, batch, n, interpreted):  # noqa: F811
    args = inputs(batch, n)
    torch._dynamo.reset()
    got = step(torch.compile(function, backend="stepwell", options={"cache": "off"}), args)
    exact = step(function, [x.detach().double().requires_grad_() for x in args])
    for a, b, want in zip(got, step(function, args), exact, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        assert (a - want).norm() <= 1.2 * (b - want).norm() + 4e-3 * want.norm()


@pytest.mark.parametrize("function", [slopes, buckets])
@pytest.mark.parametrize("batch", [1, 2])
def test_no_scores_are_in_memory(function, batch, as_on_a_gpu):  # noqa: F811
    n = 1024
    for gm, args in graphs_of(function, inputs(batch, n)):
        assert max(stored(gm, args)) < n * n / 4


REGISTERS = [(8, 64, True), *(pytest.param(*one, marks=pytest.mark.long) for one in ((12, 64, False), (7, 128, True), (8, 128, False)))]


@pytest.mark.parametrize(("places", "width", "sums"), REGISTERS)
def test_registers_decide(places, width, sums, as_on_a_gpu):  # noqa: F811
    """Sums for each place where a thread has registers for them beside those of the product (sm_90 spills none), else atomics."""

    def attend(q, k, v, table):
        bias = torch.nn.functional.embedding(distances(q.shape[2]).abs().clamp(max=places - 1), table).permute(2, 0, 1)
        return torch.softmax(q @ k.mT * width**-0.5 + bias, -1).to(v.dtype) @ v

    rows = [torch.empty(1, HEADS, 1024, width, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    module = lowered(*graphs_of(attend, [*rows, torch.empty(places, HEADS, requires_grad=True)])[1])
    added = [len(op.results) for op in module.walk() if isinstance(op, loop.ReduceOp)]
    assert (places + 1 in added) == sums


@pytest.mark.long
def test_forward_and_backward_round_the_same_scores(interpreted):  # noqa: F811
    """A sum of scores and biases of 16 bits that one of them rounds and the other does not makes weights whose sum is not 1."""
    rng = torch.Generator().manual_seed(0)
    args = [(torch.randn(1, HEADS, 32, WIDTH, generator=rng) * 3).to(torch.bfloat16).requires_grad_() for _ in range(3)]
    args.append(torch.randn(BUCKETS, HEADS, generator=rng).to(torch.bfloat16).requires_grad_())
    torch._dynamo.reset()
    got = step(torch.compile(buckets, backend="stepwell", options={"cache": "off"}), args)
    exact = step(buckets, [x.detach().double().requires_grad_() for x in args])
    for a, b, want in zip(got, step(buckets, args), exact, strict=True):
        assert (a - want).norm() <= 1.2 * (b - want).norm()
