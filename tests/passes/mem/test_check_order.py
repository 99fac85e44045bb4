"""mem-check-order and the order that loop-schedule writes (passes/loop/fixed_order.py), on IR."""

import re

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


def on_gpu(text):
    machine = 'stepwell.machine = #stepwell.machine<"sm_90">, '
    return text.replace("{stepwell.order", "{" + machine + "stepwell.order")


@pytest.mark.parametrize("rows", [1, 2, 7, 512])
def test_the_order_on_a_gpu(rows):
    text = run(on_gpu(ROWS.replace("ROWS", str(rows))), "gpu-schedule,mem-check-order")
    assert "attributes {lanes = 1024 : i64}" in text
    assert "reduction_block = 128 : i64" in text  # the other lanes have no terms
    text = run(on_gpu(COLUMNS.replace("ROWS", str(rows))), "gpu-schedule,mem-check-order")
    assert "reduction_block = 128 : i64" in text


def scheduled(rows, terms="100"):
    return run(on_gpu(ROWS.replace("ROWS", rows).replace("100", terms)), "gpu-schedule")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((" attributes {lanes = 1024 : i64}", ""), "'total', loop.reduce: its schedule does not say .* .gpu-schedule does."),
        (("{lanes = 1024", "{lanes = 512"), "its schedule says 512 lanes, the order has 1024"),
        (("reduction_block = 1024", "reduction_block = 512"), "its terms are taken by 512 lanes, not by 1024"),
        (("reduction_block = 1024", "reduction_block = 2048"), "its terms are taken by 2048 lanes, not by 1024"),
        (("warps = ", "group = 2 : i64, warps = "), "several programs share its terms"),
        (("{lanes = 1024", "{terms = 1024"), "its block of a product is not one of 64 rows, columns and terms"),
    ],
)
def test_another_order_on_a_gpu_is_refused(change, message):
    text = scheduled("7", "4000")
    assert change[0] in text
    with pytest.raises(PassError, match=message):
        run(text.replace(*change), "mem-check-order")


def test_how_many_rows_a_program_has_is_free():
    text = scheduled("512")
    run(text.replace("blocks = [8 : i64]", "blocks = [2 : i64]"), "mem-check-order,mem-to-tt")


PRODUCT = """
builtin.module attributes {stepwell.order = "fixed"} {
  func.func @f(%x: !mem.buffer<8 x 32 x f32>, %w: !mem.buffer<32 x 8 x f32>, %y: !mem.buffer<8 x 4 x f32>) {
    loop.contract (%i = 8, %j = 4) reduce (16) %x at #nd.map<(d0, d1, d2) -> (d0, 2 * d2)> : !mem.buffer<8 x 32 x f32> *
        %w at #nd.map<(d0, d1, d2) -> (d2, d1)> : !mem.buffer<32 x 8 x f32> into %a : f32 outs(%o = %y : !mem.buffer<8 x 4 x f32>) {
      loop.store %a, %o[%i, %j] : f32, !mem.buffer<8 x 4 x f32>
    } attributes {schedule = "gemm"}
    func.return
  }
}
"""


def test_a_product_that_only_the_library_takes_is_refused_when_it_is_lowered():
    """Its rows have gaps between their elements."""
    with pytest.raises(PassError, match="no product of ours takes these operands, and the library's sums have no known order"):
        run(PRODUCT, "mem-check-order,mem-to-cpu")


SCATTER = """
builtin.module attributes {stepwell.machine = #stepwell.machine<"sm_90">, stepwell.order = "repeatable"} {
  func.func @f(%x: !mem.buffer<50 x f32>, %p: !mem.buffer<50 x i64>, %y: !mem.buffer<9 x f32>) {
    loop.nest () outs(%out = %y : !mem.buffer<9 x f32>) {
      loop.for (%i = 50) {
        %v = loop.load %x[%i] : !mem.buffer<50 x f32> -> f32
        %at = loop.load %p[%i] : !mem.buffer<50 x i64> -> i64
        %k = loop.bound %at, 9 "index out of range" : i64
        loop.store %v, %out[%k] add : f32, !mem.buffer<9 x f32>
      } attributes {sequential}
    }
    func.return
  }
}
"""


def test_sums_that_are_the_same_in_every_run():
    """NR-09: one program adds up the terms in their order; without the promise they are added in parallel, which is refused with it."""
    pipeline = "gpu-parallel-scatter,gpu-schedule,mem-check-order,mem-to-tt"
    assert "scf.for" in run(SCATTER, pipeline)
    free = SCATTER.replace(', stepwell.order = "repeatable"', "")
    assert "scf.for" not in run(free, pipeline)
    parallel = run(free, "gpu-parallel-scatter").replace('"sm_90">', '"sm_90">, stepwell.order = "repeatable"')
    with pytest.raises(PassError, match="several programs add to one element of f32, in another order in each run"):
        run(parallel, "gpu-schedule,mem-check-order,mem-to-tt")


MATRICES = """
builtin.module attributes {stepwell.order = "fixed"} {
  func.func @f(%x: !mem.buffer<ROWS x 100 x bf16>, %w: !mem.buffer<100 x 512 x bf16>, %y: !mem.buffer<ROWS x 512 x f32>) {
    loop.nest (%i = ROWS, %j = 512) outs(%out = %y : !mem.buffer<ROWS x 512 x f32>) {
      %s = loop.reduce (%k = 100) sum {
        %a = loop.load %x[%i, %k] : !mem.buffer<ROWS x 100 x bf16> -> f32
        %b = loop.load %w[%k, %j] : !mem.buffer<100 x 512 x bf16> -> f32
        %t = arith.mulf %a, %b fastmath<contract> : f32
        loop.yield %t : f32
      } -> f32
      loop.store %s, %out[%i, %j] : f32, !mem.buffer<ROWS x 512 x f32>
    } attributes {label = "product"}
    func.return
  }
}
"""


BLOCKS = re.compile(r"blocks = \[(\d+) : i64, (\d+) : i64\]")


def test_the_block_of_a_product_is_free():
    """Rows decide it, and not the unit, whose instructions take the terms in order."""
    found = set()
    for rows in (2, 512, 4096):
        text = run(on_gpu(MATRICES.replace("ROWS", str(rows))), "gpu-schedule,mem-check-order")
        assert 'attributes {terms = 16 : i64, unit = "group"}' in text
        first, second = map(int, BLOCKS.search(text).groups())
        assert first % 64 == 0
        found.add((first, second))
        other = run(BLOCKS.sub("blocks = [64 : i64, 64 : i64]", text), "mem-check-order,mem-to-tt")
        assert "-> tensor<64x64xf32>" in other
    assert len(found) > 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[64 : i64, 16 : i64]", "[32 : i64, 16 : i64]"), "its tile has other units make the product: 'group' has blocks of 64 rows"),
        (("warps = 4", "warps = 2"), "its tile has other units make the product: 'group' has blocks of 64 rows, 16 terms and 4 warps"),
        (('unit = "group"', 'unit = "warps"'), "its schedule says that a unit 'warps' adds up 16"),
        (("%t = arith.mulf %a, %b fast", "%c = arith.mulf %b, %b : f32\n        %t = arith.mulf %a, %c fast"), "a unit 'group' adds up 16"),
        ((', unit = "group"', ""), "its block of a product is not one of 64 rows, columns and terms"),
    ],
)
def test_another_unit_of_a_product_is_refused(change, message):
    text = run(on_gpu(MATRICES.replace("ROWS", "2")), "gpu-schedule")
    assert change[0] in text
    with pytest.raises(PassError, match=message):
        run(text.replace(*change), "mem-check-order")
