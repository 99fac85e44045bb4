"""Blocks of rows that begin where a group does: of products whose rows are sorted by their matrices, each program has one matrix.

    grid: ceil(rows / block) + groups                  %block_of_group = (%end - %begin + block - 1) / block, %last = tt.scan of it
    program %p has the group with                      %last - %block_of_group <= %p < %last
    and of it the rows from                            %begin + (%p - (%last - %block_of_group)) * block on

A group has one block that is not full, the last one. Programs for which no group has a block do nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.dialects import arith
from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue

from ....dialects.expr import Expr, ceildiv, product
from ....dialects.tt.memory import LoadOp
from ....passes.gpu.nest_types import UnsupportedNest
from ....passes.gpu.tiles.product_nests import SortedRows
from ....passes.gpu.tiles.tile import power_of_two
from ....passes.loop.transform.loop_rewrite import needed, used_by
from ...nest.builder import NO_OVERFLOW_FLAGS
from ..joined_axes import Values, pairwise, reduce_values, scan_axis
from ..state import State, go_on

if TYPE_CHECKING:
    from ..kernel import NestLowering


def blocks_of_groups(found: SortedRows, block: int) -> Expr:
    """How many blocks of rows there are at most."""
    return ceildiv(product(one.size for one in found.side), block) + found.count


def lower_by_group(kernel: NestLowering, found: SortedRows, axis: int, at: SSAValue) -> None:
    """The body of a nest for block `at` of the rows of all groups, which lie along an axis of the tile."""
    s, b, block = kernel.s, kernel.s.b, kernel.nest.block
    bound = s.info.opaque[found.picked]
    counting = needed([bound], block)
    elsewhere = needed(used_by(op for op in block.ops if op not in counting), block, known=(bound,))
    shared = [op for op in counting if op in elsewhere]
    if any(op.regions for op in shared):
        raise UnsupportedNest("schedule: with dot the number of a row's group is nothing but the index of its matrix")
    kernel.lower_body(block, [op for op in block.ops if op not in shared])
    group, begin, end = _group_of(s, found, axis, at)
    with s.checks.only_if(b.cmpi("slt", begin, end)):
        go_on(s, axis, begin, product(one.size for one in found.side), found.side, whole=True)
        s.axes[axis].mask = b.cmpi("slt", b.add(begin, s.lane(axis)), end)
        s.dims[found.picked], s.values[bound], s.copy_out = group, group, None  # a block has rows that are not stored
        kernel.lower_body(block, counting)


def _group_of(s: State, found: SortedRows, axis: int, at: SSAValue) -> Values:
    """The group of a block, and where its rows begin and end; three zeros for a block that no group has."""
    b, size, block = s.b, s.axes[axis].block, power_of_two(found.count.value or 1)
    lane, zero = s.lane(axis, block), b.int(0, s.index)
    begin = b.select(b.cmpi("eq", lane, zero), zero, _end(s, found, b.sub(lane, b.int(1, s.index))))
    rows, last_one = s.number(product(one.size for one in found.side)), s.number(found.count - 1)
    end = b.select(b.cmpi("slt", lane, last_one), _end(s, found, lane), rows)
    there, added = b.cmpi("sle", lane, last_one), pairwise(arith.AddiOp, NO_OVERFLOW_FLAGS)
    many = b.elementwise(arith.DivSIOp, (b.add(b.max(b.sub(end, begin), zero), b.int(size - 1, s.index)), b.int(size, s.index)))
    many = b.select(there, many, zero)
    (behind,) = scan_axis(s, [many], axis, added)
    first = b.sub(behind, many)
    own = b.both(b.cmpi("sle", first, at), b.cmpi("slt", at, behind))
    assert own is not None
    start = b.add(begin, b.mul(b.sub(at, first), b.int(size, s.index)))
    picked = [b.select(own, value, zero) for value in (lane, start, end)]
    for k in (axis, 0):
        picked = reduce_values(s, picked, k, added)
    return picked


def _end(s: State, found: SortedRows, group: SSAValue) -> SSAValue:
    """Where groups end, no less than 0 and no more than there are rows."""
    b, d = s.b, found.node.loops[0].dim
    s.dims[d] = b.min(b.max(group, b.int(0, s.index)), s.number(found.count - 1))
    access = s.info.access[found.ends]
    pointer = s.address(access.buffer, s.fix(access.offset), None)
    end = b.resize(b.place(LoadOp.make(pointer, None, None)).results[0], i64)
    del s.dims[d]
    rows = b.resize(s.number(product(one.size for one in found.side)), i64)
    return b.resize(b.min(b.max(end, b.int(0, i64)), rows), s.index)
