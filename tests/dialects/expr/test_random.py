"""Random expressions against Python's own arithmetic: construction, simplification, bounds, proofs, text."""

from __future__ import annotations

import random

import pytest
from xdsl.context import Context
from xdsl.parser import Parser

from stepwell.dialects.expr import (
    Expr,
    Range,
    RangeEnv,
    as_expr,
    dim,
    dims_subs,
    evaluate,
    floordiv,
    maximum,
    minimum,
    mod,
    prove_ge0,
    range_of,
    simplify,
    sym,
    to_python,
)
from stepwell.dialects.expr.syntax import parse_expr

DIMS = [dim(i) for i in range(4)]
s0, s1 = sym("s0"), sym("s1")
DIVISORS = [2, 3, 4, 6, 8, 12, 16, -4, s0, s1, s0 * s1, s0 * 4, s0 + 1]
SIZES = [1, 2, 3, 4, 8, 16, s0, s1, s0 * s1, s0 * 4, s0 + 1]

OPS = {
    "+": (lambda a, b: a + b, lambda a, b: a + b),
    "-": (lambda a, b: a - b, lambda a, b: a - b),
    "*": (lambda a, b: a * b, lambda a, b: a * b),
    "//": (floordiv, lambda a, b: a // b),
    "%": (mod, lambda a, b: a % b),
    "min": (minimum, min),
    "max": (maximum, max),
}


def tree(rng: random.Random, depth: int):
    """A random program: an int, an expression, or (operator, left, right)."""
    if depth == 0 or rng.random() < 0.2:
        return rng.choice([*DIMS, s0, s1]) if rng.random() < 0.75 else rng.randint(-6, 12)
    op = rng.choice(["+", "+", "-", "*", "*", "//", "//", "%", "%", "min", "max"])
    left = tree(rng, depth - 1)
    if op in ("//", "%"):
        return op, left, rng.choice(DIVISORS)
    if op == "*" and rng.random() < 0.6:
        return op, left, rng.choice([2, 3, 4, 8, 16, -1, -2])
    return op, left, tree(rng, depth - 1)


def build(t) -> Expr:
    if isinstance(t, tuple):
        return OPS[t[0]][0](build(t[1]), build(t[2]))
    return as_expr(t)


def run(t, values: dict[Expr, int]) -> int:
    """The value of a program by Python's arithmetic on its own structure."""
    if isinstance(t, tuple):
        return OPS[t[0]][1](run(t[1], values), run(t[2], values))
    return evaluate(t, values)


def random_env(rng: random.Random) -> RangeEnv:
    env = {s0: Range(1, rng.choice([None, 9])), s1: Range(rng.choice([1, 2]))}
    for d in DIMS:
        if rng.random() < 0.9:
            env[d] = Range.of_size(rng.choice(SIZES))
        else:
            env[d] = Range(rng.randint(-5, 0), rng.choice([None, 7]))
    return RangeEnv(env)


def random_point(rng: random.Random, env: RangeEnv) -> dict[Expr, int]:
    point = {s0: rng.randint(1, 9), s1: rng.randint(2, 9)}
    for d in DIMS:
        r = env[d]
        high = 30 if r.hi is None else r.hi
        if r.hi_expr is not None:
            high = min(high, evaluate(r.hi_expr, point) - 1)
        assert r.lo is not None
        point[d] = rng.randint(r.lo, high)
    return point


@pytest.mark.parametrize("seed", range(4))
def test_construction_keeps_the_value_everywhere(seed):
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(1500):
        t = tree(rng, rng.randint(1, 5))
        e = build(t)
        for _ in range(6):
            point = {x: rng.randint(-30, 30) for x in DIMS} | {s0: rng.randint(-9, 9), s1: rng.randint(1, 9)}
            try:
                want = run(t, point)
            except ZeroDivisionError:
                continue
            assert evaluate(e, point) == want, (t, str(e), point)
            names = {str(x): v for x, v in point.items()}
            assert eval(to_python(e), {"min": min, "max": max, **names}) == want, str(e)


@pytest.mark.parametrize("seed", range(100, 105))
def test_ranges_say_only_what_holds(seed):
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(600):
        t = tree(rng, rng.randint(1, 5))
        e, env = build(t), random_env(rng)
        simple, bounds, positive = simplify(e, env), range_of(e, env), prove_ge0(e, env)
        for _ in range(10):
            point = random_point(rng, env)
            want = run(t, point)
            assert evaluate(simple, point) == want, (t, str(e), str(simple), env, point)
            assert want in bounds, (str(e), bounds, env, point)
            assert want >= 0 or not positive, (str(e), env, point)


@pytest.mark.parametrize("seed", range(200, 202))
def test_text_parses_back_to_the_same_object(seed):
    print(f"seed {seed}")
    rng = random.Random(seed)
    ctx = Context()
    for _ in range(500):
        e = build(tree(rng, rng.randint(1, 5)))
        assert parse_expr(Parser(ctx, str(e))) is e, str(e)


@pytest.mark.parametrize("seed", range(300, 302))
def test_substitution_commutes_with_evaluation(seed):
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(500):
        e = build(tree(rng, 4))
        inner = [build(tree(rng, 2)) for _ in DIMS]
        point = {x: rng.randint(0, 20) for x in DIMS} | {s0: rng.randint(1, 9), s1: rng.randint(1, 9)}
        outer = point | {d: evaluate(i, point) for d, i in zip(DIMS, inner, strict=True)}
        assert evaluate(dims_subs(e, inner), point) == evaluate(e, outer), (str(e), [str(i) for i in inner])
