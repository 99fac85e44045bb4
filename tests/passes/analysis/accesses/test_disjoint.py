"""Accesses that surely do not meet: each answer is checked against all elements that the accesses go to."""

from __future__ import annotations

import random
from itertools import product
from types import SimpleNamespace

import pytest
from xdsl.context import Context
from xdsl.parser import Parser

from stepwell.dialects import load_dialects, loop
from stepwell.dialects.expr import Range, as_expr, const, dim, evaluate, sym
from stepwell.dialects.expr.ranges import RangeEnv
from stepwell.passes.analysis.accesses.disjoint import (
    never_equal,
    separate_in_program,
    separate_in_row,
    separate_iterations,
    separate_vectors,
    touched_between,
)
from stepwell.passes.analysis.nest_access import Loop, NestAccess

ROW, COLUMN, OTHER = dim(0), dim(1), dim(2)


def accesses(*offsets):
    buffer = SimpleNamespace(owner=None)
    return [SimpleNamespace(buffer=buffer, offset=as_expr(e)) for e in offsets]


def test_offsets_that_come_apart():
    loops = [Loop(ROW, const(4), (0,)), Loop(COLUMN, const(3), (1,))]
    ranges = RangeEnv({ROW: Range.of_size(const(4)), COLUMN: Range.of_size(const(3)), OTHER: Range.of_size(const(5))})
    assert separate_iterations(ROW * 3 + COLUMN, loops, {})
    assert not separate_iterations(ROW * 2 + COLUMN, loops, {})
    assert not separate_iterations(ROW * 3 + COLUMN + OTHER, loops, {OTHER: None})
    for size, known in ((sym("s0"), True), (sym("s0") + 1, False)):
        loops = [Loop(ROW, const(4), (0,)), Loop(COLUMN, size, (1,))]
        assert separate_iterations(ROW * sym("s0") + COLUMN, loops, {}) is known
    loops = [Loop(ROW, const(4), (0,)), Loop(COLUMN, const(3), (1,))]
    assert separate_in_program(*accesses(ROW * 30 + COLUMN * 10 + OTHER, ROW * 30 + COLUMN * 10 + OTHER + 5), loops, ranges)
    assert separate_in_program(*accesses(ROW * 6 + COLUMN * 2, ROW * 6 + COLUMN * 2 + 1), loops, ranges)
    assert not separate_in_program(*accesses(ROW * 6 + COLUMN * 2, ROW * 6 + COLUMN * 2 + 2), loops, ranges)
    assert separate_in_row(*accesses(ROW * sym("s0") + OTHER, ROW * sym("s0") + OTHER + 5), {ROW}, ranges)
    assert not separate_in_row(*accesses(ROW * sym("s0") + OTHER, ROW * sym("s0") + OTHER + 4), {ROW}, ranges)
    assert separate_vectors(sym("s0") + OTHER, sym("s0") + OTHER + 8, 8, ranges)
    assert not separate_vectors(sym("s0") + OTHER, sym("s0") + OTHER + 7, 8, ranges)
    assert never_equal((ROW, COLUMN), (OTHER, OTHER + 3), ranges)
    assert not never_equal((ROW, COLUMN), (OTHER, OTHER + 2), ranges)


def test_answers_hold_for_every_element():
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    answers = {"iterations": 0, "program": 0, "row": 0}
    for _ in range(600):
        sizes = {ROW: rng.randint(1, 4), COLUMN: rng.randint(1, 3), OTHER: rng.randint(1, 3)}
        loops = [Loop(d, const(sizes[d]), (k,)) for k, d in enumerate((ROW, COLUMN))]
        ranges = RangeEnv({d: Range.of_size(const(n)) for d, n in sizes.items()})
        steps = [rng.choice((0, 1, 2, 3, 4, 6, 9, 12)) for _ in range(2)]
        row = ROW * steps[0] + COLUMN * steps[1]
        a, b = (row + OTHER * rng.choice((0, 1, 2)) + rng.randint(0, 9) for _ in range(2))
        points = [dict(zip(sizes, p, strict=True)) for p in product(*map(range, sizes.values()))]

        def elements(e, where):
            return {evaluate(e, p) for p in where}

        if separate_iterations(row, loops, {}):
            answers["iterations"] += 1
            assert len(elements(row, points)) == sizes[ROW] * sizes[COLUMN], str(row)
        if separate_in_program(*accesses(a, b), loops, ranges):
            answers["program"] += 1
            assert elements(a, points).isdisjoint(elements(b, points)), (str(a), str(b), sizes)
        if separate_in_row(*accesses(a, b), {ROW, COLUMN}, ranges):
            answers["row"] += 1
            for i, j in product(range(sizes[ROW]), range(sizes[COLUMN])):
                here = [p for p in points if (p[ROW], p[COLUMN]) == (i, j)]
                assert elements(a, here).isdisjoint(elements(b, here)), (str(a), str(b), sizes)
    assert all(count > 20 for count in answers.values()), answers


TEXT = """
func.func @forward(%x : !mem.buffer<16 x f32>, %y : !mem.buffer<16 x f32>) {
  loop.nest (%i = 4) outs(%o = %x : !mem.buffer<16 x f32>) {
    %a = loop.load %o[2 * %i] : !mem.buffer<16 x f32> -> f32
    BETWEEN
    %b = loop.load %o[2 * %i + 1] : !mem.buffer<16 x f32> -> f32
    loop.store %a, %o[2 * %i] : f32, !mem.buffer<16 x f32>
    BETWEEN
    loop.store %b, %o[2 * %i + 1] : f32, !mem.buffer<16 x f32>
  }
  func.return
}
"""


@pytest.mark.parametrize(
    ("between", "loads", "stores"),
    [
        ("", False, False),
        ("%NAME = loop.load %y[%i] : !mem.buffer<16 x f32> -> f32", False, False),
        ("%NAME = loop.load %o[%i + 8] : !mem.buffer<16 x f32> -> f32", False, True),
        ("loop.store %a, %o[%i + 8] : f32, !mem.buffer<16 x f32>", True, True),
        ("%NAME = loop.reduce (%n = 2) sum {\n loop.yield %a : f32\n } -> f32", True, True),
    ],
)
def test_touched_between(between, loads, stores):
    text = TEXT.replace("BETWEEN", between.replace("NAME", "c"), 1).replace("BETWEEN", between.replace("NAME", "d"), 1)
    module = Parser(load_dialects(Context()), text).parse_module()
    (nest,) = [op for op in module.walk() if isinstance(op, loop.NestOp)]
    info = NestAccess(nest, RangeEnv({}), normalise=False)
    ops = list(nest.block.ops)
    a, b = (op for op in ops if isinstance(op, loop.LoadOp) and op.result.name_hint in ("a", "b"))
    first, last = (op for op in ops if isinstance(op, loop.StoreOp) and op.index_map.results[0] in (dim(0) * 2, dim(0) * 2 + 1))
    for one, other, want in ((a, b, loads), (first, last, stores)):
        between_them = ops[ops.index(one) : ops.index(other)]
        members = info.access[one], info.access[other]
        assert touched_between(info, between_them, members) == want
        is_store = any(isinstance(op, loop.StoreOp) and op is not one for op in between_them)
        assert touched_between(info, between_them, members, lambda _: True) == (want and not is_store)
