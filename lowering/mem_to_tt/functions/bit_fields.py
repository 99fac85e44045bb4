"""Bits of bytes as 16-bit floats, four at once: the byte, moved and masked, as the low half of a float whose high half is a power of two.

    arith.uitofp (andi (shrui %q, 4), 15)     ->     the float with the bits 0x43 and the byte, which is 128 more (bf16)

Triton converts each byte by itself once it is moved or masked. The power of two is for the caller to take away.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects.builtin import bf16, f16, i8
from xdsl.ir import Attribute, SSAValue

from ....dialects.tt.compute import ElementwiseInlineAsmOp, bytes_as_floats
from ....dialects.tt.types import element_of, like
from ....passes.analysis.constants import integer_of
from ..builder import Builder

BYTE_BITS = i8.width.data
HIGH_BYTES: dict[Attribute, tuple[int, float]] = {bf16: (0x43, 128.0), f16: (0x64, 1024.0)}
"""Formats with the first byte of a power of two whose next numbers are 1 apart, and that number."""


@dataclass(frozen=True)
class BitField:
    """`(source >> shift) & mask` of bytes."""

    source: SSAValue
    shift: int = 0
    mask: int = (1 << BYTE_BITS) - 1

    @property
    def has_no_sign(self) -> bool:
        """Whether the first bit is 0."""
        return self.mask < 1 << BYTE_BITS - 1


def bit_field(value: SSAValue) -> BitField:
    """The bits of another tensor of bytes that a tensor of bytes is."""
    op = value.owner
    if isinstance(op, arith.AndIOp):
        for one, other in (op.operands, op.operands[::-1]):
            if (mask := integer_of(other)) is not None:
                inside = bit_field(one)
                return BitField(inside.source, inside.shift, inside.mask & mask)
    if isinstance(op, arith.ShRUIOp) and (places := integer_of(op.rhs)) is not None and 0 <= places < BYTE_BITS:
        inside = bit_field(op.lhs)
        return BitField(inside.source, inside.shift + places, inside.mask >> places)
    return BitField(value)


def raised(b: Builder, value: SSAValue, element: Attribute) -> tuple[SSAValue, float] | None:
    """Bytes without a sign as floats of `element`, more than they are by a number, and that number; None where these do not have it."""
    field, (high, more) = bit_field(value), HIGH_BYTES[element]
    if element_of(value.type) != i8 or (element == bf16 and not field.has_no_sign):
        return None
    properties = ElementwiseInlineAsmOp.said(bytes_as_floats(high, field.shift, field.mask), "=r,=r,r", 4, pure=True)
    return b.pure(ElementwiseInlineAsmOp, (field.source,), like(value.type, element), properties), more
