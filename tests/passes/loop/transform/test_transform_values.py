"""Loop transforms keep values: nests before and after, through the loop interpreter and through the CPU target, over sizes that tiles and
parts do not divide, sizes 0 and 1, and sizes known at run time only; at the loop level and at the memory level."""

from __future__ import annotations

import random

import pytest
import torch
from xdsl.context import Context
from xdsl.parser import Parser

from stepwell.dialects import load_dialects
from stepwell.passes.manager.instrumentation import Instrumentation, print_ir
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline
from stepwell.tools.interpret.loop import run_loop
from stepwell.tools.opt.run_ir import run_module

CTX = load_dialects(Context())
HEADER = "builtin.module attributes {nd.symbols = {s0 = #nd.range<0, -1, 40>, s1 = #nd.range<0, 100000, 40>}} {"

POINTWISE = """
  %e = loop.empty : {x}
  %r = loop.nest (%i = {n}, %j = {m}) outs(%o = %e : {x}) {{
    %a = loop.load %x[%i, %j] : {x} -> f32
    %b = loop.load %t[%j, %i] : {t} -> f32
    %k = loop.index %i * 3 + %j : i64
    %f = arith.sitofp %k : i64 to f32
    %c = arith.addf %a, %b : f32
    %d = arith.mulf %c, %f : f32
    loop.store %d, %o[%i, %j] : f32, {x}
  }} attributes {{label = "r"}}
  func.return %r : {x}"""

CUBE = """
  %e = loop.empty : !nd.tensor<{m} x 3 x {n} x f32>
  %r = loop.nest (%j = {m}, %k = 3, %i = {n}) outs(%o = %e : !nd.tensor<{m} x 3 x {n} x f32>) {{
    %a = loop.load %x[%i, %j] : {x} -> f32
    %z = arith.constant 2 : index
    %q = arith.cmpi eq, %k, %z : index
    %g = math.sin %a : f32
    %b = loop.load %t[%j, %i] : {t} -> f32
    %c = arith.select %q, %g, %b : f32
    loop.store %c, %o[%j, %k, %i] : f32, !nd.tensor<{m} x 3 x {n} x f32>
  }} attributes {{label = "r"}}
  func.return %r : !nd.tensor<{m} x 3 x {n} x f32>"""

KINDS = """
  %e = loop.empty : !nd.tensor<{n} x f32>
  %f = loop.empty : !nd.tensor<{n} x i64>
  %g = loop.empty : !nd.tensor<{n} x i1>
  %r, %r1, %r2, %r3, %r4, %r5 = loop.nest (%i = {n})
      outs(%o = %e : !nd.tensor<{n} x f32>, %o1 = %f : !nd.tensor<{n} x i64>, %o2 = %e : !nd.tensor<{n} x f32>,
           %o3 = %e : !nd.tensor<{n} x f32>, %o4 = %g : !nd.tensor<{n} x i1>, %o5 = %e : !nd.tensor<{n} x f32>) {{
    %sc = loop.load %x[%i, 0] : {x} -> f32
    %s, %v, %k, %mean, %m2, %c, %mx, %se, %any, %mn = loop.reduce (%j = {m}) sum, argmax, welford, softmax, any, min {{
      %a = loop.load %x[%i, %j] : {x} -> f32
      %p = arith.mulf %a, %sc : f32
      %l = loop.index %j : i64
      %big = arith.cmpf ogt, %a, %sc : f32
      loop.yield %p, %p, %l, %a, %p, %big, %a : f32, f32, i64, f32, f32, i1, f32
    }} -> f32, f32, i64, f32, f32, f32, f32, f32, i1, f32
    %w = arith.addf %m2, %mean : f32
    %u = arith.addf %se, %mx : f32
    %y = arith.addf %mn, %s : f32
    loop.store %y, %o[%i] : f32, !nd.tensor<{n} x f32>
    loop.store %k, %o1[%i] : i64, !nd.tensor<{n} x i64>
    loop.store %w, %o2[%i] : f32, !nd.tensor<{n} x f32>
    loop.store %u, %o3[%i] : f32, !nd.tensor<{n} x f32>
    loop.store %any, %o4[%i] : i1, !nd.tensor<{n} x i1>
    loop.store %c, %o5[%i] : f32, !nd.tensor<{n} x f32>
  }} attributes {{label = "r"}}
  func.return %r, %r1, %r2, %r3, %r4, %r5 : !nd.tensor<{n} x f32>, !nd.tensor<{n} x i64>, !nd.tensor<{n} x f32>,
    !nd.tensor<{n} x f32>, !nd.tensor<{n} x i1>, !nd.tensor<{n} x f32>"""

