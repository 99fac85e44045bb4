"""Collectives by their links (K01, K03): what they take between few ranks and many, and how much of it other work hides."""

from __future__ import annotations

import pytest
from xdsl.context import Context
from xdsl.dialects.func import FuncOp
from xdsl.parser import Parser

from stepwell.dialects import load_dialects
from stepwell.passes.cost.collective_cost import Clock, collective_bytes, group_ranks, is_begin, is_wait, link_of, simulate
from stepwell.passes.cost.machine import machine
from stepwell.passes.cost.machine.cpu import SERVER

RANKS = (2, 8, 64, 256, 1024)
PART, WHOLE = "!nd.tensor<1024 x f32>", "!nd.tensor<8192 x f32>"
GATHER = f"""
func.func @f(%x: {PART}) -> {WHOLE} {{
  %a = nd.extern %x {{call = #nd.call<"_c10d_functional.all_gather_into_tensor.default", [arg(0), 8, "0"]>}} : ({PART}) -> {WHOLE}
  %y = nd.exp %x : {PART}
  %w = nd.extern %a, %x {{call = #nd.call<"_c10d_functional.wait_tensor.default", [arg(0)]>}} : ({WHOLE}, {PART}) -> {WHOLE}
  func.return %w : {WHOLE}
}}
"""


def steps(seconds):
    """The operations of GATHER; the work between call and wait takes `seconds`."""
    module = Parser(load_dialects(Context()), GATHER).parse_module()
    func = next(op for op in module.ops if isinstance(op, FuncOp))
    return [(op, seconds if op.name == "nd.exp" else 0.0) for op in list(func.body.block.ops)[:-1]]


@pytest.mark.parametrize("gpu", [False, True])
def test_more_ranks_and_more_bytes_take_longer(gpu):
    link = link_of(machine("sm_90") if gpu else SERVER)
    for kind in ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"):
        for size in (0, 1 << 10, 1 << 30):
            times = [link.seconds(kind, size, ranks) for ranks in RANKS]
            assert times == sorted(times) and times[0] > 0
            assert link.seconds(kind, 2 * size + 1, 8) > link.seconds(kind, size, 8)
        assert link.seconds("all_reduce", 1 << 30, 8) > link.seconds("reduce_scatter_tensor", 1 << 30, 8)


def test_what_is_gathered_counts_as_a_whole():
    (begin, _), _, (wait, _) = steps(0.0)
    assert is_begin(begin) and is_wait(wait) and not is_wait(begin)
    assert collective_bytes(begin) == 8192 * 4 and group_ranks(begin) == 8


@pytest.mark.parametrize("ranks", (8, 64, 256, 1024))
def test_work_between_call_and_wait_hides_a_collective(ranks):
    whole = simulate(steps(0.0), ranks, SERVER)
    assert whole.exposed == whole.communication == whole.now
    part = simulate(steps(whole.communication / 2), ranks, SERVER)
    assert part.exposed == pytest.approx(whole.communication / 2) and part.now == pytest.approx(whole.now)
    assert simulate(steps(2 * whole.communication), ranks, SERVER).exposed == 0


def test_collectives_follow_one_another():
    clock = Clock()
    clock.begin("a", 3.0)
    clock.begin("b", 2.0)
    clock.work(1.0)
    assert (clock.left("a"), clock.left("b"), clock.left("of another graph")) == (2.0, 4.0, 0.0)
    clock.wait("b")
    assert (clock.now, clock.communication, clock.exposed) == (5.0, 5.0, 4.0)
