"""Casts between f32 and 8-bit floats, whose elements are i8 in a kernel, by integer arithmetic (see
targets/cpu/emit_float8.py for why each step is exact).

Triton's own fp_to_fp lacks three of the five formats, needs a GPU that has the others, and makes the largest finite
number of what torch rounds to an infinite E5M2."""

from __future__ import annotations

from typing import Any

from xdsl.dialects import arith
from xdsl.dialects.builtin import f32, i8, i32
from xdsl.ir import Attribute, SSAValue

from ...dialects import tt_arith
from ...dialects.float8 import FORMATS, f8e8m0fnu
from ...dialects.tt_compute import BitcastOp
from .builder import NO_FLAGS, NO_OVERFLOW_FLAGS, Builder


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


def widen(b: Builder, value: SSAValue, dtype: Attribute) -> SSAValue:
    """The code of a number in the format `dtype` (an i8) as f32."""
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
    result = w.number(bits)
    b.remember((narrow, dtype, result), value)
    return result


def narrow(b: Builder, value: SSAValue, dtype: Attribute) -> SSAValue:
    """An f32 rounded to the format `dtype`: its code. Of a number that was only widened, the code that it had."""
    before = b.find((narrow, dtype, value))
    if before is not None:
        return before
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
