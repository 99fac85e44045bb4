"""FlexAttention as a user calls it, on the CPU: lists of blocks, gradients of what functions capture, pages. On interpreted GPUs the same
programs are in tests/lowering/mem_to_tt/test_flex_attention.py."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.attention.flex_attention as flex
from flex_programs import PROGRAMS, Program, exact, lists, numbers
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

import stepwell

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh", "trainable")]


FEW = ("lists, full and causal", "pages, decoding", "table by distance", "one captured number", "logarithm of the sums")
"""Programs of the usual tests; the others are long."""


@pytest.fixture
def trainable(monkeypatch):
    """torch refuses to train on the CPU before a backend sees the program; the operator and its gradients work."""
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)


def errors(got, want):
    """The relative errors of tensors; what is not finite is the same."""
    found = []
    for a, b in zip(got, want, strict=True):
        finite = torch.isfinite(b)
        assert a.shape == b.shape and torch.equal(torch.isfinite(a), finite)
        found.append(float((a.double() - b.double())[finite].norm() / b.double()[finite].norm().clamp(min=1e-9)))
    return found


def check(program: Program, most: float, dtype=torch.float32):
    """Values and gradients of a compiled program are those of doubles."""
    inputs = [x.to(dtype) if x.dtype == torch.float32 else x for x in program.inputs]
    leaves = [x.requires_grad_() for x in inputs if x.is_floating_point()] if program.trains else []
    got = torch.compile(program.function, backend="stepwell", fullgraph=True)(*inputs)
    want = program.exact(*inputs)
    got, want = ([x] if isinstance(x, torch.Tensor) else list(x) for x in (got, want))
    seeds = [numbers(*w.shape, seed=7) for w in want]
    if leaves:
        given = torch.autograd.grad(got, leaves, [s.to(g.dtype) for s, g in zip(seeds, got, strict=True)])
        wanted = torch.autograd.grad(want, leaves, [s.to(g.dtype).to(w.dtype) for s, g, w in zip(seeds, got, want, strict=True)])
        got, want = [*got, *given], [*want, *wanted]
    found = errors([x.detach() for x in got], [x.detach() for x in want])
    assert max(found) <= most, found


@pytest.mark.parametrize("name", [name if name in FEW else pytest.param(name, marks=pytest.mark.long) for name in PROGRAMS])
def test_values_and_gradients_are_those_of_doubles(name):
    """N29"""
    check(PROGRAMS[name](), 5e-6)
    assert stepwell.counters["fallback"] == 0


def test_lists_say_what_is_seen_without_a_function():
    """What eager does not do: it asks the function alone."""
    counts, indices, _, _ = lists(1, 1, 4, 5, seed=3)
    mask = BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=(16, 32), seq_lengths=(64, 150))
    q, k, v = numbers(1, 2, 64, 16), numbers(1, 2, 150, 16, seed=1), numbers(1, 2, 150, 16, seed=2)
    got = torch.compile(lambda q, k, v: flex_attention(q, k, v, block_mask=mask), backend="stepwell")(q, k, v)
    assert errors([got], [exact(q, k, v, mask=mask)])[0] < 1e-6
    hidden = counts[0, 0] == 0
    assert hidden.any() and got[:, :, hidden.repeat_interleave(16)].abs().max() == 0


def test_places_behind_the_end_of_a_list_say_nothing():
    """Any number may stand there."""
    counts = torch.tensor([[[1, 2]]], dtype=torch.int32)

    def mask(*rest):
        indices = torch.tensor([[[[1, *rest], [0, 2, rest[0]]]]], dtype=torch.int32)
        return BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=16, seq_lengths=(32, 48), compute_q_blocks=False)

    q, k, v = numbers(1, 1, 32, 16), numbers(1, 1, 48, 16, seed=1), numbers(1, 1, 48, 16, seed=2)
    found = []
    for one in (mask(0, 2), mask(-1, 77)):
        found.append(torch.compile(lambda q, k, v, one=one: flex_attention(q, k, v, block_mask=one), backend="stepwell")(q, k, v))
        torch._dynamo.reset()
    torch.testing.assert_close(*found, rtol=0, atol=0)
    assert errors(found[:1], [exact(q, k, v, mask=mask(0, 2))])[0] < 1e-6


def test_a_captured_number_may_change():
    """Dynamo makes a tensor of a float that changes, from which the function takes the number. It refuses to train so."""

    def score(s, cap, i, j):
        return cap * torch.tanh(s / cap) + (cap * cap - 1) / math.sqrt(cap) * (j - i)

    def program(q, k, v, cap):
        return flex_attention(q, k, v, lambda s, b, h, i, j: score(s, cap, i, j))

    function = torch.compile(program, backend="stepwell", dynamic=True, fullgraph=True)
    for cap, rows in ((0.3, 21), (1.7, 34)):
        q, k, v = numbers(2, 2, rows, 16), numbers(2, 2, 19, 16, seed=1), numbers(2, 2, 19, 16, seed=2)
        want = exact(q, k, v, score=lambda s, b, h, i, j, cap=cap: score(s, cap, i, j))
        assert errors([function(q, k, v, cap)], [want])[0] < 1e-6
    assert [stepwell.counters[name] for name in ("graphs", "extern", "fallback")] == [1, 0, 0]


@pytest.mark.long
def test_other_lengths_need_no_new_graph():
    def function(q, k, v):
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, q.shape[2], k.shape[2], device="cpu", BLOCK_SIZE=16)
        return flex_attention(q, k, v, block_mask=mask)

    compiled = torch.compile(function, backend="stepwell", dynamic=True, fullgraph=True)
    for rows, keys in ((50, 70), (100, 130), (33, 257)):
        q, k, v = numbers(1, 2, rows, 16), numbers(1, 2, keys, 16, seed=1), numbers(1, 2, keys, 16, seed=2)
        want = exact(q, k, v, score=lambda s, b, h, i, j: torch.where(i >= j, s, -math.inf))
        assert errors([compiled(q, k, v)], [want])[0] < 1e-6
    assert stepwell.counters["graphs"] == 1
