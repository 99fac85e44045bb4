"""What loop transforms refuse, and how they say it; which nests an entry means."""

from __future__ import annotations

import pytest
from xdsl.context import Context
from xdsl.parser import Parser

from stepwell.dialects import load_dialects
from stepwell.passes.manager.errors import PassError
from stepwell.passes.manager.instrumentation import Instrumentation, print_ir
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline

TEXT = """
builtin.module attributes {nd.symbols = {s0 = #nd.range<0, -1, 8>, s1 = #nd.range<0, 1000, 8>}} {
func.func @forward(%x : !nd.tensor<s0 x s1 x f32>, %y : !nd.tensor<40 x 60 x f32>, %i0 : !nd.tensor<40 x i64>)
    -> (!nd.tensor<s0 x s1 x f32>, !nd.tensor<40 x f32>, !nd.tensor<7 x i64>, !nd.tensor<40 x 60 x f32>) {
  %e = loop.empty : !nd.tensor<s0 x s1 x f32>
  %double = loop.nest (%i = s0, %j = s1) outs(%o = %e : !nd.tensor<s0 x s1 x f32>) {
    %a = loop.load %x[%i, %j] : !nd.tensor<s0 x s1 x f32> -> f32
    %c = arith.addf %a, %a : f32
    loop.store %c, %o[%i, %j] : f32, !nd.tensor<s0 x s1 x f32>
  } attributes {label = "double"}
  %f = loop.empty : !nd.tensor<40 x f32>
  %spread = loop.nest (%i = 40) outs(%o = %f : !nd.tensor<40 x f32>) {
    %mean, %m2, %n = loop.reduce (%j = 4) welford {
      %a = loop.load %y[%i, %j] : !nd.tensor<40 x 60 x f32> -> f32
      loop.yield %a : f32
    } -> f32, f32, f32
    %s = loop.reduce (%j = 60) sum {
      %a = loop.load %y[%i, %j] : !nd.tensor<40 x 60 x f32> -> f32
      %d = arith.subf %a, %mean : f32
      loop.yield %d : f32
    } -> f32
    loop.store %s, %o[%i] : f32, !nd.tensor<40 x f32>
  } attributes {label = "spread"}
  %g = loop.empty : !nd.tensor<7 x i64>
  %count = loop.nest (%i = 40) outs(%o = %g : !nd.tensor<7 x i64>) {
    %k = loop.load %i0[%i] : !nd.tensor<40 x i64> -> i64
    %b = loop.bound %k, 7 "count" : i64
    loop.store %k, %o[%b] add : i64, !nd.tensor<7 x i64>
  } attributes {label = "count"}
  %h = loop.empty : !nd.tensor<40 x 60 x f32>
  %run = loop.nest (%i = 40) outs(%o = %h : !nd.tensor<40 x 60 x f32>) {
    loop.scan (%j = 60) sum {
      %a = loop.load %y[%i, %j] : !nd.tensor<40 x 60 x f32> -> f32
      loop.yield %a : f32
    } do (%j, %r : f32) {
      loop.store %r, %o[%i, %j] : f32, !nd.tensor<40 x 60 x f32>
    }
    loop.for (%j = 60, %w = 2) {
      %a = loop.load %o[%i, %j] : !nd.tensor<40 x 60 x f32> -> f32
      loop.store %a, %o[%i, %j] : f32, !nd.tensor<40 x 60 x f32>
    } attributes {sequential}
    %z = loop.reduce (%j = 60) sum {
      %a = loop.load %o[%i, %j] : !nd.tensor<40 x 60 x f32> -> f32
      loop.store %a, %o[%i, %j] : f32, !nd.tensor<40 x 60 x f32>
      loop.yield %a : f32
    } -> f32
    %z1 = loop.reduce (%j = 60) sum {
      %a = loop.load %o[%i, %j] : !nd.tensor<40 x 60 x f32> -> f32
      %b = arith.mulf %a, %z : f32
      loop.yield %b : f32
    } -> f32
    %z2 = loop.reduce (%j = 60) sum {
      %a = loop.load %o[%i, %j] : !nd.tensor<40 x 60 x f32> -> f32
      loop.yield %a : f32
    } -> f32
  } attributes {label = "run"}
  func.return %double, %spread, %count, %run :
    !nd.tensor<s0 x s1 x f32>, !nd.tensor<40 x f32>, !nd.tensor<7 x i64>, !nd.tensor<40 x 60 x f32>
}
}
"""


