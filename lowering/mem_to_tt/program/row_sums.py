"""Sums over the terms of a product of numbers that vary along one of its sides alone: the statistics of the rows that are multiplied.

    loop.reduce (%k) sum, sum { yield %x * %w, %x * %x }     ->     scf.for: tt.dot %x, %w, %sums; %squares + %x * %x, [16 x 128]

A thread adds up what it has of each block of terms; threads exchange their sums once, behind the loop. Where it would keep many, the terms
of a block are added up first.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from xdsl.dialects import arith
from xdsl.dialects.builtin import f32
from xdsl.ir import SSAValue

from ....dialects.tt.types import shape_of
from ...nest.builder import NO_FLAGS
from ..builder import Builder
from ..early_loads import INVARIANT_REGISTERS
from ..joined_axes import pairwise, reduce_axis

if TYPE_CHECKING:
    from ..products import Factor


@dataclass(frozen=True)
class RowSum:
    """The sum of `value` over the terms of a product; `side` is the factor whose tile it is computed in."""

    b: Builder
    side: Factor
    value: SSAValue

    @property
    def _keeps_terms(self) -> bool:
        return prod(self.side.full) <= INVARIANT_REGISTERS * self.side.threads

    def start(self) -> SSAValue:
        """The sums before the first block of terms."""
        whole = self.side.full
        shape = whole if self._keeps_terms else tuple(1 if k == self.side.terms else n for k, n in enumerate(whole))
        return self.b.constant(0.0, f32, shape)

    def step(self, total: SSAValue) -> SSAValue:
        """The sums with the block of terms that the side is at."""
        side = self.side
        value, mask = self.b.to_shape(side.get(self.value), side.full), side.axes[side.terms].mask
        if mask is not None:
            value = self.b.select(mask, value, self.b.constant(0.0, f32))
        if not self._keeps_terms:
            value = self._added(value)
        return self.b.elementwise(arith.AddfOp, (total, value), NO_FLAGS)

    def end(self, total: SSAValue) -> SSAValue:
        """The sum of each row, in the tile of the product."""
        shape = shape_of(total.type) or ()
        return self.side.in_product(self._added(total) if shape[self.side.terms] > 1 else total)

    def _added(self, value: SSAValue) -> SSAValue:
        """The terms of a block added up."""
        return reduce_axis(self.side, [value], self.side.terms, pairwise(arith.AddfOp, NO_FLAGS))[0]
