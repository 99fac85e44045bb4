"""Casts between f32 and the 8-bit floats (held as i8), by integer arithmetic: the same on every instruction set.

Rounding to m bits of mantissa adds a power of two 23 - m binary places above the number: the sum's last bit is then the
last that is kept, and the processor rounds to it, ties to even. Below the smallest normal number the power of two stays
the same, which gives denormals. No step meets an f32 denormal that matters, so that no flag of the processor changes it.
"""

from __future__ import annotations

from ....dialects.support.float8 import FORMATS, Format, f8e8m0fnu
from .text import FunctionText, Type


class _Words:
    """Instructions on 32-bit integers, as many lanes as `type` has."""

    def __init__(self, f: FunctionText, type: Type):
        self.f, self.type, self.i32, self.f32 = f, type, type.of("i32"), type.of("float")

    def constant(self, value: int) -> str:
        if not self.type.lanes:
            return str(value)
        return f"splat (i32 {value})" if value else "zeroinitializer"

    def op(self, name: str, a: str, b: str | int) -> str:
        return self.f.let(f"{name} {self.i32} {a}, {self.constant(b) if isinstance(b, int) else b}")

    def least(self, a: str, b: int) -> str:
        return self.select(self.test("ult", a, b), a, self.constant(b))

    def most(self, a: str, b: int) -> str:
        return self.select(self.test("ugt", a, b), a, self.constant(b))

    def test(self, predicate: str, a: str, b: int) -> str:
        return self.f.let(f"icmp {predicate} {self.i32} {a}, {self.constant(b)}")

    def select(self, condition: str, a: str, b: str) -> str:
        return self.f.let(f"select {self.type.of('i1')} {condition}, {self.i32} {a}, {self.i32} {b}")

    def float_op(self, name: str, a: str, b: str) -> str:
        """An instruction on the numbers whose bits `a` and `b` are; gives the bits."""
        x, y = (self.f.let(f"bitcast {self.i32} {v} to {self.f32}") for v in (a, b))
        return self.f.let(f"bitcast {self.f32} {self.f.let(f'{name} {self.f32} {x}, {y}')} to {self.i32}")


def decode(f: FunctionText, type: Type, value: str) -> str:
    """A value of the 8-bit float type `type` as f32, exactly; NaN keeps its sign where it has one."""
    w = _Words(f, type)
    code = f.let(f"zext {type.text} {value} to {w.i32}")
    if type.scalar == f8e8m0fnu:
        bits = w.most(w.op("shl", code, 23), 0x400000)
        bits = w.select(w.test("eq", code, 0xFF), w.constant(0x7FC00000), bits)
        return f.let(f"bitcast {w.i32} {bits} to {w.f32}")
    form = FORMATS[type.scalar]
    magnitude = w.op("and", code, 0x7F)
    moved = w.op("shl", magnitude, form.shift)
    normal = w.op("add", moved, form.rebias)
    # A denormal with the exponent of the smallest normal number is too large by that number.
    small = w.float_op("fsub", w.op("add", moved, form.smallest_normal), w.constant(form.smallest_normal))
    bits = w.select(w.test("ult", magnitude, 1 << form.mantissa), small, normal)
    sign = w.op("shl", w.op("and", code, 0x80), 24)
    if form.unsigned_zero:
        bits = w.select(w.test("eq", code, form.nan), w.constant(0x7FC00000), w.op("or", bits, sign))
        return f.let(f"bitcast {w.i32} {bits} to {w.f32}")
    if form.infinity is not None:
        bits = w.select(w.test("eq", magnitude, form.infinity), w.constant(0x7F800000), bits)
    bits = w.select(w.test("uge", magnitude, form.first_nan), w.constant(0x7FC00000), bits)
    bits = w.op("or", bits, sign)
    return f.let(f"bitcast {w.i32} {bits} to {w.f32}")


def encode(f: FunctionText, type: Type, value: str) -> str:
    """An f32 rounded to the 8-bit float type `type`."""
    w = _Words(f, type)
    bits = f.let(f"bitcast {w.f32} {value} to {w.i32}")
    magnitude = w.op("and", bits, 0x7FFFFFFF)
    if type.scalar == f8e8m0fnu:
        # Half way goes up, but not from zero.
        tie = f.let(f"zext {type.of('i1')} {w.test('eq', magnitude, 0x400000)} to {w.i32}")
        code = w.op("lshr", w.op("sub", w.op("add", magnitude, 0x400000), tie), 23)
        return f.let(f"trunc {w.i32} {w.least(code, 0xFF)} to {type.text}")
    form = FORMATS[type.scalar]
    code = _magnitude_code(w, form, w.least(magnitude, form.limit))
    sign = w.op("and", w.op("lshr", bits, 24), 0x80)
    if form.unsigned_zero:
        sign = w.select(w.test("eq", code, 0), w.constant(0), sign)
    else:
        code = w.select(w.test("ugt", magnitude, 0x7F800000), w.constant(form.nan), code)
    return f.let(f"trunc {w.i32} {w.op('or', code, sign)} to {type.text}")


def _magnitude_code(w: _Words, form: Format, magnitude: str) -> str:
    least = form.smallest_normal + (form.shift << 23)
    above = w.most(w.op("add", w.op("and", magnitude, 0x7F800000), form.shift << 23), least)
    kept = w.op("sub", w.float_op("fadd", magnitude, above), above)
    # `kept` has the leading one of a normal number, so the exponent counts from one less.
    return w.op("add", kept, w.op("sub", w.op("lshr", above, form.shift), least >> form.shift))
