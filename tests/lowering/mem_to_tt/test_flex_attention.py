"""FlexAttention through the pipeline of a GPU, its kernels interpreted: blocks that a mask leaves out are not read.
The same programs on the CPU: tests/e2e/test_flex_attention.py."""

from __future__ import annotations

import pytest
import torch
import torch.nn.attention.flex_attention as flex
from flex_programs import PROGRAMS, exact, heads, numbers
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

import stepwell
from stepwell.tools.interpret.target import InterpretedTarget

pytestmark = pytest.mark.filterwarnings("ignore")

FEW = ("lists, full and causal", "pages, decoding", "lists for all heads, shared keys")
"""Programs of the usual tests; the others are long."""


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    """torch refuses to train on the CPU before a backend sees the program."""
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)
    stepwell.register_target(InterpretedTarget, replace=True)
    torch._dynamo.reset()
    stepwell.reset_counters()
    yield
    torch._dynamo.reset()
    stepwell.unregister_target("interpreted")


def error(got, want):
    """The relative error."""
    return float((got.double() - want.double()).norm() / want.double().norm().clamp(min=1e-9))


def compiled(function):
    return torch.compile(function, backend="stepwell", fullgraph=True)


@pytest.mark.parametrize("name", [name if name in FEW else pytest.param(name, marks=pytest.mark.long) for name in PROGRAMS])
def test_values_and_gradients_are_those_of_doubles(name):
    """N29"""
    program = PROGRAMS[name]()
    halves = [x.bfloat16().requires_grad_(program.trains) for x in program.inputs[:3]]
    others = [x.requires_grad_() if x.is_floating_point() else x for x in program.inputs[3:]]
    leaves = [*halves, *(x for x in others if x.is_floating_point())] if program.trains else []
    got, want = (f(*halves, *others) for f in (compiled(program.function), program.exact))
    got, want = ([x] if isinstance(x, torch.Tensor) else list(x) for x in (got, want))
    assert max(error(g, w) for g, w in zip(got, want, strict=True)) < 1e-2
    if leaves:
        seeds = [numbers(*w.shape, seed=7) for w in want]
        given = torch.autograd.grad(got, leaves, [s.to(g.dtype) for s, g in zip(seeds, got, strict=True)])
        wanted = torch.autograd.grad(want, leaves, [s.to(g.dtype).double() for s, g in zip(seeds, got, strict=True)])
        assert max(error(g, w) for g, w in zip(given, wanted, strict=True)) < 2e-2


def test_blocks_of_no_list_are_not_read():
    """What is not finite there does not reach the result."""
    counts = torch.tensor([[[2, 1, 3, 1]]], dtype=torch.int32)
    indices = torch.tensor([[[[0, 3, 1, 1, 1], [4, 1, 1, 1, 1], [0, 2, 4, 1, 1], [3, 1, 1, 1, 1]]]], dtype=torch.int32)
    mask = BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=32, seq_lengths=(100, 130))
    q, k, v = (x.bfloat16() for x in heads())
    want = exact(q, k, v, mask=mask)
    k[:, :, 32:64] = v[:, :, 32:64] = float("nan")
    assert error(compiled(lambda q, k, v: flex_attention(q, k, v, block_mask=mask))(q, k, v), want) < 1e-2


def test_a_captured_number_may_change():
    function = torch.compile(
        lambda q, k, v, cap: flex_attention(q, k, v, lambda s, b, h, i, j: cap * torch.tanh(s / cap)), backend="stepwell", dynamic=True
    )
    q, k, v = numbers(1, 2, 21, 16).bfloat16(), numbers(1, 2, 19, 16, seed=1).bfloat16(), numbers(1, 2, 19, 16, seed=2).bfloat16()
    for cap in (0.3, 1.7):
        assert error(function(q, k, v, cap), exact(q, k, v, score=lambda s, b, h, i, j, cap=cap: cap * torch.tanh(s / cap))) < 1e-2
    assert [stepwell.counters[name] for name in ("graphs", "extern", "fallback")] == [1, 0, 0]


@pytest.mark.parametrize("rows", [48, 40])
def test_lengths_that_blocks_do_not_divide(rows):
    mask = create_block_mask(lambda b, h, i, j: (i - j).abs() < 20, None, None, rows, 56, device="cpu", BLOCK_SIZE=16)
    q, k, v = numbers(1, 1, rows, 16).bfloat16(), numbers(1, 1, 56, 16, seed=1).bfloat16(), numbers(1, 1, 56, 16, seed=2).bfloat16()
    got = compiled(lambda q, k, v: flex_attention(q, k, v, block_mask=mask))(q, k, v)
    assert error(got, exact(q, k, v, mask=mask)) < 1e-2


def test_steps_that_the_function_hides_are_not_read():
    """Of the first and the last block of a list a program reads what its own rows may see."""
    mask = create_block_mask(lambda b, h, i, j: (i >= j) & (i - j < 70), None, None, 256, 256, device="cpu", BLOCK_SIZE=128)
    q, k, v = (x.bfloat16() for x in heads(256, 256, batch=1, count=1))
    want = exact(q, k, v, mask=mask)[:, :, 128:192]
    k[:, :, 192:] = v[:, :, 192:] = float("nan")
    got = compiled(lambda q, k, v: flex_attention(q, k, v, block_mask=mask))(q, k, v)
    assert error(got[:, :, 128:192], want) < 1e-2
