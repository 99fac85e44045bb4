"""Special functions as inline code, for f32 and f64: Bessel functions I0 and I1, digamma, the inverse error function
and its kin.

They are rare in models, so they are written for accuracy: Chebyshev sums (tables.py) on each side of a branch,
both computed and selected from, and Newton steps where a double needs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, factorial, pi, sqrt

from . import tables
from .core import Code


def _function(m: Code, name: str, *arguments: str) -> str:
    """A function of the table, at the precision of `m`."""
    from ..math import emit_function

    return emit_function(m.f, name, m.type, list(arguments))


def _chebyshev(m: Code, t: str, coefficients: Sequence[float]) -> str:
    """sum c[k] T_k(t) by Clenshaw's recurrence; f32 drops the terms below its precision."""
    if m.type.kind == "f32":
        largest = max(map(abs, coefficients))
        kept = [i for i, c in enumerate(coefficients) if abs(c) > 2e-9 * largest]
        coefficients = coefficients[: kept[-1] + 1]
    twice = m.add(t, t)
    current, last = m.c(coefficients[-1]), m.c(0.0)
    for c in reversed(coefficients[1:-1]):
        current, last = m.add(m.fma(twice, current, m.neg(last)), m.c(c)), current
    return m.add(m.fma(t, current, m.neg(last)), m.c(coefficients[0]))


def _bessel_series(m: Code, y: str, order: int) -> str:
    """I0(y) or I1(y) for 0 <= y <= 8 by the power series in z = y^2 / 4, whose terms are all positive. What z loses by
    rounding counts up to four times in the sum, so it is put back through the derivative."""
    terms = 15 if m.type.kind == "f32" else 26
    half = m.mul(y, m.c(0.5))
    z = m.mul(half, half)
    lost = m.fma(half, half, m.neg(z))
    value, slope = m.c(0.0), m.c(0.0)
    for k in reversed(range(terms)):
        slope = m.fma(slope, z, value)
        value = m.fma(value, z, m.c(1 / (factorial(k) * factorial(k + order))))
    value = m.fma(lost, slope, value)
    return m.mul(half, value) if order else value


def _bessel(m: Code, x: str, order: int, scaled: bool) -> str:
    """I0(|x|) or I1(|x|), times e^-|x| if `scaled`: the power series up to 8, beyond a Chebyshev sum over sqrt(|x|)."""
    y = m.abs(x)
    is_near = m.cmp("ole", y, m.c(8.0))
    near = _bessel_series(m, m.select(is_near, y, m.c(8.0)), order)
    outside = m.select(is_near, m.c(8.0), y)
    far = _chebyshev(m, m.sub(m.div(m.c(16.0), outside), m.c(1.0)), tables.I1E_FAR if order else tables.I0E_FAR)
    far = m.div(far, m.sqrt(outside))
    if scaled:
        near = m.mul(near, _function(m, "exp", m.neg(m.select(is_near, y, m.c(8.0)))))
    else:  # in two factors near the end of the range: it overflows only where the product does
        is_large = m.cmp("ogt", outside, m.c(80.0 if m.type.kind == "f32" else 700.0))
        power = _function(m, "exp", m.select(is_large, m.sub(outside, m.c(16.0)), outside))
        far = m.mul(m.mul(far, power), m.select(is_large, m.c(exp(16.0)), m.c(1.0)))
    return m.select(is_near, near, far)


def i0e(m: Code, x: str) -> str:
    """e^-|x| I0(x)."""
    return _bessel(m, x, 0, scaled=True)


def i1e(m: Code, x: str) -> str:
    """e^-|x| I1(x)."""
    return m.copysign(_bessel(m, x, 1, scaled=True), x)


def i0(m: Code, x: str) -> str:
    """The modified Bessel function I0; NaN at infinity, as torch has it."""
    return _bessel(m, x, 0, scaled=False)


def i1(m: Code, x: str) -> str:
    """The modified Bessel function I1; NaN at infinity, as torch has it."""
    return m.copysign(_bessel(m, x, 1, scaled=False), x)