ROWS = """
  %e = loop.empty : {x}
  %r = loop.nest (%i = {n}) outs(%o = %e : {x}) {{
    %m = loop.reduce (%j = {m}) max {{
      %a = loop.load %x[%i, %j] : {x} -> f32
      loop.yield %a : f32
    }} -> f32
    %s = loop.reduce (%j = {m}) sum {{
      %a = loop.load %x[%i, %j] : {x} -> f32
      %b = arith.subf %a, %m : f32
      %c = math.exp %b : f32
      loop.yield %c : f32
    }} -> f32
    loop.for (%j = {m}) {{
      %a = loop.load %x[%i, %j] : {x} -> f32
      %b = arith.subf %a, %m : f32
      %c = math.exp %b : f32
      %d = arith.divf %c, %s : f32
      loop.store %d, %o[%i, %j] : f32, {x}
    }}
  }} attributes {{label = "r"}}
  func.return %r : {x}"""

COLUMNS = """
  %e = loop.empty : !nd.tensor<{m} x f32>
  %r = loop.nest (%j = {m}) outs(%o = %e : !nd.tensor<{m} x f32>) {{
    %s, %q = loop.reduce (%i = {n}, %w = 3) sum, prod {{
      %a = loop.load %x[%i, %j] : {x} -> f32
      %k = loop.index %w * 2 - %i : i32
      %f = arith.sitofp %k : i32 to f32
      %b = arith.mulf %a, %f : f32
      loop.yield %b, %a : f32, f32
    }} -> f32, f32
    %t2 = arith.addf %s, %q : f32
    loop.store %t2, %o[%j] : f32, !nd.tensor<{m} x f32>
  }} attributes {{label = "r"}}
  func.return %r : !nd.tensor<{m} x f32>"""

WINDOW = """
  %e = loop.empty : {x}
  %r = loop.nest (%i = {n}, %j = {m}) outs(%o = %e : {x}) {{
    %z = arith.constant 0xFF800000 : f32
    %zero = arith.constant 0 : index
    %m, %lo, %k = loop.reduce (%u = 3, %v = 2) max, argmin {{
      %p = loop.index %i + %u - 1 : index
      %size = loop.index {n} : index
      %low = arith.cmpi sge, %p, %zero : index
      %high = arith.cmpi slt, %p, %size : index
      %in = arith.andi %low, %high : i1
      %a = loop.load %x[%i + %u - 1, %j] if %in else %z : {x} -> f32
      %number = loop.index %u * 2 + %v : i64
      loop.yield %a, %a, %number : f32, f32, i64
    }} -> f32, f32, i64
    %kf = arith.sitofp %k : i64 to f32
    %ml = arith.addf %m, %lo : f32
    %f = arith.addf %ml, %kf : f32
    loop.store %f, %o[%i, %j] : f32, {x}
  }} attributes {{label = "r"}}
  func.return %r : {x}"""

MEET = """
  %zero = loop.empty : !nd.tensor<5 x f32>
  %e = loop.nest (%i = 5) outs(%o = %zero : !nd.tensor<5 x f32>) {{
    %c = arith.constant 0.0 : f32
    loop.store %c, %o[%i] : f32, !nd.tensor<5 x f32>
  }} attributes {{label = "zero"}}
  %r = loop.nest (%i = {n}, %j = {m}) outs(%o = %e : !nd.tensor<5 x f32>) {{
    %a = loop.load %x[%i, %j] : {x} -> f32
    %k = loop.index (%i * 3 + %j) mod 5 : i64
    %b = loop.bound %k, 5 "index" : i64
    loop.store %a, %o[%b] add : f32, !nd.tensor<5 x f32>
  }} attributes {{label = "r"}}
  func.return %r : !nd.tensor<5 x f32>"""

