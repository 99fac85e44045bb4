"""Rows that pick the matrix that they are multiplied by: a program goes through the matrices of its rows, one after the other.

    %e = loop.bound %expert, 32                             scf.for %m = (the least %e of the block) to (the greatest one) + 1 {
    loop.reduce { mulf %x[%i, %k], %w[%e, %k, %j] }    ->     scf.if (some row has %m) { the whole body, for the rows that have it }
                                                            }

Rows need not be sorted by their matrices; where they are, few blocks have rows of several. GPU compilers know such a loop as a waterfall.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xdsl.dialects import arith
from xdsl.dialects.builtin import i32
from xdsl.ir import SSAValue

from ....dialects.expr import Dim
from ....dialects.nd.types import I32_MAX
from ....dialects.tt.types import shape_of
from ....passes.gpu.nest_types import UnsupportedNest
from ....passes.gpu.tiles.product_nests import Side
from ....passes.loop.transform.loop_rewrite import needed
from ..joined_axes import reduce_all

if TYPE_CHECKING:
    from ..kernel import NestLowering


def lower_by_matrix(kernel: NestLowering, picked: Dim, side: Side) -> None:
    """The body of a nest for each matrix that rows of the program's block have. `picked`: its index, by the loops `side`."""
    s, b, block = kernel.s, kernel.s.b, kernel.nest.block
    axis = next((k for k, (loops, _) in enumerate(kernel.tile.axes) if tuple(loops) == side), None)
    if axis is None:
        raise UnsupportedNest("schedule: with dot an axis has all loops by which rows pick their matrix")
    index = s.info.opaque[picked]
    before = needed([index], block)
    kernel.lower_body(block, [op for op in block.ops if op not in before])
    of_rows, rows, copy_out = s.dims[picked], s.axes[axis].mask, s.copy_out
    if shape_of(of_rows.type) is None:
        raise UnsupportedNest("schedule: with dot rows that pick their matrix are more than one")
    first, last = (
        reduce_all(s, of_rows if rows is None else b.select(rows, of_rows, b.int(none, s.index)), how)
        for none, how in ((I32_MAX, arith.MinSIOp), (-1, arith.MaxSIOp))
    )

    def step(at: SSAValue, _: Sequence[SSAValue]) -> list[SSAValue]:
        own = b.both(b.cmpi("eq", of_rows, at), rows)
        assert own is not None
        some = b.cmpi("ne", reduce_all(s, b.resize(own, i32), arith.OrIOp), b.int(0))
        with s.checks.only_if(some):
            s.axes[axis].mask, s.dims[picked], s.values[index] = own, at, at
            kernel.lower_body(block, before)
        return []

    s.copy_out = None  # a block has rows that are not stored
    kernel.repeat(s.info.root, b.add(last, b.int(1, s.index)), 1, [], step, first)
    s.axes[axis].mask, s.dims[picked], s.copy_out = rows, of_rows, copy_out