def digamma(m: Code, x: str) -> str:
    """The logarithmic derivative of the gamma function: recurrence up to 10, then the asymptotic series (Abramowitz
    and Stegun 6.3.18); negative arguments by reflection. -+inf at +-0, NaN at negative integers."""
    negative = m.cmp("olt", x, m.c(0.0))
    y = m.select(negative, m.sub(m.c(1.0), x), x)
    total = m.c(0.0)
    for _ in range(10):
        small = m.cmp("olt", y, m.c(10.0))
        total = m.sub(total, m.select(small, m.div(m.c(1.0), y), m.c(0.0)))
        y = m.select(small, m.add(y, m.c(1.0)), y)
    inverse = m.div(m.c(1.0), y)
    z = m.mul(inverse, inverse)
    # Bernoulli numbers B_2k / 2k
    series = m.horner(z, (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12))
    log = m.sub(_function(m, "log", y), m.mul(inverse, m.c(0.5)))
    value = m.add(total, m.sub(log, m.mul(z, series)))
    # x - rint(x) keeps the argument of the tangent small and exact.
    part = m.sub(x, m.call("roundeven", x))
    cotangent = m.div(m.c(pi), _function(m, "tan", m.mul(part, m.c(pi))))
    pole = m.both(negative, m.cmp("oeq", part, m.c(0.0)))
    reflected = m.select(pole, m.c(float("nan")), m.sub(value, cotangent))
    value = m.select(negative, reflected, value)
    zero = m.cmp("oeq", x, m.c(0.0))
    value = m.select(zero, m.copysign(m.c(float("inf")), m.neg(x)), value)
    return m.select(m.cmp("oeq", x, m.c(float("inf"))), x, value)


def _erfinv_over_x(m: Code, w: str) -> str:
    """erfinv(x) / x from w = -log(1 - x^2), within 1e-8."""
    central = m.cmp("olt", w, m.c(5.0))
    inside = m.select(central, w, m.c(5.0))
    centre = _chebyshev(m, m.sub(m.mul(inside, m.c(0.4)), m.c(1.0)), tables.ERFINV_CENTRE)
    outside = m.at_most(m.select(central, m.c(5.0), w), 784.0)
    root = m.sqrt(outside)
    low, high = 1 / 28, 5**-0.5
    slope = 2 / (high - low)
    t = m.sub(m.mul(m.div(m.c(1.0), root), m.c(slope)), m.c(1 + low * slope))
    return m.select(central, centre, m.mul(root, _chebyshev(m, t, tables.ERFINV_TAIL)))


def erfinv(m: Code, x: str) -> str:
    """The inverse error function: +-inf at +-1, NaN beyond; for doubles two Newton steps follow the approximation."""
    y = m.abs(x)
    rest = m.sub(m.c(1.0), y)
    w = m.neg(_function(m, "log", m.mul(rest, m.add(m.c(1.0), y))))
    small = m.cmp("olt", y, m.c(0.25))
    w = m.select(small, m.neg(_function(m, "log1p", m.neg(m.mul(y, y)))), w)
    result = m.mul(y, _erfinv_over_x(m, w))
    if m.type.kind == "f64":
        for _ in range(2):
            # erfc where the target is near 1: there erf has lost the digits that matter.
            error = m.select(
                m.cmp("ogt", y, m.c(0.5)),
                m.sub(rest, _function(m, "erfc", result)),
                m.sub(_function(m, "erf", result), y),
            )
            slope = m.mul(m.c(2 / sqrt(pi)), _function(m, "exp", m.neg(m.mul(result, result))))
            result = m.sub(result, m.div(error, slope))
    result = m.select(m.cmp("oeq", y, m.c(1.0)), m.c(float("inf")), result)
    result = m.select(m.cmp("ugt", y, m.c(1.0)), m.c(float("nan")), result)
    return m.copysign(result, x)


