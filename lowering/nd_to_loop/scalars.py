"""Pointwise `nd` ops as scalar code: one table from op name to a small function (body, element type, operands) -> value.

Operands are in compute types (f32 for f16/bf16, signless integers); the element type decides between signed and unsigned.
"""

from __future__ import annotations

import math as pymath
from collections.abc import Callable

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import IntegerType, StringAttr, f32, f64, i1, i64
from xdsl.ir import Attribute, Operation, SSAValue

from ...dialects import loop
from ...dialects.nd.types import LOW_PRECISION, UNSIGNED, compute_type, float_widens, is_float
from ...passes.analysis.constants import integer_of
from ...passes.loop.transform.body import Body

Emit = Callable[[Body, Attribute, list[SSAValue]], SSAValue]


def named(b: Body, fn: str, operands: list[SSAValue], result: Attribute) -> SSAValue:
    """A function that the math dialect lacks."""
    return b.emit(loop.MathOp, operands, result, fn=StringAttr(fn))


def _op(cls: type[Operation]) -> Emit:
    return lambda b, t, x: b.emit(cls, x, x[0].type)


def _math(fn: str) -> Emit:
    return lambda b, t, x: named(b, fn, x, x[0].type)


def _by_kind(floats: Emit, ints: Emit, bools: Emit | None = None, unsigned: Emit | None = None) -> Emit:
    """Pick by element type: float, bool, unsigned, else signed integer."""

    def emit(b: Body, t: Attribute, x: list[SSAValue]) -> SSAValue:
        if is_float(t):
            return floats(b, t, x)
        if t == i1 and bools is not None:
            return bools(b, t, x)
        if t in UNSIGNED and unsigned is not None:
            return unsigned(b, t, x)
        return ints(b, t, x)

    return emit


_or, _and, _xor = _op(arith.OrIOp), _op(arith.AndIOp), _op(arith.XOrIOp)


def _opposite_signs(b: Body, t: Attribute, rem: SSAValue, divisor: SSAValue) -> SSAValue:
    """rem != 0 and rem and divisor differ in sign: where truncating and flooring division differ."""
    zero = b.constant(0, rem.type)
    if is_float(t):
        different = b.emit(arith.XOrIOp, (b.cmpf("olt", rem, zero), b.cmpf("olt", divisor, zero)), i1)
        return b.emit(arith.AndIOp, (b.cmpf("une", rem, zero), different), i1)
    different = b.emit(arith.XOrIOp, (b.cmpi("slt", rem, zero), b.cmpi("slt", divisor, zero)), i1)
    return b.emit(arith.AndIOp, (b.cmpi("ne", rem, zero), different), i1)


def _remainder_float(b: Body, t: Attribute, x: list[SSAValue]) -> SSAValue:
    rem = named(b, "fmod", x, x[0].type)
    return b.select(_opposite_signs(b, t, rem, x[1]), b.emit(arith.AddfOp, (rem, x[1]), rem.type), rem)


def _remainder_int(b: Body, t: Attribute, x: list[SSAValue]) -> SSAValue:
    rem = b.emit(arith.RemSIOp, x, x[0].type)
    return b.select(_opposite_signs(b, t, rem, x[1]), b.emit(arith.AddiOp, (rem, x[1]), rem.type), rem)


def _floor_div_float(b: Body, t: Attribute, x: list[SSAValue]) -> SSAValue:
    """As c10::div_floor_floating: exact where the quotient is representable, a / b for b = 0 and where a quotient of finite numbers
    is too large (fmod has no answer then)."""
    a, d = x
    kind = a.type
    rem = named(b, "fmod", x, kind)
    quotient = b.emit(arith.DivfOp, (b.emit(arith.SubfOp, (a, rem), kind), d), kind)
    lower = b.emit(arith.SubfOp, (quotient, b.constant(1.0, kind)), kind)
    quotient = b.select(_opposite_signs(b, t, rem, d), lower, quotient)
    floor = b.emit(math.FloorOp, (quotient,), kind)
    off = b.cmpf("ogt", b.emit(arith.SubfOp, (quotient, floor), kind), b.constant(0.5, kind))
    floor = b.select(off, b.emit(arith.AddfOp, (floor, b.constant(1.0, kind)), kind), floor)
    ratio = b.emit(arith.DivfOp, (a, d), kind)
    zero = b.constant(0.0, kind)
    signed_zero = b.emit(math.CopySignOp, (zero, ratio), kind)
    result = b.select(b.cmpf("oeq", quotient, zero), signed_zero, floor)
    infinity = b.constant(float("inf"), kind)
    finite = b.cmpf("one", b.emit(math.AbsFOp, (a,), kind), infinity)
    huge = b.select(finite, b.cmpf("oeq", b.emit(math.AbsFOp, (ratio,), kind), infinity), b.cmpf("oeq", d, zero))
    return b.select(huge, ratio, result)


