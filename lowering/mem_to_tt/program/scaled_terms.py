"""Products of a factor that has a scale, and maybe a zero point, for a block of terms: the sum of the block is scaled, not each term.

    tt.dot %x, (%q - %zero) * %scale, %sums   ->   %sums + (tt.dot %x, %q, 0) * %scale + (sums of rows of %x) * (- %zero * %scale)

`%q` is exact in 16 bits (integers of few bits), so that nothing is rounded that the product of scaled terms would not round. Scaling takes
a multiplication for each sum in place of one for each term.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xdsl.dialects import arith
from xdsl.dialects.builtin import f32
from xdsl.ir import Attribute, Operation, SSAValue

from ....dialects.tt.compute import DotOp
from ....dialects.tt.types import shape_of
from ....passes.gpu.nest_types import UnsupportedNest
from ....passes.gpu.tiles.product_nests import HALVES, exact_types
from ...nest.builder import NO_FLAGS
from ..builder import Builder
from ..joined_axes import pairwise, reduce_axis
from ..state import State

if TYPE_CHECKING:
    from ..products import Factor

_LINEAR = arith.MulfOp | arith.AddfOp | arith.SubfOp


@dataclass(frozen=True)
class ScaledFactor:
    """A factor as `value * scale + offset`. The value is exact in 16 bits; scale and offset, in the shape of its tile, are the same for all
    terms of a block (None: 1 and 0)."""

    value: SSAValue
    scale: SSAValue | None = None
    offset: SSAValue | None = None


@dataclass(frozen=True)
class BlockSums:
    """Sums with those of a block of terms added, but for an offset: `offset` is that of the terms of one factor, in the shape of the sums,
    `terms` are those of the other one, which lie along `axis`."""

    total: SSAValue
    offset: SSAValue | None = None
    terms: SSAValue | None = None
    axis: int = 1


def scaled_product(
    b: Builder, sides: Sequence[Factor], values: Sequence[SSAValue], element: Attribute, total: SSAValue
) -> BlockSums | None:
    """The sums with those of a block of terms added; None where no factor is scaled by what the block has in common, or scaling its terms
    takes fewer multiplications."""
    found = [_scaled(b, side, value, element) for side, value in zip(sides, values, strict=True)]
    for side, other, one, value in zip(sides, sides[::-1], found, values[::-1], strict=True):
        if one is None or one.scale is None or found[other.axis] is not None or other.full[other.own] >= other.full[other.terms]:
            continue
        scale, offset = side.in_product(one.scale), None if one.offset is None else side.in_product(one.offset)
        found_raised = side.raised(one.value, element)
        if found_raised is None:
            matrix = side.matrix(one.value, element)
        else:
            matrix, more = found_raised
            less = b.elementwise(arith.MulfOp, (scale, b.constant(-more, f32)), NO_FLAGS)
            offset = less if offset is None else b.elementwise(arith.AddfOp, (offset, less), NO_FLAGS)
        matrices = {side.axis: matrix, other.axis: other.matrix(value, element)}
        zeros = b.constant(0.0, f32, shape_of(total.type))
        product = b.place(DotOp.make(matrices[0], matrices[1], zeros)).results[0]
        total = _added(b, total, product, scale)
        if offset is None:
            return BlockSums(total)
        terms = b.cast(arith.ExtFOp, matrices[other.axis], f32)
        return BlockSums(total, offset, terms, 1 - other.axis)
    return None


def block_scale(side: Factor, value: SSAValue) -> SSAValue:
    """A number that is the same for all terms of a block, in the product's tile. UnsupportedNest where a block has several of it."""
    if not _is_of_block(side, value):
        raise UnsupportedNest("schedule: a block of terms has several scales: reduction_block divides what has one")
    return side.in_product(side.get(value))


def with_offsets(s: State, parts: Sequence[BlockSums]) -> list[SSAValue]:
    """All sums with their offsets, for which the terms along each axis are added up at once: warps exchange what they have once."""
    sums = [part.total for part in parts]
    for axis in (0, 1):
        found = [(k, part.offset, part.terms) for k, part in enumerate(parts) if part.axis == axis]
        waiting = [(k, offset, terms) for k, offset, terms in found if offset is not None and terms is not None]
        added = reduce_axis(s, [terms for _, _, terms in waiting], axis, pairwise(arith.AddfOp, NO_FLAGS)) if waiting else []
        for (k, offset, _), rows in zip(waiting, added, strict=True):
            sums[k] = _added(s.b, sums[k], rows, offset)
    return sums


def _added(b: Builder, total: SSAValue, x: SSAValue, scale: SSAValue) -> SSAValue:
    return b.elementwise(arith.AddfOp, (total, b.elementwise(arith.MulfOp, (x, scale), NO_FLAGS)), NO_FLAGS)


def _scaled(b: Builder, side: Factor, value: SSAValue, element: Attribute) -> ScaledFactor | None:
    """A factor with what is the same for a block of its terms taken out; None where nothing is."""
    found = _linear(b, side, _unrounded(value), element)
    return found if found is not None and found.scale is not None else None


def _unrounded(value: SSAValue) -> SSAValue:
    """A number before it was rounded to 16 bits, if arithmetic made it."""
    inside, op = value, value.owner
    while isinstance(op, arith.ExtFOp) or (isinstance(op, arith.TruncFOp) and op.result.type in HALVES):
        inside = op.input
        op = inside.owner
    return inside if isinstance(op, _LINEAR) else value


def _linear(b: Builder, side: Factor, value: SSAValue, element: Attribute) -> ScaledFactor | None:
    op = value.owner
    if not isinstance(op, _LINEAR):
        return ScaledFactor(value) if element in exact_types(value) and not _is_of_block(side, value) else None
    for k, one in enumerate(op.operands):
        inside = _linear(b, side, _unrounded(one), element)
        if inside is None or not _is_of_block(side, other := op.operands[1 - k]):
            continue
        by = side.get(other)
        if isinstance(op, arith.MulfOp):
            scale, offset = (_times(b, x, by) for x in (inside.scale, inside.offset))
            return ScaledFactor(inside.value, by if scale is None else scale, offset)
        if isinstance(op, arith.SubfOp) and k == 1:
            return None
        if isinstance(op, arith.SubfOp):
            by = b.elementwise(arith.SubfOp, (b.constant(0.0, f32), by), NO_FLAGS)
        offset = by if inside.offset is None else b.elementwise(arith.AddfOp, (inside.offset, by), NO_FLAGS)
        return ScaledFactor(inside.value, inside.scale, offset)
    return None


def _times(b: Builder, x: SSAValue | None, by: SSAValue) -> SSAValue | None:
    return None if x is None else b.elementwise(arith.MulfOp, (x, by), NO_FLAGS)


def _is_of_block(side: Factor, value: SSAValue) -> bool:
    """Whether a number is the same for all terms of a block."""
    if isinstance(value.owner, Operation) and value.owner.regions:
        return False
    shape = shape_of(side.get(value).type)
    return shape is None or shape[side.terms] == 1
