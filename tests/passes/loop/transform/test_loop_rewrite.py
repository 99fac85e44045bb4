"""What a schedule says of a loop follows the loop where a transform makes others of it."""

from __future__ import annotations

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr
from xdsl.parser import Parser

from stepwell.dialects import load_dialects, loop
from stepwell.passes.analysis.schedule_attrs import schedule_table
from stepwell.passes.manager.instrumentation import Instrumentation
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline

NEST = """
func.func @forward(%x : !nd.tensor<4 x 6 x 8 x f32>) -> !nd.tensor<4 x 6 x 8 x f32> {{
  %e = loop.empty : !nd.tensor<4 x 6 x 8 x f32>
  %r = loop.nest (%i = 4, %j = 6, %k = 8) outs(%o = %e : !nd.tensor<4 x 6 x 8 x f32>) {{
    %a = loop.load %x[%i, %j, %k] : !nd.tensor<4 x 6 x 8 x f32> -> f32
    loop.store %a, %o[%i, %j, %k] : f32, !nd.tensor<4 x 6 x 8 x f32>
  }} attributes {{schedule = {{{schedule}}}}}
  func.return %r : !nd.tensor<4 x 6 x 8 x f32>
}}"""
REDUCE = """
func.func @forward(%x : !nd.tensor<4 x 6 x 8 x f32>) -> !nd.tensor<4 x f32> {
  %e = loop.empty : !nd.tensor<4 x f32>
  %r = loop.nest (%i = 4) outs(%o = %e : !nd.tensor<4 x f32>) {
    %s = loop.reduce (%j = 6, %k = 8) sum {
      %a = loop.load %x[%i, %j, %k] : !nd.tensor<4 x 6 x 8 x f32> -> f32
      loop.yield %a : f32
    } -> f32
    loop.store %s, %o[%i] : f32, !nd.tensor<4 x f32>
  }
  func.return %r : !nd.tensor<4 x f32>
}"""


def transformed(text: str, pipeline: str) -> loop.NestOp:
    ctx = load_dialects(Context())
    module = Parser(ctx, text, "case.mlir").parse_module()
    run(parse_pipeline(pipeline), module, ctx, Instrumentation(verify_each=True))
    return next(op for op in module.walk() if isinstance(op, loop.NestOp))


@pytest.mark.parametrize(
    ("pipeline", "before", "after"),
    [
        ("loop-collapse{loops=0,1}", {"vector": 2}, {"vector": 1}),
        ("loop-collapse{loops=0,1}", {"vector": 0}, {"vector": 0}),
        ("loop-collapse{loops=1,2}", {"vector": 2, "piece": 1}, {"vector": 1}),
        ("loop-collapse{loops=1,2}", {"vector": 2, "tile": 1}, {"vector": 1}),
        ("loop-collapse{loops=1,2}", {"vector": 2, "tile": 0}, {"vector": 1, "tile": 0}),
        ("loop-expand{axis=0 by=2}", {"vector": 2, "tile": 1}, {"vector": 3, "tile": 2}),
        ("loop-expand{axis=2 by=2}", {"vector": 2}, {"vector": 3}),
        ("loop-interchange{order=2,0,1}", {"vector": 2, "tile": 0, "piece": 0}, {"vector": 0, "tile": 1, "piece": 0}),
    ],
)
def test_the_numbers_of_loops_in_a_schedule_are_those_of_the_new_loops(
    pipeline: str, before: dict[str, int], after: dict[str, int]
) -> None:
    nest = transformed(NEST.format(schedule=", ".join(f"{k} = {n} : i64" for k, n in before.items())), pipeline)
    found = {k: v.value.data for k, v in schedule_table(nest).items() if isinstance(v, IntegerAttr) and k != "fixed"}
    assert found == after


def test_a_loop_inside_of_a_nest_keeps_its_lanes_along_the_same_loop() -> None:
    for pipeline, vector in (("loop-interchange{order=1,0 part=1}", 0), ("loop-collapse{part=1}", 0), ("loop-expand{by=2 part=1}", 2)):
        nest = transformed(REDUCE, f"loop-vectorize{{axis=1 lanes=8 part=1}},{pipeline}")
        reduce = next(op for op in nest.walk() if isinstance(op, loop.ReduceOp))
        found = reduce.attributes["vector"]
        assert isinstance(found, IntegerAttr)
        assert found.value.data == vector, pipeline
