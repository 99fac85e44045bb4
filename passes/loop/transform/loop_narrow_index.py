"""loop-narrow-index: nests whose indices and offsets surely fit 32 bits say so.

The schedule gets `index_bits = 32`: every loop index, every index expression and every offset of an access (in elements, counted from the
buffer's first one) is between -2^31 and 2^31 - 1. A target may then compute addresses and gathers in 32 bits; the GPU targets do.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....dialects import loop
from ....dialects.expr import Expr
from ....dialects.expr.ranges import RangeEnv, range_of
from ...analysis.nest_access import NestAccess, buffer_strides
from ...analysis.schedule_attrs import INDEX_BITS, int_attr, update_schedule
from .nest_transform import NestTransform, Refused


@dataclass(frozen=True)
class LoopNarrowIndex(NestTransform):
    """Marks nests that 32-bit indices are enough for."""

    name = "loop-narrow-index"

    bits: int = 32
    """Width of indices, 32 or 16."""

    def transform(self, nest: loop.NestOp, target: loop.LoopLike, symbols: RangeEnv) -> str:
        """See the class."""
        if target is not nest:
            raise Refused("indices are narrowed for a whole nest (part 0)")
        if self.bits not in (16, 32):
            raise Refused(f"bits: takes 16 or 32, got {self.bits}")
        info = NestAccess(nest, symbols, normalise=False)
        limit = 1 << (self.bits - 1)

        def check(e: Expr, what: str) -> None:
            found = range_of(e, info.ranges)
            if found.lo is None or found.hi is None:
                raise Refused(f"{what} has no bound that is known: {e}")
            if found.lo < -limit or found.hi >= limit:
                raise Refused(f"{what} goes from {found.lo} to {found.hi}, beyond {self.bits} bits")

        for node in info.root.walk():
            for one in node.loops:
                check(one.size, "the size of a loop")
        for access in info.access.values():
            extent: Expr | int = 0
            for size, stride in zip(loop.shaped_dims(access.buffer.type), buffer_strides(access.buffer.type), strict=True):
                extent = extent + size * stride
            if isinstance(extent, Expr):
                check(extent, "the extent of a tensor")
        for value, e in info.exprs.items():
            if e not in info.opaque:
                check(e, f"index %{value.name_hint}" if value.name_hint else "an index")
        update_schedule(nest, {INDEX_BITS: int_attr(self.bits)})
        return f"indices fit {self.bits} bits"
