"""Incomplete gamma functions and Hurwitz' zeta function, computed in f64 for f32 too.

Which way a value of an incomplete gamma function is computed depends on where the arguments are, and how long it takes on their values:
lanes that go another way wait. The ways: the power series and Legendre's continued fraction (Abramowitz and Stegun 6.5.29, 6.5.31), near
the diagonal of large arguments N. M. Temme's uniform expansion (DLMF 8.12), and of the upper function of small arguments the power series
of what is left of 1. The regions follow W. Gautschi, "A computational procedure for incomplete gamma functions"."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache

from .....dialects.support.special import bernoulli
from ..outline import outlined
from .core import Code

_LARGE = 20.0
"""From where on the uniform expansion is used, within _NEAR of the diagonal."""
_NEAR = 0.3
_DIRECT = 10.0
"""Up to where the gamma function itself is used, and from where on Stirling's series."""


def _function(m: Code, name: str, *arguments: str) -> str:
    from ..math import emit_function

    return emit_function(m.f, name, m.type, list(arguments))


# ---- tables


@cache
def _stirling() -> tuple[float, ...]:
    """Coefficients of 1/a^(2k+1) in log gamma(a + 1) - (a log a - a + log(2 pi a) / 2)."""
    return tuple(float(bernoulli(2 * k) / (2 * k * (2 * k - 1))) for k in range(1, 10))


@cache
def _log_gamma_series() -> tuple[float, ...]:
    """Coefficients of a^k, k >= 0, in (log gamma(1 + a) + log(1 + a) - a (1 - Euler's constant)) / a^2, for |a| <= 1/2."""
    return tuple((-1) ** k * _zeta_less_one(k) / k for k in range(2, 28))


def _zeta_less_one(s: int) -> float:
    """zeta(s) - 1 by Euler and Maclaurin."""
    n = 20.0
    tail, term = [n ** (1 - s) / (s - 1), 0.5 * n**-s], s * n ** (-s - 1)
    for k in range(1, 8):
        tail.append(term * float(bernoulli(2 * k)) / math.factorial(2 * k))
        term *= (s + 2 * k - 1) * (s + 2 * k) / n**2
    return math.fsum([*(j**-s for j in range(2, int(n))), *tail])


@cache
def _temme() -> tuple[tuple[float, ...], ...]:
    """Coefficients d[k][n] of eta^n / a^k (DLMF 8.12.8 to 8.12.12), as many as count for a >= 20 and |eta| <= 0.34."""
    orders, powers = 12, 20
    count = powers + 2 * orders + 3
    alpha = [Fraction(0), Fraction(1), Fraction(1, 3)]
    for n in range(3, count + 1):
        mixed = sum((j * alpha[j] * alpha[n - j + 1] for j in range(2, n)), Fraction(0))
        alpha.append((alpha[n - 1] - mixed) / (n + 1))
    g = [Fraction(1)]  # of Stirling's series of the gamma function: the exponential of that of its logarithm
    for k in range(1, orders + 1):
        g.append(sum((bernoulli(j + 1) / (j + 1) * g[k - j] for j in range(1, k + 1, 2)), Fraction(0)) / k)
    first = [Fraction(-1, 3), *((n + 2) * alpha[n + 2] for n in range(1, powers + 2 * orders))]
    rows = [first]
    for k in range(1, orders):
        above = rows[-1]
        rows.append([(-1) ** k * g[k] * first[n] + (n + 2) * above[n + 2] for n in range(powers + 2 * (orders - k))])
    return tuple(row for k, exact in enumerate(rows) if (row := _significant([float(v) for v in exact[:powers]], k)))


def _significant(row: list[float], order: int) -> tuple[float, ...]:
    """A row of the table without the last terms that do not count."""
    while row and abs(row[-1]) * 0.34 ** (len(row) - 1) * _LARGE**-order < 1e-18:
        row.pop()
    return tuple(row)


# ---- parts


