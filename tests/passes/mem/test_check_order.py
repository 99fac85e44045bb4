"""mem-check-order and the order that loop-schedule writes (passes/loop/fixed_order.py), on IR."""

import pytest
from xdsl.context import Context
from xdsl.parser import Parser

from stepwell.dialects import load_dialects
from stepwell.passes.manager.errors import PassError
from stepwell.passes.manager.pass_manager import run as run_pipeline
from stepwell.passes.manager.pipelines import parse_pipeline

CTX = load_dialects(Context())

ROWS = """
builtin.module attributes {stepwell.order = "fixed"} {
  func.func @f(%x: !mem.buffer<ROWS x 100 x f32>, %y: !mem.buffer<ROWS x f32>) {
    loop.nest (%i = ROWS) outs(%out = %y : !mem.buffer<ROWS x f32>) {
      %s = loop.reduce (%k = 100) sum {
        %v = loop.load %x[%i, %k] : !mem.buffer<ROWS x 100 x f32> -> f32
        loop.yield %v : f32
      } -> f32
      loop.store %s, %out[%i] : f32, !mem.buffer<ROWS x f32>
    } attributes {label = "total"}
    func.return
  }
}
"""
COLUMNS = ROWS.replace("ROWS x 100 x f32", "100 x ROWS x f32").replace("[%i, %k]", "[%k, %i]")


def run(text, pipeline):
    module = Parser(CTX, text).parse_module()
    run_pipeline(parse_pipeline(pipeline), module, CTX)
    return str(module)


@pytest.mark.parametrize("rows", [2, 7, 512])
def test_the_order_of_a_row_does_not_depend_on_how_many_there_are(rows):
    text = run(ROWS.replace("ROWS", str(rows)), "loop-schedule,mem-check-order")
    assert "attributes {vector = 0 : i64, lanes = 32 : i64}" in text
    text = run(COLUMNS.replace("ROWS", str(rows)), "loop-schedule,mem-check-order")
    assert 'attributes {vector = "none"}' in text


def test_without_a_promise_nothing_is_asked():
    run(ROWS.replace("ROWS", "7").replace('attributes {stepwell.order = "fixed"} ', ""), "mem-check-order")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("", ""), "'total', loop.reduce: its schedule does not say in which order its terms are taken"),
        (("} -> f32\n", "} -> f32 attributes {vector = 0 : i64, lanes = 16 : i64}\n"), "its terms are taken by 16 lanes, not by 32"),
    ],
)
def test_another_order_is_refused(change, message):
    with pytest.raises(PassError, match=message):
        run(ROWS.replace("ROWS", "7").replace(*change), "mem-check-order")


def test_kernels_of_a_gpu_are_refused():
    machine = 'stepwell.machine = #stepwell.machine<"sm_90">, '
    with pytest.raises(PassError, match="are made on the CPU alone"):
        run(ROWS.replace("ROWS", "7").replace('{stepwell.order', "{" + machine + "stepwell.order"), "mem-check-order")
