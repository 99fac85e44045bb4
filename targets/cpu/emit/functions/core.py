"""Elementary functions as inline vector code, for f32 (and the forms that serve f64 too).

`Code` writes arithmetic on values of one float type: every method appends an instruction and gives the name of its
result, so a function here reads like the formula. None of it is contracted or reordered by LLVM: a scalar and a lane
give the same bits.

Coefficients are our own minimax fits, relative error over the stated interval: polynomials and rationals by Lawson's
iteration (weighted least squares on Chebyshev nodes, weights grown where the error is), in 40 digits, then rounded to
f32."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from itertools import zip_longest

from .....dialects import cpu
from ..arith import literal
from ..text import FunctionText, Type, splat, type_of
from ..vector import any_lane, concat, split


class Code:
    """Arithmetic on values of one float type (f32 or f64), scalar or vector, as text."""

    def __init__(self, f: FunctionText, type: Type):
        self.f = f
        self.type = type
        self.text = type.text
        self.int_element = "i32" if type.kind == "f32" else "i64"
        self.int = type.of(self.int_element)
        self.bool = type.of("i1")
        self.mantissa = 23 if type.kind == "f32" else 52
        self.bias = 127 if type.kind == "f32" else 1023

    # Constants
    def c(self, value: float) -> str:
        """A constant."""
        return splat(self.type, literal(self.type, value))

    def i(self, value: int) -> str:
        """An integer constant as wide as the float."""
        if not self.type.lanes:
            return str(value)
        return "zeroinitializer" if value == 0 else f"splat ({self.int_element} {value})"

    # Arithmetic
    def _two(self, name: str, a: str, b: str) -> str:
        return self.f.let(f"{name} {self.text} {a}, {b}")

    def add(self, a: str, b: str) -> str:
        """a + b."""
        return self._two("fadd", a, b)

    def sub(self, a: str, b: str) -> str:
        """a - b."""
        return self._two("fsub", a, b)

    def mul(self, a: str, b: str) -> str:
        """a * b."""
        return self._two("fmul", a, b)

    def div(self, a: str, b: str) -> str:
        """a / b."""
        return self._two("fdiv", a, b)

    def quotient(self, a: str, b: str) -> str:
        """a / b within 2 ulp where a lane's operands are finite (else the lane is undefined): in registers of 512 bits the 14-bit
        reciprocal and a Newton step, because the zmm divider takes a cycle a lane. LLVM has only the 12-bit reciprocal for narrower ones,
        by which 1 / 1 is not 1: they divide."""
        if not self.f.target.has("avx512") or not self.type.lanes or self.type.lanes % 16:
            return self.div(a, b)
        return self.f.let(f"fdiv arcp contract ninf {self.text} {a}, {b}")

    def rem(self, a: str, b: str) -> str:
        """C's fmod."""
        return self._two("frem", a, b)

    def neg(self, a: str) -> str:
        """-a."""
        return self.f.let(f"fneg {self.text} {a}")

    def call(self, base: str, *arguments: str) -> str:
        """An intrinsic from floats to a float."""
        return self.f.let(self.f.intrinsic(base, self.type, *((self.text, a) for a in arguments)))

    def fma(self, a: str, b: str, c: str) -> str:
        """a * b + c, rounded once where the instruction set has that."""
        return self.call("fmuladd", a, b, c)

    def abs(self, a: str) -> str:
        """|a|."""
        return self.call("fabs", a)

    def sqrt(self, a: str) -> str:
        """The square root."""
        return self.call("sqrt", a)

    def floor(self, a: str) -> str:
        """Rounded down."""
        return self.call("floor", a)

    def rint(self, a: str) -> str:
        """The nearest integer; without SSE4.1 by adding a large number (|a| below 2^22 or 2^51 then)."""
        if self.f.target.has("sse41"):
            return self.call("rint", a)
        large = self.c(1.5 * 2.0**self.mantissa)
        return self.sub(self.add(a, large), large)

    def copysign(self, a: str, sign: str) -> str:
        """|a| with the sign of `sign`."""
        return self.call("copysign", a, sign)

    def horner(self, x: str, coefficients: Sequence[float]) -> str:
        """The polynomial with the coefficients of x^0, x^1, ... ."""
        result = self.c(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            result = self.fma(result, x, self.c(coefficient))
        return result

    # Comparison
    def cmp(self, predicate: str, a: str, b: str) -> str:
        """A mask."""
        return self.f.let(f"fcmp {predicate} {self.text} {a}, {b}")

    def both(self, a: str, b: str) -> str:
        """Masks and."""
        return self.f.let(f"and {self.bool} {a}, {b}")

    def either(self, a: str, b: str) -> str:
        """Masks or."""
        return self.f.let(f"or {self.bool} {a}, {b}")

    def off(self, mask: str) -> str:
        """The lanes that the mask leaves out."""
        return self.f.let(f"xor {self.bool} {mask}, {'splat (i1 true)' if self.type.lanes else 'true'}")

    def select(self, mask: str, a: str, b: str) -> str:
        """a where the mask is on, else b."""
        return self.f.let(f"select {self.bool} {mask}, {self.text} {a}, {self.text} {b}")

    def at_most(self, a: str, limit: float) -> str:
        """The smaller of a and the limit; NaN stays (one instruction on x86)."""
        return self.select(self.cmp("ogt", a, self.c(limit)), self.c(limit), a)

    def at_least(self, a: str, limit: float) -> str:
        """The larger of a and the limit; NaN stays."""
        return self.select(self.cmp("olt", a, self.c(limit)), self.c(limit), a)

    # Bits
    def bits(self, a: str) -> str:
        """The bits as an integer."""
        return self.f.let(f"bitcast {self.text} {a} to {self.int}")

    def from_bits(self, a: str) -> str:
        """The float with these bits."""
        return self.f.let(f"bitcast {self.int} {a} to {self.text}")

    def integer(self, instruction: str, a: str, b: str) -> str:
        """An integer instruction on integers as wide as the float."""
        return self.f.let(f"{instruction} {self.int} {a}, {b}")

    def to_int(self, a: str) -> str:
        """Truncated."""
        return self.f.let(f"fptosi {self.text} {a} to {self.int}")

    def to_float(self, a: str) -> str:
        """An integer as a float."""
        return self.f.let(f"sitofp {self.int} {a} to {self.text}")

    def power_of_two(self, n: str) -> str:
        """2^n for an integer n in the range of normal numbers."""
        biased = self.integer("add", n, self.i(self.bias))
        return self.from_bits(self.integer("shl", biased, self.i(self.mantissa)))

    def scale(self, a: str, n: str) -> str:
        """a * 2^n for a float n that holds an integer, with one rounding where the result is denormal; |n| up to
        twice the exponent range. With AVX-512 that is an instruction."""
        lanes = 512 // self.type.bits
        if self.f.target.has("avx512") and self.type.lanes and self.type.lanes % lanes == 0:
            return self._scalef(a, n, lanes)
        whole = self.to_int(n)
        half = self.integer("ashr", whole, self.i(1))
        rest = self.integer("sub", whole, half)
        return self.mul(self.mul(a, self.power_of_two(half)), self.power_of_two(rest))

    def _scalef(self, a: str, n: str, lanes: int) -> str:
        """vscalefps: LLVM's own ldexp goes through integers."""
        return self.pieces("scalef", lanes, (a, n), lambda x, y: f"{x}, {y}")

    # Loops
    def any(self, mask: str) -> str:
        """Whether a lane of the mask is on, as a scalar."""
        return any_lane(self.f, self.type.lanes, mask)

    def loop(self, active: str, values: Sequence[str], step: Callable[..., tuple[Sequence[str], str]]) -> list[str]:
        """`values` after steps in the lanes of `active`, done as long as a lane is active: `step` gives new values and the mask of
        the lanes that go on. The values of other lanes stay as they are."""
        f = self.f
        before, head, body, latch, after = f.block, *(f.label() for _ in range(4))
        f.do(f"br label %{head}")
        f.start(head)
        mask, next_mask = f.fresh(), f.fresh()
        old, new = [f.fresh() for _ in values], [f.fresh() for _ in values]
        f.do(f"{mask} = phi {self.bool} [ {active}, %{before} ], [ {next_mask}, %{latch} ]")
        for name, start, value in zip(old, values, new, strict=True):
            f.do(f"{name} = phi {self.text} [ {start}, %{before} ], [ {value}, %{latch} ]")
        f.do(f"br i1 {self.any(mask)}, label %{body}, label %{after}")
        f.start(body)
        made, more = step(*old)
        f.do(f"br label %{latch}")
        f.start(latch)
        for name, was, value in zip(new, old, made, strict=True):
            f.do(f"{name} = select {self.bool} {mask}, {self.text} {value}, {self.text} {was}")
        f.do(f"{next_mask} = and {self.bool} {mask}, {more}")
        f.do(f"br label %{head}")
        f.start(after)
        return old

    def where(self, mask: str, otherwise: str, form: Callable[[], str]) -> str:
        """The value of `form` in the lanes of the mask, which is computed only if there is one."""
        (result,) = self.loop(mask, [otherwise], lambda _: ([form()], self.none()))
        return result

    def none(self) -> str:
        """The mask without a lane."""
        return "zeroinitializer" if self.type.lanes else "false"

    def pieces(self, name: str, lanes: int, values: tuple[str, ...], arguments: Callable[..., str]) -> str:
        """An AVX-512 intrinsic of zmm registers on a vector of several; `arguments` spells its own from the typed
        pieces."""
        f = self.f
        kind, mask = ("ps", "i16") if self.type.kind == "f32" else ("pd", "i8")
        piece = type_of(cpu.vec(lanes, cpu.element_of(self.type.attr)))
        parts = zip(*(split(f, self.type, value, lanes) for value in values), strict=True)
        symbol = f"@llvm.x86.avx512.mask.{name}.{kind}.512"
        calls = [
            f"call {piece.text} {symbol}({arguments(*(f'{piece.text} {v}' for v in part))}, "
            f"{piece.text} zeroinitializer, {mask} -1, i32 4)"
            for part in parts
        ]
        types = re.sub(r"(<\d+ x \w+>|i\d+) ?[^,]*", r"\1", calls[0].split("(", 1)[1][:-1])
        f.module.declare(symbol[1:], piece.text, types)
        return concat(f, piece, [f.let(call) for call in calls])


_LOG2E = 1.4426950216293335  # as f32; with the rest it has 47 bits
_LOG2E_REST = 1.9259629911e-08
_LN2_HIGH = 0.693145751953125  # 11 bits: its product with an exponent is exact
_LN2_LOW = 1.4286067653e-06
# (expm1(r) - r) / r^2 on |r| <= ln(2) / 2; (2^r - 1) / r on |r| <= 1/2
_EXPM1 = (
    0.5,
    0.1666666567325592,
    0.04166635870933533,
    0.008333389647305012,
    0.0013940668432042003,
    0.0001984588016057387,
)
_EXP2 = (
    0.6931471824645996,
    0.24022650718688965,
    0.055503275245428085,
    0.009618004783987999,
    0.001340034999884665,
    0.00015475972031708807,
)
# (log(1 + f) - f + f^2 / 2) / f^3 on [-1/4, 1/2]
_LOG = (
    0.3333345055580139,
    -0.2500009834766388,
    0.1999083012342453,
    -0.16647177934646606,
    0.14478622376918793,
    -0.13162961602210999,
    0.10465596616268158,
    -0.04508452117443085,
)
# tanh(x) / x on [0, 9.05] and erf(x) / x on [0, 3.95], in x^2: numerator, denominator
_TANH = (
    (
        1.0,
        0.13678501546382904,
        0.0038665563333779573,
        2.7971687813987955e-05,
        3.049892782769348e-08,
        -1.2139582741821364e-11,
    ),
    (1.0, 0.47011834383010864, 0.027239356189966202, 0.00039355066837742925, 1.2848662436226732e-06),
)
_ERF = (
    (
        1.128379225730896,
        0.18516869843006134,
        0.054274782538414,
        0.003843363607302308,
        0.00037793919909745455,
        4.640506176656345e-06,
        -1.2967405815800248e-08,
    ),
    (1.0, 0.49743491411209106, 0.11391090601682663, 0.015443713404238224, 0.0013040642952546477, 6.269317964324728e-05),
)


def exp(m: Code, x: str, factor: float = 1.0) -> str:
    """e^(factor x) for f32 and a factor of 1 or -1: under 1.5 ulp; denormal results rounded once, infinity above
    88.72."""
    # Below -104 the result is 0; it is not computed, because a result that underflows costs a microcode assist (a
    # softmax over masked logits has an infinity in every vector).
    gone = m.cmp("ogt" if factor < 0 else "olt", x, m.c(-104.0 * factor))
    x = m.select(gone, m.c(0.0), x)
    value, n = _exp_parts(m, m.at_least(x, -89.0) if factor < 0 else m.at_most(x, 89.0), factor)
    return m.select(gone, m.c(0.0), m.scale(value, n))


def _exp_parts(m: Code, x: str, factor: float = 1.0) -> tuple[str, str]:
    """(v, n) with e^(factor x) = v 2^n."""
    n = m.rint(m.mul(x, m.c(factor * _LOG2E)))
    if m.f.target.has("fma"):
        r = m.fma(x, m.c(factor * _LOG2E), m.neg(n))
        r = m.fma(x, m.c(factor * _LOG2E_REST), r)
    else:
        # Without a fused product the difference must come from products that are exact.
        r = m.fma(n, m.c(-factor * _LN2_HIGH), x)
        r = m.mul(m.fma(n, m.c(-factor * _LN2_LOW), r), m.c(factor * _LOG2E))
    return m.fma(r, m.horner(r, _EXP2), m.c(1.0)), n


def exp2(m: Code, x: str) -> str:
    """2^x for f32: about 1 ulp, exact for integers."""
    x = m.at_least(m.at_most(x, 129.0), -151.0)
    n = m.rint(x)
    r = m.sub(x, n)
    return m.scale(m.fma(r, m.horner(r, _EXP2), m.c(1.0)), n)


def expm1(m: Code, x: str) -> str:
    """e^x - 1 for f32."""
    result = m.mul(_small_expm1(m, m.at_least(m.at_most(x, 89.0), -18.0), 1), m.c(2.0))
    return m.select(m.cmp("ult", m.abs(x), m.c(1e-30)), x, result)


def _small_expm1(m: Code, y: str, shift: int) -> str:
    """(e^y - 1) 2^-shift for -18 <= y, whose parts do not overflow before it does."""
    n = m.rint(m.mul(y, m.c(_LOG2E)))
    r = m.fma(n, m.c(-_LN2_LOW), m.fma(n, m.c(-_LN2_HIGH), y))
    series = m.fma(m.mul(r, r), m.horner(r, _EXPM1), r)
    power = m.power_of_two(m.to_int(m.sub(n, m.c(float(shift)))))
    return m.fma(power, series, m.sub(power, m.c(0.5**shift)))


def sinh(m: Code, x: str) -> str:
    """sinh for f32, about 2 ulp: with q = (e^|x| - 1) / 4 it is 2 (q + q / (4q + 1))."""
    size = m.abs(x)
    q = _small_expm1(m, m.at_most(size, 89.7), 2)
    # The divisor is infinite where the quotient no longer counts.
    other = m.quotient(q, m.at_most(m.fma(q, m.c(4.0), m.c(1.0)), 2.0**127))
    result = m.copysign(m.mul(m.add(q, other), m.c(2.0)), x)
    return m.select(m.cmp("ult", size, m.c(1e-30)), x, result)


def cosh(m: Code, x: str) -> str:
    """cosh for f32, about 2 ulp: with q = e^|x| / 4 it is 2q + 1 / (8q)."""
    value, n = _exp_parts(m, m.at_most(m.abs(x), 89.7))
    q = m.scale(value, m.sub(n, m.c(2.0)))
    return m.fma(q, m.c(2.0), m.quotient(m.c(0.125), q))


def _log_reduce(m: Code, u: str) -> tuple[str, str]:
    """(exponent, mantissa in [3/4, 3/2)) of a positive normal f32, the exponent as an integer."""
    bits = m.bits(u)
    exponent = m.integer("ashr", m.integer("sub", bits, m.i(0x3F400000)), m.i(23))
    return exponent, m.from_bits(m.integer("sub", bits, m.integer("shl", exponent, m.i(23))))


def _log_series(m: Code, exponent: str, f: str) -> str:
    """exponent ln 2 + log(1 + f), the large terms last."""
    square = m.mul(f, f)
    tail = m.fma(m.mul(f, square), m.horner(f, _LOG), m.mul(exponent, m.c(_LN2_LOW)))
    tail = m.fma(square, m.c(-0.5), tail)
    return m.fma(exponent, m.c(_LN2_HIGH), m.add(f, tail))


def _log_limits(m: Code, u: str, result: str) -> str:
    """-inf at 0, NaN below, infinity and NaN as they are; else the result."""
    inside = m.f.let(f"icmp ult {m.int} {m.integer('sub', m.bits(u), m.i(1))}, {m.i(0x7F7FFFFF)}")
    outside = m.select(m.cmp("olt", u, m.c(0.0)), m.c(float("nan")), u)
    outside = m.select(m.cmp("oeq", u, m.c(0.0)), m.c(float("-inf")), outside)
    return m.select(inside, result, outside)


def _has_exponent_instructions(m: Code) -> bool:
    return m.f.target.has("avx512") and m.type.lanes > 0 and m.type.lanes % 16 == 0


def _instruction_log_reduce(m: Code, u: str) -> tuple[str, str]:
    """(exponent as a float, mantissa in [3/4, 3/2)) by vgetexpps and vgetmantps, which know denormals, zero (exponent
    -inf), infinity and NaN, and make the mantissa of a negative number NaN."""
    mantissa = m.pieces("getmant", 16, (u,), lambda x: f"{x}, i32 11")
    exponent = m.pieces("getexp", 16, (u,), lambda x: x)
    # A mantissa below 1 was halved into its interval.
    return m.select(m.cmp("olt", mantissa, m.c(1.0)), m.add(exponent, m.c(1.0)), exponent), mantissa


def _log_parts(m: Code, x: str, series: Callable[[Code, str, str], str]) -> str:
    """series(exponent as a float, mantissa - 1) of an f32, with the limits of a logarithm."""
    if _has_exponent_instructions(m):
        exponent, mantissa = _instruction_log_reduce(m, x)
        return series(m, exponent, m.sub(mantissa, m.c(1.0)))
    small = m.cmp("olt", x, m.c(2.0**-126))
    normal = m.select(small, m.mul(x, m.c(2.0**23)), x)
    whole, mantissa = _log_reduce(m, normal)
    exponent = m.sub(m.to_float(whole), m.select(small, m.c(23.0), m.c(0.0)))
    return _log_limits(m, x, series(m, exponent, m.sub(mantissa, m.c(1.0))))


def log(m: Code, x: str) -> str:
    """The natural logarithm for f32, about 1 ulp."""
    return _log_parts(m, x, _log_series)


def _log_to(base: float) -> Callable[[Code, str], str]:
    """The logarithm to a base for f32. All but the last sum is exact to a part of an ulp, so that powers of the base come out exact."""
    scale, step = 1.0 / math.log(base), math.log(2.0) / math.log(base)
    scale_high, step_high = (math.ldexp(math.floor(math.ldexp(v, 11)), -11) for v in (scale, step))

    def series(m: Code, exponent: str, f: str) -> str:
        high = m.from_bits(m.integer("and", m.bits(f), m.i(-4096)))
        square = m.mul(f, f)
        tail = m.fma(square, m.c(-0.5), m.mul(m.mul(f, square), m.horner(f, _LOG)))
        # Products of two numbers of 12 bits are exact, and `whole` is the larger one where it is not 0.
        whole, part = m.mul(exponent, m.c(step_high)), m.mul(high, m.c(scale_high))
        total = m.add(whole, part)
        rest = m.sub(part, m.sub(total, whole))
        rest = m.fma(m.sub(f, high), m.c(scale_high), rest)
        rest = m.fma(f, m.c(scale - scale_high), rest)
        rest = m.fma(exponent, m.c(step - step_high), m.fma(tail, m.c(scale), rest))
        return m.add(total, m.select(m.cmp("olt", m.abs(total), m.c(math.inf)), rest, m.c(0.0)))

    return lambda m, x: _log_parts(m, x, series)


log2 = _log_to(2.0)
log10 = _log_to(10.0)


def log1p(m: Code, x: str) -> str:
    """log(1 + x) for f32, about 1 ulp: what the sum 1 + x loses is added to the reduced argument."""
    u = m.add(m.c(1.0), x)
    rounded = m.sub(u, m.c(1.0))
    lost = m.add(m.sub(m.c(1.0), m.sub(u, rounded)), m.sub(x, rounded))
    # From 2^60 on nothing that counts is lost.
    moderate = m.cmp("olt", u, m.c(2.0**60))
    lost = m.select(moderate, lost, m.c(0.0))
    if _has_exponent_instructions(m):
        exponent, mantissa = _instruction_log_reduce(m, u)
        lost = m.scale(lost, m.neg(m.at_least(exponent, -126.0)))
        result = _log_series(m, exponent, m.add(lost, m.sub(mantissa, m.c(1.0))))
    else:
        whole, mantissa = _log_reduce(m, u)
        inverse = m.select(moderate, m.power_of_two(m.integer("sub", m.i(0), whole)), m.c(1.0))
        f = m.fma(lost, inverse, m.sub(mantissa, m.c(1.0)))
        result = _log_limits(m, u, _log_series(m, m.to_float(whole), f))
    return m.select(m.cmp("oeq", x, m.c(0.0)), x, result)


def atanh(m: Code, x: str) -> str:
    """atanh for f32, about 3 ulp."""
    size = m.abs(x)
    ratio = m.div(m.add(size, size), m.sub(m.c(1.0), size))
    return m.copysign(m.mul(log1p(m, ratio), m.c(0.5)), x)


def asinh(m: Code, x: str) -> str:
    """asinh for f32, about 3 ulp."""
    size = m.abs(x)
    square = m.mul(size, size)
    more = m.quotient(square, m.add(m.c(1.0), m.sqrt(m.add(m.c(1.0), square))))
    return m.copysign(_log_of_double(m, size, m.add(size, more)), x)


def acosh(m: Code, x: str) -> str:
    """acosh for f32, about 3 ulp."""
    above = m.sub(x, m.c(1.0))
    return _log_of_double(m, x, m.add(above, m.sqrt(m.mul(above, m.add(x, m.c(1.0))))))


def _log_of_double(m: Code, x: str, less_one: str) -> str:
    """log(1 + less_one), and log 2x from 2^60 on, where squares overflow."""
    large = m.cmp("ogt", x, m.c(2.0**60))
    found = log1p(m, m.select(large, x, less_one))
    return m.add(found, m.select(large, m.c(math.log(2.0)), m.c(0.0)))


def _odd_rational(m: Code, x: str, limit: float, parts: tuple[tuple[float, ...], tuple[float, ...]]) -> str:
    """x P(x^2) / Q(x^2), never outside of [-1, 1].

    The square is kept below that of the limit, where the function is 1 but for rounding; so beyond it the quotient
    stays 1 / limit, its product with x exceeds 1, and the result is exactly +-1 (1 + erf(x) must vanish for a large
    negative x). Q(0) is 1, so denormals come out right."""
    square = m.at_most(m.mul(x, x), limit * limit)
    slope = m.quotient(m.horner(square, parts[0]), m.horner(square, parts[1]))
    return m.at_least(m.at_most(m.mul(x, slope), 1.0), -1.0)


def tanh(m: Code, x: str) -> str:
    """tanh for f32, at most 5 ulp (7 without fused products), mean under half of one. With P / Q = 1 + x^2 R / Q a small x loses nothing in
    x + x^3 R / Q, where the second part is small; the addition of 0 keeps the sign of that one."""
    (numerator, denominator), near = _TANH, m.cmp("olt", m.abs(x), m.c(1.75))
    square = m.at_most(m.mul(x, x), 9.05 * 9.05)
    less = [a - b for a, b in zip_longest(numerator[1:], denominator[1:], fillvalue=0.0)]
    above = m.select(near, m.fma(square, m.horner(square, less), m.c(0.0)), m.horner(square, numerator))
    found = m.fma(x, m.quotient(above, m.horner(square, denominator)), m.select(near, x, m.c(0.0)))
    return m.at_least(m.at_most(found, 1.0), -1.0)


def erf(m: Code, x: str) -> str:
    """erf for f32, at most 5 ulp (7 without fused products), mean under half of one."""
    return _odd_rational(m, x, 3.95, _ERF)


def sigmoid(m: Code, x: str) -> str:
    """1 / (1 + e^-x) for f32; below -87.3, where it is about to become denormal, 1.2e-38; 0 where the smallest denormal is too large (x
    sigmoid(x) is NaN at -inf, as in eager)."""
    found = m.quotient(m.c(1.0), m.add(m.c(1.0), exp(m, m.at_least(x, -87.3), -1.0)))
    return m.select(m.cmp("olt", x, m.c(-103.98)), m.c(0.0), found)


def rsqrt(m: Code, x: str) -> str:
    """1 / sqrt(x), both correctly rounded."""
    return m.div(m.c(1.0), m.sqrt(x))


def hypot(m: Code, x: str, y: str) -> str:
    """sqrt(x^2 + y^2) of f32, in f64: squares neither overflow nor round, so that a scalar and a lane of any width give the same bits;
    infinite where an operand is."""
    f, wide = m.f, m.type.of("double")
    a, b = (f.let(f"fpext {m.text} {v} to {wide}") for v in (x, y))
    total = f.let(f"fadd {wide} {f.let(f'fmul {wide} {a}, {a}')}, {f.let(f'fmul {wide} {b}, {b}')}")
    suffix = f"v{m.type.lanes}f64" if m.type.lanes else "f64"
    f.module.declare(f"llvm.sqrt.{suffix}", wide, wide)
    root = f.let(f"call {wide} @llvm.sqrt.{suffix}({wide} {total})")
    infinite = m.c(float("inf"))
    either = m.either(m.cmp("oeq", m.abs(x), infinite), m.cmp("oeq", m.abs(y), infinite))
    return m.select(either, infinite, f.let(f"fptrunc {wide} {root} to {m.text}"))


def int_power(m: Code, x: str, n: int) -> str:
    """x^n for a known integer, by squaring."""
    power = abs(n)
    result = m.c(1.0)
    first = True
    while power:
        if power & 1:
            result = x if first else m.mul(result, x)
            first = False
        power >>= 1
        if power:
            x = m.mul(x, x)
    return m.div(m.c(1.0), result) if n < 0 else result
