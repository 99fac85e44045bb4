"""Loops over terms end where a condition on indices makes all that follow the identity, for all the rows of a program."""

from __future__ import annotations

import math

import pytest
import torch
from support import lower
from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr

from stepwell.dialects.tt.compute import DotOp
from stepwell.tools.interpret.loop import run_loop


def masked(there):
    """Attention under a mask that `there` says, from the numbers of rows and terms."""

    def attention(q, k, v):
        mask = there(torch.arange(q.shape[1])[:, None], torch.arange(k.shape[1]))
        return torch.softmax((q @ k.transpose(1, 2)).masked_fill(~mask, -math.inf), -1) @ v

    return attention


MASKS = {
    "causal": (lambda i, j: j <= i, "min"),
    "causal at the end": (lambda i, j: j <= i + 70, "min"),
    "nothing for the first rows": (lambda i, j: j <= i - 40, "min"),
    "what comes later": (lambda i, j: j > i, "max"),
    "window": (lambda i, j: (j <= i) & (i - j < 20), "min max"),
    "band": (lambda i, j: (j - i < 20) & (i - j < 20), "min max"),
    "prefix": (lambda i, j: (j <= i) | (j < 30), "min max"),
    "documents": (lambda i, j: (i // 50 == j // 50) & (j <= i), "min max"),
    "to the end of the document": (lambda i, j: j // 50 <= i // 50, "min"),
    "not both": (lambda i, j: ~((j > i) & (j > 90)), "min max"),
    "two sides": (lambda i, j: (j <= i) | (j > 200), ""),
    "every other one": (lambda i, j: (i + j) % 2 == 0, ""),
}


def numbers(*shape, dtype=torch.bfloat16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def bounds(module) -> str:
    """The ops that make bounds, of numbers and not of tensors; that a number of blocks is not below 0 is none."""
    found = [op for op in module.walk() if op.name in ("arith.minsi", "arith.maxsi") and "tensor" not in str(op.results[0].type)]
    names = [op.name[6:9] for op in found if not any(is_zero(v.owner) for v in op.operands)]
    return " ".join(dict.fromkeys(sorted(names, reverse=True)))


def is_zero(op) -> bool:
    return isinstance(op, arith.ConstantOp) and isinstance(op.value, IntegerAttr) and op.value.value.data == 0


@pytest.mark.spread
@pytest.mark.parametrize("sizes", [(66, 70), (130, 300), (300, 130)], ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_attention_under_a_mask(name, sizes):
    there, wanted = MASKS[name]
    args = numbers(3, sizes[0], 32), numbers(3, sizes[1], 32), numbers(3, sizes[1], 40)
    function = masked(there)
    module = lower(function, *args).module
    assert any(isinstance(op, DotOp) for op in module.walk())
    assert set(bounds(module).split()) == set(wanted.split())
    (got,) = run_loop(module, args, [], [])
    torch.testing.assert_close(got.float(), function(*args).float(), rtol=4e-2, atol=4e-2, equal_nan=True)


@pytest.mark.parametrize("kind", ["max", "sum"])
def test_long_rows_of_a_triangle(kind):
    """Any reduction, not only those of attention."""

    def function(x):
        there = torch.arange(x.shape[1]) < torch.arange(x.shape[0])[:, None] * 300
        return torch.where(there, x, -math.inf).amax(1) if kind == "max" else torch.where(there, x, 0.0).sum(1)

    x = numbers(160, 50000, dtype=torch.float32)
    module = lower(function, x, gpu_split_reduction="").module
    assert bounds(module) == "min"
    (got,) = run_loop(module, [x], [], [])
    torch.testing.assert_close(got, function(x), rtol=1e-4, atol=1e-2)


def padded(values, offsets, longest, fill):
    return torch.ops.aten._jagged_to_padded_dense_forward(values, [offsets], [longest], fill)


OFFSETS = torch.tensor([0, 20, 20, 5700, 9100])
RAGGED = {
    "sums of rows": (lambda x, at: padded(x, at, 6000, 0.0).sum(1), "min max"),
    "largest of rows": (lambda x, at: padded(x, at, 6000, -math.inf).amax(1), "min max"),
    "means of rows": (lambda x, at: padded(x, at, 6000, 0.0).sum(1) / (at[1:] - at[:-1]).clamp(min=1)[:, None], "min max"),
    "a softmax's sums of segments": (
        lambda x, at: torch.where(
            (torch.arange(len(x)) >= at[:-1, None]) & (torch.arange(len(x)) < at[1:, None]), x[:, 0], -math.inf
        ).logsumexp(1),
        "min max",
    ),
    "softmax of rows": (lambda x, at: torch.softmax(padded(x, at, 6000, -math.inf), 1), ""),  # of rows that are filled up in memory
    "segments": (
        lambda x, at: torch.where((torch.arange(len(x)) >= at[:-1, None]) & (torch.arange(len(x)) < at[1:, None]), x[:, 0], 0.0).sum(1),
        "min max",
    ),
    "segments of short numbers": (
        lambda x, at: torch.where(torch.arange(len(x), dtype=torch.int32) < at[1:, None].int(), x[:, 0], 0.0).sum(1), "min max",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RAGGED)
def test_bounds_that_are_loaded(name):
    """Rows of unequal length: a program goes no further than the longest of its own."""
    function, wanted = RAGGED[name]
    x = numbers(9120, 24, dtype=torch.float32)
    module = lower(function, x, OFFSETS, gpu_split_reduction="", gpu_cooperative_rows="").module
    assert bounds(module) == wanted
    (got,) = run_loop(module, [x, OFFSETS], [], [])
    torch.testing.assert_close(got, function(x, OFFSETS), rtol=1e-4, atol=1e-3, equal_nan=True)


def test_loaded_bounds_of_any_size():
    """Beyond 32 bits, below 0, and in no order."""
    ends = torch.tensor([1 << 40, -(1 << 40), 3, 1 << 31, -7, 50000])
    x = numbers(50000, dtype=torch.float32)

    def function(x, ends):
        return torch.where(torch.arange(len(x)) < ends[:, None], x, 0.0).sum(1)

    module = lower(function, x, ends, gpu_split_reduction="").module
    assert bounds(module)
    (got,) = run_loop(module, [x, ends], [], [])
    torch.testing.assert_close(got, function(x, ends), rtol=1e-4, atol=1e-2)