def _log_deficit(m: Code, mu: str, ratio: str) -> str:
    """mu - log(ratio) where ratio = 1 + mu, without cancellation near 1."""
    near = m.cmp("olt", m.abs(mu), m.c(0.5))
    close = m.select(near, mu, m.c(0.0))
    t = m.div(close, m.add(close, m.c(2.0)))
    square = m.mul(t, t)
    series = m.horner(square, [1 / (2 * k + 3) for k in range(16)])
    close = m.sub(m.mul(close, t), m.mul(m.mul(m.add(t, t), square), series))
    return m.select(near, close, m.sub(mu, _function(m, "log", ratio)))


def _prefactor(m: Code, a: str, x: str) -> str:
    """x^a e^-x / gamma(a + 1) for a > 0, x > 0."""
    large = m.cmp("ogt", a, m.c(_DIRECT))
    big, small = m.select(large, a, m.c(_DIRECT)), m.select(large, m.c(1.0), a)
    inverse = m.div(m.c(1.0), big)
    stirling = m.mul(inverse, m.horner(m.mul(inverse, inverse), _stirling()))
    ratio = m.div(x, big)
    exponent = m.add(m.mul(big, _log_deficit(m, m.div(m.sub(x, big), big), ratio)), stirling)
    by_stirling = m.div(_function(m, "exp", m.neg(exponent)), m.sqrt(m.mul(big, m.c(2 * math.pi))))
    close = m.at_most(x, 1e3)  # where the exponential is 0
    direct = m.mul(_function(m, "pow", close, small), _function(m, "exp", m.neg(close)))
    direct = m.div(direct, _function(m, "tgamma", m.add(small, m.c(1.0))))
    return m.select(large, by_stirling, direct)


def _series(m: Code, a: str, x: str, lanes: str, tolerance: float) -> str:
    """1 + x / (a + 1) + x^2 / ((a + 1)(a + 2)) + ..."""

    def step(n: str, term: str, total: str) -> tuple[list[str], str]:
        n = m.add(n, m.c(1.0))
        term = m.mul(term, m.div(x, n))
        total = m.add(total, term)
        return [n, term, total], m.cmp("ogt", term, m.mul(total, m.c(tolerance)))

    return m.loop(lanes, [a, m.c(1.0), m.c(1.0)], step)[2]


def _fraction(m: Code, a: str, x: str, lanes: str, tolerance: float) -> str:
    """1 / (x + 1 - a - 1(1 - a) / (x + 3 - a - 2(2 - a) / (x + 5 - a - ...))) by Lentz' method."""
    one = m.c(1.0)
    b = m.sub(m.add(x, one), a)
    first = m.div(one, b)

    def step(n: str, b: str, c: str, d: str, value: str) -> tuple[list[str], str]:
        numerator = m.mul(n, m.sub(a, n))
        b = m.add(b, m.c(2.0))
        d = m.div(one, m.add(m.mul(numerator, d), b))
        c = m.add(b, m.div(numerator, c))
        change = m.mul(c, d)
        more = m.cmp("ogt", m.abs(m.sub(change, one)), m.c(max(tolerance, 2e-16)))
        return [m.add(n, one), b, c, d, m.mul(value, change)], more

    return m.loop(lanes, [one, b, m.c(1e300), first, first], step)[4]


def _log_gamma_next(m: Code, a: str) -> str:
    """log gamma(1 + a) for a > 0, small for small a."""
    near = m.cmp("ole", a, m.c(0.5))
    close = m.select(near, a, m.c(0.0))
    series = m.mul(m.mul(close, close), m.horner(close, _log_gamma_series()))
    euler = 0.5772156649015329
    close = m.add(m.sub(m.mul(close, m.c(1 - euler)), _function(m, "log1p", close)), series)
    return m.select(near, close, _function(m, "lgamma", m.add(a, m.c(1.0))))


