"""Functions of f32 where there is no vector library: computed in f64, a register of doubles at a time, and rounded once.

A few terms of the Taylor series are exact to a thousandth of an ulp of f32: sine and cosine over an eighth of a turn, 2^x over half a unit,
and the logarithm of m as 2 atanh((m - 1) / (m + 1)) between sqrt(1/2) and sqrt(2).
"""

from __future__ import annotations

from collections.abc import Callable
from math import factorial, log, pi, sqrt

from .core import Code


def sin(m: Code, x: str) -> str:
    """sin(x)."""
    return _turns(m, x, 0)


def cos(m: Code, x: str) -> str:
    """cos(x)."""
    return _turns(m, x, 1)


def pow_of(m: Code, x: str, y: str) -> str:
    """x^y as C has it: 1 for y = 0 and x = 1 whatever the other is, NaN for negative x unless y is an integer."""
    size = m.abs(x)
    exponent = m.mul(y, _log2(m, size))
    number = m.cmp("ord", y, y)
    value = _exp2(m, m.select(m.both(m.cmp("oeq", size, m.c(1.0)), number), m.c(0.0), exponent))
    whole = m.cmp("oeq", m.call("floor", y), y)
    half = m.mul(y, m.c(0.5))
    odd = m.both(whole, m.cmp("one", m.call("floor", half), half))
    negative = m.integer("lshr", m.bits(x), m.i(63))
    sign = m.f.let(f"icmp ne {m.int} {negative}, {m.i(0)}")
    value = m.select(m.both(sign, odd), m.neg(value), value)
    finite = m.cmp("one", size, m.c(float("inf")))
    wrong = m.both(m.both(m.cmp("olt", x, m.c(0.0)), finite), m.both(m.off(whole), number))
    value = m.select(wrong, m.c(float("nan")), value)
    return m.select(m.either(m.cmp("oeq", y, m.c(0.0)), m.cmp("oeq", x, m.c(1.0))), m.c(1.0), value)


FORMS: dict[str, Callable[..., str]] = {"sin": sin, "cos": cos, "pow": pow_of}


def _shifted(m: Code, whole: str) -> str:
    """The bits of a double that holds an integer below 2^51, whose lowest ones are those of the integer."""
    return m.bits(m.add(whole, m.c(1.5 * 2.0**52)))


def _turns(m: Code, x: str, quarters: int) -> str:
    """sin(x + quarters * pi / 2): the angle less quarters of a turn, of pi / 2 in three parts; the C library's for huge angles."""
    huge = m.cmp("uge", m.abs(x), m.c(2.0**20))
    near = m.select(huge, m.c(0.0), x)
    count = m.rint(m.mul(near, m.c(2 / pi)))
    first = float(int(pi / 2 * 2.0**32)) / 2.0**32
    second = float(int((pi / 2 - first) * 2.0**64)) / 2.0**64
    rest = near
    for part in (first, second, 6.123233995736766e-17 - (second - (pi / 2 - first))):
        rest = m.fma(count, m.c(-part), rest)
    square = m.mul(rest, rest)
    sine = m.mul(rest, m.horner(square, [(-1) ** k / factorial(2 * k + 1) for k in range(7)]))
    cosine = m.horner(square, [(-1) ** k / factorial(2 * k) for k in range(7)])
    quarter = m.integer("add", _shifted(m, count), m.i(quarters))
    odd = m.f.let(f"icmp ne {m.int} {m.integer('and', quarter, m.i(1))}, {m.i(0)}")
    flip = m.integer("shl", m.integer("and", quarter, m.i(2)), m.i(62))
    value = m.from_bits(m.integer("xor", m.bits(m.select(odd, cosine, sine)), flip))
    return m.where(huge, value, lambda: _of_c(m, "cos" if quarters else "sin", x))


def _of_c(m: Code, name: str, x: str) -> str:
    """The function of the C library, lane by lane."""
    f, double = m.f, "double"
    f.module.declare(name, double, double)
    if not m.type.lanes:
        return f.let(f"call double @{name}(double {x})")
    result = "poison"
    for lane in range(m.type.lanes):
        value = f.let(f"call double @{name}(double {f.let(f'extractelement {m.text} {x}, i64 {lane}')})")
        result = f.let(f"insertelement {m.text} {result}, double {value}, i64 {lane}")
    return result


def _log2(m: Code, x: str) -> str:
    """log2(x) of a number of f32, which is normal in f64."""
    bits = m.bits(x)
    exponent = m.integer("or", m.integer("lshr", bits, m.i(52)), m.i(0x433 << 52))
    exponent = m.sub(m.from_bits(exponent), m.c(2.0**52 + 1023))
    part = m.from_bits(m.integer("or", m.integer("and", bits, m.i((1 << 52) - 1)), m.i(0x3FF << 52)))
    high = m.cmp("ogt", part, m.c(sqrt(2.0)))
    part = m.select(high, m.mul(part, m.c(0.5)), part)
    exponent = m.select(high, m.add(exponent, m.c(1.0)), exponent)
    z = m.div(m.sub(part, m.c(1.0)), m.add(part, m.c(1.0)))
    series = m.horner(m.mul(z, z), [2 / ((2 * k + 1) * log(2.0)) for k in range(7)])
    result = m.fma(z, series, exponent)
    result = m.select(m.cmp("oeq", x, m.c(float("inf"))), x, result)
    result = m.select(m.cmp("oeq", x, m.c(0.0)), m.c(float("-inf")), result)
    return m.select(m.cmp("uge", x, m.c(0.0)), m.select(m.cmp("uno", x, x), x, result), m.c(float("nan")))


def _exp2(m: Code, x: str) -> str:
    """2^x, beyond what f32 holds no further than 2^200."""
    near = m.at_least(m.at_most(x, 200.0), -200.0)
    whole = m.rint(near)
    value = m.horner(m.sub(near, whole), [log(2.0) ** k / factorial(k) for k in range(11)])
    return m.from_bits(m.integer("add", m.bits(value), m.integer("shl", _shifted(m, whole), m.i(52))))