def remarks_of(pipeline: str) -> list[str]:
    """The refusals of a pipeline, which leaves the module as it was."""
    ctx = load_dialects(Context())
    module = Parser(ctx, TEXT).parse_module()
    before = print_ir(module, debuginfo=False)
    found = []
    run(parse_pipeline(pipeline), module, ctx, Instrumentation(verify_each=True, remarks=lambda r: found.append((r.kind, r.message))))
    assert print_ir(module, debuginfo=False) == before
    assert all(kind == "missed" for kind, _ in found)
    return [message.removeprefix("refused: ") for _, message in found]


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        ("loop-interchange{nest=double order=k}", "there is no loop 'k'; it has 0 (%i), 1 (%j)"),
        ("loop-interchange{nest=double order=2}", "there is no loop '2'; it has 0 (%i), 1 (%j)"),
        ("loop-interchange{nest=double order=j,1}", "order: a loop is named twice"),
        ("loop-interchange{nest=double}", "order: names no loop"),
        ("loop-interchange{nest=double part=3 order=0}", "there is no part 3; the parts of the nest are 0 to 0"),
        ("loop-interchange{nest=run part=1 order=0}", "the loop of a scan runs in order"),
        ("loop-interchange{nest=run part=2 order=w}", "its iterations run in order (sequential)"),
        ("loop-tile{nest=double sizes=1,2,3}", "sizes: 3 sizes for a nest of 2 loops"),
        ("loop-tile{nest=spread sizes=4,4}", "sizes: 2 sizes for a nest of 1 loop"),
        ("loop-tile{nest=double sizes=-4}", "sizes: takes numbers from 0, got -4"),
        ("loop-tile{nest=spread part=1 sizes=4}", "only the loops of a nest itself (part 0) can be tiled"),
        ("loop-collapse{nest=spread}", "there is nothing to collapse: it takes two loops or more"),
        ("loop-collapse{nest=run part=2}", "its iterations run in order (sequential)"),
        ("loop-expand{nest=double axis=j by=16}", "16 does not divide the size s1 of %j; loop-tile takes any size"),
        ("loop-expand{nest=spread by=7}", "7 does not divide the size 40 of %i; loop-tile takes any size"),
        ("loop-expand{nest=spread by=0}", "by: takes a number from 1, got 0"),
        ("loop-vectorize{nest=double lanes=12}", "lanes: takes a power of two from 2, got 12"),
        ("loop-vectorize{nest=count}", "two iterations of %i may combine into the same element (store add)"),
        ("loop-vectorize{nest=run part=2}", "its iterations run in order (sequential)"),
        ("loop-unroll{nest=double}", "there is no part 1; the parts of the nest are 0 to 0"),
        ("loop-unroll{nest=double part=0}",
         "the loops of the nest itself are shared by threads and lanes; unrolled are those inside (part from 1)"),
        ("loop-unroll{nest=run}", "a scan is not unrolled"),
        ("loop-unroll{nest=spread part=2}", "it has 60 iterations, the limit is 16"),
        ("loop-unroll{nest=spread}", "the kind welford makes one pass for all values and one for each"),
        ("loop-hoist{nest=double}", "nothing in its loops is invariant"),
        ("loop-narrow-index{nest=double}", "the size of a loop has no bound that is known: s0"),
        ("loop-narrow-index{nest=spread bits=8}", "bits: takes 16 or 32, got 8"),
        ("loop-split-reduction{nest=double}", "there is no part 1; the parts of the nest are 0 to 0"),
        ("loop-split-reduction{nest=spread parts=1}", "parts: takes a number from 2, got 1"),
        ("loop-split-reduction{nest=run part=2}", "part 2 is a loop.for, not a loop.reduce"),
        ("loop-split-reduction{nest=spread part=2}",
         "it needs the result of another loop over 4, which each part would repeat; split that one before"),
        ("loop-split-reduction{nest=run part=3}",
         "the body of the reduction stores to a tensor; nests on buffers (behind loop-to-mem) are split then too"),
        ("loop-split-reduction{nest=run part=5}", "it reads what the nest stores before it"),
    ],
)  # fmt: skip
def test_refusals(pipeline, message):
    assert remarks_of(pipeline) == [message]


def test_all_nests_without_a_name():
    assert remarks_of("loop-expand{by=11}") == [
        "11 does not divide the size s1 of %j; loop-tile takes any size",
        *["11 does not divide the size 40 of %i; loop-tile takes any size"] * 3,
    ]


def test_a_refused_name_is_a_warning(caplog):
    remarks_of("loop-expand{nest=spread by=7}")
    (record,) = caplog.records
    assert record.getMessage() == (
        "loop-expand 'spread': refused, 7 does not divide the size 40 of %i; loop-tile takes any size"
    )


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("sprea", "'sprea' names no nest; did you mean 'spread'?"),
        ("qqq", "'qqq' names no nest; named are: double, spread, count, run"),
    ],
)
def test_unknown_names(entry, message):
    with pytest.raises(PassError) as error:
        remarks_of(f"loop-tile{{nest={entry}}}")
    assert error.value.message == message
