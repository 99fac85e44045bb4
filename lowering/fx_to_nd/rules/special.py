"""Bessel and Airy functions as pointwise operators, so that every target has them.

Near zero a Chebyshev sum (special_tables.py) in x^2, where needed beside a logarithm; far away amplitude and phase, or
an exponential, with a Chebyshev sum in the reciprocal. Both sides are computed and selected from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Kind
from xdsl.dialects.builtin import f64
from xdsl.ir import SSAValue

from ..core.importer import Importer
from ..core.promotion import promote
from ..core.registry import packet, rule
from . import special_tables as tables

_AIRY_FAR = 1.5 / 2**1.5
"""1 / z for x = 2, with z = 2/3 x^(3/2)."""
_AIRY_OSCILLATES = (1.5 / 5**1.5) ** 2
"""1 / z^2 for x = 5."""


def _chebyshev(b: Importer, t: SSAValue, coefficients: Sequence[float]) -> SSAValue:
    """sum c[k] T_k(t) by Clenshaw's recurrence; f32 drops the terms below its precision."""
    if b.dtype(t) != f64:
        largest = max(map(abs, coefficients))
        last = max(k for k, c in enumerate(coefficients) if abs(c) > 2e-9 * largest)
        coefficients = coefficients[: last + 1]
    twice = b.add(t, t)
    newer, older = b.full(coefficients[-1], b.dtype(t)), b.full(0.0, b.dtype(t))
    for c in reversed(coefficients[1:-1]):
        newer, older = b.fma(twice, newer, b.sub(b.full(c, b.dtype(t)), older)), newer
    return b.fma(t, newer, b.sub(b.full(coefficients[0], b.dtype(t)), older))


def _unit(b: Importer, x: SSAValue, high: float) -> SSAValue:
    """[0, high] mapped to [-1, 1]."""
    return b.sub(b.mul(x, 2.0 / high), 1.0)


def _within(b: Importer, x: SSAValue, low: float | None, high: float | None) -> SSAValue:
    """x, kept in the range where a sum is used (elsewhere its value is not)."""
    x = x if low is None else b.op("maximum", x, low)
    return x if high is None else b.op("minimum", x, high)


# ---- J and Y


def _near(b: Importer, y: SSAValue, table: Sequence[float]) -> SSAValue:
    """The sum over y^2 in [0, 64]."""
    near = _within(b, y, None, 8.0)
    return _chebyshev(b, _unit(b, b.mul(near, near), 64.0), table)


def _far(b: Importer, y: SSAValue, order: int, second: bool) -> SSAValue:
    """J (Y if `second`) of y >= 8 by amplitude and phase; NaN at infinity, as torch has it."""
    far = _within(b, y, 8.0, None)
    inverse = b.div(b.full(8.0, b.dtype(y)), far)
    t = _unit(b, b.mul(inverse, inverse), 1.0)
    p = _chebyshev(b, t, tables.P1 if order else tables.P0)
    q = b.mul(_chebyshev(b, t, tables.Q1 if order else tables.Q0), inverse)
    phase = b.sub(far, (0.75 if order else 0.25) * math.pi)
    sine, cosine = b.op("sin", phase), b.op("cos", phase)
    wave = b.add(b.mul(p, sine), b.mul(q, cosine)) if second else b.sub(b.mul(p, cosine), b.mul(q, sine))
    return b.mul(wave, b.op("sqrt", b.div(b.full(2.0 / math.pi, b.dtype(y)), far)))


def _j0(b: Importer, x: SSAValue) -> SSAValue:
    y = b.op("abs", x)
    return b.select(b.cmp("le", y, 8.0), _near(b, y, tables.J0), _far(b, y, 0, False))


def _j1(b: Importer, x: SSAValue) -> SSAValue:
    y = b.op("abs", x)
    far = _far(b, y, 1, False)
    far = b.select(b.cmp("lt", x, 0.0), b.op("neg", far), far)
    return b.select(b.cmp("le", y, 8.0), b.mul(x, _near(b, y, tables.J1)), far)


def _of_positive(b: Importer, x: SSAValue, at_zero: float, value: SSAValue) -> SSAValue:
    """`value`, NaN for negative x and `at_zero` at 0."""
    value = b.select(b.cmp("eq", x, 0.0), at_zero, value)
    return b.select(b.cmp("lt", x, 0.0), math.nan, value)


def _y0(b: Importer, x: SSAValue) -> SSAValue:
    near = b.mul(b.mul(b.op("log", x), _near(b, x, tables.J0)), 2.0 / math.pi)
    near = b.add(near, _near(b, x, tables.Y0))
    return _of_positive(b, x, -math.inf, b.select(b.cmp("le", x, 8.0), near, _far(b, x, 0, True)))


