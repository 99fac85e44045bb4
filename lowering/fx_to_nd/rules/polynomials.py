"""Orthogonal polynomials of a known degree, by their recurrences.

Inside of (-1, 1) a Chebyshev polynomial of more than a few degrees is computed by its closed form in the angle, as torch
does; the recurrence serves elsewhere and gives the exact values at -1 and 1. NaN gives NaN (torch returns what happened to be in
a register). A degree that is a tensor, or large, is an operand of a function of the CPU target; on other devices such a
polynomial is a call of the library.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Kind
from xdsl.ir import SSAValue

from ..core.importer import Importer
from ..core.promotion import promote
from ..core.registry import packet, rule

_MOST = 64
"""The largest degree whose recurrence is written out."""
_CLOSED = 6
"""The degree above which a closed form is used."""

First = Callable[[Importer, SSAValue], SSAValue]
"""x -> the polynomial of degree 1."""
Step = Callable[[Importer, SSAValue, SSAValue, SSAValue, int], SSAValue]
"""x, the polynomials of degree k and k - 1, k -> that of degree k + 1."""
Closed = Callable[[Importer, SSAValue, int], SSAValue]
"""The angle acos(x), the degree -> the polynomial for x inside of (-1, 1)."""


def _by_recurrence(b: Importer, x: SSAValue, n: int, first: First, step: Step) -> SSAValue:
    """The polynomial of degree n >= 1; that of degree 0 is 1."""
    older, newer = b.full(1.0, b.dtype(x)), first(b, x)
    for k in range(1, n):
        newer, older = step(b, x, newer, older, k), newer
    return newer


def _less(b: Importer, x: SSAValue, y: SSAValue, z: SSAValue) -> SSAValue:
    """x * y - z, rounded once, as torch's loops are compiled."""
    return b.fma(x, y, b.op("neg", z))


def _chebyshev_step(b: Importer, x: SSAValue, q: SSAValue, p: SSAValue, k: int) -> SSAValue:
    return _less(b, b.add(x, x), q, p)


def _physicist_step(b: Importer, x: SSAValue, q: SSAValue, p: SSAValue, k: int) -> SSAValue:
    return _less(b, b.add(x, x), q, b.mul(p, 2.0 * k))


def _probabilist_step(b: Importer, x: SSAValue, q: SSAValue, p: SSAValue, k: int) -> SSAValue:
    return _less(b, x, q, b.mul(p, float(k)))


def _laguerre_step(b: Importer, x: SSAValue, q: SSAValue, p: SSAValue, k: int) -> SSAValue:
    slope = b.add(_one_less(b, x), 2.0 * k)
    return b.div(_less(b, slope, q, b.mul(p, float(k))), k + 1.0)


def _legendre_step(b: Importer, x: SSAValue, q: SSAValue, p: SSAValue, k: int) -> SSAValue:
    return b.div(_less(b, b.mul(x, 2.0 * k + 1.0), q, b.mul(p, float(k))), k + 1.0)


def _same(b: Importer, x: SSAValue) -> SSAValue:
    return x


def _twice(b: Importer, x: SSAValue) -> SSAValue:
    return b.add(x, x)


def _one_less(b: Importer, x: SSAValue) -> SSAValue:
    return b.sub(b.full(1.0, b.dtype(x)), x)


def _closed_t(b: Importer, angle: SSAValue, n: int) -> SSAValue:
    return b.op("cos", b.mul(angle, float(n)))


def _closed_u(b: Importer, angle: SSAValue, n: int) -> SSAValue:
    return b.div(b.op("sin", b.mul(angle, n + 1.0)), b.op("sin", angle))


def _closed_v(b: Importer, angle: SSAValue, n: int) -> SSAValue:
    return b.div(b.op("cos", b.mul(angle, n + 0.5)), b.op("cos", b.mul(angle, 0.5)))


def _closed_w(b: Importer, angle: SSAValue, n: int) -> SSAValue:
    return b.div(b.op("sin", b.mul(angle, n + 0.5)), b.op("sin", b.mul(angle, 0.5)))


_CHEBYSHEV: dict[str, tuple[First, Closed]] = {
    "t": (_same, _closed_t),
    "u": (_twice, _closed_u),
    "v": (lambda b, x: b.sub(b.add(x, x), 1.0), _closed_v),
    "w": (lambda b, x: b.add(b.add(x, x), 1.0), _closed_w),
}
_OTHERS: dict[str, tuple[First, Step]] = {
    "hermite_polynomial_h": (_twice, _physicist_step),
    "hermite_polynomial_he": (_same, _probabilist_step),
    "laguerre_polynomial_l": (_one_less, _laguerre_step),
    "legendre_polynomial_p": (_same, _legendre_step),
}


def _polynomial(name: str, compute: Callable[[Importer, SSAValue, int], SSAValue]) -> Any:
    def apply(b: Importer, x: Any, n: Any) -> SSAValue:
        if not isinstance(x, SSAValue) or not isinstance(n, (int, float)) or not (math.isfinite(n) and int(n) <= _MOST):
            if not b.on_cpu:
                return NotImplemented
            (x, n), _ = promote(b, (x, n), Kind.INT_TO_FLOAT)
            return b.op(name, x, n)
        (x,), dtype = promote(b, (x,), Kind.INT_TO_FLOAT)
        degree = int(n)
        if degree <= 0:
            return b.full(0.0 if degree < 0 else 1.0, dtype, b.dims(x))
        return compute(b, b.widen(x), degree)

    return apply


def _chebyshev(name: str, first: First, closed: Closed, shifted: bool) -> Any:
    def compute(b: Importer, x: SSAValue, n: int) -> SSAValue:
        if shifted:
            x = b.sub(b.add(x, x), 1.0)
        value = _by_recurrence(b, x, n, first, _chebyshev_step)
        if n <= _CLOSED:
            return value
        return b.select(b.cmp("lt", b.op("abs", x), 1.0), closed(b, b.op("acos", x), n), value)

    return _polynomial(name, compute)


def _other(name: str, first: First, step: Step) -> Any:
    return _polynomial(name, lambda b, x, n: _by_recurrence(b, x, n, first, step))


for _letter, (_first, _closed) in _CHEBYSHEV.items():
    for _shifted in ("", "shifted_"):
        _name = f"{_shifted}chebyshev_polynomial_{_letter}"
        rule(packet(torch.ops.aten, f"special_{_name}"))(_chebyshev(_name, _first, _closed, bool(_shifted)))
for _name, (_first, _step) in _OTHERS.items():
    rule(packet(torch.ops.aten, f"special_{_name}"))(_other(_name, _first, _step))
