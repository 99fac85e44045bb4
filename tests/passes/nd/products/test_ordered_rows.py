"""Attention of one query whose sums have an order of their own is computed as of two rows (passes/nd/products/ordered_rows.py), on IR."""

import pytest
from xdsl.context import Context
from xdsl.parser import Parser

from stepwell.dialects import load_dialects
from stepwell.passes.manager.pass_manager import run as run_pipeline
from stepwell.passes.manager.pipelines import parse_pipeline

CTX = load_dialects(Context())

ATTENTION = """
builtin.module attributes {stepwell.order = "fixed", stepwell.machine = #stepwell.machine<"sm_90">} {
  func.func @f(%q: !nd.tensor<ROWS x 64 x bf16>, %k: !nd.tensor<64 x 70 x bf16>, %m: !nd.tensor<1 x 70 x f32>,
               %v: !nd.tensor<70 x 64 x bf16>) -> !nd.tensor<ROWS x 64 x f32> {
    %a = nd.cast %q : (!nd.tensor<ROWS x 64 x bf16>) -> !nd.tensor<ROWS x 64 x f32>
    %b = nd.cast %k : (!nd.tensor<64 x 70 x bf16>) -> !nd.tensor<64 x 70 x f32>
    %c = nd.cast %v : (!nd.tensor<70 x 64 x bf16>) -> !nd.tensor<70 x 64 x f32>
    %p = nd.matmul %a, %b : (!nd.tensor<ROWS x 64 x f32>, !nd.tensor<64 x 70 x f32>) -> !nd.tensor<ROWS x 70 x f32>
    %s = nd.add %p, %m : (!nd.tensor<ROWS x 70 x f32>, !nd.tensor<1 x 70 x f32>) -> !nd.tensor<ROWS x 70 x f32>
    %1 = nd.reduce %s {kind = "max", dims = [1]} : (!nd.tensor<ROWS x 70 x f32>) -> !nd.tensor<ROWS x f32>
    %2 = nd.reshape %1 : (!nd.tensor<ROWS x f32>) -> !nd.tensor<ROWS x 1 x f32>
    %3 = nd.sub %s, %2 : (!nd.tensor<ROWS x 70 x f32>, !nd.tensor<ROWS x 1 x f32>) -> !nd.tensor<ROWS x 70 x f32>
    %4 = nd.exp %3 : !nd.tensor<ROWS x 70 x f32>
    %5 = nd.reduce %4 {kind = "sum", dims = [1]} : (!nd.tensor<ROWS x 70 x f32>) -> !nd.tensor<ROWS x f32>
    %6 = nd.reshape %5 : (!nd.tensor<ROWS x f32>) -> !nd.tensor<ROWS x 1 x f32>
    %7 = nd.div %4, %6 : (!nd.tensor<ROWS x 70 x f32>, !nd.tensor<ROWS x 1 x f32>) -> !nd.tensor<ROWS x 70 x f32>
    %8 = nd.cast %7 : (!nd.tensor<ROWS x 70 x f32>) -> !nd.tensor<ROWS x 70 x bf16>
    %9 = nd.cast %8 : (!nd.tensor<ROWS x 70 x bf16>) -> !nd.tensor<ROWS x 70 x f32>
    %o = nd.matmul %9, %c : (!nd.tensor<ROWS x 70 x f32>, !nd.tensor<70 x 64 x f32>) -> !nd.tensor<ROWS x 64 x f32>
    func.return %o : !nd.tensor<ROWS x 64 x f32>
  }
}
"""


@pytest.mark.parametrize(("rows", "pads"), [(1, 1), (2, 0)])
def test_one_row_is_two_from_the_first_product_to_the_last(rows, pads):
    module = Parser(CTX, ATTENTION.replace("ROWS", str(rows))).parse_module()
    run_pipeline(parse_pipeline("nd-library-products"), module, CTX)
    module.verify()
    text = str(module)
    assert text.count("nd.pad") == pads
    assert text.count("nd.slice") == pads
    assert "nd.exp %" in text
    assert ": !nd.tensor<2 x 70 x f32>" in next(line for line in text.splitlines() if "nd.exp" in line)
    assert "%m : (!nd.tensor<2 x 70 x f32>, !nd.tensor<1 x 70 x f32>)" in text  # what broadcasts stays