def _trunc_div_float(b: Body, t: Attribute, x: list[SSAValue]) -> SSAValue:
    return b.emit(math.TruncOp, (b.emit(arith.DivfOp, x, x[0].type),), x[0].type)


def _reciprocal(b: Body, t: Attribute, x: list[SSAValue]) -> SSAValue:
    return b.emit(arith.DivfOp, (b.constant(1.0, x[0].type), x[0]), x[0].type)


def _neg_int(b: Body, t: Attribute, x: list[SSAValue]) -> SSAValue:
    return b.emit(arith.SubiOp, (b.constant(0, x[0].type), x[0]), x[0].type)


def _sign(b: Body, t: Attribute, x: list[SSAValue]) -> SSAValue:
    """As torch: (0 < x) - (x < 0), which is 0 for NaN."""
    kind = x[0].type
    zero, one, minus = b.constant(0, kind), b.constant(1, kind), b.constant(-1, kind)
    if is_float(t):
        return b.select(b.cmpf("ogt", x[0], zero), one, b.select(b.cmpf("olt", x[0], zero), minus, zero))
    if t in UNSIGNED:
        return b.select(b.cmpi("ne", x[0], zero), one, zero)
    return b.select(b.cmpi("sgt", x[0], zero), one, b.select(b.cmpi("slt", x[0], zero), minus, zero))


def _relu(b: Body, t: Attribute, x: list[SSAValue]) -> SSAValue:
    zero = b.constant(0, x[0].type)
    if is_float(t):
        return b.select(b.cmpf("olt", x[0], zero), zero, x[0])
    return x[0] if t in UNSIGNED else b.emit(arith.MaxSIOp, (x[0], zero), x[0].type)


def _not(b: Body, t: Attribute, x: list[SSAValue]) -> SSAValue:
    return b.emit(arith.XOrIOp, (x[0], b.constant(-1 if t != i1 else 1, x[0].type)), x[0].type)


def _shift(cls: type[Operation], beyond: Callable[[Body, SSAValue], SSAValue]) -> Emit:
    """A shift by less than the width; by more (or negative) the result is what C++ torch gives: 0, or the sign for a right shift."""

    def emit(b: Body, t: Attribute, x: list[SSAValue]) -> SSAValue:
        kind = x[0].type
        assert isinstance(kind, IntegerType)
        known = integer_of(x[1])
        if known is not None:
            return b.emit(cls, x, kind) if 0 <= known < kind.width.data else beyond(b, x[0])
        ok = b.cmpi("ult", x[1], b.constant(kind.width.data, kind))
        amount = b.select(ok, x[1], b.constant(0, kind))
        return b.select(ok, b.emit(cls, (x[0], amount), kind), beyond(b, x[0]))

    return emit


def _sign_bits(b: Body, x: SSAValue) -> SSAValue:
    kind = x.type
    assert isinstance(kind, IntegerType)
    return b.emit(arith.ShRSIOp, (x, b.constant(kind.width.data - 1, kind)), kind)


def _zero_like(b: Body, x: SSAValue) -> SSAValue:
    return b.constant(0, x.type)


def _pow_int(b: Body, t: Attribute, x: list[SSAValue]) -> SSAValue:
    return b.emit(math.IPowIOp, x, x[0].type)


def _pow_unsigned(b: Body, t: Attribute, x: list[SSAValue]) -> SSAValue:
    """math.ipowi takes signed exponents. The powers of an odd number modulo 2^w repeat after 2^(w-2), those of an even one
    are 0 from the w-th on: so a large exponent may stand for another that is at least 2^(w-2) and equal modulo that."""
    base, exponent = x
    kind = base.type
    assert isinstance(kind, IntegerType)
    period = b.constant(1 << (kind.width.data - 2), kind)
    low = b.emit(arith.AndIOp, (exponent, b.constant((1 << (kind.width.data - 2)) - 1, kind)), kind)
    same = b.emit(arith.OrIOp, (low, period), kind)
    large = b.cmpi("slt", exponent, b.constant(0, kind))
    return b.emit(math.IPowIOp, (base, b.select(large, same, exponent)), kind)


