"""Indices as floats: a sum of indices of several axes of the tile is a sum of floats, each converted along its own axis.

    arith.sitofp (%i - %j) [64 x 64]     ->     arith.subf (arith.sitofp %i [64 x 1]), (arith.sitofp %j [1 x 64])

This is exact where all are numbers that a float has. It takes one operation for an element in place of two, of which one is slow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.dialects import arith
from xdsl.dialects import math as mlir_math
from xdsl.dialects.builtin import f32
from xdsl.ir import Operation, SSAValue

from ....dialects.expr import Add, as_expr, free_dims
from ....dialects.expr.ranges import range_of
from ....dialects.tt import arith as tt_arith
from ....dialects.tt.types import shape_of
from ...nest.body import cast
from ...nest.builder import NO_FLAGS

if TYPE_CHECKING:
    from ..state import State

EXACT_FLOAT_BITS = 24
"""Bits of integers that are floats of 32 bits; blocks may hang over the end, so that sums of indices have one less."""


def lower_signed(s: State, op: Operation) -> None:
    """arith.sitofp."""
    source, result = op.operands[0], op.results[0]
    absolute = isinstance(source.owner, mlir_math.AbsIOp)
    index = source.owner.operands[0] if isinstance(source.owner, mlir_math.AbsIOp) else source
    found = _by_axes(s, index) if result.type == f32 else None
    if found is None:
        cast(s, op)
    else:
        s.values[result] = s.b.elementwise(mlir_math.AbsFOp, (found,), NO_FLAGS) if absolute else found


def _by_axes(s: State, source: SSAValue) -> SSAValue | None:
    """An index as a float, if it varies along several axes, and is the sum of what varies along one each."""
    e = s.info.exprs.get(source)
    e = None if e is None or free_dims(e) & s.info.opaque.keys() else s.fix(e)
    if not isinstance(e, Add):
        return None
    parts: dict[tuple[int, ...] | None, SSAValue] = {None: s.number(as_expr(e.constant))}
    for term, times in e.terms:
        for value in s.halves.get(term) or (s.number(term),):
            shape, value = shape_of(value.type), s.b.mul(value, s.b.int(times, s.index))
            parts[shape] = s.b.add(parts[shape], value) if shape in parts else value
    ranges = [range_of(term * times, s.info.ranges) for term, times in (*e.terms, (as_expr(e.constant), 1))]
    ends = [abs(end) for r in ranges for end in (r.lo, r.hi) if end is not None]
    if len(parts) < 3 or len(ends) < 2 * len(ranges) or sum(ends) >= 1 << (EXACT_FLOAT_BITS - 1):
        return None
    same = parts.pop(None)
    first, *others = (parts[shape] for shape in sorted(parts, key=str, reverse=True))
    total = s.b.cast(tt_arith.SIToFPOp, s.b.add(first, same), f32)
    for number in others:
        total = s.b.elementwise(arith.AddfOp, (total, s.b.cast(tt_arith.SIToFPOp, number, f32)), NO_FLAGS)
    return total
