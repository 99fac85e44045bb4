"""Derivatives of the digamma function of a known order.

To the right of zero the argument is moved up by the recurrence and an asymptotic series added, to the left the reflection formula applies:
M. Abramowitz and I. Stegun, "Handbook of Mathematical Functions", 6.4.6, 6.4.7 and 6.4.11.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Kind
from xdsl.dialects.builtin import f64
from xdsl.ir import SSAValue

from ....dialects.support.special import bernoulli
from ..core.importer import Importer
from ..core.promotion import promote
from ..core.registry import find_rule, rule

MAX_ORDER = 8
"""The highest order that is computed here; factorials and powers of higher ones leave the range of f32 soon."""
_STEPS = 9
"""How far the argument is moved up."""


@rule(torch.ops.aten.polygamma)
def _polygamma(b: Importer, n: int, x: SSAValue) -> SSAValue:
    if n == 0:
        digamma = find_rule(torch.ops.aten.digamma.default)
        assert digamma is not None
        return digamma(b, x)
    if n > MAX_ORDER:
        return NotImplemented
    (x,), _ = promote(b, (x,), Kind.INT_TO_FLOAT)
    x = b.widen(x)
    left = b.cmp("lt", x, 0.5) if n == 1 else b.cmp("le", x, 0.0)
    value = _right(b, n, b.select(left, b.sub(b.full(1.0, b.dtype(x)), x), x))
    if n == 1:
        # as torch has it: not infinite at negative integers, where the sine of what pi x is rounded to is not zero
        sine = b.op("sin", b.mul(x, math.pi))
        return b.select(left, b.sub(b.div(b.full(math.pi**2, b.dtype(x)), b.mul(sine, sine)), value), value)
    mirrored = b.sub(value if n % 2 == 0 else b.op("neg", value), _cotangent(b, n, x))
    pole = b.op("and", left, b.cmp("eq", b.op("floor", x), x))
    mirrored = b.select(pole, math.inf if n % 2 else -math.inf, mirrored)
    value = b.select(b.cmp("eq", x, math.inf), math.nan, value)  # as torch has it
    return b.select(left, mirrored, value)


def _right(b: Importer, n: int, x: SSAValue) -> SSAValue:
    """The value for x > 0."""
    one = b.full(1.0, b.dtype(x))
    total = None
    for k in range(_STEPS):
        term = _power(b, b.div(one, b.add(x, float(k)) if k else x), n + 1)
        total = term if total is None else b.add(total, term)
    assert total is not None
    a = b.add(x, float(_STEPS))
    inverse = b.div(one, a)
    squared = b.mul(inverse, inverse)
    count = 12 if b.dtype(x) == f64 else 7
    series = b.full(_coefficient(n, count), b.dtype(x))
    for k in range(count - 1, 0, -1):
        series = b.fma(series, squared, b.full(_coefficient(n, k), b.dtype(x)))
    # (n-1)! / a^n + n! / (2 a^(n+1)) + squared terms / a^n
    first, second = (b.full(v, b.dtype(x)) for v in (float(math.factorial(n - 1)), math.factorial(n) / 2))
    tail = b.fma(series, squared, b.fma(inverse, second, first))
    value = b.add(b.mul(total, float(math.factorial(n))), b.mul(tail, _power(b, inverse, n)))
    return value if n % 2 else b.op("neg", value)


def _power(b: Importer, x: SSAValue, n: int) -> SSAValue:
    """x^n by squaring, n >= 1."""
    if n == 1:
        return x
    half = _power(b, x, n // 2)
    square = b.mul(half, half)
    return b.mul(square, x) if n % 2 else square


def _cotangent(b: Importer, n: int, x: SSAValue) -> SSAValue:
    """The n-th derivative of pi cot(pi x)."""
    rest = b.sub(x, b.op("round", x))
    size = b.op("abs", rest)
    outer = b.cmp("gt", size, 0.25)  # there by the distance to the zero, which is exact
    t = b.op("tan", b.mul(b.select(outer, b.sub(b.full(0.5, b.dtype(x)), size), size), math.pi))
    c = b.op("copysign", b.select(outer, t, b.op("reciprocal", t)), rest)
    *lower, last = _cotangent_polynomial(n)
    value = b.full(float(last), b.dtype(x))
    for coefficient in reversed(lower):
        value = b.fma(value, c, b.full(float(coefficient), b.dtype(x)))
    return b.mul(value, math.pi ** (n + 1))


@cache
def _cotangent_polynomial(n: int) -> tuple[int, ...]:
    """Coefficients, the constant first, of the polynomial in c = cot(pi x) that the n-th derivative of cot(pi x) is, over pi^n."""
    if n == 0:
        return 0, 1
    before = _cotangent_polynomial(n - 1)
    found = [0] * (len(before) + 1)
    for k, value in enumerate(before[1:]):  # c' = -(1 + c^2) pi
        found[k] -= (k + 1) * value
        found[k + 2] -= (k + 1) * value
    return tuple(found)


def _coefficient(n: int, k: int) -> float:
    """Of 1 / a^(2k) in the asymptotic series."""
    return float(bernoulli(2 * k) * math.factorial(2 * k + n - 1) / math.factorial(2 * k))
