"""The five 8-bit float formats of torch, as numbers: what a cast to or from one needs to know.

Four are (sign, exponent, mantissa); the fifth, E8M0, is an exponent alone (a scale of block formats: no sign, no zero).
Only memory holds them: bodies compute in f32, where each of their values is exact.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import cache

from xdsl.dialects.builtin import (
    Float8E4M3FNType,
    Float8E4M3FNUZType,
    Float8E5M2FNUZType,
    Float8E5M2Type,
    Float8E8M0FNUType,
)
from xdsl.ir import Attribute

f8e4m3fn = Float8E4M3FNType()
f8e5m2 = Float8E5M2Type()
f8e4m3fnuz = Float8E4M3FNUZType()
f8e5m2fnuz = Float8E5M2FNUZType()
f8e8m0fnu = Float8E8M0FNUType()

FLOAT8: frozenset[Attribute] = frozenset((f8e4m3fn, f8e5m2, f8e4m3fnuz, f8e5m2fnuz, f8e8m0fnu))
UNIT_FLOAT8: frozenset[Attribute] = frozenset((f8e4m3fn, f8e5m2))
"""Those that a GPU's units for products take."""


@dataclass(frozen=True)
class Format:
    """A format with a sign: `mantissa` bits behind an exponent with `bias`.

    `bound` is the magnitude (the bits of an f32) that larger ones, and NaN, are taken for before they are rounded: the
    largest finite number where torch saturates, else the first that rounds out of range; `bound_before` is what it was
    before torch 2.13, where that was another. `nan` is the code of NaN;
    codes from `first_nan` on (sign aside) are NaN. Where `unsigned_zero`, there is no -0: its code is the one NaN."""

    mantissa: int
    bias: int
    bound: int
    nan: int
    first_nan: int
    infinity: int | None = None
    unsigned_zero: bool = False
    bound_before: int | None = None

    @property
    def limit(self) -> int:
        """The `bound` of the torch at hand."""
        return self.bound if self.bound_before is None or torch_saturates() else self.bound_before

    @property
    def saturates(self) -> bool:
        """Whether numbers that are too large become the largest finite one."""
        return self.infinity is None and self.limit == (self.first_nan - 1 << self.shift) + self.rebias

    @property
    def shift(self) -> int:
        """Bits of an f32's mantissa that this one lacks."""
        return 23 - self.mantissa

    @property
    def rebias(self) -> int:
        """What the exponent of an f32 is larger by, at its place in the bits."""
        return (127 - self.bias) << 23

    @property
    def smallest_normal(self) -> int:
        """The bits of the f32 that is the smallest number with a full mantissa."""
        return self.rebias + (1 << 23)


@cache
def torch_saturates() -> bool:
    """Whether torch's casts to E4M3FN give 448 for larger numbers, as from 2.13 on, and not NaN."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        first, second = version("torch").split(".")[:2]
    except PackageNotFoundError:
        return True
    return (int(first), int(second)) >= (2, 13)


FORMATS: dict[Attribute, Format] = {
    f8e4m3fn: Format(mantissa=3, bias=7, bound=0x43E00000, nan=0x7F, first_nan=0x7F, bound_before=0x43F00000),
    f8e5m2: Format(mantissa=2, bias=15, bound=0x47800000, nan=0x7F, first_nan=0x7D, infinity=0x7C),
    f8e4m3fnuz: Format(mantissa=3, bias=8, bound=0x43800000, nan=0x80, first_nan=0x80, unsigned_zero=True),
    f8e5m2fnuz: Format(mantissa=2, bias=16, bound=0x47800000, nan=0x80, first_nan=0x80, unsigned_zero=True),
}
"""All but E8M0. Codes and rounding (nearest, ties to even) are those of torch's casts: E4M3FN saturates at 448 (infinity
too; before torch 2.13 what is over 464 is NaN), E5M2 goes to infinity from 61440 on, and the FNUZ formats to NaN."""


def encode(value: float, dtype: Attribute) -> int:
    """The code of a number in an 8-bit format, rounded as torch's cast from f32 does."""
    try:
        (bits,) = struct.unpack("<I", struct.pack("<f", value))
    except OverflowError:  # rounds to an infinite f32
        bits = 0x7F800000 if value > 0 else 0xFF800000
    magnitude = bits & 0x7FFFFFFF
    if dtype == f8e8m0fnu:
        return min((magnitude + 0x400000 - (magnitude == 0x400000)) >> 23, 0xFF)
    form = FORMATS[dtype]
    sign = bits >> 24 & 0x80
    if magnitude > 0x7F800000:
        return form.nan | sign
    magnitude = min(magnitude, form.limit)
    lost = form.shift
    if magnitude < form.smallest_normal:  # as many bits less as the exponent is smaller
        lost += (form.smallest_normal >> 23) - max(1, magnitude >> 23)
        magnitude = (magnitude & 0x7FFFFF) | (0x800000 if magnitude >> 23 else 0)
    else:
        magnitude -= form.rebias
    code = (magnitude + (1 << (lost - 1)) - 1 + (magnitude >> lost & 1)) >> lost
    return code if form.unsigned_zero and not code else code | sign


def decode(code: int, dtype: Attribute) -> float:
    """The number that a code of an 8-bit format stands for."""
    if dtype == f8e8m0fnu:
        return math.nan if code == 0xFF else 2.0 ** (code - 127)
    form = FORMATS[dtype]
    magnitude, sign = code & 0x7F, -1.0 if code & 0x80 else 1.0
    if code == form.nan or magnitude >= form.first_nan:
        return math.copysign(math.nan, sign)
    if magnitude == form.infinity:
        return sign * math.inf
    exponent, mantissa = magnitude >> form.mantissa, magnitude & ((1 << form.mantissa) - 1)
    if exponent:
        mantissa += 1 << form.mantissa
    return sign * mantissa * 2.0 ** (max(exponent, 1) - form.bias - form.mantissa)


def rounded(value: float, dtype: Attribute) -> float:
    """The number of an 8-bit format that torch's cast makes of another."""
    return decode(encode(value, dtype), dtype)