WEIGHED = """
  %e = loop.empty : !nd.tensor<{n} x f32>
  %r, %r1, %r2 = loop.nest (%i = {n})
      outs(%o = %e : !nd.tensor<{n} x f32>, %o1 = %e : !nd.tensor<{n} x f32>, %o2 = %e : !nd.tensor<{n} x f32>) {{
    %low = arith.constant 0xFF800000 : f32
    %zero = arith.constant 0 : index
    %mx, %sum, %dot = loop.reduce (%j = {m}) softmax_dot {{
      %k = loop.index (%i + %j) mod 5 : index
      %l = loop.index (%i + 1) mod 7 : index
      %first = arith.cmpi ne, %k, %zero : index
      %last = arith.cmpi ne, %l, %zero : index
      %there = arith.andi %first, %last : i1
      %a = loop.load %x[%i, %j] if %there else %low : {x} -> f32
      %v = loop.load %t[%j, %i] : {t} -> f32
      loop.yield %a, %v : f32, f32
    }} -> f32, f32, f32
    loop.store %mx, %o[%i] : f32, !nd.tensor<{n} x f32>
    loop.store %sum, %o1[%i] : f32, !nd.tensor<{n} x f32>
    loop.store %dot, %o2[%i] : f32, !nd.tensor<{n} x f32>
  }} attributes {{label = "r"}}
  func.return %r, %r1, %r2 : !nd.tensor<{n} x f32>, !nd.tensor<{n} x f32>, !nd.tensor<{n} x f32>"""

CASES = {
    "pointwise": POINTWISE, "cube": CUBE, "kinds": KINDS, "rows": ROWS, "columns": COLUMNS, "window": WINDOW, "meet": MEET,
    "weighed": WEIGHED,
}  # fmt: skip


def text_of(name: str, n, m, dynamic: bool) -> str:
    a, b = ("s0", "s1") if dynamic else (n, m)
    x, t = f"!nd.tensor<{a} x {b} x f32>", f"!nd.tensor<{b} x {a} x f32>"
    layouts = f"{{nd.layout = #nd.layout<[{b}, 1], 0>}}", f"{{nd.layout = #nd.layout<[{a}, 1], 0>}}"
    body = CASES[name].format(n=a, m=b, x=x, t=t)
    head = f"func.func @forward(%x : {x} {layouts[0]}, %t : {t} {layouts[1]}) -> ("
    returned = body[body.rindex(" : ") + 3 :]
    return f"{HEADER} {head}{returned}) {{{body}\n}} }}"


def parse(text: str):
    return Parser(CTX, text).parse_module()


def transformed(text: str, pipeline: str):
    """The module after a pipeline, printed and read back; how many nests were transformed and how many refused."""
    module = parse(text)
    instrument = Instrumentation(verify_each=True, statistics=True)
    run(parse_pipeline(pipeline), module, CTX, instrument)
    again = parse(print_ir(module, debuginfo=False))
    applied, refused = (sum(n for (_, key), n in instrument.counts.items() if key == f"num-{what}") for what in ("applied", "refused"))
    return again, applied, refused


def inputs(n: int, m: int):
    torch.manual_seed(n * 100 + m)
    return [torch.randn(n, m), torch.randn(m, n)]