def _upper_of_small(m: Code, a: str, x: str, lanes: str, tolerance: float) -> str:
    """The upper function of x up to about 1, where the lower one is near 1."""
    one = m.c(1.0)

    def step(n: str, power: str, total: str) -> tuple[list[str], str]:
        n = m.add(n, one)
        power = m.mul(power, m.neg(m.div(x, n)))
        term = m.div(power, m.add(a, n))
        total = m.add(total, term)
        return [n, power, total], m.cmp("ogt", m.abs(term), m.mul(m.abs(total), m.c(tolerance)))

    total = m.loop(lanes, [m.c(0.0), one, m.c(0.0)], step)[2]
    exponent = m.sub(m.mul(a, _function(m, "log", x)), _log_gamma_next(m, a))
    rest = m.mul(m.mul(_function(m, "exp", exponent), a), total)
    return m.neg(m.add(_function(m, "expm1", exponent), rest))


def _uniform(m: Code, a: str, x: str, upper: bool) -> str:
    """Both functions of large arguments near the diagonal."""
    mu = m.div(m.sub(x, a), a)
    deficit = _log_deficit(m, mu, m.div(x, a))
    eta = m.copysign(m.sqrt(m.add(deficit, deficit)), mu)
    inverse = m.div(m.c(1.0), a)
    total = m.c(0.0)
    for row in reversed(_temme()):
        total = m.fma(total, inverse, m.horner(eta, row))
    exponent = m.mul(a, deficit)
    rest = m.div(m.mul(_function(m, "exp", m.neg(exponent)), total), m.sqrt(m.mul(a, m.c(2 * math.pi))))
    argument = m.copysign(m.sqrt(exponent), eta)
    error = _function(m, "erfc", argument if upper else m.neg(argument))
    error = m.mul(error, m.c(0.5))
    return m.add(error, rest) if upper else m.sub(error, rest)


# ---- functions


def _incomplete(upper: bool, tolerance: float) -> Callable[[Code, str, str], str]:
    def form(m: Code, a: str, x: str) -> str:
        zero, one, infinite = m.c(0.0), m.c(1.0), m.c(math.inf)
        inside = m.both(m.both(m.cmp("ogt", a, zero), m.cmp("olt", a, infinite)), m.both(m.cmp("ogt", x, zero), m.cmp("olt", x, infinite)))
        near = m.cmp("ole", m.abs(m.sub(x, a)), m.mul(a, m.c(_NEAR)))
        near = m.both(inside, m.both(near, m.cmp("oge", a, m.c(_LARGE))))
        others = m.both(inside, m.off(near))
        far = m.both(m.both(m.cmp("ogt", x, m.c(1.1 if upper else 1.0)), m.cmp("ogt", x, a)), others)
        by_series = m.both(others, m.off(far))
        small = None
        if upper:
            tiny = m.both(by_series, m.cmp("ole", x, m.c(0.5)))
            bound = m.where(tiny, m.mul(x, m.c(1.1)), lambda: m.div(m.c(-0.4), _function(m, "log", x)))
            small = m.both(by_series, m.both(m.cmp("ole", x, m.c(1.1)), m.cmp("ole", a, bound)))
            by_series = m.both(by_series, m.off(small))
        prefactor = m.where(m.either(far, by_series), zero, lambda: _prefactor(m, a, x))
        lower = m.mul(prefactor, _series(m, a, x, by_series, tolerance))
        rest = m.mul(m.mul(prefactor, a), _fraction(m, a, x, far, tolerance))
        if upper:
            value = m.select(far, rest, m.sub(one, lower))
        else:
            value = m.select(far, m.sub(one, rest), lower)
        if small is not None:
            value = m.where(small, value, lambda: _upper_of_small(m, a, x, small, tolerance))
        value = m.where(near, value, lambda: _uniform(m, a, x, upper))
        return _edges(m, a, x, value, *((one, zero) if upper else (zero, one)))

    return form


def _edges(m: Code, a: str, x: str, value: str, at_zero: str, at_end: str) -> str:
    """The values where an argument is 0 or infinite, and NaN for negative ones."""
    zero, infinite, nan = m.c(0.0), m.c(math.inf), m.c(math.nan)
    value = m.select(m.cmp("oeq", x, infinite), at_end, value)
    value = m.select(m.cmp("oeq", a, infinite), m.select(m.cmp("oeq", x, infinite), nan, at_zero), value)
    value = m.select(m.cmp("oeq", x, zero), at_zero, value)
    value = m.select(m.cmp("oeq", a, zero), m.select(m.cmp("ogt", x, zero), at_end, nan), value)
    return m.select(m.either(m.cmp("ult", x, zero), m.cmp("ult", a, zero)), nan, value)


