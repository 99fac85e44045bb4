"""Which loops run several iterations at a time because windows share elements, and where conditions are known."""

from __future__ import annotations

import pytest
from xdsl.context import Context
from xdsl.parser import Parser

from stepwell.dialects import load_dialects
from stepwell.dialects.nd import symbol_ranges
from stepwell.passes.analysis.nest_access import NestAccess
from stepwell.passes.cost.nest_cost import UNROLL_OPS
from stepwell.passes.cost.schedule_choice import choose


def schedule(window=(5, 5), size=28, step=1, pad=2, strides=(3360, 1, 120), attributes=""):
    """The schedule of a nest over 120 channels and rows of `size` whose lanes run along the channels."""
    rows, columns = window
    c, h, w = strides[1], strides[0], strides[2]
    image = f"!mem.buffer<120 x 64 x 64 x f32, [{c}, {h}, {w}]>"
    text = f"""
    func.func @f(%x: {image}, %k: !mem.buffer<{rows} x {columns} x 120 x f32>, %y: !mem.buffer<120 x 28 x {size} x f32, [1, 9999, 120]>) {{
      loop.nest (%i = 120, %j = 28, %l = {size}) outs(%out = %y : !mem.buffer<120 x 28 x {size} x f32, [1, 9999, 120]>) {{
        %zero = arith.constant 0.0 : f32
        %low = arith.constant 0 : index
        %high = arith.constant {size * step} : index
        %total = loop.reduce (%m = {rows}, %n = {columns}) sum {{
          %at = loop.index %l * {step} + %n - {pad} : index
          %above = arith.cmpi sge, %at, %low : index
          %below = arith.cmpi slt, %at, %high : index
          %inside = arith.andi %above, %below : i1
          %a = loop.load %x[%i, %j + %m, %l * {step} + %n - {pad}] if %inside else %zero : {image} -> f32
          %b = loop.load %k[%m, %n, %i] : !mem.buffer<{rows} x {columns} x 120 x f32> -> f32
          %p = arith.mulf %a, %b : f32
          loop.yield %p : f32
        }} -> f32
        loop.store %total, %out[%i, %j, %l] : f32, !mem.buffer<120 x 28 x {size} x f32, [1, 9999, 120]>
      }}{attributes}
      func.return
    }}"""
    ctx = Context()
    load_dialects(ctx)
    module = Parser(ctx, text).parse_module()
    nest = next(op for op in module.walk() if op.name == "loop.nest")
    return choose(NestAccess(nest, symbol_ranges(module)), {})


def reuse(**how):
    found = schedule(**how)
    (one,) = found.windows.values()
    assert found.lanes == 16 and found.inside == {one.one.dim}
    return one.together, one.first, one.last, one.end


def test_iterations_run_together_between_the_ends():
    assert UNROLL_OPS == 256
    assert reuse() == (12, 2, 26, 26)
    assert reuse(window=(3, 3), size=56, pad=1) == (10, 1, 55, 51)
    assert reuse(window=(7, 7), size=28, pad=3) == (5, 3, 25, 23)


def test_steps_move_the_end_of_conditions():
    """Row 2 l + n - 2 of 56 is there from l = 1 on, and up to l = 26 for the last tap."""
    assert reuse(step=2, strides=(9999, 1, 120))[1:3] == (1, 27)


def test_without_padding_nothing_is_alone_but_the_rest():
    together, first, last, end = reuse(window=(3, 3), pad=0, size=20)
    assert (first, end - first) == (0, 20 // together * together) and last == 18


@pytest.mark.parametrize(
    "how",
    [
        {"step": 5},
        {"window": (3, 1), "pad": 0},
        {"window": (12, 12)},
        {"strides": (64, 4096, 1)},
        {"attributes": ' attributes {schedule = {vector = 2 : i64, lanes = 16 : i64}}'},
    ],
)
def test_others_run_as_before(how):
    assert not schedule(**how).windows
