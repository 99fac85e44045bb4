"""What library calls and contractions are reckoned to cost."""

from __future__ import annotations

import pytest
from xdsl.parser import Parser

from stepwell.dialects import nd
from stepwell.passes.cost.library_cost import extern_cost, matmul_cost
from stepwell.passes.cost.machine.cpu import SERVER
from stepwell.tools.backend.compile_graph import context


def extern(text: str, arguments: str) -> nd.ExternOp:
    module = Parser(context(), f"func.func @f({arguments}) {{\n{text}\nfunc.return\n}}").parse_module()
    return next(op for op in module.walk() if isinstance(op, nd.ExternOp))


def test_a_large_product_is_bound_by_arithmetic_and_a_small_one_by_the_call():
    """K01"""
    large, small = matmul_cost(1024, 1024, 1024), matmul_cost(4, 4, 4)
    assert large.flops == 2 * 1024**3 and large.bound == "compute"
    assert large.seconds == pytest.approx(2 * 1024**3 / SERVER.gflops * 1e-9, rel=0.3)
    assert small.bound == "launch"


def test_a_product_of_one_row_is_bound_by_memory():
    cost = matmul_cost(1, 4096, 4096)
    assert cost.bound == "memory" and cost.bytes == (4096 + 4096 * 4096 + 4096) * 4


def test_the_flops_of_calls_are_known_by_operator():
    mm = extern(
        '%y = nd.extern %a, %b {call = #nd.call<"aten.mm.default", [arg(0), arg(1)]>} : '
        "(!nd.tensor<s0 x 64 x f32>, !nd.tensor<64 x 16 x f32>) -> !nd.tensor<s0 x 16 x f32>",
        "%a : !nd.tensor<s0 x 64 x f32>, %b : !nd.tensor<64 x 16 x f32>",
    )
    assert extern_cost(mm, {"s0": 10}).flops == 2 * 10 * 64 * 16
    assert extern_cost(mm, {"s0": 10}).work.read == (10 * 64 + 64 * 16) * 4
    conv = extern(
        '%y = nd.extern %a, %b {call = #nd.call<"aten.convolution.default", [arg(0), arg(1), none, [1, 1], [1, 1]]>}'
        " : (!nd.tensor<2 x 8 x 10 x 10 x f32>, !nd.tensor<4 x 8 x 3 x 3 x f32>) -> !nd.tensor<2 x 4 x 10 x 10 x f32>",
        "%a : !nd.tensor<2 x 8 x 10 x 10 x f32>, %b : !nd.tensor<4 x 8 x 3 x 3 x f32>",
    )
    assert extern_cost(conv).flops == 2 * (2 * 4 * 10 * 10) * (8 * 3 * 3)


def test_a_sort_costs_more_than_a_pass_over_its_operand():
    sizes = "!nd.tensor<512 x 4096 x f32>"
    sort = extern(
        f'%y, %i = nd.extern %a {{call = #nd.call<"aten.sort.default", [arg(0)]>}} : ({sizes}) -> ({sizes}, !nd.tensor<512 x 4096 x i64>)',
        f"%a : {sizes}",
    )
    other = extern(f'%y = nd.extern %a {{call = #nd.call<"aten.anything.default", [arg(0)]>}} : ({sizes}) -> {sizes}', f"%a : {sizes}")
    assert extern_cost(sort).seconds > 20 * extern_cost(other).seconds
    assert extern_cost(other).bound == "memory"
