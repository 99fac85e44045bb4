"""A `loop.scan` of kind sort: whole rows along the last axis of the tile, put in order by a bitonic network (Batcher, 1968).

Each step compares elements whose places differ in one bit. A row is reshaped so that this bit is an axis of its own; the exclusive or of
both elements, exclusive or the own one, is the other one. Triton makes a shuffle of it, or nothing where a thread has both.
The network needs log2(n) * (log2(n) + 1) / 2 steps; the row is padded with the largest integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType
from xdsl.ir import SSAValue

from ....dialects import loop
from ....dialects.tt.shape import ReshapeOp
from ....dialects.tt.types import element_of, shape_of
from ....passes.analysis.nest_access import Node
from ....passes.gpu.nest_types import UnsupportedNest
from ..joined_axes import pairwise, reduce_axis
from ..state import State

if TYPE_CHECKING:
    from ..kernel import NestLowering


def lower_sort(kernel: NestLowering, op: loop.ScanOp, node: Node) -> None:
    """loop.scan of kind sort.  UnsupportedNest where the tile has only a part of a row."""
    s = kernel.s
    if not node.loops:
        kernel.lower_body(op.block)
        s.dims.update({s.info.expr(v): s.b.int(0, s.index) for v in (op.block.args[0], op.do_block.args[0])})
        _do(kernel, op, kernel.yielded(op.block)[0])
        return
    how = kernel.how(node)
    if how == "unroll":
        _unrolled(kernel, op, node)
        return
    whole = kernel.whole(node)
    if how != "tile" or whole is None or whole > kernel.tile.reduction_block or kernel.group is not None:
        raise UnsupportedNest("a row is sorted on chip as a whole: its tile has reduction_block as long as the row, and no group")

    def body(_: Sequence[SSAValue], mask: SSAValue | None) -> list[SSAValue]:
        kernel.lower_body(op.block)
        value = s.b.to_shape(kernel.yielded(op.block)[0], s.full)
        if mask is not None:
            value = s.b.select(mask, value, _last(s, value))
        assert s.inner_axis is not None
        _do(kernel, op, in_order(s, value, s.inner_axis))
        return []

    kernel.tiled(node, [], body)


def _do(kernel: NestLowering, op: loop.ScanOp, value: SSAValue) -> None:
    kernel.s.values[op.do_block.args[1]] = value
    kernel.lower_body(op.do_block)


def _last(s: State, value: SSAValue) -> SSAValue:
    """The integer that is behind all others."""
    element = element_of(value.type)
    assert isinstance(element, IntegerType)
    return s.b.constant((1 << element.width.data - 1) - 1, element)


def _unrolled(kernel: NestLowering, op: loop.ScanOp, node: Node) -> None:
    """The same of a few elements, each a value of its own: the network sorts by exchanging values."""
    s = kernel.s
    row: list[SSAValue] = []
    for _ in kernel.iterations(node):
        kernel.lower_body(op.block)
        row.append(kernel.yielded(op.block)[0])
    for first, second in exchanges(len(row)):
        row[first], row[second] = s.b.min(row[first], row[second]), s.b.max(row[first], row[second])
    for value, _ in zip(row, kernel.iterations(node), strict=True):
        _do(kernel, op, value)


def exchanges(count: int) -> list[tuple[int, int]]:
    """The places that Batcher's odd-even merge sort compares, one pair after the other; the smaller element goes to the first."""
    found: list[tuple[int, int]] = []
    half = 1
    while half < count:
        step = half
        while step:
            for first in range(step % half, count - step, 2 * step):
                for k in range(first, min(first + step, count - step)):
                    if k // (2 * half) == (k + step) // (2 * half):
                        found.append((k, k + step))
            step //= 2
        half *= 2
    return found


def in_order(s: State, value: SSAValue, axis: int) -> SSAValue:
    """A tensor of integers in order along an axis, whose size is a power of two."""
    shape = shape_of(value.type)
    assert shape is not None
    size, half = shape[axis], 1
    while half < size:
        step = half
        while step:
            value = _exchange(s, value, axis, step, 2 * half)
            step //= 2
        half *= 2
    return value


def _exchange(s: State, value: SSAValue, axis: int, step: int, run: int) -> SSAValue:
    """Elements `step` apart in order: rising in every second run of `run` elements from the first on, falling in the others."""
    b, shape = s.b, shape_of(value.type)
    assert shape is not None
    lane, size = s.lane(axis), shape[axis]
    falls = b.cmpi("ne", b.elementwise(arith.AndIOp, (lane, b.int(step, s.index))), b.int(0, s.index))
    if run < size:
        turned = b.cmpi("ne", b.elementwise(arith.AndIOp, (lane, b.int(run, s.index))), b.int(0, s.index))
        falls = b.elementwise(arith.XOrIOp, (falls, turned))
    other = _partner(s, value, axis, step)
    return b.select(falls, b.max(value, other), b.min(value, other))


def _partner(s: State, value: SSAValue, axis: int, step: int) -> SSAValue:
    """For each element the one whose place along the axis differs in the bit `step`."""
    shape = shape_of(value.type)
    assert shape is not None
    pairs = (*shape[:axis], shape[axis] // (2 * step), 2, step, *shape[axis + 1 :])
    apart = s.b.place(ReshapeOp.make(value, pairs)).results[0]
    (both,) = reduce_axis(s, [apart], axis + 1, pairwise(arith.XOrIOp), exact=True)
    other = s.b.elementwise(arith.XOrIOp, (both, apart))
    return s.b.place(ReshapeOp.make(other, shape)).results[0]
