"""Loads whose index wraps, stops or turns round once in a vector: `x[(i + 3) mod n]`, `x[min(max(i - 2, 0), n - 1)]`,
`x[min(abs(i - 3), 2 * n - 2 - abs(i - 3))]` with `i` along the lanes.

All lanes but those behind that place are consecutive elements, so that two masked loads, or one and the elements at the edges, stand for a
gather: periodic stencils, rolled tensors, padding with the edge or with what lies behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....dialects.expr import ONE, ZERO, Add, Expr, Max, Min, Mod, free_dims, linear_coeff, prove_ge0
from ....dialects.expr.ranges import RangeEnv


@dataclass(frozen=True)
class Wrap:
    """The one term of an offset that wraps, stops or turns once: `inner` grows by one from lane to lane.

    It is taken modulo `modulus`, or stops at `low` and at `high`, or (`mirrored`) is `low - inner` where that is more and `high - inner`
    where that is less.
    """

    term: Expr
    inner: Expr
    modulus: Expr | None = None
    low: Expr | None = None
    high: Expr | None = None
    mirrored: bool = False


def wrap_of(offset: Expr, lanes: Expr, width: int, ranges: RangeEnv) -> Wrap | None:
    """The term of an offset that wraps along dimension `lanes`, of which `width` run at once; None where none does, or it may do so
    several times."""
    terms = offset.terms if isinstance(offset, Add) else ((offset, 1),)
    along = [(t, c) for t, c in terms if lanes in free_dims(t)]
    if len(along) != 1 or along[0][1] != 1:
        return None
    (term, _), *_ = along
    if isinstance(term, Mod):
        once = prove_ge0(term.rhs - width, ranges) or prove_ge0(term.rhs - 1 - lanes, ranges)
        if once and linear_coeff(term.lhs, lanes) is ONE and lanes not in free_dims(term.rhs):
            return Wrap(term, term.lhs, modulus=term.rhs)
        return None
    return _clamped(term, lanes, ranges) or _mirrored(term, lanes, ranges)


def _clamped(term: Expr, lanes: Expr, ranges: RangeEnv) -> Wrap | None:
    inner, low, high = term, None, None
    while isinstance(inner, (Min, Max)):
        inside = [a for a in inner.args if lanes in free_dims(a)]
        bounds = [a for a in inner.args if lanes not in free_dims(a)]
        if len(inside) != 1 or len(bounds) != 1 or (low if isinstance(inner, Max) else high) is not None:
            return None
        low, high = (bounds[0], high) if isinstance(inner, Max) else (low, bounds[0])
        inner = inside[0]
    if inner is term or linear_coeff(inner, lanes) is not ONE:
        return None
    if low is not None and high is not None and not prove_ge0(high - low, ranges):
        return None
    return Wrap(term, inner, low=low, high=high)


def _mirrored(term: Expr, lanes: Expr, ranges: RangeEnv) -> Wrap | None:
    """`max(i, low - i)`, `min(i, high - i)`, or the latter of the former, where no index turns twice."""
    inner, low, high = term, None, None
    if isinstance(inner, Min):
        inner, high = _turned(inner, lanes)
    if isinstance(inner, Max):
        inner, low = _turned(inner, lanes)
    if (low is None and high is None) or linear_coeff(inner, lanes) is not ONE:
        return None
    if low is not None and high is not None and not prove_ge0(high - (low - inner) * 2, ranges):
        return None
    return Wrap(term, inner, low=low, high=high, mirrored=True)


def _turned(either: Min | Max, lanes: Expr) -> tuple[Expr, Expr | None]:
    """Of two expressions whose sum is the same in all lanes the one that grows, or turns itself, and the sum; None for it where that is not
    so."""
    total = sum(either.args, ZERO)
    if len(either.args) == 2 and lanes not in free_dims(total):
        for one in either.args:
            if isinstance(one, Max) or linear_coeff(one, lanes) is ONE:
                return one, total
    return either, None
