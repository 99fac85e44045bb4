"""How the loops inside of a tile run: as straight code, one iteration after the other, or along an axis of the tile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product as tuples
from typing import TYPE_CHECKING

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import Block, Region, SSAValue

from ....dialects import loop
from ....dialects.expr import ONE, ZERO, Dim, Expr, Sym, as_expr, exact_quotient
from ....dialects.expr.ranges import Range, prove_lt, simplify
from ....dialects.loop import KINDS
from ....dialects.support.names import name_indices
from ....dialects.tt.types import int32
from ....passes.analysis.dependences import address_in, memory_of
from ....passes.analysis.nest_access import Loop, NestAccess, Node
from ....passes.gpu.shared_rows import part_of
from ....passes.gpu.tiles.ordered import is_straight, takes_lanes
from ....passes.gpu.tiles.rules import (
    MAX_SECOND_REDUCTION_CHUNKS,
    has_effect,
    has_reductions_inside,
    padded_trips,
    segment_length,
)
from ....passes.gpu.tiles.tile import MAX_STRAIGHT_OPS, MAX_UNROLLED_TRIPS, Tile
from ..carried.term_bounds import bounded
from ..state import go_on

if TYPE_CHECKING:
    from ..exchange import Group
    from ..state import State

MAX_UNROLLED_ITERATIONS = 16
"""Iterations of a loop inside of a tile that become straight code."""


class Loops:
    """The loops of one nest, in the program that `s` is the state of. `length`: how long the runs of the tile are."""

    def __init__(self, info: NestAccess, tile: Tile, s: State):
        self.tile, self.s = tile, s
        self._lengths: dict[Node, int] = {}
        self.length = segment_length([n for n in info.root.children if has_effect(n) and n.loops]) if tile.segment else ONE
        self.block_start: SSAValue | None = None
        """Where the block begins that the last axis runs through now, in loops that run block after block."""
        self.group: Group | None = None
        self.terms: tuple[SSAValue, SSAValue] | None = None
        """The terms of a product that this program adds up, if these are not all: where they begin and end."""
        self.parts: dict[Node, tuple[int, int]] = {}
        """Where each program has a block of one of the loops inside: the first block of each loop, and how many it has."""
        self.part: Dim | None = None
        """The block that this program has."""

    def how(self, node: Node) -> str:
        """How the loops of a node run: along the last axis of the tile ("tile"), or the one before it ("second"), as straight code
        ("unroll"), or one iteration after the other ("loop")."""
        if self.tile.second_reduction_block and not self.s.along_second and has_reductions_inside(node):
            return "second"
        trips = node.trips.value
        sequential = isinstance(node.op, loop.ForOp) and node.op.sequential is not None
        sequential = sequential or (self.s.ordered and isinstance(node.op, loop.ScanOp))
        if self.s.inner or self.s.inner_axis is None or sequential:
            limit = MAX_UNROLLED_ITERATIONS if self.s.inner or sequential else MAX_UNROLLED_TRIPS
            few = self._is_few(node, limit) or (self.s.ordered and is_straight(node))
            return "unroll" if trips is not None and few else "loop"
        if any(self._is_long(c) for c in node.children):
            return "unroll" if trips is not None and self._is_few(node, MAX_UNROLLED_ITERATIONS) else "loop"
        # programs that share a row each have their part of it, however short it is
        return "unroll" if trips is not None and trips <= 4 and self.tile.group <= 1 and not self._takes_lanes(node) else "tile"

    def _takes_lanes(self, node: Node) -> bool:
        return self.s.ordered and takes_lanes(node)

    def _is_long(self, node: Node) -> bool:
        """Whether the loops around a node run one iteration after the other."""
        open_ended = node.trips.value is None
        return open_ended or self._trips(node) > MAX_UNROLLED_ITERATIONS or self._takes_lanes(node)

    def _trips(self, node: Node) -> int:
        return node.trips.value or 0

    def _is_few(self, node: Node, limit: int) -> bool:
        """Whether the iterations of a node, all in all, are straight code of a tolerable length."""
        trips = self._trips(node)
        return trips <= 1 or (trips <= limit and trips * self._length(node) <= MAX_STRAIGHT_OPS)

    def _length(self, node: Node) -> int:
        """The operations of one iteration of a node, with those of the loops in it that become straight code."""
        found = self._lengths.get(node)
        if found is None:
            inner = sum((max(1, self._trips(c)) if self._is_few(c, MAX_UNROLLED_TRIPS) else 1) * self._length(c) for c in node.children)
            found = self._lengths[node] = inner + sum(len(block.ops) for region in node.op.regions for block in region.blocks)
        return found

    def whole(self, node: Node) -> int | None:
        """How many iterations the loops of a node have at most, if all of them are on chip at once."""
        trips = padded_trips(node, self.s.info, self.tile.segment, self.length)
        part = trips if trips is None or self.tile.group == 1 else part_of(trips, self.tile.group, self.tile.segment)
        chunks = min(self.tile.chunks, MAX_SECOND_REDUCTION_CHUNKS) if self.s.along_second else self.tile.chunks
        return trips if part is not None and self.tile.count(part) <= chunks else None

    def places(self, flat: Expr, loops: Sequence[Loop]) -> dict[Expr, Expr]:
        """The same, as expressions: quotients by the length of a piece of a row are numbers."""
        found: dict[Expr, Expr] = {}
        for k, one in enumerate(reversed(loops)):
            if k == len(loops) - 1:
                found[one.dim] = simplify(flat, self.s.info.ranges)
                break
            found[one.dim] = simplify(flat % one.size, self.s.info.ranges)
            flat = simplify(flat // one.size, self.s.info.ranges)
        return found

    def iterations(self, node: Node):
        """Go through the loops of a node, each index a constant for a while (`s.fixed`)."""
        s = self.s
        outer = dict(s.fixed)
        for place in tuples(*(range(one.size.value or 0) for one in node.loops)):
            s.fixed = {**outer, **{one.dim: as_expr(k) for one, k in zip(node.loops, place, strict=True)}}
            yield place
        s.fixed = outer

    def unroll(self, node: Node, body: Callable[[], None]) -> None:
        for _ in self.iterations(node):
            body()

    def sequential(
        self,
        node: Node,
        start: list[SSAValue],
        body: Callable[[SSAValue, Sequence[SSAValue]], list[SSAValue]],
        trips: Expr | None = None,
    ) -> list[SSAValue]:
        """One iteration after the other, or `trips` of them; the state after the last."""
        return self.repeat(node, self.s.number(node.trips if trips is None else trips), 1, start, body)

    def _in_block(self, start: Expr, first: int, loops: Sequence[Loop]) -> dict[Expr, Expr]:
        """The indices of `loops` in the block that begins with iteration `start` + `first`."""
        run = self.tile.segment
        if not run or (self.length.value is not None and loops[-1].size.value != run):
            return self.places(start + self.s.lane_dim + first, loops)
        number = simplify((start + first - first % run) // run, self.s.info.ranges)
        if loops[-1].size is not self.length:
            return self.places(number * self.length + self.s.lane_dim + first % run, loops)
        return {**self.places(number, loops[:-1]), loops[-1].dim: self.s.lane_dim + first % run}

    def _left(self, total: Expr, start: Expr, first: int) -> SSAValue:
        """How many iterations there are from `start` + `first` on to the end of their run, whose length is a symbol."""
        s, run = self.s, self.tile.segment
        left = s.number(self.length - first % run)
        runs = exact_quotient(total, self.length)
        number = simplify((start + first - first % run) // run, s.info.ranges)
        if runs is None or prove_lt(number, runs, s.info.ranges):
            return left
        return s.b.select(s.b.cmpi("slt", s.number(number), s.number(runs)), left, s.b.int(0, s.index))

    def tiled(
        self, node: Node, start: list[SSAValue], body: Callable[[Sequence[SSAValue], SSAValue | None], list[SSAValue]]
    ) -> list[SSAValue]:
        """The loops of a node along the last axis of the tile, at once or block after block; `body` gets the state and
        the mask of the axis."""
        s, b = self.s, self.s.b
        axis = s.inner_axis
        assert axis is not None
        block = self.tile.reduction_block
        total = node.trips
        trips = self.whole(node)
        outside, s.inner = s.spread, True
        s.spread = [*outside, *node.loops]
        if self.part is not None:
            s.lane(axis)
            self._in_part(node, body)
            state = start
        elif trips is not None:
            state = start
            around = s.fixed
            s.loops_begun += 1
            s.order.in_place = _written_in_place(node)
            # of symbols alone: that a loop's own size is 1 or more holds inside of it
            symbols: dict[Expr, Range] = {e: r for e, r in s.info.ranges.items() if isinstance(e, Sym)}
            s.runs = None if prove_lt(0, total, symbols) else b.cmpi("slt", b.int(0, s.index), s.number(total))
            here, origin = (trips, ZERO) if self.group is None else (self.group.part(trips), self.group.start(trips))
            in_runs = total.value is None and self.tile.segment > 0
            left = s.number(total) if total.value is None and not in_runs else None
            if self.group is not None and not in_runs and (total.value is None or not self.group.is_even(trips)):
                left = self.group.count(trips, total)
            for s.piece, (first, size) in enumerate(self.tile.blocks(here)):
                if in_runs:
                    s.axes[axis].mask = b.cmpi("slt", s.lane(axis), self._left(total, origin, first))
                elif left is not None:
                    s.axes[axis].mask = b.cmpi("slt", s.lane(axis), b.sub(left, b.int(first, s.index)))
                else:
                    s.axes[axis].mask = None if size == block else b.cmpi("slt", s.lane(axis), b.int(size, s.index))
                s.fixed = {**around, **self._in_block(origin, first, node.loops)}
                if left is None and not in_runs:
                    assert isinstance(s.lane_dim, Dim)
                    s.blocks[axis] = b.int(0, s.index), as_expr(size), [Loop(s.lane_dim, as_expr(block), ())]
                state = body(state, s.axes[axis].mask)
            s.fixed, s.runs = around, None
            written, s.order.in_place = s.order.in_place, set()
            for buffer in written:
                s.order.written(buffer)
        else:
            limit = s.number(total)

            def step(at: SSAValue, now: Sequence[SSAValue], whole: bool = False) -> list[SSAValue]:
                self.block_start = at
                go_on(s, axis, at, total, node.loops, whole)
                return body(now, s.axes[axis].mask)

            s.lane(axis)
            state, begin = start, None
            ragged = total.value is None or total.value % block != 0
            kinds = node.op.kind_names if isinstance(node.op, loop.ReduceOp) else []
            costly = total.value is None or any(KINDS[kind][1] > 1 for kind in kinds)
            if start and ragged and costly and all(size == 1 for _, size in self.tile.axes):
                # what is reduced under a mask takes three times the instructions: only the last block has one
                begin = b.mul(b.elementwise(arith.DivSIOp, (limit, b.int(block, s.index))), b.int(block, s.index))
                state = self.repeat(node, begin, block, start, lambda at, now: step(at, now, True))
            state = self.repeat(node, limit, block, state, step, begin)
        s.inner, s.spread = False, outside
        s.axes[axis].mask = None
        s.blocks.pop(axis, None)
        return state

    def repeat(
        self,
        node: Node,
        end: SSAValue,
        step: int,
        start: list[SSAValue],
        body: Callable[[SSAValue, Sequence[SSAValue]], list[SSAValue]],
        begin: SSAValue | None = None,
        *,
        flatten: bool = False,
        part: bool = False,
    ) -> list[SSAValue]:
        """The loops of a node by `step` iterations at once, up to `end`; the state after the last. flatten: Triton makes one loop of it and
        the one inside. part: `begin` and `end` leave out what is not needed."""
        s, b = self.s, self.s.b
        accesses, order = list(node.all_accesses()), s.order
        earlier = (memory_of(a.buffer) in (order.loaded if a.is_store else order.stored) for a in accesses)
        if any(earlier) or any(a.is_store and order.overwrites(a) for a in accesses):
            order.barrier()  # once, not in every iteration
        first, stride = b.int(0, s.index) if begin is None else begin, b.int(step, s.index)
        stored = {a.buffer for a in accesses if a.is_store and a.op not in s.carried}
        for buffer in stored:
            order.written(buffer)
            memory = memory_of(buffer)
            if len({address_in(a.buffer, a.offset) for a in accesses if memory_of(a.buffer) is memory}) > 1:
                order.stored[memory] = {a for a in accesses if a.is_store and memory_of(a.buffer) is memory}  # by other iterations
                order.loaded[memory] = {None}
        first, end = (first, end) if part else bounded(s, node, first, end, step)
        block = Block(arg_types=[s.index, *(v.type for v in start)])
        name_indices(block.args[:1], len(s.b.blocks) - 1)
        b.open(block)
        state = body(block.args[0], block.args[1:])
        s.checks.place()
        b.place(scf.YieldOp.create(operands=state))
        b.close()
        for a in accesses:
            if a.is_store:
                order.stored.setdefault(memory_of(a.buffer), set()).add(a)
            else:
                order.loaded.setdefault(memory_of(a.buffer), set()).add(None)
        for buffer in stored:
            order.written(buffer)
        op = scf.ForOp.create(operands=[first, end, stride, *start], result_types=[v.type for v in start], regions=[Region(block)])
        if flatten:
            op.attributes["tt.flatten"] = UnitAttr()
        if self.tile.stages and (part or begin is None):
            op.attributes["tt.num_stages"] = int32(self.tile.stages)
        return list(b.place(op).results)

    def _in_part(self, node: Node, body: Callable[[Sequence[SSAValue], SSAValue | None], list[SSAValue]]) -> None:
        """The block of a loop, where the program has one of it."""
        s, b = self.s, self.s.b
        first, count = self.parts[node]
        axis, part, block = s.inner_axis, self.part, self.tile.reduction_block
        assert axis is not None and part is not None
        number = s.number(part)
        inside = b.both(b.cmpi("sge", number, b.int(first, s.index)), b.cmpi("slt", number, b.int(first + count, s.index)))
        assert inside is not None
        with s.checks.only_if(inside):
            start = (part - first) * block
            trips = node.trips
            if (trips.value or 0) % block:
                s.axes[axis].mask = b.cmpi("slt", b.add(s.number(start), s.lane(axis)), s.number(trips))
            around = s.fixed
            s.fixed = {**around, **self._in_block(start, 0, node.loops)}
            body([], s.axes[axis].mask)
            s.fixed = around
            s.axes[axis].mask = None


def _written_in_place(node: Node) -> set[SSAValue]:
    """The memories that the loops of a node store to, if all that they access of them is the element that they store, in one buffer."""
    places: dict[SSAValue, set[tuple[SSAValue, Expr]]] = {}
    for access in node.all_accesses():
        places.setdefault(memory_of(access.buffer), set()).add((access.buffer, access.offset))
    return {memory for a in node.all_accesses() if a.is_store and len(places[memory := memory_of(a.buffer)]) == 1}
