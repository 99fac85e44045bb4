"""Which terms of a reduction are more than its identity, as conditions on indices say."""

from __future__ import annotations

import pytest
from xdsl.parser import Parser

from stepwell.dialects import loop, nd
from stepwell.passes.analysis.needed_terms import needed_terms
from stepwell.passes.analysis.nest_access import NestAccess
from stepwell.tools.backend.compile_graph import context

NEST = """func.func @f(
  %x: !mem.buffer<64 x 96 x f32>, %n: !mem.buffer<64 x index>, %table: !mem.buffer<96 x index>, %y: !mem.buffer<64 x f32>
) {{
  loop.nest (%i = 64) outs(%o = %y : !mem.buffer<64 x f32>) {{
    %zero = arith.constant 0.0 : f32
    %low = arith.constant 0xFF800000 : f32
    %true = arith.constant true
    %nine = arith.constant 9 : index
    %r = loop.reduce (%j = 96) {kind} {{
      %v = loop.load %x[%i, %j] : !mem.buffer<64 x 96 x f32> -> f32
      %loaded = loop.load %n[%i] : !mem.buffer<64 x index> -> index
      %varying = loop.load %table[%j] : !mem.buffer<96 x index> -> index
      %a = loop.index %i : index
      %b = loop.index %j : index
      %c = loop.index %i - %j : index
      {body}
      loop.yield %t : f32
    }} -> f32
    loop.store %r, %o[%i] : f32, !mem.buffer<64 x f32>
  }} attributes {{label = "f"}}
  func.return
}}"""
CAUSAL = "%p = arith.cmpi sge, %a, %b : index"
CASES = {
    "a condition": ("max", f"{CAUSAL}  %t = arith.select %p, %v, %low : f32", ["d0 - d1"]),
    "its opposite": ("max", "%p = arith.cmpi slt, %a, %b : index  %t = arith.select %p, %low, %v : f32", ["d0 - d1"]),
    "strictly": ("sum", "%p = arith.cmpi sgt, %a, %b : index  %t = arith.select %p, %v, %zero : f32", ["d0 - d1 - 1"]),
    "not": ("max", f"{CAUSAL}  %q = arith.xori %p, %true : i1  %t = arith.select %q, %v, %low : f32", ["-d0 + d1 - 1"]),
    "both": (
        "max",
        f"{CAUSAL}  %q = arith.cmpi slt, %c, %nine : index  %r1 = arith.andi %p, %q : i1  %t = arith.select %r1, %v, %low : f32",
        ["d0 - d1", "-d0 + d1 + 8"],
    ),
    "neither": (
        "max",
        "%p = arith.cmpi slt, %a, %b : index  %q = arith.cmpi sge, %c, %nine : index  %r1 = arith.ori %p, %q : i1"
        "  %t = arith.select %r1, %low, %v : f32",
        ["d0 - d1", "-d0 + d1 + 8"],
    ),
    "equal": ("sum", "%p = arith.cmpi eq, %b, %nine : index  %t = arith.select %p, %v, %zero : f32", ["d1 - 9", "-d1 + 9"]),
    "one after the other": (
        "max",
        f"{CAUSAL}  %q = arith.cmpi slt, %c, %nine : index  %u = arith.select %q, %v, %low : f32  %h = arith.truncf %u : f32 to bf16"
        "  %w = arith.extf %h : bf16 to f32  %t = arith.select %p, %w, %low : f32",
        ["d0 - d1", "-d0 + d1 + 8"],
    ),
    "another number": ("max", f"{CAUSAL}  %t = arith.select %p, %v, %zero : f32", []),
    "either of two": (
        "max",
        f"{CAUSAL}  %q = arith.cmpi sge, %b, %nine : index  %r1 = arith.ori %p, %q : i1  %t = arith.select %r1, %v, %low : f32",
        ["max(d0 - d1, d1 - 9)"],
    ),
    "either of two, of which one is not known": (
        "max",
        f"{CAUSAL}  %q = arith.cmpi sge, %varying, %nine : index  %r1 = arith.ori %p, %q : i1  %t = arith.select %r1, %v, %low : f32",
        [],
    ),
    "either of two, of which one is loaded": (
        "max",
        f"{CAUSAL}  %q = arith.cmpi sge, %loaded, %nine : index  %r1 = arith.ori %p, %q : i1  %t = arith.select %r1, %v, %low : f32",
        ["max(d0 - d1, d2 - 9)"],
    ),
    "documents": (
        "max",
        "%m = arith.floordivsi %a, %nine : index  %n1 = arith.floordivsi %b, %nine : index  %p = arith.cmpi eq, %m, %n1 : index"
        "  %t = arith.select %p, %v, %low : f32",
        ["d0 floordiv 9 - d1 floordiv 9", "-(d0 floordiv 9) + d1 floordiv 9"],
    ),
    "what is loaded": ("max", "%p = arith.cmpi sge, %loaded, %b : index  %t = arith.select %p, %v, %low : f32", ["-d1 + d2"]),
    "what is loaded for each term": ("max", "%p = arith.cmpi sge, %varying, %b : index  %t = arith.select %p, %v, %low : f32", []),
    "between loaded numbers": (
        "sum",
        "%end = arith.index_cast %loaded : index to i64  %k = arith.index_cast %b : index to i64  %four = arith.constant 4 : i64"
        "  %s = arith.subi %end, %four : i64  %p = arith.cmpi sge, %k, %s : i64  %q = arith.cmpi slt, %k, %end : i64"
        "  %r1 = arith.andi %p, %q : i1  %t = arith.select %r1, %v, %zero : f32",
        ["d1 - d2 + 4", "-d1 + d2 - 1"],
    ),
    "sums that may wrap": (
        "sum",
        "%k = arith.index_cast %b : index to i32  %s = arith.addi %k, %k : i32  %end = arith.index_cast %loaded : index to i32"
        "  %p = arith.cmpi slt, %s, %end : i32  %t = arith.select %p, %v, %zero : f32",
        [],
    ),
    "what the nest stores": (
        "max",
        "%old = loop.load %o[%i] : !mem.buffer<64 x f32> -> f32  %end = arith.fptosi %old : f32 to i64"
        "  %k = arith.index_cast %b : index to i64  %p = arith.cmpi slt, %k, %end : i64  %t = arith.select %p, %v, %low : f32",
        [],
    ),
    "an index that is checked where it counts": (
        "max",
        "%none = arith.constant 0 : index  %p = arith.cmpi slt, %b, %loaded : index  %u = arith.select %p, %b, %none : index"
        '  %at = loop.bound %u, 64 "index" : index  %t = arith.select %p, %v, %low : f32',
        ["-d1 + d3 - 1"],
    ),
    "an index that is checked": (
        "max",
        f'{CAUSAL}  %at = loop.bound %loaded, 64 "embedding" : index  %t = arith.select %p, %v, %low : f32',
        [],
    ),
    "times a number": (
        "sum",
        f"{CAUSAL}  %u = arith.select %p, %v, %zero : f32  %k = arith.constant 0.5 : f32  %t = arith.mulf %u, %k : f32",
        ["d0 - d1"],
    ),
    "times an infinite number": (
        "sum",
        f"{CAUSAL}  %u = arith.select %p, %v, %zero : f32  %k = arith.constant 0x7F800000 : f32  %t = arith.mulf %u, %k : f32",
        [],
    ),
    "times an element": ("sum", f"{CAUSAL}  %u = arith.select %p, %v, %zero : f32  %t = arith.mulf %u, %v fastmath<contract> : f32", []),
    "an exponential less than what is finite": (
        "sum",
        f"{CAUSAL}  %u = arith.select %p, %v, %low : f32  %s = arith.subf %u, %v : f32  %e = math.exp %s : f32"
        "  %dead = arith.cmpf oeq, %v, %low : f32  %t = arith.select %dead, %zero, %e : f32",
        ["d0 - d1"],
    ),
    "an exponential less than anything": (
        "sum", f"{CAUSAL}  %u = arith.select %p, %v, %low : f32  %s = arith.subf %u, %v : f32  %t = math.exp %s : f32", [],
    ),
    "a product": ("prod", f"{CAUSAL}  %t = arith.select %p, %v, %zero : f32", []),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_needed_terms(name):
    kind, body, want = CASES[name]
    module = Parser(context(), NEST.format(kind=kind, body=body.replace("  ", "\n      "))).parse_module()
    (nest,) = [op for op in module.walk() if isinstance(op, loop.NestOp)]
    info = NestAccess(nest, nd.symbol_ranges(module), normalise=False)
    (node,) = info.root.children
    assert sorted(map(str, needed_terms(info, node))) == sorted(want)