POINTWISE: dict[str, Emit] = {
    "add": _by_kind(_op(arith.AddfOp), _op(arith.AddiOp), _or),
    "sub": _by_kind(_op(arith.SubfOp), _op(arith.SubiOp), _xor),
    "mul": _by_kind(_op(arith.MulfOp), _op(arith.MuliOp), _and),
    "div": _op(arith.DivfOp),
    "floor_div": _by_kind(_floor_div_float, _op(arith.FloorDivSIOp), None, _op(arith.DivUIOp)),
    "trunc_div": _by_kind(_trunc_div_float, _op(arith.DivSIOp), None, _op(arith.DivUIOp)),
    "fmod": _by_kind(_math("fmod"), _op(arith.RemSIOp), None, _op(arith.RemUIOp)),
    "remainder": _by_kind(_remainder_float, _remainder_int, None, _op(arith.RemUIOp)),
    "pow": _by_kind(_op(math.PowFOp), _pow_int, None, _pow_unsigned),
    "maximum": _by_kind(_op(arith.MaximumfOp), _op(arith.MaxSIOp), _or, _op(arith.MaxUIOp)),
    "minimum": _by_kind(_op(arith.MinimumfOp), _op(arith.MinSIOp), _and, _op(arith.MinUIOp)),
    "fmax": _by_kind(_op(arith.MaxnumfOp), _op(arith.MaxSIOp), _or, _op(arith.MaxUIOp)),
    "fmin": _by_kind(_op(arith.MinnumfOp), _op(arith.MinSIOp), _and, _op(arith.MinUIOp)),
    "atan2": _op(math.Atan2Op),
    "copysign": _op(math.CopySignOp),
    "and": _and,
    "or": _or,
    "xor": _xor,
    "shl": _shift(arith.ShLIOp, _zero_like),
    "shr": _by_kind(_xor, _shift(arith.ShRSIOp, _sign_bits), None, _shift(arith.ShRUIOp, _zero_like)),
    "neg": _by_kind(_op(arith.NegfOp), _neg_int),
    "abs": _by_kind(_op(math.AbsFOp), _op(math.AbsIOp), lambda b, t, x: x[0], lambda b, t, x: x[0]),
    "sign": _by_kind(_sign, _sign, lambda b, t, x: x[0]),
    "relu": _relu,
    "not": _not,
    "reciprocal": _reciprocal,
    "round": _op(math.RoundEvenOp),
    "exp": _op(math.ExpOp), "exp2": _op(math.Exp2Op), "expm1": _op(math.ExpM1Op), "log": _op(math.LogOp), "log2": _op(math.Log2Op),
    "log10": _op(math.Log10Op), "log1p": _op(math.Log1pOp), "sqrt": _op(math.SqrtOp), "rsqrt": _op(math.RsqrtOp),
    "sin": _op(math.SinOp), "cos": _op(math.CosOp), "tan": _op(math.TanOp), "sinh": _op(math.SinhOp), "cosh": _op(math.CoshOp),
    "tanh": _op(math.TanhOp), "asin": _op(math.AsinOp), "acos": _op(math.AcosOp), "atan": _op(math.AtanOp),
    "asinh": _op(math.AsinhOp), "acosh": _op(math.AcoshOp), "atanh": _op(math.AtanhOp), "erf": _op(math.ErfOp),
    "floor": _op(math.FloorOp), "ceil": _op(math.CeilOp), "trunc": _op(math.TruncOp),
}  # fmt: skip
"""By name of the op without its `nd.`; what is missing here is a `loop.math` function of the same name."""


def _isinf(b: Body, t: Attribute, x: SSAValue) -> SSAValue:
    return b.cmpf("oeq", b.emit(math.AbsFOp, (x,), x.type), b.constant(pymath.inf, x.type))


def _isfinite(b: Body, t: Attribute, x: SSAValue) -> SSAValue:
    return b.cmpf("olt", b.emit(math.AbsFOp, (x,), x.type), b.constant(pymath.inf, x.type))