def _y1(b: Importer, x: SSAValue) -> SSAValue:
    part = b.mul(b.op("log", x), b.mul(x, _near(b, x, tables.J1)))
    pole = b.mul(b.sub(part, b.op("reciprocal", x)), 2.0 / math.pi)
    near = b.add(pole, b.mul(x, _near(b, x, tables.Y1)))
    return _of_positive(b, x, -math.inf, b.select(b.cmp("le", x, 8.0), near, _far(b, x, 1, True)))


# ---- I and K


def _i(order: int) -> Callable[[Importer, SSAValue], SSAValue]:
    return lambda b, x: b.op(f"i{order}", x)


def _k(order: int, scaled: bool) -> Callable[[Importer, SSAValue], SSAValue]:
    def apply(b: Importer, x: SSAValue) -> SSAValue:
        close = _within(b, x, None, 2.0)
        logarithm = b.mul(b.op("log", b.mul(close, 0.5)), b.op(f"i{order}", close))
        part = _chebyshev(b, _unit(b, b.mul(close, close), 4.0), tables.K1 if order else tables.K0)
        near = b.add(logarithm, b.div(part, close)) if order else b.sub(part, logarithm)
        away = _within(b, x, 2.0, None)
        t = _unit(b, b.div(b.full(2.0, b.dtype(x)), away), 1.0)
        far = b.div(_chebyshev(b, t, tables.K1_FAR if order else tables.K0_FAR), b.op("sqrt", away))
        if scaled:
            near = b.mul(near, b.op("exp", close))
        else:
            far = b.mul(far, b.op("exp", b.op("neg", away)))
        return _of_positive(b, x, math.inf, b.select(b.cmp("le", x, 2.0), near, far))

    return apply


# ---- others


def _spherical_j0(b: Importer, x: SSAValue) -> SSAValue:
    """sin(x) / x; 0 at infinity."""
    value = b.select(b.cmp("eq", x, 0.0), 1.0, b.div(b.op("sin", x), x))
    return b.select(b.predicate("isinf", x), 0.0, value)


def _airy(b: Importer, x: SSAValue) -> SSAValue:
    """The Airy function Ai; NaN at infinities, as torch has it."""
    y = b.op("abs", x)
    root = b.op("sqrt", y)
    z = b.mul(b.mul(y, root), 2.0 / 3.0)
    scale = b.op("sqrt", root)
    middle = _chebyshev(b, b.mul(b.add(_within(b, x, -5.0, 2.0), 1.5), 1.0 / 3.5), tables.AI)
    inverse = b.op("reciprocal", z)
    decay = _chebyshev(b, _unit(b, _within(b, inverse, None, _AIRY_FAR), _AIRY_FAR), tables.AI_FAR)
    decay = b.div(b.mul(decay, b.op("exp", b.op("neg", z))), b.mul(scale, 2.0 * math.sqrt(math.pi)))
    t = _unit(b, _within(b, b.mul(inverse, inverse), None, _AIRY_OSCILLATES), _AIRY_OSCILLATES)
    phase = b.sub(z, 0.25 * math.pi)
    p = b.mul(_chebyshev(b, t, tables.AI_P), b.op("cos", phase))
    q = b.mul(b.mul(_chebyshev(b, t, tables.AI_Q), inverse), b.op("sin", phase))
    wave = b.div(b.add(p, q), b.mul(scale, math.sqrt(math.pi)))
    value = b.select(b.cmp("gt", x, 2.0), decay, b.select(b.cmp("lt", x, -5.0), wave, middle))
    return b.select(b.predicate("isinf", x), math.nan, value)


_FUNCTIONS: dict[str, Callable[[Importer, SSAValue], SSAValue]] = {
    "bessel_j0": _j0,
    "bessel_j1": _j1,
    "bessel_y0": _y0,
    "bessel_y1": _y1,
    "modified_bessel_i0": _i(0),
    "modified_bessel_i1": _i(1),
    "modified_bessel_k0": _k(0, False),
    "modified_bessel_k1": _k(1, False),
    "scaled_modified_bessel_k0": _k(0, True),
    "scaled_modified_bessel_k1": _k(1, True),
    "spherical_bessel_j0": _spherical_j0,
    "airy_ai": _airy,
}


_ITS_OWN_DOUBLES = frozenset(("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "airy_ai"))
"""Functions whose doubles torch computes to 1e-7 only: a better value would not agree with eager."""


def _of_floats(name: str, function: Callable[[Importer, SSAValue], SSAValue]) -> Any:
    def apply(b: Importer, x: SSAValue) -> SSAValue:
        if b.dtype(x) == f64 and name in _ITS_OWN_DOUBLES:
            return NotImplemented
        (x,), _ = promote(b, (x,), Kind.INT_TO_FLOAT)
        return function(b, b.widen(x))

    return apply


for _name, _function in _FUNCTIONS.items():
    rule(packet(torch.ops.aten, f"special_{_name}"), packet(torch.ops.prims, _name))(_of_floats(_name, _function))
