"""Weights that are added up at places of a row, as in the gradients of what DeBERTa gathers by position: no score is stored."""

from __future__ import annotations

import pytest
import torch

import stepwell

from ..test_gpu_attention_spellings import as_on_a_gpu, interpreted, step  # noqa: F401

PLACES = 8


def disentangled(q, k, v, of_key, of_query, at=None):
    """Contents against positions, and positions against contents; `at`: places that are an input."""
    n = q.shape[2]
    away = (torch.arange(n)[:, None] - torch.arange(n)).clamp(-PLACES // 2, PLACES // 2 - 1) + PLACES // 2 if at is None else at
    index = away.expand(*q.shape[:2], n, n)
    seen = torch.gather(q @ of_key.mT, -1, index) + torch.gather(k @ of_query.mT, -1, index.mT).mT
    return torch.softmax((q @ k.mT + seen) * q.shape[-1] ** -0.5, -1) @ v


def of_queries(q, k, v, of_key):
    """A row of all distances for each query: the places are in an order that those of keys are not."""
    n = q.shape[2]
    away = (torch.arange(n) - torch.arange(n)[:, None] + n).expand(*q.shape[:2], n, n)
    seen = torch.gather(q @ of_key.mT.repeat(1, 1, 2 * n // PLACES + 1), -1, away)
    return torch.softmax((q @ k.mT + seen) * q.shape[-1] ** -0.5, -1) @ v


def inputs(n, heads=2, width=16, dtype=torch.bfloat16, places=False):
    rng = torch.Generator().manual_seed(n)
    sizes = [(2, heads, n, width)] * 3 + [(heads, PLACES, width)] * 2
    made = [torch.randn(size, generator=rng).to(dtype).requires_grad_() for size in sizes]
    return [*made, torch.randint(0, PLACES, (n, n), generator=rng)] if places else made


LONG = [pytest.param(*one, marks=pytest.mark.long) for one in ((of_queries, 20), (disentangled, 37))]


@pytest.mark.parametrize(("function", "n"), [(disentangled, 16), *LONG])
def test_numbers(function, n, interpreted):  # noqa: F811
    args = inputs(n)
    compare(function, args if function is disentangled else args[:-1])


@pytest.mark.long
def test_places_that_are_an_input(interpreted):  # noqa: F811
    compare(disentangled, inputs(20, places=True))


def compare(function, args):
    torch._dynamo.reset()
    stepwell.reset_counters()
    got = step(torch.compile(function, backend="stepwell", options={"cache": "off"}), args)
    assert stepwell.counters["passes"]["gpu-carry-softmax"]["num-carried"] == 2
    exact = step(function, [x.detach().double().requires_grad_() if x.is_floating_point() else x for x in args])
    for a, b, want in zip(got, step(function, args), exact, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        assert (a - want).norm() <= 1.5 * (b - want).norm() + 4e-3 * want.norm()