_SHIFT = 9
"""How many terms of the zeta function are added up before Euler's and Maclaurin's formula."""


def _zeta_right(m: Code, s: str, q: str, total: str) -> str:
    """total + sum (q + n)^-s for q > 0, s > 1."""
    one, negative = m.c(1.0), m.neg(s)
    for n in range(_SHIFT):
        total = m.add(total, _function(m, "pow", m.add(q, m.c(float(n))), negative))
    w = m.add(q, m.c(float(_SHIFT)))
    last = _function(m, "pow", w, negative)
    inverse = m.div(one, w)
    squared = m.mul(inverse, inverse)
    term = m.mul(s, inverse)
    tail = m.add(m.div(w, m.sub(s, one)), m.c(0.5))
    for k in range(1, 13):
        tail = m.add(tail, m.mul(term, m.c(float(bernoulli(2 * k) / math.factorial(2 * k)))))
        factors = m.mul(m.add(s, m.c(2.0 * k - 1)), m.add(s, m.c(2.0 * k)))
        term = m.mul(term, m.mul(factors, squared))
    # what does not count is left out: the series of a large s does not converge
    counts = m.cmp("ogt", last, m.mul(total, m.c(1e-17)))
    return m.select(counts, m.fma(last, tail, total), total)


def _zeta(m: Code, s: str, q: str) -> str:
    zero, one, infinite, nan = m.c(0.0), m.c(1.0), m.c(math.inf), m.c(math.nan)
    negative = m.both(m.cmp("olt", q, zero), m.cmp("ogt", s, one))
    fraction = m.select(negative, m.sub(q, m.call("floor", q)), q)

    def step(a: str, total: str) -> tuple[list[str], str]:
        total, a = m.add(total, _function(m, "pow", a, m.neg(s))), m.add(a, one)
        return [a, total], m.cmp("olt", a, zero)

    near = m.both(negative, m.cmp("oge", q, m.c(-100.0)))  # in that order neighbours of opposite signs cancel exactly
    value = _zeta_right(m, s, fraction, m.loop(near, [q, zero], step)[1])

    def reflected() -> str:
        """The terms below zero are those of 1 - fraction above zero, but for the sign and the rest from 1 - q on."""
        below = m.sub(_zeta_right(m, s, m.sub(one, fraction), zero), _zeta_right(m, s, m.sub(one, q), zero))
        half = m.mul(s, m.c(0.5))
        odd = m.cmp("une", m.call("floor", half), half)
        return m.add(value, m.select(odd, m.neg(below), below))

    value = m.where(m.both(negative, m.off(near)), value, reflected)
    whole = m.cmp("oeq", m.call("floor", s), s)
    value = m.select(m.both(m.cmp("ole", q, zero), m.off(whole)), nan, value)
    value = m.select(m.both(m.cmp("ole", q, zero), m.cmp("oeq", m.call("floor", q), q)), infinite, value)
    value = m.select(m.cmp("oeq", q, infinite), nan, value)  # as torch has it
    value = m.select(m.either(m.cmp("ult", s, one), m.cmp("uno", q, q)), nan, value)
    return m.select(m.cmp("oeq", s, one), infinite, value)


def _incomplete_gamma(name: str, upper: bool) -> Callable[[Code, str, str], str]:
    def apply(m: Code, a: str, x: str) -> str:
        end = 1e-10 if m.type.kind == "f32" else 1e-17  # of sums and fractions, against their value
        return outlined(m, name, _incomplete(upper, end), (a, x), double=True)

    return apply


FORMS: dict[str, Callable[..., str]] = {
    "igamma": _incomplete_gamma("igamma", False),
    "igammac": _incomplete_gamma("igammac", True),
    "zeta": lambda m, s, q: outlined(m, "zeta", _zeta, (s, q), double=True),
}
"""The functions of this file by the name that cpu.math gives them."""
