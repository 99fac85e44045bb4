"""What index expressions become when the ranges of their variables are known.

`range_of` is interval arithmetic, `prove_*` decide comparisons (numeric first, then by putting the symbolic bounds of
the variables in), and `simplify` removes the divisions, remainders, minima and maxima that the ranges decide.

An environment maps `Dim` and `Sym` (and, where something is known, any other expression) to a `Range`. Everything
is decided under the assumption that the environment is inhabited: with `d0` in [0, s0) in it, s0 is at least 1, because
the expression is evaluated inside that loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import gcd
from typing import TypeAlias

from .core import (
    ZERO,
    Add,
    Const,
    Dim,
    Expr,
    ExprLike,
    FloorDiv,
    Max,
    Min,
    Mod,
    Mul,
    Sym,
    as_expr,
    const,
    maximum,
    minimum,
    product,
    sort_key,
)
from .division import divide, exact_quotient, floordiv, mod
from .walk import free_dims, map_children

_MAX_DEPTH = 8
"""Nesting of symbolic proofs; each level removes one variable."""

_MAX_STEPS = 100
"""Proof steps that one question may take before the answer is "not proved"."""

_PROVED = 1 << 30
"""In the memo of proofs: proved. A smaller number is the depth at which the proof failed."""


class Range:
    """The integers from `lo` to `hi`, both inclusive, None meaning unbounded.

    `hi_expr` is an exclusive symbolic upper bound known besides: value < hi_expr.
    """

    __slots__ = ("hi", "hi_expr", "lo")

    def __init__(self, lo: int | None = None, hi: int | None = None, hi_expr: Expr | None = None):
        if hi_expr is not None and hi_expr.value is not None:
            hi = hi_expr.value - 1 if hi is None else min(hi, hi_expr.value - 1)
            hi_expr = None
        self.lo = lo
        self.hi = hi
        self.hi_expr = hi_expr

    @staticmethod
    def of_size(size: ExprLike) -> Range:
        """The range of a loop over `size` iterations: [0, size)."""
        return Range(0, None, as_expr(size))

    @staticmethod
    def of_value(value: int) -> Range:
        """The range of one integer."""
        return Range(value, value)

    @property
    def is_empty(self) -> bool:
        return self.lo is not None and self.hi is not None and self.lo > self.hi

    @property
    def is_nonnegative(self) -> bool:
        return self.lo is not None and self.lo >= 0

    def intersect(self, other: Range) -> Range:
        """The integers in both; where both have a symbolic bound, this one's is kept."""
        lo = other.lo if self.lo is None else self.lo if other.lo is None else max(self.lo, other.lo)
        hi = other.hi if self.hi is None else self.hi if other.hi is None else min(self.hi, other.hi)
        return Range(lo, hi, self.hi_expr or other.hi_expr)

    def __contains__(self, value: int) -> bool:
        return (self.lo is None or self.lo <= value) and (self.hi is None or value <= self.hi)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Range):
            return NotImplemented
        return self.lo == other.lo and self.hi == other.hi and self.hi_expr is other.hi_expr

    def __hash__(self) -> int:
        return hash((self.lo, self.hi, self.hi_expr))

    def __repr__(self) -> str:
        lo = "-inf" if self.lo is None else self.lo
        hi = "inf" if self.hi is None else self.hi
        return f"[{lo}, {hi}]" if self.hi_expr is None else f"[{lo}, {hi}] < {self.hi_expr}"


UNBOUNDED = Range()


