"""torch's size expressions as index expressions: random ones, those of real graphs, and what is refused."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
import sympy
import torch
from torch.utils._sympy import functions as tsf

from stepwell.dialects.expr import (
    Add,
    Const,
    Dim,
    Expr,
    FloorDiv,
    Max,
    Min,
    Mod,
    Mul,
    Range,
    Sym,
    dim,
    evaluate,
    maximum,
    minimum,
    simplify,
    sym,
)
from stepwell.lowering.sympy_bridge import UnsupportedExpr, from_sympy, hints_of, ranges_of, symint_expr

A = sympy.Symbol("s0", integer=True, positive=True)
B = sympy.Symbol("s1", integer=True, positive=True)
Q = sympy.Symbol("u0", integer=True)
a, b, q = sym("s0"), sym("s1"), sym("u0")


@pytest.mark.parametrize(
    ("given", "want"),
    [
        (sympy.Integer(-3), -3),
        (A * 2 + B - 7, a * 2 + b - 7),
        (A**2 * B, a * a * b),
        (tsf.FloorDiv(A * 4 + B, 4), a + b // 4),
        (tsf.CleanDiv(A * B, B + 1), (a * b) // (b + 1)),
        (tsf.CeilDiv(A, 4), (a + 3) // 4),
        (tsf.Mod(A, B), a % b),
        (tsf.PythonMod(Q, 3), q % 3),
        (tsf.ModularIndexing(A, 4, B), (a // 4) % b),
        (tsf.Min(A, B), minimum(a, b)),
        (tsf.Max(1, Q), maximum(q, 1)),
        (sympy.Min(A, B), minimum(a, b)),
        (sympy.Abs(Q), maximum(q, -q)),
        (sympy.floor(A / 3), a // 3),
        (sympy.ceiling(A / 3), (a + 2) // 3),
        (tsf.Identity(A + 1), a + 1),
        (tsf.FloorToInt(tsf.IntTrueDiv(A, B)), a // b),
        (tsf.CeilToInt(tsf.IntTrueDiv(A, 4)), (a + 3) // 4),
        (tsf.FloorToInt(2.0 * tsf.ToFloat(A)), a * 2),
        (tsf.FloorToInt(1.5 * tsf.ToFloat(A) + 0.25), (a * 6 + 1) // 4),
        (tsf.TruncToInt(tsf.IntTrueDiv(A + 1, 2)), (a + 1) // 2),
        (tsf.TruncToInt(tsf.ToFloat(Q)), q),
        (tsf.RoundToInt(tsf.ToFloat(A)), a),
        (sympy.Mul(A * (A + 1), sympy.Rational(1, 2)), None),
    ],
    ids=str,
)
def test_from_sympy(given, want):
    if want is None:
        with pytest.raises(UnsupportedExpr, match="it is not known to be an integer"):
            from_sympy(given)
    else:
        assert from_sympy(given) is (from_sympy(want) if isinstance(want, int) else want)


def test_truncation_of_either_sign():
    e = from_sympy(tsf.TruncToInt(tsf.IntTrueDiv(Q, 4)))
    for value in range(-9, 10):
        assert evaluate(e, {q: value}) == int(value / 4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (sympy.Float(2.5), "`2.50000000000000` cannot be represented: it is a real number, not an integer"),
        (tsf.ToFloat(A), "it is a real number, not an integer"),
        (sympy.Rational(1, 2), "it is a real number, not an integer"),
        (A / 2, "`s0/2` cannot be represented: it is not known to be an integer"),
        (sympy.sin(A), "sin has no counterpart"),
        (tsf.FloorToInt(0.7 * tsf.ToFloat(A)), "a float constant with a long binary expansion"),
        (tsf.RoundToInt(tsf.IntTrueDiv(A, B)), "rounding to the nearest even integer has no counterpart"),
        (sympy.Symbol("zf0", integer=False) + A, "in `zf0`, the symbol is not an integer"),
        (sympy.Symbol("d0", integer=True), "`d0` cannot name a size symbol"),
        (2**A, "the exponent is not a small integer"),
        (sympy.Eq(A, B), "Equality has no counterpart"),
    ],
    ids=str,
)
def test_refused(given, message):
    with pytest.raises(UnsupportedExpr) as caught:
        from_sympy(given)
    assert message in str(caught.value)
    assert caught.value.expr is given


def random_expr(rng: random.Random, depth: int) -> Expr:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice([a, b, q, dim(0), a * 0 + rng.randint(-5, 9)])
    x, y = random_expr(rng, depth - 1), random_expr(rng, depth - 1)
    k = rng.choice([2, 3, 4, 8, a, b, a + 1])
    return rng.choice([x + y, x - y, x * y, x // k, x % k, minimum(x, y), maximum(x, y)])


def to_sympy(e: Expr, symbols: Mapping[str, sympy.Symbol]) -> sympy.Expr:
    """The sympy expression of `e`; `symbols` gives the symbol for a name (`s0`, and `d0` for a dimension)."""

    def go(x: Expr) -> sympy.Expr:
        if isinstance(x, Const):
            return sympy.Integer(x.value)
        if isinstance(x, Sym):
            return symbols[x.name]
        if isinstance(x, Dim):
            return symbols[f"d{x.index}"]
        if isinstance(x, Add):
            return sympy.Add(*(go(term) * coeff for term, coeff in x.terms), sympy.Integer(x.constant))
        if isinstance(x, Mul):
            return sympy.Mul(*map(go, x.factors))
        if isinstance(x, FloorDiv):
            return tsf.FloorDiv(go(x.lhs), go(x.rhs))
        if isinstance(x, Mod):
            return tsf.PythonMod(go(x.lhs), go(x.rhs))
        assert isinstance(x, (Min, Max))
        return (tsf.Min if isinstance(x, Min) else tsf.Max)(*map(go, x.args))

    return go(e)


@pytest.mark.parametrize("seed", range(3))
def test_random_expressions_agree_with_sympy(seed):
    print(f"seed {seed}")
    rng = random.Random(seed)
    symbols = {"s0": A, "s1": B, "u0": Q, "d0": sympy.Symbol("i", integer=True)}
    for _ in range(60):
        e = random_expr(rng, 3)
        there = to_sympy(e, symbols)
        back = from_sympy(there).subs({sym("i"): dim(0)})
        for _ in range(4):
            point = {a: rng.randint(1, 9), b: rng.randint(1, 9), q: rng.randint(-9, 9), dim(0): rng.randint(0, 9)}
            want = evaluate(e, point)
            assert there.subs({A: point[a], B: point[b], Q: point[q], symbols["d0"]: point[dim(0)]}) == want, str(e)
            assert evaluate(back, point) == want, (str(e), str(there), str(back))


def graph_sizes(function, *inputs):
    """(symbolic size or stride, its example value) of every tensor in the dynamic graph of `function`."""
    found, envs = [], []

    def backend(graph, example_inputs):
        for node in graph.graph.nodes:
            value = node.meta.get("example_value")
            if isinstance(value, torch.Tensor):
                found.extend(v for v in (*value.shape, *value.stride(), value.storage_offset()))
        envs.extend(
            v.fake_mode.shape_env
            for v in [node.meta.get("example_value") for node in graph.graph.nodes]
            if hasattr(v, "fake_mode")
        )
        return graph.forward

    torch._dynamo.reset()
    torch.compile(function, backend=backend, dynamic=True)(*inputs)
    return found, envs[0]


def views(x):
    n, c, h, w = x.shape
    y = x.reshape(n * c, h * w).t().reshape(h, w, n * c)
    y = y[:, ::2].contiguous().flatten()
    return torch.cat([y, y[: n * 3]]).unfold(0, 4, 3)


def pools(x):
    x = torch.nn.functional.max_pool2d(x, 3, 2, 1)
    x = torch.nn.functional.pad(x, (1, 2, 0, 1))
    x = torch.nn.functional.interpolate(x, scale_factor=2.0)
    return torch.nn.functional.avg_pool2d(x, 3, stride=2, ceil_mode=True)


@pytest.mark.parametrize("function", [views, pools])
def test_sizes_of_a_dynamic_graph(function):
    sizes, env = graph_sizes(function, torch.randn(6, 8, 10, 12))
    hints, ranges = hints_of(env), ranges_of(env)
    assert sum(not isinstance(s, int) for s in sizes) > 10
    assert set(hints) == set(ranges)
    for s in sizes:
        e = symint_expr(s)
        value = s if isinstance(s, int) else s.node.hint
        assert evaluate(e, hints) == value, str(e)
        assert evaluate(simplify(e, ranges), hints) == value, str(e)


def test_ranges_and_hints_by_symbol():
    _, env = graph_sizes(lambda x: x + 1, torch.randn(6, 8))
    ranges, hints = ranges_of(env), hints_of(env)
    assert sorted(hints.values()) == [6, 8]
    assert list(ranges.values()) == [Range(2), Range(2)]
    first = next(iter(ranges))
    assert ranges_of(env, [first]) == {first: Range(2)}
    assert hints_of(env, [first]) == {first: hints[first]}
    assert ranges_of(env, [sym("unknown")]) == {}


def test_plain_ints():
    assert symint_expr(7).value == 7
    assert from_sympy(7).value == 7
