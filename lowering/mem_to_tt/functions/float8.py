"""Casts between f32 and 8-bit floats, whose elements are i8 in a kernel: by integer arithmetic (see
targets/cpu/emit/float8.py for why each step is exact), or by the instructions of a GPU that has them.

Those know two of the five formats, make the largest finite number of what torch rounds to an infinite E5M2, and drop the sign of NaN:
what they get wrong is put right."""

from __future__ import annotations

import math
from typing import Any

from xdsl.dialects import arith
from xdsl.dialects import math as mlir_math
from xdsl.dialects.builtin import f32, i8, i32
from xdsl.ir import Attribute, SSAValue

from ....dialects.support.float8 import FORMATS, f8e4m3fn, f8e5m2, f8e8m0fnu
from ....dialects.tt import arith as tt_arith
from ....dialects.tt.compute import BitcastOp, ElementwiseInlineAsmOp, FpToFpOp, four_to_8_bits
from ....dialects.tt.types import element_of, like
from ....passes.analysis.constants import constant_of
from ...nest.builder import NO_FLAGS, NO_OVERFLOW_FLAGS
from ..builder import Builder

LARGEST_FINITE = {f8e4m3fn: 448.0, f8e5m2: 57344.0}
"""Formats that a GPU may have instructions for, with their largest finite numbers."""
KINDS = {f8e4m3fn: "e4m3", f8e5m2: "e5m2"}
"""What their instructions call them."""
BEYOND = {f8e4m3fn: ("ogt", 464.0), f8e5m2: ("oge", 61440.0)}
"""Which numbers are too large where torch does not saturate: they are nearer to the next code than to the largest number, or as near and
that code is even."""


class _Words:
    """Arithmetic on i32 with constants."""

    def __init__(self, b: Builder):
        self.b = b

    def op(self, cls: type[Any], a: SSAValue, value: int) -> SSAValue:
        return self.b.elementwise(cls, (a, self.b.int(value)))

    def left(self, a: SSAValue, places: int) -> SSAValue:
        return self.b.elementwise(arith.ShLIOp, (a, self.b.int(places)), NO_OVERFLOW_FLAGS)

    def least(self, a: SSAValue, value: int) -> SSAValue:
        return self.select("ult", a, value, a, self.b.int(value))

    def most(self, a: SSAValue, value: int) -> SSAValue:
        return self.select("ugt", a, value, a, self.b.int(value))

    def select(self, predicate: str, a: SSAValue, value: int, x: SSAValue | int, y: SSAValue | int) -> SSAValue:
        x, y = (self.b.int(v) if isinstance(v, int) else v for v in (x, y))
        return self.b.select(self.b.cmpi(predicate, a, self.b.int(value)), x, y)

    def number(self, a: SSAValue) -> SSAValue:
        """The f32 with these bits."""
        return self.b.cast(BitcastOp, a, f32)

    def bits(self, x: SSAValue) -> SSAValue:
        return self.b.cast(BitcastOp, x, i32)


def widen(b: Builder, value: SSAValue, dtype: Attribute, hardware: bool) -> SSAValue:
    """A number of the format `dtype`, or its code (an i8), as f32; `hardware`: the GPU has instructions for those in LARGEST_FINITE."""
    if element_of(value.type) == dtype:
        value = b.cast(BitcastOp, value, i8)
    result = b.cast(FpToFpOp, b.cast(BitcastOp, value, dtype), f32) if hardware and dtype in LARGEST_FINITE else _widen(b, value, dtype)
    b.remember((narrow, dtype, result), value)
    return result


def _widen(b: Builder, value: SSAValue, dtype: Attribute) -> SSAValue:
    w = _Words(b)
    code = b.cast(tt_arith.ExtUIOp, value, i32)
    if dtype == f8e8m0fnu:
        bits = w.select("eq", code, 0xFF, 0x7FC00000, w.most(w.left(code, 23), 0x400000))
    else:
        form = FORMATS[dtype]
        magnitude = w.op(arith.AndIOp, code, 0x7F)
        moved = w.left(magnitude, form.shift)
        least = w.number(b.int(form.smallest_normal))
        small = w.bits(b.elementwise(arith.SubfOp, (w.number(b.add(moved, b.int(form.smallest_normal))), least), NO_FLAGS))
        bits = w.select("ult", magnitude, 1 << form.mantissa, small, b.add(moved, b.int(form.rebias)))
        sign = w.left(w.op(arith.AndIOp, code, 0x80), 24)
        if form.infinity is not None:
            bits = w.select("eq", magnitude, form.infinity, 0x7F800000, bits)
        if not form.unsigned_zero:
            bits = w.select("uge", magnitude, form.first_nan, 0x7FC00000, bits)
        bits = b.elementwise(arith.OrIOp, (bits, sign))
        if form.unsigned_zero:
            bits = w.select("eq", code, form.nan, 0x7FC00000, bits)
    return w.number(bits)