def check(name: str, pipeline: str, n: int, m: int, dynamic: bool) -> int:
    """Transform and compare; how many nests were transformed."""
    text = text_of(name, n, m, dynamic)
    given = inputs(n, m)
    want = run_loop(parse(text), given)
    module, applied, _ = transformed(text, pipeline)
    what = f"{name} {n}x{m}{' dynamic' if dynamic else ''} {pipeline}"
    results = {"native": run_module(module, CTX, given)}
    if n * m <= 700:
        results |= {order: run_loop(module, given, order=order, seed=5) for order in ("forward", "shuffle")}
    for how, got in results.items():
        for a, b in zip(got, want, strict=True):
            near = {"rtol": 2e-4, "atol": 2e-4, "equal_nan": True, "msg": lambda m, h=how: f"{what} ({h}): {m}"}
            torch.testing.assert_close(a, b, **near)
    return applied


SIZES = {(7, 19): (False, True), (1, 33): (False,), (0, 5): (True,), (5, 0): (False,), (33, 64): (True,)}
"""Sizes, and in which ways: known when it is compiled (False), at run time (True)."""


@pytest.mark.parametrize(
    ("name", "pipeline"),
    [
        ("pointwise", "loop-interchange{nest=r order=1,0}"),
        ("pointwise", "loop-interchange{nest=r order=j},loop-vectorize{nest=r axis=j lanes=8}"),
        ("pointwise", "loop-tile{nest=r sizes=4,8}"),
        ("pointwise", "loop-tile{nest=r sizes=16,16},loop-vectorize{axis=i}"),
        ("pointwise", "loop-collapse{nest=r}"),
        ("cube", "loop-interchange{nest=r order=i,k,j}"),
        ("cube", "loop-tile{nest=r sizes=5,0,6}"),
        ("cube", "loop-collapse{nest=r loops=j,k},loop-narrow-index"),
        ("cube", "loop-interchange{nest=r order=1,2},loop-tile{sizes=2,8,3},loop-vectorize{axis=0 lanes=4}"),
        ("kinds", "loop-split-reduction{nest=r parts=4}"),
        ("kinds", "loop-tile{nest=r sizes=3},loop-hoist"),
        ("kinds", "loop-vectorize{nest=r axis=i}"),
        ("rows", "loop-split-reduction{nest=r parts=3},loop-split-reduction{nest=r part=2 parts=5}"),
        ("rows", "loop-tile{nest=r sizes=4},loop-vectorize{part=2 axis=none}"),
        ("columns", "loop-interchange{nest=r part=1 order=w}"),
        ("columns", "loop-split-reduction{nest=r parts=4 axis=i},loop-tile{nest=r_parts sizes=16,1}"),
        ("columns", "loop-collapse{nest=r part=1}"),
        ("columns", "loop-tile{nest=r sizes=8}"),
        ("window", "loop-unroll{nest=r}"),
        ("window", "loop-hoist{nest=r},loop-tile{sizes=2,32}"),
        ("window", "loop-interchange{nest=r order=j},loop-unroll"),
        ("weighed", "loop-split-reduction{nest=r parts=4}"),
        ("weighed", "loop-vectorize{nest=r axis=i}"),
        ("weighed", "loop-vectorize{nest=r part=1 axis=j}"),
        ("meet", "loop-tile{nest=r sizes=4,4}"),
        ("meet", "loop-interchange{nest=r order=j}"),
    ],
)
def test_values_are_kept(name, pipeline):
    applied = 0
    for (n, m), ways in SIZES.items():
        if name == "kinds" and m == 0:
            continue  # reads column 0
        for dynamic in ways:
            applied += check(name, pipeline, n, m, dynamic)
    assert applied


MENU = (
    "loop-interchange{order=-1}", "loop-interchange{order=0}", "loop-tile{sizes=3}", "loop-tile{sizes=5,4}", "loop-tile{sizes=0,16}",
    "loop-collapse", "loop-expand{by=2}", "loop-expand{axis=0 by=4}", "loop-vectorize{axis=0}", "loop-vectorize{axis=-1 lanes=16}",
    "loop-vectorize{part=1 axis=0}", "loop-unroll{part=1 limit=20}", "loop-unroll{part=2}", "loop-hoist", "loop-narrow-index",
    "loop-split-reduction{part=1 parts=3}", "loop-split-reduction{part=2 parts=2}", "loop-interchange{part=1 order=-1}",
    "loop-collapse{part=1}", "loop-expand{part=1 by=3}",
)  # fmt: skip


