"""gpu-window-strips: sums over windows of an image that lie beside each other are computed together, so that they share what they read.

    loop.nest (%n, %h, %w = 56, %c) { %s = loop.reduce (%p = 3, %q = 3) sum { %x[%n, %h + %p, %w + %q, %c] * %k[%c, %p, %q] } }
->  loop.nest (%n, %h, %w = 14, %c) { %s:4 = loop.reduce (%p = 3) sum, sum, sum, sum { 6 loads of %x, 3 of %k, 12 products } }

A depthwise convolution is such a nest. Each element of the image is in several windows, and windows have the same coefficients. A strip
goes along a loop that is not the one along which the image is contiguous: there, threads lie side by side. Coefficients that lie apart
along that loop are copied side by side first. The counterpart elsewhere: unroll and jam."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from ...dialects import loop, mem
from ...dialects.expr import ONE, ZERO, IndexMap, const, dim, free_dims, linear_coeff, strides_contiguous
from ...dialects.expr.ranges import RangeEnv
from ...dialects.machine import has_fixed_order
from ..analysis.nest_access import Access, Loop, NestAccess, Node
from ..analysis.nest_key import nests_in_memory
from ..analysis.reduction_kinds import Cursor, combine
from ..analysis.schedule_attrs import GPU
from ..analysis.symbols import symbol_facts
from ..loop.transform.loop_rewrite import Place, Values, drop_index, index_op
from ..loop.transform.unroll_and_jam import Copies, unroll_and_jam
from ..manager.pass_manager import Pass
from .tiles.tile import MAX_STRAIGHT_OPS
from .tiles.value_tiles import only_sets
from .tiles.window_tiles import lane_of, overlap

STRIP_WINDOWS = (4, 5, 7, 3, 2)
"""Windows side by side that a thread has of each channel, the first that divides their number: the sums, and the elements of the image that
they share, are registers."""


@dataclass(frozen=True)
class GpuWindowStrips(Pass):
    """Sums up several windows at once."""

    name = "gpu-window-strips"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if has_fixed_order(op):
            return
        symbols, _ = symbol_facts(op)
        for nest in nests_in_memory(op, without=GPU):
            if (found := find_strip(nest, symbols)) is None:
                continue
            for access, axis in found.apart:
                lay_side_by_side(nest, access, axis)
            write_strip(nest, found, symbols)
            self.statistic("num-strips")
            self.remark(nest, f"strips of {found.length} windows of {found.places} places share what they read", kind="applied")


@dataclass(frozen=True)
class Strip:
    """`loop`: the loop of the nest along which windows are taken together, by number, `length` of them; `inner`: the loop of `sums` along
    the `places` of a window; `apart`: loads inside that are apart along the loop of the threads, and the dimension of their buffer that
    it goes along."""

    sums: loop.ReduceOp
    loop: int
    length: int
    inner: int
    places: int
    apart: tuple[tuple[Access, int], ...]


def find_strip(nest: loop.NestOp, symbols: RangeEnv) -> Strip | None:
    """The strip of a nest whose one loop inside sums up products over windows of what it reads; None for another nest."""
    loops = [op for op in nest.block.ops if op.regions]
    if len(loops) != 1 or not isinstance(sums := loops[0], loop.ReduceOp) or list(sums.kind_names) != ["sum"]:
        return None
    every = [*nest.block.ops, *sums.block.ops]
    if any(isinstance(op, loop.RandomOp | loop.BoundOp) or (op.regions and op is not sums) for op in every):
        return None
    info = NestAccess(nest, symbols, normalise=False)
    if info.opaque or not only_sets(info):
        return None
    if any(a.is_store for a in info.nodes[sums].all_accesses()):
        return None  # each term does something beside what is added up
    found = (_strip(info, info.nodes[sums], sums, image) for image in info.nodes[sums].accesses)
    return next((strip for strip in found if strip is not None and strip.length * len(every) <= MAX_STRAIGHT_OPS), None)


def _strip(info: NestAccess, inside: Node, sums: loop.ReduceOp, image: Access) -> Strip | None:
    """The strip of windows of `image`, which others are multiplied by that are the same for each window."""
    others = [a for a in inside.accesses if a is not image]
    lane = lane_of(image, info)
    if lane is None or not others:
        return None
    apart = [(a, _axis_of(a, info, lane)) for a in others if linear_coeff(a.offset, lane.dim) not in (ZERO, ONE)]
    if any(axis is None or not free_dims(a.offset) <= {i.dim for i in (lane, *inside.loops)} for a, axis in apart):
        return None
    for k, one in reversed(list(enumerate(info.root.loops))):
        length = next((n for n in STRIP_WINDOWS if one.size.value and one.size.value % n == 0), 0)
        if one is lane or not length or any(one.dim in free_dims(a.offset) for a in others):
            continue
        for inner, along in enumerate(inside.loops):
            if (places := overlap(image, one, along)) > 1:
                return Strip(sums, k, length, inner, places, tuple((a, axis) for a, axis in apart if axis is not None))
    return None


def _axis_of(access: Access, info: NestAccess, lane: Loop) -> int | None:
    """The dimension of what an access reads whose index is that of the lane."""
    assert isinstance(access.op, loop.LoadOp)
    index = info.root.op.indices[info.root.loops.index(lane)]  # pyright: ignore[reportAttributeAccessIssue]
    operands = list(access.op.index_operands)
    if index not in operands:
        return None
    place = dim(operands.index(index))
    return next((k for k, e in enumerate(access.op.index_map.results) if e is place), None)


# ---- the rewrite


def lay_side_by_side(nest: loop.NestOp, access: Access, axis: int) -> None:
    """A copy of what an access reads, contiguous along a dimension of it, which the nest reads instead."""
    op, source = access.op, access.buffer
    assert isinstance(op, loop.LoadOp) and isinstance(source.type, mem.BufferType) and nest.parent is not None
    dims = source.type.dims
    order = [k for k in range(len(dims)) if k != axis] + [axis]
    steps = dict(zip(order, strides_contiguous([dims[k] for k in order]), strict=True))
    strides = [steps[k] for k in range(len(dims))]
    made = mem.AllocOp.arena(dims, source.type.element_type, source.type.device.data, strides=strides, location=op.location)
    label = None if nest.label is None else f"{nest.label.data}_side_by_side"
    copy = loop.NestOp.build_nest(dims, [made.result], op.location, label)
    load = loop.LoadOp.new(source, IndexMap.identity(len(dims)), copy.indices, location=op.location)
    copy.block.add_op(load)
    copy.store(load.results)
    made.result.name_hint = f"{source.name_hint or 'coefficients'}_side_by_side"
    nest.parent.insert_ops_before([made, copy], nest)
    op.operands = [made.result, *op.operands[1:]]


def write_strip(nest: loop.NestOp, strip: Strip, symbols: RangeEnv) -> None:
    """Give a loop of a nest as many iterations as there are strips, each of which does what those of its windows did."""

    def sums(at: Cursor, windows: Sequence[Values], places: Mapping[SSAValue, Place]) -> None:
        _write_sums(at, strip, windows, places, symbols)

    unroll_and_jam(nest, strip.loop, strip.length, symbols, {strip.sums: sums})


def _write_sums(
    at: Cursor, strip: Strip, windows: Sequence[Values], places: Mapping[SSAValue, Place], symbols: RangeEnv
) -> None:
    """The sums of all windows in one loop, the places along the strip as straight code."""
    sums = strip.sums
    sizes = [e for k, e in enumerate(sums.loop_sizes) if k != strip.inner]
    new = loop.ReduceOp.build_reduce(sizes, ["sum"] * strip.length, [sums.result_types[0]] * strip.length, sums.location)
    inside = Copies(Cursor(new.block), symbols)
    outer = [v for k, v in enumerate(sums.indices) if k != strip.inner]
    terms: list[list[SSAValue]] = [[] for _ in windows]
    numbers: list[SSAValue] = []
    for place in range(strip.places):
        number = inside.at.place(index_op(const(place), [])).results[0]
        numbers.append(number)
        known = {**places, number: (const(place), [])}
        for values, found in zip(windows, terms, strict=True):
            mine = {**values, sums.indices[strip.inner]: number, **dict(zip(outer, new.indices, strict=True))}
            for op in sums.block.ops:
                if isinstance(op, loop.YieldOp):
                    term = [mine.get(v, v) for v in op.operands]
                    found[:] = combine(inside.at, "sum", found, term) if found else term
                else:
                    inside.add(op, mine, known)
    inside.at.place(loop.YieldOp.create(operands=[term for found in terms for term in found]))
    for number in numbers:
        drop_index(number)
    at.place(new)
    for values, result in zip(windows, new.results, strict=True):
        values[sums.results[0]] = result
        result.name_hint = sums.results[0].name_hint
