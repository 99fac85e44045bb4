"""What ranges decide: bounds, proofs and simplification, from single rules to chains of views."""

from __future__ import annotations

import random

import pytest

from stepwell.dialects.expr import (
    IndexMap,
    Range,
    RangeEnv,
    as_expr,
    const,
    dim,
    floordiv,
    maximum,
    minimum,
    mod,
    product,
    prove_eq,
    prove_le,
    prove_lt,
    range_of,
    simplify,
    strides_contiguous,
    sym,
)

d0, d1, d2, d3 = map(dim, range(4))
s0, s1 = sym("s0"), sym("s1")

# d0 < s1, d1 < s0, d2 < 4, d3 < s0 * s1
ENV = RangeEnv(
    {
        d0: Range.of_size(s1),
        d1: Range.of_size(s0),
        d2: Range.of_size(4),
        d3: Range.of_size(s0 * s1),
        s0: Range(1),
        s1: Range(1),
    }
)

SIMPLIFIED = [
    # numeric
    (d2 // 4, "0"),
    (d2 % 4, "d2"),
    ((d2 + 8) % 4, "d2"),
    ((d2 + 8) // 4, "2"),
    ((d0 * 4 + d2) // 4, "d0"),
    ((d0 * 4 + d2) % 32, "d2 + (d0 mod 8) * 4"),
    ((d0 * 12 + d1 * 8 + d2) // 24, "(d0 * 3 + d1 * 2) floordiv 6"),
    ((3 - d2) // 4, "0"),
    ((-1 - d2) // 4, "-1"),
    # symbolic divisors
    ((s0 * d0) // s0, "d0"),
    ((s0 * d0) % s0, "0"),
    ((s0 * d0 + d1) // s0, "d0"),
    ((s0 * d0 + d1) % s0, "d1"),
    (d1 % s0, "d1"),
    (d1 // s0, "0"),
    ((s0 * d0 + s0 - 1 - d1) // s0, "d0"),
    ((s0 * d0 + s0 - 1 - d1) % s0, "-d1 + s0 - 1"),
    ((d0 * s0 + d1) // (s0 * s1), "0"),
    ((d0 * s0 * 4 + d1 * 4 + d2) // (s0 * 4), "d0"),
    ((d0 * s0 * 4 + d1 * 4 + d2) % (s0 * 4), "d1 * 4 + d2"),
    ((d0 * s0 * 4 + d1 * 4 + d2) // 4 % s0, "d1"),
    (d3 // s0 % s1, "d3 floordiv s0"),
    (d3 // s0 * s0 + d3 % s0, "d3"),
    ((d3 // s1) // s0, "0"),
    # min and max
    (minimum(d1, s0 - 1), "d1"),
    (maximum(d1, 0), "d1"),
    (minimum(d0 * s0 + d1, s0 * s1 - 1), "d0 * s0 + d1"),
    (maximum(d0 - s1, d2), "d2"),
    (minimum(d0, d1), "min(d0, d1)"),
    # nothing to decide
    (d3 % s0, "d3 mod s0"),
    (d0 // 4, "d0 floordiv 4"),
    (d0 + d1 * 3, "d0 + d1 * 3"),
]


@pytest.mark.parametrize(("e", "text"), SIMPLIFIED, ids=[f"{e} -> {text}" for e, text in SIMPLIFIED])
def test_simplify(e, text):
    assert str(simplify(e, ENV)) == text
    assert simplify(simplify(e, ENV), ENV) is simplify(e, ENV)


def test_a_possibly_zero_divisor_is_kept():
    e = (s0 * d0) // s0
    assert simplify(e, {}) is e
    assert simplify(e, {s0: Range(0)}) is e
    assert simplify(e, {s0: Range(1)}) is d0


def test_a_loop_without_iterations_is_divided_by_nothing():
    """Its size is 0 by the ranges of symbols, and positive by the index of the loop."""
    size = s0 % ((s0 + 3) // 4)
    env = {s0: Range(2, 4), d0: Range.of_size(size)}
    for e in (d2 % size, d2 // size, (d2 // size) * size + s0):
        assert simplify(simplify(e, env), env) is simplify(e, env)
        range_of(e, env)


def test_an_inhabited_dimension_makes_its_size_positive():
    assert simplify((s0 * d0) // s0, {d1: Range.of_size(s0)}) is d0
    assert prove_lt(0, s0, {d1: Range.of_size(s0 * 4)})
    assert prove_le(2, s0, {d1: Range.of_size(s0 - 1)})
    assert prove_lt(0, s1, {s0: Range(0), s1: Range(0), d1: Range.of_size(s0 * s1)})
    assert not prove_lt(0, s1, {d1: Range.of_size(s0 * s1)})


def test_range_of():
    env = {
        d0: Range(0, 7),
        d1: Range(-3, 5),
        s0: Range(2),
        d2: Range.of_size(s0),
        s1: Range(2, 9),
        d3: Range.of_size(s1),
    }
    expected = [
        (d0 * 2 - d1 + 1, Range(-4, 18)),
        (d0 * d1, Range(-21, 35)),
        (d1 // 4, Range(-1, 1)),
        (d1 % 4, Range(0, 3)),
        ((d0 + 8) % 8, Range(0, 7)),
        (d0 % 16, Range(0, 7)),
        ((d0 % 4 + 8) % 16, Range(8, 11)),
        (d0 // s1, Range(0, 3)),
        (d0 % s1, Range(0, 7)),
        (minimum(d0, d1), Range(-3, 5)),
        (maximum(d0, d1), Range(0, 7)),
        (minimum(d2, 5), Range(0, 5)),
        (d2, Range(0)),
        (d3, Range(0, 8)),
        (d2 * s0, Range(0)),
        (d1 * s0, Range()),
        (const(4), Range(4, 4)),
    ]
    for e, r in expected:
        assert range_of(e, env) == r, str(e)


@pytest.mark.parametrize(("c", "n"), [(0, 2), (1, 2), (2, 3), (5, 4)])
def test_what_a_part_leaves_of_a_size_has_bounds(c, n):
    most = 40
    found = range_of(s0 - floordiv(s0 + c, n), RangeEnv({s0: Range(1, most)}))
    values = [k - (k + c) // n for k in range(1, most + 1)]
    assert found.lo is not None and found.lo <= min(values) and found.hi == max(values)


def test_ranges():
    assert Range.of_size(5) == Range(0, 4)
    assert Range.of_size(s0) == Range(0, None, s0)
    assert Range(0, None, s0) != Range(0)
    assert 3 in Range(0, 3) and 4 not in Range(0, 3) and -1 not in Range(0)
    assert Range(2, 1).is_empty and not Range(1, 1).is_empty
    assert Range(0, 9).intersect(Range(-1, 5)) == Range(0, 5)
    assert Range.of_value(3) == Range(3, 3)
    assert repr(Range(0, None, s0)) == "[0, inf] < s0"


PROVED = [
    (prove_lt, d0 * s0 + d1, s0 * s1),
    (prove_lt, d0 * s0 * 4 + d1 * 4 + d2, s0 * s1 * 4),
    (prove_le, s0, s0 * s1),
    (prove_le, d3 // s0, s1 - 1),
    (prove_lt, d3 % s0, s0),
    (prove_le, d3 % s0, d3),
    (prove_lt, minimum(d1, d0), s0),
    (prove_le, d1, maximum(d1, d2)),
    (prove_eq, d1 % s0, d1),
    (prove_eq, (d3 // s0) * s0 + d3 % s0, d3),
]


@pytest.mark.parametrize(("prove", "a", "b"), PROVED, ids=[f"{p.__name__} {a}, {b}" for p, a, b in PROVED])
def test_proved(prove, a, b):
    assert prove(a, b, ENV)


REFUTED = [
    (prove_lt, d0 * s0 + d1, s0 * s1 - 1),
    (prove_le, s0 * s1, s0),
    (prove_lt, d0, s0),
    (prove_lt, d1 + 1, s0),
    (prove_eq, d3 % s0, d3),
    (prove_lt, maximum(d1, d0), s0),
]


@pytest.mark.parametrize(("prove", "a", "b"), REFUTED, ids=[f"{p.__name__} {a}, {b}" for p, a, b in REFUTED])
def test_not_proved(prove, a, b):
    assert not prove(a, b, ENV)


def test_proofs_about_tiles():
    # a tile of 8 iterations over s0, the last one partial; and the part of s0 that whole tiles cover
    outer, inner = d0, d1
    env = RangeEnv({outer: Range.of_size((s0 + 7) // 8), inner: Range(0, None, minimum(8, s0 - outer * 8))})
    assert prove_lt(outer * 8 + inner, s0, env)
    assert simplify((outer * 8 + inner) // 8, env) is outer
    whole = RangeEnv({d2: Range.of_size(s0 // 4 * 4), s0: Range(0)})
    assert prove_lt(d2 // 4, s0 // 4, whole)
    assert prove_lt(d2, s0, whole)
    assert not prove_lt(d2 + 1, s0, whole)


def test_map_simplify():
    m = IndexMap(2, ((d0 * 4 + d1) // 4, (d0 * 4 + d1) % 4))
    assert m.simplify([Range.of_size(8), Range.of_size(4)]).is_identity
    assert m.simplify({d1: Range.of_size(4)}).is_identity
    assert m.simplify({}) is m


def ravel(indices, shape):
    return sum((i * s for i, s in zip(indices, strides_contiguous(shape), strict=True)), as_expr(0))


def unravel(flat, shape):
    parts = [floordiv(flat, stride) for stride in strides_contiguous(shape)]
    return [part if k == 0 else mod(part, shape[k]) for k, part in enumerate(parts)]


def regroup(rng, factors):
    """A shape with these factors, in order, some of them multiplied together."""
    shape, rest = [], list(factors)
    while rest:
        k = rng.randint(1, len(rest))
        shape.append(product(rest[:k]))
        rest = rest[k:]
    return shape


@pytest.mark.spread
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("factors", [(2, 3, 4, 8, 16), (2, 3, 8, s0, s1, sym("s2"))], ids=["static", "dynamic"])
def test_reshapes_there_and_back_are_the_identity(seed, factors):
    """Catalogue G10, G07."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(40):
        sizes = [rng.choice(factors) for _ in range(rng.randint(2, 5))]
        first, second, third = (regroup(rng, sizes) for _ in range(3))
        dims = [dim(i) for i in range(len(first))]
        symbols = {f: Range(0) for f in factors if not isinstance(f, int)}
        env = RangeEnv(symbols | {d: Range.of_size(s) for d, s in zip(dims, first, strict=True)})
        indices, shape = dims, first
        for new in (second, third, first):
            indices = [simplify(e, env) for e in unravel(ravel(indices, shape), new)]
            shape = new
        assert indices == dims, (first, second, third)


@pytest.mark.parametrize("n", [1, 5, 12, 64])
def test_every_numeric_decision_agrees_with_enumeration(n):
    """Catalogue G09: one dimension in [0, n): the simplified forms of all small quotients and remainders, point by point."""
    env = RangeEnv({d0: Range.of_size(n)})
    for scale in (1, 2, 3, 4, 6, -1, -4):
        for shift in (0, 1, 5, -3):
            for divisor in (2, 3, 4, 8, 12):
                for op in (floordiv, mod):
                    e = op(d0 * scale + shift, divisor)
                    small = simplify(e, env)
                    for i in range(n):
                        x = i * scale + shift
                        assert small.subs({d0: i}).value == (x // divisor if op is floordiv else x % divisor)