def ndtri(m: Code, p: str) -> str:
    """The quantile of the normal distribution: -inf at 0, inf at 1, NaN outside. sqrt(2) erfinv(2p - 1), with 1 - (2p
    - 1)^2 taken as 4p(1 - p), so that small p keep their digits."""
    q = m.sub(m.c(1.0), p)
    small = m.cmp("olt", p, m.c(0.5))
    tail = m.select(small, p, q)
    x = m.sub(m.c(1.0), m.add(tail, tail))
    w = m.neg(_function(m, "log", m.mul(m.mul(m.c(4.0), tail), m.sub(m.c(1.0), tail))))
    centre = m.neg(_function(m, "log1p", m.neg(m.mul(x, x))))
    w = m.select(m.cmp("olt", x, m.c(0.25)), centre, w)
    result = m.mul(x, _erfinv_over_x(m, w))
    if m.type.kind == "f64":
        for _ in range(2):
            error = m.sub(m.add(tail, tail), _function(m, "erfc", result))
            slope = m.mul(m.c(2 / sqrt(pi)), _function(m, "exp", m.neg(m.mul(result, result))))
            result = m.sub(result, m.div(error, slope))
    result = m.mul(result, m.c(sqrt(2)))
    result = m.select(m.cmp("oeq", tail, m.c(0.0)), m.c(float("inf")), result)
    result = m.select(m.cmp("ult", tail, m.c(0.0)), m.c(float("nan")), result)
    return m.select(small, m.neg(result), result)


def _exp_square(m: Code, x: str) -> str:
    """e^(x^2) with the rounding of the square made good."""
    square = m.mul(x, x)
    low = m.call("fma", x, x, m.neg(square))
    value = _function(m, "exp", square)
    return m.select(m.cmp("olt", value, m.c(float("inf"))), m.fma(value, low, value), value)


def erfcx(m: Code, x: str) -> str:
    """e^(x^2) erfc(x)."""
    y = m.at_most(m.abs(x), 1e30)
    t = m.div(m.sub(y, m.c(3.75)), m.add(y, m.c(3.75)))
    positive = m.div(_chebyshev(m, t, tables.ERFCX), m.fma(m.c(2.0), y, m.c(1.0)))
    positive = m.select(m.cmp("oeq", x, m.c(float("inf"))), m.c(0.0), positive)
    square = _exp_square(m, x)
    negative = m.sub(m.add(square, square), positive)
    return m.select(m.cmp("olt", x, m.c(0.0)), negative, positive)


def log_ndtr(m: Code, x: str) -> str:
    """The logarithm of the normal distribution function, without underflow for small x."""
    scaled = m.mul(x, m.c(sqrt(0.5)))
    tail = m.cmp("olt", x, m.c(-1.0))
    positive = m.neg(m.select(tail, scaled, m.c(-sqrt(0.5))))
    logarithm = _function(m, "log", m.mul(erfcx(m, positive), m.c(0.5)))
    far = m.sub(logarithm, m.mul(positive, positive))
    near = _function(m, "log1p", m.mul(_function(m, "erfc", scaled), m.c(-0.5)))
    return m.select(tail, far, near)


def sigmoid_plain(m: Code, x: str) -> str:
    """1 / (1 + e^-x) as it stands, on f32 and f64."""
    return m.div(m.c(1.0), m.add(m.c(1.0), _function(m, "exp", m.neg(x))))


def erf_of_torch(m: Code, x: str) -> str:
    """erf on f32 as torch's vector kernels compute it: M. Abramowitz and I. Stegun, "Handbook of Mathematical Functions", 7.1.26, of
    which only the absolute error is small (1.5e-7)."""
    t = m.div(m.c(1.0), m.call("fma", m.c(0.3275911), m.abs(x), m.c(1.0)))
    r = m.c(1.061405429)
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        r = m.call("fma", r, t, m.c(coefficient))
    tail = m.neg(_function(m, "exp", m.neg(m.mul(x, x))))
    return m.mul(m.copysign(m.c(1.0), x), m.call("fma", tail, m.mul(t, r), m.c(1.0)))


def ldexp(m: Code, x: str, n: str) -> str:
    """x 2^n, as torch computes it: the power first."""
    return m.mul(x, _function(m, "exp2", n))


FORMS: dict[str, Callable[..., str]] = {
    "i0": i0,
    "i0e": i0e,
    "i1": i1,
    "i1e": i1e,
    "digamma": digamma,
    "erfinv": erfinv,
    "ndtri": ndtri,
    "erfcx": erfcx,
    "log_ndtr": log_ndtr,
    "ldexp": ldexp,
}
"""The functions of this file by the name that cpu.math gives them."""
