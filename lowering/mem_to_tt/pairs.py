"""Neighbours in memory that a body reads or writes one by one: `a[2 * i]` and `a[2 * i + 1]`, as real and imaginary parts, interleaved
halves of a rotary embedding, and `stack([x, y], -1)` are.

    loop.store %x, %out[2 * %i]                     %xy = tt.join %x, %y : tensor<512xf32> -> tensor<512x2xf32>
    loop.store %y, %out[2 * %i + 1]        ->       tt.store %out + 0 .. 1023, (tt.reshape %xy : ... -> tensor<1024xf32>)

Apart, each instruction of a warp would write every other element, which memory takes as long for as for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import DenseArrayBase, i32
from xdsl.ir import Block, Operation, SSAValue

from ...dialects import loop
from ...dialects.expr.ranges import Range, prove_lt
from ...dialects.nd.types import c128
from ...dialects.tt.memory import LoadOp, StoreOp
from ...dialects.tt.shape import JoinOp, ReshapeOp, SplitOp, TransOp
from ...dialects.tt.types import element_of, shape_of, tensor
from ...passes.analysis.accesses.neighbours import Adjacency
from ...passes.analysis.nest_access import Access, Loop
from ...passes.gpu.tiles.rules import I32_MAX
from .builder import joined
from .state import State


@dataclass(frozen=True)
class AccessPair:
    """Two accesses of one body: `lower` is to the element in front of that of `upper`. `axis` of the tile goes along the loop, the last of
    its loops, whose iterations are two elements apart."""

    lower: Access
    upper: Access
    axis: int
    last: Loop


def find_pairs(s: State, block: Block) -> dict[Operation, AccessPair]:
    """The pairs of a body that the axes of the tile run along, by each of their accesses."""
    found: dict[Operation, AccessPair] = {}
    if s.owner is not None:
        return found
    for axis, (_, total, loops) in s.blocks.items():
        if (s.index == i32 and not prove_lt(total * 2, I32_MAX, s.info.ranges)) or s.inner != (axis == s.inner_axis):
            continue
        kinds = (loop.LoadOp, loop.StoreOp)
        for group in Adjacency(s.info, loops[-1].dim, kinds=kinds, most=2, fix=s.fix).groups(block).values():
            lower, upper = group.members
            if lower.dtype != c128 and found.keys().isdisjoint((lower.op, upper.op)):
                found[lower.op] = found[upper.op] = AccessPair(lower, upper, axis, loops[-1])
    return found


def load_pair(s: State, pair: AccessPair) -> tuple[SSAValue, SSAValue]:
    """Both elements of a pair, as they lie in memory."""
    b, axis = s.b, pair.axis
    pointer, mask = _both(s, pair)
    s.before_load(pair.lower, pointer)
    s.before_load(pair.upper, pointer)
    value = b.place(LoadOp.make(pointer, mask)).results[0]
    shape = shape_of(value.type)
    assert shape is not None
    apart = tuple(n for k, size in enumerate(shape) for n in ((size // 2, 2) if k == axis else (size,)))
    value = b.pure(ReshapeOp, (value,), tensor(apart, element_of(value.type)))
    if axis + 2 < len(apart):
        order = [k for k in range(len(apart)) if k != axis + 1] + [axis + 1]
        value = _reordered(s, value, order)
    shape = shape_of(value.type)
    assert shape is not None
    half = tensor(shape[:-1], element_of(value.type))
    lower, upper = b.place(SplitOp.create(operands=(value,), result_types=(half, half))).results
    return lower, upper


def store_pair(s: State, pair: AccessPair, lower: SSAValue, upper: SSAValue) -> None:
    """Stores both elements of a pair, given as they are to lie in memory."""
    b, axis = s.b, pair.axis
    pointer, _ = _both(s, pair)
    places = shape_of(pointer.type)
    assert places is not None
    at = joined(shape_of(lower.type), shape_of(upper.type), tuple(n // 2 if k == axis else n for k, n in enumerate(places)))
    assert at is not None
    pointer, mask = _both(s, pair, tuple(2 * n if k == axis else n for k, n in enumerate(at)))
    value = b.pure(JoinOp, (b.to_shape(lower, at), b.to_shape(upper, at)), tensor((*at, 2), element_of(lower.type)))
    if axis + 1 < len(at):
        order = [*range(axis + 1), len(at), *range(axis + 1, len(at))]
        value = _reordered(s, value, order)
    together = shape_of(pointer.type)
    assert together is not None
    value = b.place(ReshapeOp.make(value, together)).results[0]
    s.before_store(pair.lower, pointer)
    s.before_store(pair.upper, pointer)
    s.order.written(pair.lower.buffer)
    b.place(StoreOp.make(pointer, value, mask))


def _reordered(s: State, value: SSAValue, order: Sequence[int]) -> SSAValue:
    shape = shape_of(value.type)
    assert shape is not None
    wanted = tensor(tuple(shape[k] for k in order), element_of(value.type))
    return s.b.pure(TransOp, (value,), wanted, {"order": DenseArrayBase.from_list(i32, list(order))})


def _both(s: State, pair: AccessPair, shape: tuple[int, ...] | None = None) -> tuple[SSAValue, SSAValue | None]:
    """Pointers to the elements of a pair side by side, along an axis that is twice as long, and where they are inside of the loops."""
    b, axis = s.b, pair.axis
    begin, total, loops = s.blocks[axis]
    first, lane = b.mul(begin, b.int(2, s.index)), s.lane(axis, 2 * s.axes[axis].block)
    flat = b.add(first, lane)
    element = s.info.new_dim(Range.of_size(pair.last.size * 2))
    dims, halves, numbers = dict(s.dims), dict(s.halves), dict(s.flat)
    s.flat.pop(axis, None)
    if len(loops) == 1:
        s.dims[element], s.halves[element] = flat, (first, lane)
    else:
        size = s.number(pair.last.size * 2)
        s.dims[element] = s.b.remainder(flat, size)
        s.decode(s.b.quotient(flat, size), loops[:-1])
    pointer = s.address(pair.lower.buffer, s.fix(pair.lower.offset) - pair.last.dim * 2 + element, shape)
    s.dims, s.halves, s.flat = dims, halves, numbers
    mask = None
    for k, size in enumerate(shape_of(pointer.type) or ()):
        if size > 1:
            inside = s.axes[k].mask
            if k == axis and inside is not None:
                inside = b.cmpi("slt", flat, s.number(total * 2))
            mask = b.both(mask, inside)
    return pointer, None if mask is None else b.to_shape(mask, shape_of(pointer.type))
