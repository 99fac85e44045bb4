"""Orthogonal polynomials whose degree is an operand: each lane goes through its recurrence as far as its degree.

The degree is truncated to an integer; below zero, and where it is no integer of 64 bits, the value is 0. Inside of (-1, 1) a Chebyshev
polynomial of more than a few degrees is computed by its closed form in the angle, as torch does; the recurrence gives the exact values at
-1 and 1."""

from __future__ import annotations

from collections.abc import Callable

from ..outline import outlined
from .core import Code

_END = 2.0**63
"""What is no degree any more, since it is no integer of 64 bits."""

First = Callable[[Code, str], str]
"""x -> the polynomial of degree 1."""
Step = Callable[[Code, str, str, str, str], str]
"""x, the polynomials of degree k and k - 1, k -> that of degree k + 1."""
Closed = Callable[[Code, str, str], str]
"""The angle acos(x), the degree -> the polynomial for x inside of (-1, 1)."""


def _function(m: Code, name: str, x: str) -> str:
    from ..math import emit_function

    return emit_function(m.f, name, m.type, [x])


def _by_recurrence(m: Code, x: str, degree: str, wanted: str, first: First, step: Step) -> str:
    """The polynomial of degree 1 and more in the lanes of `wanted`. A lane stops whose value is no number, and at the degree from where
    on floats do not count in ones."""
    one = m.c(1.0)

    def next_degree(k: str, newer: str, older: str) -> tuple[list[str], str]:
        value, following = step(m, x, newer, older, k), m.add(k, one)
        more = m.both(m.cmp("olt", following, degree), m.cmp("ogt", following, k))
        return [following, value, newer], m.both(more, m.cmp("ord", value, value))

    active = m.both(wanted, m.both(m.cmp("ogt", degree, one), m.cmp("olt", degree, m.c(_END))))
    return m.loop(active, [one, first(m, x), one], next_degree)[1]


def _ends(m: Code, degree: str, value: str) -> str:
    """The values of degrees 0 and below, and of what is no degree."""
    value = m.select(m.cmp("oeq", degree, m.c(0.0)), m.c(1.0), value)
    return m.select(m.either(m.cmp("ult", degree, m.c(0.0)), m.cmp("oge", degree, m.c(_END))), m.c(0.0), value)


def _chebyshev(first: First, closed: Closed, shifted: bool) -> Callable[[Code, str, str], str]:
    def form(m: Code, x: str, n: str) -> str:
        degree = m.call("trunc", n)
        x = m.sub(m.add(x, x), m.c(1.0)) if shifted else x
        by_angle = m.both(m.cmp("ogt", degree, m.c(6.0)), m.cmp("olt", m.abs(x), m.c(1.0)))
        value = _by_recurrence(m, x, degree, m.off(by_angle), first, lambda m, x, q, p, k: _less(m, m.add(x, x), q, p))
        value = m.where(by_angle, value, lambda: closed(m, _function(m, "acos", x), degree))
        return _ends(m, degree, value)

    return form


def _other(first: First, step: Step, limited: bool) -> Callable[[Code, str, str], str]:
    def form(m: Code, x: str, n: str) -> str:
        degree = m.call("trunc", n)
        if limited:  # torch gives NaN above
            limit = m.c(128.0 if m.type.kind == "f32" else 512.0)
            above = m.cmp("ogt", degree, limit)
            value = _by_recurrence(m, x, degree, m.cmp("ole", degree, limit), first, step)
            value = m.select(above, m.c(float("nan")), value)
        else:
            value = _by_recurrence(m, x, degree, m.cmp("ord", degree, degree), first, step)
        return _ends(m, degree, value)

    return form


def _less(m: Code, a: str, b: str, c: str) -> str:
    """a * b - c, rounded once, as torch's loops are compiled."""
    return m.fma(a, b, m.neg(c))


def _twice(m: Code, x: str) -> str:
    return m.add(x, x)


def _one_less(m: Code, x: str) -> str:
    return m.sub(m.c(1.0), x)


def _physicist_step(m: Code, x: str, q: str, p: str, k: str) -> str:
    return _less(m, m.add(x, x), q, m.mul(m.add(k, k), p))


def _probabilist_step(m: Code, x: str, q: str, p: str, k: str) -> str:
    return _less(m, x, q, m.mul(k, p))


def _laguerre_step(m: Code, x: str, q: str, p: str, k: str) -> str:
    slope = m.add(m.add(k, k), _one_less(m, x))
    return m.div(_less(m, slope, q, m.mul(k, p)), m.add(k, m.c(1.0)))


def _legendre_step(m: Code, x: str, q: str, p: str, k: str) -> str:
    slope = m.mul(m.add(m.add(k, k), m.c(1.0)), x)
    return m.div(_less(m, slope, q, m.mul(k, p)), m.add(k, m.c(1.0)))


def _closed_t(m: Code, angle: str, n: str) -> str:
    return _function(m, "cos", m.mul(angle, n))


def _closed_u(m: Code, angle: str, n: str) -> str:
    return m.div(_function(m, "sin", m.mul(angle, m.add(n, m.c(1.0)))), _function(m, "sin", angle))


def _closed_v(m: Code, angle: str, n: str) -> str:
    half = m.c(0.5)
    return m.div(_function(m, "cos", m.mul(angle, m.add(n, half))), _function(m, "cos", m.mul(angle, half)))


def _closed_w(m: Code, angle: str, n: str) -> str:
    half = m.c(0.5)
    return m.div(_function(m, "sin", m.mul(angle, m.add(n, half))), _function(m, "sin", m.mul(angle, half)))


_CHEBYSHEV: dict[str, tuple[First, Closed]] = {
    "t": (lambda m, x: x, _closed_t),
    "u": (_twice, _closed_u),
    "v": (lambda m, x: m.sub(m.add(x, x), m.c(1.0)), _closed_v),
    "w": (lambda m, x: m.add(m.add(x, x), m.c(1.0)), _closed_w),
}


def _outlined(name: str, form: Callable[[Code, str, str], str]) -> Callable[..., str]:
    return lambda m, x, n: outlined(m, name, form, (x, n))


FORMS: dict[str, Callable[..., str]] = {
    name: _outlined(name, form)
    for name, form in {
        **{f"chebyshev_polynomial_{letter}": _chebyshev(*parts, False) for letter, parts in _CHEBYSHEV.items()},
        **{f"shifted_chebyshev_polynomial_{letter}": _chebyshev(*parts, True) for letter, parts in _CHEBYSHEV.items()},
        "hermite_polynomial_h": _other(_twice, _physicist_step, True),
        "hermite_polynomial_he": _other(lambda m, x: x, _probabilist_step, True),
        "laguerre_polynomial_l": _other(_one_less, _laguerre_step, False),
        "legendre_polynomial_p": _other(lambda m, x: x, _legendre_step, False),
    }.items()
}
"""The functions of this file by the name that cpu.math gives them: x, the degree."""