class RangeEnv(dict[Expr, Range]):
    """Ranges of variables that remembers what was derived from them; do not change it after the first question.

    Every function of this module takes any mapping; one that is asked more than once should be a `RangeEnv`.
    """

    __slots__ = ("ge0", "memo", "simplified", "steps")

    def __init__(self, ranges: Mapping[Expr, Range] | Iterable[tuple[Expr, Range]] = ()):
        super().__init__(ranges)
        self.memo: dict[Expr, Range] = {}
        self.simplified: dict[Expr, Expr] = {}
        self.ge0: dict[Expr, int] = {}
        self.steps = 0
        for r in list(self.values()):
            if r.hi_expr is not None and r.lo is not None:
                self._at_least(r.hi_expr, r.lo + 1)

    def _at_least(self, e: Expr, lo: int) -> None:
        """Notes e >= lo, and what that says about the only variable of a scaled or shifted size."""
        known = self.get(e)
        self[e] = Range(lo) if known is None else known.intersect(Range(lo))
        if isinstance(e, Add) and len(e.terms) == 1 and e.terms[0][1] > 0:
            term, coeff = e.terms[0]
            self._at_least(term, -((e.constant - lo) // coeff))
        elif isinstance(e, Mul) and lo >= 1 and all(self.get(f, UNBOUNDED).is_nonnegative for f in e.factors):
            for factor in e.factors:
                self._at_least(factor, 1)


Env: TypeAlias = Mapping[Expr, Range]


def as_env(env: Env) -> RangeEnv:
    """`env` itself when it is a `RangeEnv`, else one made from it."""
    return env if isinstance(env, RangeEnv) else RangeEnv(env)


# ------------------------------------------------------------------------------------------------ interval arithmetic


def range_of(e: ExprLike, env: Env) -> Range:
    """Numeric bounds of `e` (without `hi_expr`), sound but not always tight."""
    return _range(as_expr(e), as_env(env))


def _range(e: Expr, env: RangeEnv) -> Range:
    found = env.memo.get(e)
    if found is None:
        found = _RANGE_RULES[type(e)](e, env)
        if e in env:
            found = found.intersect(_numeric(env[e], env))
        env.memo[e] = found
    return found


def _numeric(r: Range, env: RangeEnv) -> Range:
    if r.hi_expr is None:
        return r
    hi = _range(r.hi_expr, env).hi
    return Range(r.lo, r.hi if hi is None else hi - 1 if r.hi is None else min(r.hi, hi - 1))


def _range_const(e: Const, env: RangeEnv) -> Range:
    return Range(e.value, e.value)


def _range_variable(e: Expr, env: RangeEnv) -> Range:
    return UNBOUNDED


def _range_add(e: Add, env: RangeEnv) -> Range:
    lo: int | None = e.constant
    hi: int | None = e.constant
    for term, coeff in e.terms:
        r = _range(term, env)
        low, high = (r.lo, r.hi) if coeff > 0 else (r.hi, r.lo)
        lo = None if lo is None or low is None else lo + coeff * low
        hi = None if hi is None or high is None else hi + coeff * high
    rest = _rest_of_quotient(e)
    if rest is not None:
        found = _range(rest, env)
        lo = found.lo if lo is None else lo if found.lo is None else max(lo, found.lo)
        hi = found.hi if hi is None else hi if found.hi is None else min(hi, found.hi)
    return Range(lo, hi)


def _rest_of_quotient(e: Add) -> Expr | None:
    """x - (x + c) floordiv n as one quotient, ((n - 1) x - c + n - 1) floordiv n: the part of a row that is left when a part is taken."""
    if len(e.terms) != 2:
        return None
    for (x, a), (q, b) in (e.terms, e.terms[::-1]):
        if a == 1 and b == -1 and isinstance(q, FloorDiv) and (n := q.rhs.value) is not None and n > 1 and (q.lhs - x).value is not None:
            return floordiv(x * (n - 1) - (q.lhs - x) + (n - 1), n) + e.constant
    return None


def _range_mul(e: Mul, env: RangeEnv) -> Range:
    result = Range(1, 1)
    for factor in e.factors:
        result = _multiply(result, _range(factor, env))
    return result


def _multiply(a: Range, b: Range) -> Range:
    if a.lo is not None and a.hi is not None and b.lo is not None and b.hi is not None:
        corners = (a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi)
        return Range(min(corners), max(corners))
    if a.is_nonnegative and b.is_nonnegative:
        assert a.lo is not None and b.lo is not None
        return Range(a.lo * b.lo)
    return UNBOUNDED


def _is_empty(r: Range) -> bool:
    """Whether a range holds nothing: no size of a loop without iterations is left inside of it."""
    return r.lo is not None and r.hi is not None and r.hi < r.lo


def _range_floordiv(e: FloorDiv, env: RangeEnv) -> Range:
    a, b = _range(e.lhs, env), _range(e.rhs, env)
    if b.lo is None or b.lo < 1 or _is_empty(b):
        return UNBOUNDED
    lo = hi = None
    if a.lo is not None:
        lo = a.lo // b.lo if a.lo < 0 else 0 if b.hi is None else a.lo // b.hi
    if a.hi is not None:
        hi = a.hi // b.lo if a.hi >= 0 else -1 if b.hi is None else a.hi // b.hi
    return Range(lo, hi)


def _range_mod(e: Mod, env: RangeEnv) -> Range:
    a, b = _range(e.lhs, env), _range(e.rhs, env)
    if b.lo is None or b.lo < 1 or _is_empty(b):
        return UNBOUNDED
    if a.lo is not None and a.hi is not None:
        if b.lo == b.hi and a.lo // b.lo == a.hi // b.lo:
            return Range(a.lo % b.lo, a.hi % b.lo)
        if a.lo >= 0 and a.hi < b.lo:
            return a
    hi = None if b.hi is None else b.hi - 1
    if a.is_nonnegative and a.hi is not None:
        hi = a.hi if hi is None else min(hi, a.hi)
    return Range(0, hi)


def _range_min(e: Min, env: RangeEnv) -> Range:
    ranges = [_range(arg, env) for arg in e.args]
    lows = [r.lo for r in ranges if r.lo is not None]
    highs = [r.hi for r in ranges if r.hi is not None]
    return Range(min(lows) if len(lows) == len(ranges) else None, min(highs, default=None))


def _range_max(e: Max, env: RangeEnv) -> Range:
    ranges = [_range(arg, env) for arg in e.args]
    lows = [r.lo for r in ranges if r.lo is not None]
    highs = [r.hi for r in ranges if r.hi is not None]
    return Range(max(lows, default=None), max(highs) if len(highs) == len(ranges) else None)


_RANGE_RULES: dict[type[Expr], Callable[..., Range]] = {
    Const: _range_const,
    Dim: _range_variable,
    Sym: _range_variable,
    Add: _range_add,
    Mul: _range_mul,
    FloorDiv: _range_floordiv,
    Mod: _range_mod,
    Min: _range_min,
    Max: _range_max,
}


# ------------------------------------------------------------------------------------------------------------- proofs


def prove_ge0(e: ExprLike, env: Env) -> bool:
    """True when `e` >= 0 is certain; False says nothing."""
    env, e = as_env(env), as_expr(e)
    return _nonneg(e, env) or (e.has_div and _nonneg(simplify(e, env), env))


def prove_le(a: ExprLike, b: ExprLike, env: Env) -> bool:
    """True when `a` <= `b` is certain."""
    return prove_ge0(as_expr(b) - a, env)


def prove_lt(a: ExprLike, b: ExprLike, env: Env) -> bool:
    """True when `a` < `b` is certain."""
    return prove_ge0(as_expr(b) - a - 1, env)


def prove_eq(a: ExprLike, b: ExprLike, env: Env) -> bool:
    """True when `a` == `b` is certain."""
    a, b = as_expr(a), as_expr(b)
    if a is b:
        return True
    difference = simplify(a - b, env)
    if difference.value is not None:
        return difference is ZERO
    r = range_of(difference, env)
    return r.lo == 0 == r.hi


def _nonneg(e: Expr, env: RangeEnv) -> bool:
    """`_ge0` with a fresh allowance of steps."""
    outer, env.steps = env.steps, 0
    try:
        return _ge0(e, env, _MAX_DEPTH)
    finally:
        env.steps = outer


def _ge0(e: Expr, env: RangeEnv, depth: int) -> bool:
    r = _range(e, env)
    if r.is_nonnegative:
        return True
    if depth == 0 or e.value is not None or (r.hi is not None and r.hi < 0):
        return False
    tried = env.ge0.get(e)
    if tried is not None and tried >= depth:
        return tried == _PROVED
    env.steps += 1
    if env.steps > _MAX_STEPS:
        return False
    proved = _ge0_by_elimination(e, env, depth - 1)
    if proved or env.steps <= _MAX_STEPS:
        env.ge0[e] = _PROVED if proved else depth
    return proved


def _ge0_by_elimination(e: Expr, env: RangeEnv, depth: int) -> bool:
    """Replaces one variable of `e` by the bound that makes `e` smallest, and goes on with the rest."""
    for v in sorted({f for term, _ in e.terms for f in term.factors}, key=_elimination_order):
        parts = _coefficient(e, v)
        if parts is None:
            continue
        a, b = parts
        if _ge0(a, env, depth):
            upper = False
        elif _ge0(-a, env, depth):
            upper = True
        else:
            continue
        if isinstance(v, (Min, Max)):
            attempts = (_ge0(a * arg + b, env, depth) for arg in v.args)
            if isinstance(v, Min) != upper:
                return all(attempts)
            if any(attempts):
                return True
            continue
        bounds = _bounds(v, upper, env, depth)
        for bound in bounds:
            if _ge0(a * bound + b, env, depth):
                return True
        if isinstance(v, FloorDiv) and _ge0(v.rhs - 1, env, depth):
            # rhs * v <= lhs <= rhs * v + rhs - 1
            bound = v.lhs if upper else v.lhs - v.rhs + 1
            if _ge0(a * bound + b * v.rhs, env, depth):
                return True
        if bounds and isinstance(v, (Dim, Sym)):
            return False  # the bounds are reached independently of the other variables: their order does not matter
    return False


def _elimination_order(v: Expr) -> tuple[int, int, str]:
    """What contains other variables first, then dimensions, then symbols, which bound them.

    Inner dimensions go before outer ones: the bound of a tile's inner loop is an expression of the outer one.
    """
    if isinstance(v, Dim):
        return 1, -v.index, ""
    return (2 if isinstance(v, Sym) else 0), 0, sort_key(v)


def _coefficient(e: Expr, v: Expr) -> tuple[Expr, Expr] | None:
    """(a, b) with e == a * v + b where the atom `v` is not a factor in a or b, or None."""
    a: Expr = ZERO
    b: Expr = const(e.constant)
    for term, c in e.terms:
        count = term.factors.count(v)
        if count > 1:
            return None
        if count:
            a = a + product(f for f in term.factors if f is not v) * c
        else:
            b = b + term * c
    return a, b


def _bounds(v: Expr, upper: bool, env: RangeEnv, depth: int) -> list[Expr]:
    """Expressions that are never below (`upper`) or above the atom `v`, the most precise first."""
    found: list[Expr] = []
    known = env.get(v)
    if upper and known is not None and known.hi_expr is not None:
        found.append(known.hi_expr - 1)
    if isinstance(v, Mod) and upper and _ge0(v.rhs - 1, env, depth):
        found.append(v.rhs - 1)
        if _ge0(v.lhs, env, depth):
            found.append(v.lhs)
    elif isinstance(v, FloorDiv) and _ge0(v.rhs - 1, env, depth):
        extreme = _extreme(v.lhs, upper, env, depth)
        if extreme is not None and extreme is not v.lhs:
            found.append(floordiv(extreme, v.rhs))
    r = _range(v, env)
    numeric = r.hi if upper else r.lo
    if numeric is not None:
        found.append(const(numeric))
    return found


def _extreme(e: Expr, upper: bool, env: RangeEnv, depth: int) -> Expr | None:
    """A bound of `e` without the dimensions that are factors of its terms, or None."""
    for d in sorted(free_dims(e), key=_elimination_order):
        parts = _coefficient(e, d)
        if parts is None:
            return None
        a, b = parts
        if a is ZERO:
            continue
        if _ge0(a, env, depth):
            side = upper
        elif _ge0(-a, env, depth):
            side = not upper
        else:
            return None
        bounds = _bounds(d, side, env, depth)
        if not bounds:
            return None
        e = a * bounds[0] + b
    return e


# ----------------------------------------------------------------------------------------------------- simplification


def simplify(e: ExprLike, env: Env) -> Expr:
    """`e` without the divisions, remainders, minima and maxima that the ranges of `env` decide."""
    e = as_expr(e)
    return _simplify(e, as_env(env)) if e.has_div else e


def _simplify(e: Expr, env: RangeEnv) -> Expr:
    if not e.has_div:
        return e
    found = env.simplified.get(e)
    if found is not None:
        return found
    env.simplified[e] = e
    if isinstance(e, (FloorDiv, Mod)) and _simplify(e.rhs, env) is ZERO:
        return e  # it has no value where this holds: of a loop without iterations
    new = map_children(e, lambda child: _simplify(child, env))
    if new is e:
        rule = _SIMPLIFY_RULES.get(type(e))
        if rule is not None:
            r = _range(e, env)
            new = const(r.lo) if r.lo is not None and r.lo == r.hi else rule(e, env)
    if new is not e:
        new = env.simplified[e] = _simplify(new, env)
    return new


def _simplify_floordiv(e: FloorDiv, env: RangeEnv) -> Expr:
    a, b = e.lhs, e.rhs
    if not _nonneg(b - 1, env):
        return e
    if isinstance(a, FloorDiv):
        return floordiv(a.lhs, a.rhs * b)
    if isinstance(a, Mod):
        n = exact_quotient(a.rhs, b)
        if n is not None:
            return mod(floordiv(a.lhs, b), n)
    split = _split(a, b, env)
    if split is None:
        return e
    _, high, _, rest = split
    return floordiv(high, rest)


def _simplify_mod(e: Mod, env: RangeEnv) -> Expr:
    a, b = e.lhs, e.rhs
    if not _nonneg(b - 1, env):
        return e
    if isinstance(a, Mod) and exact_quotient(a.rhs, b) is not None:
        return mod(a.lhs, b)
    split = _split(a, b, env)
    if split is None:
        return e
    unit, high, low, rest = split
    return unit * mod(high, rest) + low


def _split(a: Expr, b: Expr, env: RangeEnv) -> tuple[Expr, Expr, Expr, Expr] | None:
    """(unit, high, low, rest) with a == unit * high + low, 0 <= low < unit and b == unit * rest, or None.

    Then a // b is high // rest, and a % b is unit * (high % rest) + low. `b` is positive.
    """
    for unit in _units(a, b):
        high, low = divide(a, unit)
        if unit is not b and (high is ZERO or not _nonneg(unit - 1, env)):
            continue
        shift = _block(low, unit, env)
        if shift is None:
            continue
        rest = exact_quotient(b, unit)
        if rest is not None:
            return unit, high + shift, low - unit * shift, rest
    return None


def _block(e: Expr, unit: Expr, env: RangeEnv) -> int | None:
    """The integer j with j * unit <= e < (j + 1) * unit for every value of `e`, or None."""
    if unit.value is not None:
        r = _range(e, env)
        if r.lo is not None and r.hi is not None and r.lo // unit.value == r.hi // unit.value:
            return r.lo // unit.value
        if not any(isinstance(v, Sym) or _has_symbolic_bound(v, env) for term, _ in e.terms for v in term.factors):
            return None
    for shift in (0, -1, 1):
        low = e - unit * shift
        if _nonneg(low, env):
            if _nonneg(unit - 1 - low, env):
                return shift
            if shift == 0:
                continue
        elif shift == 0 and not _nonneg(-low - 1, env):
            return None
    return None


def _has_symbolic_bound(v: Expr, env: RangeEnv) -> bool:
    if isinstance(v, Dim):
        known = env.get(v)
        return known is not None and known.hi_expr is not None
    return True


def _units(a: Expr, b: Expr) -> list[Expr]:
    """`b` and the smaller monomials that divide `b` and some terms of `a`, largest first."""
    if b.value is None and (len(b.terms) > 1 or b.constant):
        return [b]
    b_coeff, b_factors = b.constant, ()
    for term, coeff in b.terms:
        b_coeff, b_factors = coeff, term.factors
    whole = (b_factors, b_coeff)
    units: set[tuple[tuple[Expr, ...], int]] = set()
    for term, coeff in a.terms:
        unit = (_common(term.factors, b_factors), gcd(coeff, b_coeff))
        units |= {(_common(unit[0], other[0]), gcd(unit[1], other[1])) for other in units}
        units.add(unit)
        if len(units) > 64:
            break
    units -= {((), 1), whole}
    ordered = sorted(units, key=lambda u: (-len(u[0]), -u[1], [sort_key(f) for f in u[0]]))
    return [b, *(product(factors) * coeff for factors, coeff in ordered)]


def _common(a: tuple[Expr, ...], b: tuple[Expr, ...]) -> tuple[Expr, ...]:
    left = list(b)
    common: list[Expr] = []
    for factor in a:
        if factor in left:
            left.remove(factor)
            common.append(factor)
    return tuple(common)


def _simplify_add(e: Add, env: RangeEnv) -> Expr:
    """Joins m*a*((v + u//a) % b) + m*(u % a) into m*((a*v + u) % (a*b)), which holds for b > 0.

    The construction of sums does it for constants; here the sizes may be symbols.
    """
    remainders = [
        (item, f, exact_quotient(_scaled(item), f))
        for item in e.terms
        for f in item[0].factors
        if isinstance(f, Mod) and (item[0].factors.count(f) == 1)
    ]
    for low_item, low, m in remainders:
        quotient = None
        for high_item, high, k in remainders:
            if high_item is low_item or m is None or k is None or k is not m * low.rhs:
                continue
            if quotient is None:
                quotient = _simplify(floordiv(low.lhs, low.rhs), env)
            above = dict(high.lhs.terms)
            if not quotient.terms or any(above.get(t) != c for t, c in quotient.terms):
                continue
            if not _nonneg(high.rhs - 1, env):
                continue
            joined = mod((high.lhs - quotient) * low.rhs + low.lhs, low.rhs * high.rhs)
            return e - _scaled(low_item) - _scaled(high_item) + m * joined
    return e


def _scaled(item: tuple[Expr, int]) -> Expr:
    return item[0] * item[1]


def _simplify_min(e: Min, env: RangeEnv) -> Expr:
    return minimum(*_extremes(e.args, lambda a, b: _nonneg(b - a, env)))


def _simplify_max(e: Max, env: RangeEnv) -> Expr:
    return maximum(*_extremes(e.args, lambda a, b: _nonneg(a - b, env)))


def _extremes(args: tuple[Expr, ...], wins: Callable[[Expr, Expr], bool]) -> list[Expr]:
    """`args` without those that another one always wins against."""
    kept = list(args)
    for candidate in args:
        if len(kept) > 1 and any(wins(other, candidate) for other in kept if other is not candidate):
            kept.remove(candidate)
    return kept


_SIMPLIFY_RULES: dict[type[Expr], Callable[..., Expr]] = {
    Add: _simplify_add,
    FloorDiv: _simplify_floordiv,
    Mod: _simplify_mod,
    Min: _simplify_min,
    Max: _simplify_max,
}