def narrow(b: Builder, value: SSAValue, dtype: Attribute, hardware: bool) -> SSAValue:
    """An f32 rounded to the format `dtype`: its code. Of a number that was only widened, the code that it had."""
    before = b.find((narrow, dtype, value))
    if before is not None:
        return before
    return _convert(b, value, dtype) if hardware and dtype in LARGEST_FINITE else _round(b, value, dtype)


def _convert(b: Builder, value: SSAValue, dtype: Attribute) -> SSAValue:
    """By the GPU's instruction, which saturates: what was clamped to the finite numbers before needs no more."""
    form = FORMATS[dtype]
    inside, bound = _clamped(value)
    if bound <= LARGEST_FINITE[dtype]:
        return _rounded(b, inside if bound == LARGEST_FINITE[dtype] else value, dtype, signed_nan=False)
    if form.saturates:
        return _rounded(b, value, dtype, signed_nan=True)
    predicate, least = BEYOND[dtype]
    beyond = b.cmpf(predicate, b.elementwise(mlir_math.AbsFOp, (value,), NO_FLAGS), b.constant(least, f32))
    if form.infinity is None:
        bits = _Words(b).bits(value)
        return _rounded(b, b.select(beyond, _Words(b).op(arith.OrIOp, bits, 0x7FC00000), bits), dtype, signed_nan=True)
    code = _rounded(b, value, dtype, signed_nan=True)
    infinity = b.elementwise(arith.OrIOp, (b.elementwise(arith.AndIOp, (code, b.int(-128, i8))), b.int(form.infinity, i8)))
    return b.select(beyond, infinity, code)


def _rounded(b: Builder, value: SSAValue, dtype: Attribute, signed_nan: bool) -> SSAValue:
    """The codes of f32 or their bits, four at a time."""
    properties = ElementwiseInlineAsmOp.said(four_to_8_bits(KINDS[dtype], signed_nan), "=r,r,r,r,r", 4, pure=True)
    bits = _Words(b).bits(value) if element_of(value.type) == f32 else value
    return b.pure(ElementwiseInlineAsmOp, (bits,), like(bits.type, i8), properties)


def _clamped(value: SSAValue) -> tuple[SSAValue, float]:
    """`x, c` where a value is x between -c and c (or NaN); the value itself and infinity where it is none."""
    inner, limits = value, {}
    for _ in range(2):
        owner = inner.owner
        if isinstance(owner, (arith.MinimumfOp, arith.MaximumfOp)) and (limit := constant_of(owner.rhs)) is not None:
            limits[type(owner)] = limit
            inner = owner.lhs
    high, low = limits.get(arith.MinimumfOp), limits.get(arith.MaximumfOp)
    return (inner, high) if high is not None and low == -high and high >= 0 else (value, math.inf)


def _round(b: Builder, value: SSAValue, dtype: Attribute) -> SSAValue:
    """By integer arithmetic."""
    w = _Words(b)
    bits = w.bits(value)
    magnitude = w.op(arith.AndIOp, bits, 0x7FFFFFFF)
    if dtype == f8e8m0fnu:
        tie = b.cast(tt_arith.ExtUIOp, b.cmpi("eq", magnitude, b.int(0x400000)), i32)
        code = w.op(arith.ShRUIOp, b.sub(b.add(magnitude, b.int(0x400000)), tie), 23)
        return b.cast(tt_arith.TruncIOp, w.least(code, 0xFF), i8)
    form = FORMATS[dtype]
    clamped = w.least(magnitude, form.limit)
    least = form.smallest_normal + (form.shift << 23)
    exponent = w.op(arith.AndIOp, clamped, 0x7F800000)
    above = w.most(b.add(exponent, b.int(form.shift << 23)), least)
    total = w.bits(b.elementwise(arith.AddfOp, (w.number(clamped), w.number(above)), NO_FLAGS))
    steps = b.sub(w.op(arith.ShRUIOp, above, form.shift), b.int(least >> form.shift))
    code = b.add(b.sub(total, above), steps)
    sign = w.op(arith.AndIOp, w.op(arith.ShRUIOp, bits, 24), 0x80)
    if form.unsigned_zero:
        sign = w.select("eq", code, 0, 0, sign)
    else:
        code = w.select("ugt", magnitude, 0x7F800000, form.nan, code)
    return b.cast(tt_arith.TruncIOp, b.elementwise(arith.OrIOp, (code, sign)), i8)
