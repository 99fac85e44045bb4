"""Loops on which much of a body does not depend run inside of the vector loop: what they share is computed once."""

from __future__ import annotations

import pytest
import torch
from xdsl.context import Context
from xdsl.parser import Parser

from stepwell.dialects import load_dialects
from stepwell.dialects.expr.ranges import RangeEnv
from stepwell.passes.analysis.nest_access import NestAccess
from stepwell.passes.cost.loops_inside import loops_inside
from stepwell.passes.cost.nest_cost import Cost
from stepwell.passes.cost.schedule_choice import choose

GATE = """
func.func @forward(%x : {x}, %m : {m}, %o : {x}) {{
  loop.nest (%i = {n}, %c = {channels}, %k = {rows}, %l = {columns}) outs(%oo = %o : {x}) {{
    %a = loop.load %x[%i, %c, %k, %l] : {x} -> f32
    %b = loop.load %m[%i, %k, %l] : {m} -> f32
    %s = {function}
    %v = arith.mulf %a, %s : f32
    loop.store %v, %oo[%i, %c, %k, %l] : f32, {x}
  }}{schedule}
  func.return
}}
"""
EXPENSIVE, CHEAP = 'loop.math "sigmoid"(%b) : (f32) -> f32', "arith.mulf %b, %b : f32"


def gate(n: int, channels: object, rows: int, columns: int, function: str = EXPENSIVE, schedule: str = "") -> str:
    x, m = f"!mem.buffer<{n} x {channels} x {rows} x {columns} x f32>", f"!mem.buffer<{n} x {rows} x {columns} x f32>"
    return GATE.format(x=x, m=m, n=n, channels=channels, rows=rows, columns=columns, function=function, schedule=schedule)


def inside(text: str) -> int:
    """How many loops run inside of the vector loop."""
    module = Parser(load_dialects(Context()), text).parse_module()
    nest = next(op for op in module.walk() if op.name == "loop.nest")
    return len(choose(NestAccess(nest, RangeEnv()), {}).inside)


def test_channels_run_inside_where_their_gate_is_expensive():
    """Not where it is cheap, nor where all planes together are far more than the caches hold."""
    assert inside(gate(2, 64, 32, 32)) == 1
    assert inside(gate(2, 64, 32, 32, CHEAP)) == 0
    assert inside(gate(2, 64, 1000, 1000)) == 0


def test_only_what_saves_something_goes_inside():
    """The batch does not share its gates."""
    module = Parser(load_dialects(Context()), gate(8, 64, 20, 20)).parse_module()
    nest = next(op for op in module.walk() if op.name == "loop.nest")
    info = NestAccess(nest, RangeEnv())
    vector = info.root.loops[-1]
    (dim,) = loops_inside(Cost(info, {}), vector, 64)
    assert [one.size.value for one in info.root.loops if one.dim == dim] == [64]


@pytest.mark.parametrize("n, channels, rows, columns", [(2, 64, 32, 32), (3, 37, 7, 29), (2, 40, 1, 65), (1, 16, 9, 9)])
@pytest.mark.parametrize("schedule", ["", " attributes {schedule = {grain = 1 : i64}}"])
def test_gates(nests, n: int, channels: int, rows: int, columns: int, schedule: str):
    """The function is computed once for all channels, for whole vectors and for the rest; threads share the other loops."""
    program = nests(gate(n, channels, rows, columns, schedule=schedule))
    x, m = torch.randn(n, channels, rows, columns), torch.randn(n, rows, columns)
    out = torch.empty_like(x)
    program(x, m, out)
    torch.testing.assert_close(out, x * m.sigmoid()[:, None])
    behind = program.text.partition("cpu.math sigmoid")[2]
    assert "scf.for" in behind.partition("cpu.store")[0]
