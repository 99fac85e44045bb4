"""Index expressions against sympy, by hypothesis: what is built and what `simplify` makes of it have sympy's value wherever the loops go.
A thousand trees in CI, each at three points; STEPWELL_EXAMPLES for more."""

from __future__ import annotations

import os

import sympy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepwell.dialects.expr import Range, RangeEnv, as_expr, dim, evaluate, floordiv, maximum, minimum, mod, simplify, sym

EXAMPLES = int(os.environ.get("STEPWELL_EXAMPLES", "1000"))
SYMBOLS = {"i": dim(0), "j": dim(1), "k": dim(2), "s": sym("s0")}
SIZES = {"i": 6, "j": 8, "k": 5}

leaf = st.one_of(st.sampled_from(sorted(SYMBOLS)), st.integers(-4, 12))
divisor = st.sampled_from([2, 3, 4, 6, 8, "s"])


def grow(inner):
    both = st.tuples(st.sampled_from(["+", "-", "*", "min", "max"]), inner, inner)
    return st.one_of(both, st.tuples(st.sampled_from(["//", "%"]), inner, divisor))


tree = st.recursive(leaf, grow, max_leaves=8)

OURS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "//": floordiv, "%": mod, "min": minimum, "max": maximum}
THEIRS = {**OURS, "//": lambda a, b: sympy.floor(a / b), "%": lambda a, b: a - b * sympy.floor(a / b), "min": sympy.Min, "max": sympy.Max}


def build(t, table, leaves):
    if isinstance(t, tuple):
        return table[t[0]](build(t[1], table, leaves), build(t[2], table, leaves))
    return leaves(t)


@settings(max_examples=EXAMPLES, deadline=None, derandomize=EXAMPLES <= 1000, database=None, suppress_health_check=list(HealthCheck))
@given(tree, st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7), st.integers(0, 4), st.integers(2, 9)), min_size=3, max_size=3))
def test_values_are_those_of_sympy(t, points):
    """G09, G10, G13"""
    ours = as_expr(build(t, OURS, lambda v: SYMBOLS.get(v, v) if isinstance(v, str) else as_expr(v)))
    env = RangeEnv({**{SYMBOLS[n]: Range.of_size(size) for n, size in SIZES.items()}, SYMBOLS["s"]: Range(2, 9)})
    simple = simplify(ours, env)
    for point in points:
        values = dict(zip("ijks", point, strict=True))
        want = int(build(t, THEIRS, lambda v, values=values: sympy.Integer(values[v] if isinstance(v, str) else v)))
        own = {SYMBOLS[n]: v for n, v in values.items()}
        assert evaluate(ours, own) == want and evaluate(simple, own) == want, (str(ours), str(simple), values)
