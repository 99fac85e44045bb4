"""The price of a product by the block of the result that a program has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepwell.passes.cost.block_price import Block, Sums, block_ns, warps_for
from stepwell.passes.cost.machine.gpu import machine

H100 = machine("sm_90")


def test_small_blocks_wait_for_the_cache():
    large, small = (block_ns(Sums(8192, 8192, 8192), Block(*sides), H100) for sides in ((128, 256), (64, 64)))
    assert large[1] == "arithmetic" and small[1] == "cache" and small[0] > 1.5 * large[0]


def test_blocks_that_fit_together_hide_what_each_stores():
    """A batch with sums of one step."""
    work = Sums(1024, 256, 64, batch=256)
    assert block_ns(work, Block(64, 128, stages=1, warps=4), H100)[0] < block_ns(work, Block(128, 256, stages=4), H100)[0]
    assert block_ns(work, Block(64, 128, stages=1, warps=4), H100)[0] < block_ns(work, Block(64, 128, stages=4, warps=8), H100)[0]


def test_a_program_of_several_blocks_begins_once():
    work, block = Sums(8192, 8192, 512), Block(128, 256)
    assert block_ns(work, replace(block, lasting=True), H100)[0] < block_ns(work, block, H100)[0]


@pytest.mark.parametrize(
    ("block", "sums", "held", "warps"), [((128, 256), 1, 1, 8), ((128, 128), 1, 1, 4), ((128, 256), 2, 2, 0), ((64, 128), 1, 5, 8)]
)
def test_warps_have_registers(block, sums, held, warps):
    assert warps_for(block[0] * block[1], sums, held, H100) == warps