@pytest.mark.parametrize("seed", range(24))
def test_random_sequences_keep_values(seed):
    chance = random.Random(seed)
    name = chance.choice(list(CASES))
    n, m = chance.choice([(8, 24), (7, 19), (1, 20), (12, 1), (36, 33)])
    steps = [chance.choice(MENU) for _ in range(chance.randint(1, 5))]
    where = chance.randint(0, len(steps))
    memory = chance.random() < 0.5  # some of the steps at the memory level
    pipeline = ",".join([*steps[:where], *(["loop-to-mem", "mem-plan"] if memory else []), *steps[where:]])
    print(f"seed {seed}: {name} {n}x{m} {pipeline}")
    check(name, pipeline, n, m, chance.random() < 0.4)


def test_interchange_changes_the_order_of_the_code():
    text = text_of("cube", 8, 24, False)
    bodies = []
    for order in ("j,k,i", "i,j,k"):
        steps = f"loop-interchange{{order={order}}},loop-vectorize{{axis=k}}"
        module, applied, _ = transformed(text, f"{steps},stepwell-cpu{{from=mem to=cpu}}")
        assert applied == 2
        bodies.append(print_ir(module, debuginfo=False))
    assert bodies[0] != bodies[1]


def test_tiles_become_loops():
    text = text_of("pointwise", 64, 64, False)
    counts = []
    for pipeline in ("loop-vectorize{axis=1}", "loop-vectorize{axis=1},loop-tile{sizes=8,16}"):
        module, _, _ = transformed(text, f"{pipeline},stepwell-cpu{{from=mem to=cpu}}")
        counts.append(print_ir(module, debuginfo=False).count("scf.for"))
    assert counts[1] > counts[0]


@pytest.mark.parametrize(
    ("name", "pipeline"),
    [
        ("pointwise", "loop-tile{nest=r sizes=64,100}"),
        ("pointwise", "loop-vectorize{nest=r axis=1 lanes=16},loop-tile{nest=r sizes=64,100}"),
        ("pointwise", "loop-interchange{nest=r order=1,0},loop-vectorize{nest=r axis=0}"),
        ("cube", "loop-tile{nest=r sizes=50,0,64},loop-vectorize{nest=r axis=0}"),
        ("rows", "loop-tile{nest=r sizes=7}"),
        ("columns", "loop-tile{nest=r sizes=100}"),
        ("columns", "loop-split-reduction{nest=r parts=8}"),
        ("kinds", "loop-split-reduction{nest=r parts=5}"),
        ("weighed", "loop-split-reduction{nest=r parts=5}"),
        ("meet", "loop-tile{nest=r sizes=100,64}"),
        ("meet", "loop-interchange{nest=r order=1,0}"),
    ],
)
def test_values_with_threads(name, pipeline):
    """Enough work for several threads, which share the loops over tiles."""
    given = inputs(613, 450)
    given = [g * 0.1 for g in given] if name == "columns" else given
    threads = torch.get_num_threads()
    for dynamic in (False, True):
        text = text_of(name, 613, 450, dynamic).replace(", 40>", ", 500>")
        want = run_module(parse(text), CTX, given)
        module, applied, _ = transformed(text, pipeline)
        assert applied
        try:
            for count in (1, 3):
                torch.set_num_threads(count)
                got = run_module(module, CTX, given)
                for a, b in zip(got, want, strict=True):
                    torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-2, equal_nan=True)
        finally:
            torch.set_num_threads(threads)


def test_threads_share_tiles():
    text = text_of("pointwise", 613, 450, False)
    module, _, _ = transformed(text, "loop-tile{sizes=64,100},stepwell-cpu{from=mem to=cpu}")
    lowered = print_ir(module, debuginfo=False)
    assert lowered.count("cpu.parallel") == 1
    assert lowered.index("cpu.parallel") < lowered.index("scf.for")
