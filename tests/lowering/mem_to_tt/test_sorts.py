"""Rows that are sorted on chip: one kernel, with what stands around them."""

from __future__ import annotations

import pytest
import torch
from sorted_rows import assert_sorted, rows_of

from stepwell.dialects.mem import ExternOp
from stepwell.dialects.tt.memory import StoreOp
from stepwell.lowering.mem_to_tt.program.sorts import exchanges
from stepwell.tools.interpret.loop import run_loop

from .test_few_rows import found, kernels, lowered


@pytest.mark.parametrize(
    ("dtype", "shape", "d", "descending"),
    [
        (torch.float32, (3, 64), 1, False), (torch.bfloat16, (5, 33), 1, True), (torch.float16, (40, 12), 0, False),
        (torch.bool, (4, 17), 1, True), (torch.int8, (2, 3, 20), 1, False), (torch.uint8, (3, 9), 1, True),
        (torch.int32, (2, 130), 1, True), (torch.int16, (7, 4), 1, False), (torch.float32, (3,), 0, True), (torch.float32, (5, 1), 1, True),
    ],
)  # fmt: skip
def test_rows_are_sorted_on_chip(dtype, shape, d, descending):
    """A23, N22"""
    x = rows_of(dtype, *shape)
    module = lowered(lambda x: x.sort(dim=d, stable=True, descending=descending), x)
    assert len(kernels(module)) <= (1 if d else 2) and not found(module, ExternOp)
    assert_sorted(*run_loop(module, [x], [], []), x, d, descending)


def test_only_what_is_wanted_of_sorted_rows_is_stored():
    """What reads the integers in order, or other running values of a scan, runs where they are at hand."""
    (kernel,) = kernels(lowered(lambda x: x.sort(dim=1, stable=True), torch.empty(3, 64)))
    assert len(found(kernel, StoreOp)) == 2
    (kernel,) = kernels(lowered(lambda x: x.cumsum(1) * 2 + x, torch.empty(3, 64)))
    assert len(found(kernel, StoreOp)) == 1


def test_sampling_of_the_likeliest_is_one_kernel():
    """N22"""
    def likeliest(x):
        shares, order = torch.softmax(x, -1).sort(-1, descending=True)
        kept = shares.masked_fill(shares.cumsum(-1) - shares > 0.7, 0.0)
        return kept / kept.sum(-1, keepdim=True), order

    x = torch.randn(6, 50, generator=torch.Generator().manual_seed(3))
    module = lowered(likeliest, x)
    assert not found(module, ExternOp)
    shares, order = run_loop(module, [x], [], [])
    expected = likeliest(x)
    torch.testing.assert_close(shares, expected[0])
    assert torch.equal(order, expected[1])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8, 11])
def test_exchanges_sort_all_rows_of_zeros_and_ones(count):
    """By the principle of Knuth, a network that sorts these sorts all rows."""
    for number in range(1 << count):
        row = [number >> k & 1 for k in range(count)]
        for first, second in exchanges(count):
            row[first], row[second] = min(row[first], row[second]), max(row[first], row[second])
        assert row == sorted(row)
