"""Rows that are sorted in memory of the iteration, along the lanes and with a row in each lane."""

from __future__ import annotations

import pytest
import torch
from sorted_rows import assert_sorted, rows_of
from xdsl.parser import Parser
from xdsl.utils.exceptions import VerifyException

from stepwell.lowering.mem_to_cpu.reductions.sorts import steps
from stepwell.tools.backend.compile_graph import context


@pytest.mark.parametrize(
    ("dtype", "shape", "d", "descending"),
    [
        (torch.float32, (7, 1000), 1, False), (torch.bfloat16, (5, 33), 1, True), (torch.float16, (40, 12), 0, False),
        (torch.bool, (4, 17), 1, True), (torch.uint8, (31, 3, 5), 1, False), (torch.int32, (2, 130), 1, True),
        (torch.int16, (600,), 0, True), (torch.float32, (257, 33), 0, False),
    ],
)  # fmt: skip
def test_rows(dtype, shape, d, descending):
    """A23, N22: rows of any length, and of other strides"""
    program = torch.compile(
        lambda x: x.sort(dim=d, stable=True, descending=descending), backend="stepwell", options={"on_failure": "raise"}
    )
    x = rows_of(dtype, *shape)
    for given in (x, rows_of(dtype, *shape[::-1]).permute(*reversed(range(x.dim())))):
        assert_sorted(*program(given), given, d, descending)


def test_rows_of_threads_and_of_dynamic_number():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        program = torch.compile(lambda x: x.sort(dim=-1, stable=True), backend="stepwell", dynamic=True, options={"on_failure": "raise"})
        for rows in (2000, 3, 1):
            x = rows_of(torch.float32, rows, 70)
            torch._dynamo.mark_static(x, 1)
            assert_sorted(*program(x), x, -1, False)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("count", [1, 2, 8])
def test_the_network_sorts_all_rows_of_zeros_and_ones(count):
    """By the principle of Knuth, a network that sorts these sorts all rows."""
    masks = [step.mask for step in steps(count)]
    for number in range(1 << count):
        row = [number >> k & 1 for k in range(count)]
        for mask in masks:
            row = [(min, max)[i ^ mask < i](row[i], row[i ^ mask]) for i in range(count)]
        assert row == sorted(row)


def test_only_integers_are_sorted():
    text = """func.func @forward(%x : !nd.tensor<4 x f32>) -> !nd.tensor<4 x f32> {
      %y = nd.scan %x {kind = "sort", dim = [0]} : !nd.tensor<4 x f32>
      func.return %y : !nd.tensor<4 x f32>
    }"""
    module = Parser(context(), text).parse_module()
    with pytest.raises(VerifyException, match="kind 'sort' takes integers, got f32"):
        module.verify()
