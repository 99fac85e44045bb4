"""The cpu dialect: what is printed parses back, pretty and generic, and the verifier says what is wrong."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from xdsl.context import Context
from xdsl.dialects.arith import Arith
from xdsl.dialects.builtin import Builtin, ModuleOp, bf16, i64
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from stepwell.dialects.cpu import Cpu, KernelOp, LoadOp, ReturnOp, StoreOp, ptr, vec

ROUNDTRIP = (Path(__file__).parent / "cpu_roundtrip.mlir").read_text()


def parse(text: str) -> ModuleOp:
    ctx = Context()
    for dialect in (Builtin, Arith, Cpu):
        ctx.load_dialect(dialect)
    return Parser(ctx, text).parse_module()


def show(module: ModuleOp, generic: bool = False) -> str:
    stream = StringIO()
    Printer(stream, print_generic_format=generic).print_op(module)
    return stream.getvalue()


@pytest.mark.parametrize("generic", [False, True])
def test_what_is_printed_parses_back(generic: bool) -> None:
    module = parse(ROUNDTRIP)
    module.verify()
    text = show(module, generic)
    again = parse(text)
    again.verify()
    assert show(again, generic) == text
    assert module.is_structurally_equivalent(again)


HEAD = """
%p, %n, %s = "test.op"() : () -> (!cpu.ptr, i64, f32)
%v, %m, %w, %i = "test.op"() : () -> (vector<4xf32>, vector<4xi1>, vector<8xf32>, vector<4xi32>)
"""

BAD = [
    ("%a = cpu.load %p[%s : f32] : f32", "the offset must be i64 or index, got f32"),
    ("%a = cpu.load %p[%n] : vector<2x2xf32>", "the value in memory must be a 1-D vector of fixed length"),
    ("%a = cpu.load %p[%n] : i4", "memory holds integers of 1, 8, 16, 32, 64 or 128 bits, got i4"),
    ("%a = cpu.load %p[%n] {alignment = 24 : i64} : f32", "alignment must be a power of two, got 24"),
    ("%a = cpu.gather %p[%i : vector<4xi32>] : vector<8xf32>", "as many offsets as lanes are needed"),
    ("%a = cpu.gather %p[%v : vector<4xf32>] : vector<4xf32>", "offsets must be i64, i32 or index"),
    ("cpu.atomic_add %v, %p[%n] : vector<4xf32>", "the value must be a scalar number"),
    ("%a = cpu.local {bytes = 16 : i64, align = 3 : i64}", "alignment must be a power of two, got 3"),
    ("%a = cpu.iota : vector<4xf32>", "the lanes must be integers"),
    ('cpu.gemm @g {dtype = "f32", out = "f32", trans_b, panels = 64 : i64}', "panels have columns, and those lie side by side"),
    ('cpu.gemm @g {dtype = "f32", out = "f32", panels = 0 : i64}', "panels have columns"),
    ("%a = cpu.lanes %n : i64 to vector<4xi8>", "the lanes must be i1, got i8"),
    ("%a = cpu.reduce and %v : vector<4xf32>", "and is for integers"),
    ("%a = cpu.reduce avg %v : vector<4xf32>", "unknown kind 'avg'; known are add, mul"),
    ("%a = cpu.cmpi slt %v, %v : vector<4xf32>", "floats are compared by cpu.cmpf"),
    ("%a = cpu.cmpf olt %i, %i : vector<4xi32>", "integers are compared by cpu.cmpi"),
    ("%a = cpu.math lgamma %i : vector<4xi32>", "lgamma is defined on f32 and f64"),
    ("%a = cpu.math hypot %v : vector<4xf32>", "hypot takes 2 operands, got 1"),
    ("%a = cpu.select %m, %w, %w : vector<8xf32>", None),
    ("%a = cpu.cast extf %i : vector<4xi32> to vector<4xf32>", "extf does not cast i32 to f32"),
    ("%a = cpu.cast extsi %i : vector<4xi32> to vector<4xi8>", "extsi does not cast i32 to i8"),
    ("%a = cpu.cast bitcast %i : vector<4xi32> to vector<4xf64>", "bitcast does not cast i32 to f64"),
    ("%a = cpu.cast extf %v : vector<4xf32> to vector<8xf64>", "the result must be vector<4xf64>, got vector<8xf64>"),
    ("%a = cpu.cast round %v : vector<4xf32> to vector<4xf64>", "unknown cast 'round'"),
    ("%a = cpu.shuffle %v [0, 4] : vector<4xf32>", "lane 4 is out of range: there are 4 lanes"),
    ("%a = cpu.extract %v[4] : vector<4xf32>", "lane 4 is out of range"),
    ("%a = cpu.slice %v {start = 3 : i64} : vector<4xf32> to vector<2xf32>", "lanes 3 to 4 are out of range"),
    ("%a = cpu.concat %v, %v, %v : vector<4xf32>", "the number of vectors must be a power of two, got 3"),
    ("%a, %b = cpu.transpose %v, %v : vector<4xf32>", "a square is transposed: 2 rows need 2 lanes"),
    ('cpu.assert %s, "no" : f32', "the condition's lanes must be i1, got f32"),
    ('cpu.assert %m, "{0}"(%i) : vector<4xi1>, vector<4xi32>', "a value of the message, its lanes must be i64, got i32"),
    ('cpu.assert %m, "{1}"(%n) : vector<4xi1>, i64', "'{1}' is not a format string of 1 values"),
    ("cpu.call @f(%v) : (vector<4xf32>) -> ()", "only pointers and scalars are passed to @f"),
    ("cpu.parallel (%b) = %n, %n : i64 {\n}", "the body takes begin and end"),
    ('cpu.kernel @k() {\n "test.termop"() : () -> ()\n}', "the body must end with cpu.return"),
    ("cpu.kernel @k(%x : vector<4xf32>) {\n cpu.return\n}", "argument 0 must be a pointer or a scalar"),
]


@pytest.mark.parametrize("text, message", BAD)
def test_bad_ir_is_refused_with_a_reason(text: str, message: str | None) -> None:
    from xdsl.dialects.test import Test
    from xdsl.utils.exceptions import ParseError

    ctx = Context()
    for dialect in (Builtin, Arith, Cpu, Test):
        ctx.load_dialect(dialect)
    if message is None:
        with pytest.raises(ParseError):
            Parser(ctx, HEAD + text).parse_module()
        return
    module = Parser(ctx, HEAD + text).parse_module()
    with pytest.raises(VerifyException) as error:
        module.verify()
    assert message in str(error.value)


def test_fast_constructors_build_what_the_verifier_accepts() -> None:
    kernel = KernelOp.make("k", (ptr, ptr, i64))
    x, y, n = kernel.body.block.args
    load = LoadOp.make(vec(32, bf16), x, n, alignment=64, nontemporal=True)
    kernel.body.block.add_ops([load, StoreOp.make(load.res, y, n), ReturnOp.make()])
    module = ModuleOp([kernel])
    module.verify()
    assert "alignment = 64 : i64, nontemporal} : vector<32xbf16>" in show(module)
    assert parse(show(module)).is_structurally_equivalent(module)
