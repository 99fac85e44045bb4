"""What values of a nest vary with: loops around them, through loaded indices, results of inner loops and memory that the nest fills."""

from __future__ import annotations

import pytest
from xdsl.context import Context
from xdsl.parser import Parser

from stepwell.dialects import load_dialects, loop
from stepwell.dialects.expr.ranges import RangeEnv
from stepwell.passes.analysis.accesses.varying import Varying
from stepwell.passes.analysis.nest_access import NestAccess
from stepwell.passes.cost.nest_cost import Cost

TEXT = """
func.func @forward(%x : !mem.buffer<6 x 5 x f32>, %at : !mem.buffer<4 x i64>, %scale : f32, %o : !mem.buffer<40 x f32>) {
  loop.nest (%i = 4, %j = 5) outs(%oo = %o : !mem.buffer<40 x f32>) {
    %row = loop.load %at[%i] : !mem.buffer<4 x i64> -> i64
    %k = loop.bound %row, 6 "take" : i64
    %gathered = loop.load %x[%k, %j] : !mem.buffer<6 x 5 x f32> -> f32
    %same = arith.mulf %scale, %scale : f32
    %best, %place = loop.reduce (%n = 5) argmax {
      %one = loop.load %x[%i, %n] : !mem.buffer<6 x 5 x f32> -> f32
      %number = loop.index %n : i64
      loop.yield %one, %number : f32, i64
    } -> f32, i64
    %where = loop.bound %place, 5 "add" : i64
    loop.store %gathered, %oo[%where + %i] add : f32, !mem.buffer<40 x f32>
  }
  func.return
}
"""


@pytest.fixture(scope="module")
def info():
    module = Parser(load_dialects(Context()), TEXT).parse_module()
    (nest,) = [op for op in module.walk() if isinstance(op, loop.NestOp)]
    return NestAccess(nest, RangeEnv({}), normalise=False)


@pytest.mark.parametrize(
    ("name", "loops"), [("row", "i"), ("k", "i"), ("gathered", "ij"), ("same", ""), ("one", "in"), ("best", "i"), ("where", "i")]
)
def test_values(info, name, loops):
    dims = {one.dim: "ij"[k] for k, one in enumerate(info.root.loops)} | {info.root.children[0].loops[0].dim: "n"}
    value = next(r for op in loop.walk_bodies(info.nest) for r in op.results if r.name_hint == name)
    assert "".join(sorted(dims[d] for d in Varying(info).of_value(value))) == loops


def test_iterations_meet_where_the_place_is_what_an_inner_loop_finds(info):
    (store,) = [a for a in info.root.accesses if a.is_store]
    first, second = (one.dim for one in info.root.loops)
    cost = Cost(info, {})
    assert not cost.injective(store, first)
    assert not cost.injective(store, second)