def _signbit(b: Body, t: Attribute, x: SSAValue) -> SSAValue:
    if not is_float(t):
        return b.constant(0, i1) if t in UNSIGNED else b.cmpi("slt", x, b.constant(0, x.type))
    bits = IntegerType(64 if x.type == f64 else 32)
    return b.cmpi("slt", b.emit(arith.BitcastOp, (x,), bits), b.constant(0, bits))


def predicate(b: Body, name: str, t: Attribute, x: SSAValue) -> SSAValue:
    """isnan, isinf, isfinite, signbit, logical_not of an element of type `t`."""
    if name == "signbit":
        return _signbit(b, t, x)
    zero = b.constant(0, x.type)
    if name == "logical_not":
        return b.cmpf("oeq", x, zero) if is_float(t) else b.cmpi("eq", x, zero)
    if not is_float(t):
        return b.constant(1 if name == "isfinite" else 0, i1)
    return {"isnan": lambda: b.cmpf("uno", x, x), "isinf": lambda: _isinf(b, t, x), "isfinite": lambda: _isfinite(b, t, x)}[name]()


_FLOAT_CMP = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}


def compare(b: Body, how: str, t: Attribute, x: SSAValue, y: SSAValue) -> SSAValue:
    """A comparison of two elements of type `t`."""
    if is_float(t):
        return b.cmpf(_FLOAT_CMP[how], x, y)
    return b.cmpi(how if how in ("eq", "ne") else ("u" if t in UNSIGNED else "s") + how, x, y)


def round_to(b: Body, x: SSAValue, dtype: Attribute) -> SSAValue:
    """An f32 value rounded to a type of low precision, held in f32 again."""
    return b.emit(arith.ExtFOp, (b.emit(arith.TruncFOp, (x,), dtype),), f32)


def _float_to_int(b: Body, x: SSAValue, target: Attribute) -> SSAValue:
    """Truncation towards zero; narrow types wrap as C++ conversions through a wider integer do on the machines that torch runs on."""
    kind = compute_type(target)
    assert isinstance(kind, IntegerType)
    if kind.width.data >= 32:
        return b.emit(arith.FPToSIOp, (x,), kind)
    wide = IntegerType(32)
    return b.emit(arith.TruncIOp, (b.emit(arith.FPToSIOp, (x,), wide),), kind)


def _int_to_int(b: Body, x: SSAValue, source: Attribute, target: Attribute) -> SSAValue:
    kind = compute_type(target)
    assert isinstance(x.type, IntegerType) and isinstance(kind, IntegerType)
    have, want = x.type.width.data, kind.width.data
    if have == want:
        return x
    if have > want:
        return b.emit(arith.TruncIOp, (x,), kind)
    return b.emit(arith.ExtUIOp if source in UNSIGNED else arith.ExtSIOp, (x,), kind)


def cast(b: Body, x: SSAValue, source: Attribute, target: Attribute, exact: bool = True) -> SSAValue:
    """An element of `source` as one of `target`, both in compute types. `exact` keeps the rounding to types of low
    precision."""
    if source == target:
        return x
    kind = compute_type(target)
    if target == i1:
        zero = b.constant(0, x.type)
        return b.cmpf("une", x, zero) if is_float(source) else b.cmpi("ne", x, zero)
    if is_float(target):
        if not is_float(source):
            x = b.emit(arith.UIToFPOp if source in UNSIGNED else arith.SIToFPOp, (x,), kind)
        elif compute_type(source) != kind:
            x = b.emit(arith.ExtFOp if kind == f64 else arith.TruncFOp, (x,), kind)
        widens = is_float(source) and float_widens(source, target)
        return round_to(b, x, target) if target in LOW_PRECISION and exact and not widens else x
    if is_float(source):
        return _float_to_int(b, x, target)
    return _int_to_int(b, x, source, target)


def bitcast(b: Body, x: SSAValue, source: Attribute, target: Attribute) -> SSAValue:
    """The bits of an element of `source` as an element of `target`."""
    if source in LOW_PRECISION:
        x = b.emit(arith.TruncFOp, (x,), source)
    want = target if target in LOW_PRECISION else compute_type(target)
    if x.type != want:
        x = b.emit(arith.BitcastOp, (x,), want)
    return b.emit(arith.ExtFOp, (x,), f32) if want in LOW_PRECISION else x


def index_to(b: Body, x: SSAValue, dtype: Attribute) -> SSAValue:
    """An i64 value as an element of `dtype` (iota and sizes of any element type)."""
    return cast(b, x, i64, dtype, exact=True)
