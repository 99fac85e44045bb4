"""Bits of 16-bit floats to f32 and back as integer arithmetic, for processors without the instructions, in LLVM text.

All values are of 32 bits, the 16 of the float in the low half. Rounding is to nearest even; denormals are kept, and NaN stays NaN."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Words:
    """Where such values are computed: `let` writes an instruction and gives the name of its value; `lanes` of a vector, 0 of a scalar."""

    let: Callable[[str], str]
    lanes: int

    def type(self, element: str) -> str:
        """A value of `element` in each lane."""
        return f"<{self.lanes} x {element}>" if self.lanes else element

    def constant(self, value: int | str, element: str = "i32") -> str:
        """The same number in each lane."""
        return f"splat ({element} {value})" if self.lanes else str(value)

    def op(self, name: str, a: str, b: int | str) -> str:
        """An operation of integers; `b` may be a number."""
        return self.let(f"{name} {self.type('i32')} {a}, {self.constant(b) if isinstance(b, int) else b}")

    def is_(self, name: str, a: str, b: int) -> str:
        """A comparison of integers."""
        return self.let(f"icmp {name} {self.type('i32')} {a}, {self.constant(b)}")

    def select(self, condition: str, a: int | str, b: int | str) -> str:
        """One of two integers."""
        one, other = (self.constant(x) if isinstance(x, int) else x for x in (a, b))
        word = self.type("i32")
        return self.let(f"select {self.type('i1')} {condition}, {word} {one}, {word} {other}")

    def to_float(self, bits: str) -> str:
        """The f32 of these bits."""
        return self.let(f"bitcast {self.type('i32')} {bits} to {self.type('float')}")

    def to_bits(self, value: str) -> str:
        """The bits of an f32."""
        return self.let(f"bitcast {self.type('float')} {value} to {self.type('i32')}")


def bf16_to_float(w: Words, bits: str) -> str:
    """The f32 of a bf16's bits."""
    return w.to_float(w.op("shl", bits, 16))


def half_to_float(w: Words, bits: str) -> str:
    """The f32 of a half's bits. Sign aside, these shifted to a float's place are the value times 2^-112, exactly (denormals too); infinity
    and NaN get the largest exponent back."""
    magnitude = w.op("and", bits, 0x7FFF)
    shifted = w.op("shl", magnitude, 13)
    scale = w.constant("0x46F0000000000000", "float")
    finite = w.to_bits(w.let(f"fmul {w.type('float')} {w.to_float(shifted)}, {scale}"))
    value = w.select(w.is_("uge", magnitude, 0x7C00), w.op("or", shifted, 0x7F800000), finite)
    sign = w.op("shl", w.op("and", bits, 0x8000), 16)
    return w.to_float(w.op("or", value, sign))


def float_to_bf16(w: Words, value: str) -> str:
    """The bits of an f32 as bf16. The instruction (vcvtneps2bf16) flushes denormals, torch does not."""
    bits = w.to_bits(value)
    odd = w.op("and", w.op("lshr", bits, 16), 1)
    rounded = w.op("lshr", w.op("add", bits, w.op("add", odd, 0x7FFF)), 16)
    nan = w.let(f"fcmp uno {w.type('float')} {value}, {value}")
    return w.select(nan, 0x7FC0, rounded)


def float_to_half(w: Words, value: str) -> str:
    """The bits of an f32 as a half. Normal results are rounded at bit 13, then the exponent's bias moves from 127 to 15. Adding 0.5 leaves
    the rounded value of a denormal result times 2^24 in the low bits of the sum. 65520 and above are infinity."""
    bits = w.to_bits(value)
    magnitude = w.op("and", bits, 0x7FFFFFFF)
    sign = w.op("and", w.op("lshr", bits, 16), 0x8000)
    odd = w.op("and", w.op("lshr", magnitude, 13), 1)
    normal = w.op("lshr", w.op("add", w.op("add", magnitude, odd), 0xFFF - (112 << 23)), 13)
    summed = w.let(f"fadd {w.type('float')} {w.to_float(magnitude)}, {w.constant('0.5', 'float')}")
    small = w.op("sub", w.to_bits(summed), 0x3F000000)
    finite = w.select(w.is_("ult", magnitude, 113 << 23), small, normal)
    beyond = w.select(w.is_("ugt", magnitude, 0x7F800000), 0x7E00, 0x7C00)
    return w.op("or", w.select(w.is_("uge", magnitude, 0x477FF000), beyond, finite), sign)
