"""Reductions inside of a nest, by the way that their loops run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, f32, i64
from xdsl.ir import Attribute, SSAValue

from ....dialects import loop
from ....dialects.expr import ZERO, Expr
from ....dialects.tt.arith import SIToFPOp
from ....dialects.tt.types import element_of
from ....passes.analysis.nest_access import Loop, Node
from ....passes.gpu.nest_types import scalar_type
from ....passes.gpu.tiles.product_nests import BlockReduction, block_reduction
from ....passes.gpu.tiles.summed_products import summed_product
from ...nest.builder import NO_FLAGS
from ..carried.weighed_products import lower_weighed
from ..products import hidden_zeros, lower_product
from ..reductions import Accumulator, ArgAccumulator, Welford, accumulator, joined_across

if TYPE_CHECKING:
    from ..kernel import NestLowering
    from ..state import State


class Reductions:
    """The reductions of one nest."""

    def __init__(self, kernel: NestLowering):
        self.kernel, self.tile, self.s = kernel, kernel.tile, kernel.s

    def lower(self, op: loop.ReduceOp) -> None:
        """loop.reduce."""
        s = self.s
        node = s.info.nodes[op]
        reduced = block_reduction(s.info) if self.tile.dot else None
        if reduced is not None and reduced.node is node:
            self._reduce_block(op, reduced)
            return
        summed = self.tile.dot and bool(node.children) and summed_product(s.info) is not None
        if self.tile.dot and not summed:
            rule = lower_weighed if node.children else lower_product
            self._define(op, rule(self.kernel, op, node))
            return
        parts = accumulators(self.s, op)
        how = "loop" if summed else self.kernel.how(node)
        if how == "unroll" and self.s.ordered and "lanes" in op.attributes:
            self._reduce_terms(op, node, parts)
            return
        if how == "tile" and self.kernel.whole(node) is not None:
            self._reduce_whole(op, node, parts)
            return
        shape = s.full if how == "tile" or summed else s.active
        start = [v for acc, _ in parts for v in acc.start(s, acc.lanes(s, shape) if how == "tile" else shape)]

        def join(state: Sequence[SSAValue], mask: SSAValue | None) -> list[SSAValue]:
            self.kernel.lower_body(op.block)
            yielded = self.kernel.yielded(op.block)
            found: list[SSAValue] = []
            at = 0
            for acc, place in parts:
                old = list(state[at : at + len(acc.types)])
                values = [s.b.to_shape(v, shape) for v in yielded[place]]
                if how == "tile":
                    found += acc.advance(s, old, values, mask, lambda t=acc.types[0]: self._blocks_so_far(t))
                else:
                    found += acc.follow(s, old, acc.single(s, values))
                at += len(acc.types)
            return found

        if how == "tile" and s.ordered and any(isinstance(acc, Welford) for acc, _ in parts):
            self._define(op, [v for acc, place in parts for v in self._streamed(op, node, acc, place)])
            return
        if how == "unroll":
            state = start
            for _ in self.kernel.iterations(node):
                state = join(state, None)
        elif how == "loop":

            def step(at: SSAValue, now: Sequence[SSAValue]) -> list[SSAValue]:
                self.s.decode(at, node.loops)
                return join(now, None)

            state = self.kernel.sequential(node, start, step)
        else:
            state = self.kernel.tiled(node, start, join)
            state = joined_across(s, parts, state)
        self._define(op, state)

    def _reduce_terms(self, op: loop.ReduceOp, node: Node, parts: list[tuple[Accumulator, slice]]) -> None:
        """Straight code whose terms are joined as those in lanes."""
        s = self.s

        def terms() -> Iterator[list[SSAValue]]:
            for _ in self.kernel.iterations(node):
                self.kernel.lower_body(op.block)
                yield [s.b.to_shape(v, s.active) for v in self.kernel.yielded(op.block)]

        rows = list(terms())
        count = s.number(node.trips)
        found = [v for acc, place in parts for v in acc.whole(s, lambda at=place: [(row[at], None) for row in rows], count, None)]
        self._define(op, found)

    def _streamed(self, op: loop.ReduceOp, node: Node, acc: Accumulator, place: slice) -> list[SSAValue]:
        """One accumulator over rows that are not on chip as a whole, with the bits that it has over those that are."""
        s = self.s

        def over(one: Accumulator, of: Callable[[list[SSAValue]], list[SSAValue]]) -> list[SSAValue]:
            def join(state: Sequence[SSAValue], mask: SSAValue | None) -> list[SSAValue]:
                self.kernel.lower_body(op.block)
                values = [s.b.to_shape(v, s.full) for v in self.kernel.yielded(op.block)[place]]
                return one.advance(s, list(state), of(values), mask, lambda: self._blocks_so_far(one.types[0]))

            state = self.kernel.tiled(node, one.start(s, one.lanes(s, s.full)), join)
            return joined_across(s, [(one, place)], state)

        if not isinstance(acc, Welford):
            return over(acc, lambda values: values)
        count = s.number(node.trips)
        add = Accumulator("sum", acc.types[:1])
        return acc.by_sums(s, lambda of: over(add, lambda values: [of(values[0])])[0], count)

    def _reduce_block(self, op: loop.ReduceOp, reduced: BlockReduction) -> None:
        """What is computed of a block of products, along one of the axes that they lie along: all of it is on chip."""
        s, (block,) = self.s, reduced.node.loops
        axis = next(k for k, (loops, _) in enumerate(self.tile.axes) if loops[-1:] == [block])
        self.kernel.lower_body(op.block)
        yielded, found = [s.b.to_shape(v, s.full) for v in self.kernel.yielded(op.block)], list[SSAValue]()
        for acc, place in accumulators(s, op):
            values = [self._apart(v) for v in yielded[place]] if acc.kind in ("max", "min") else yielded[place]
            found += acc.whole(s, lambda v=values: [(v, None)], s.number(block.size), axis)
        self._define(op, found)

    def _apart(self, value: SSAValue) -> SSAValue:
        """Numbers of f32 less a zero that ptxas does not know, which are the same: extremes of what is a sum but for its rounding make it
        have products wait for each other (its message C7515)."""
        b = self.s.b
        if not self.s.gpu.takes_ptx or element_of(value.type) != f32:
            return value
        return b.elementwise(arith.SubfOp, (value, hidden_zeros(b, f32, None)), NO_FLAGS)

    def _blocks_so_far(self, element: Attribute) -> SSAValue:
        """How many blocks of the running loop along the last axis there are so far, this one included, as a float."""
        b = self.s.b
        assert self.kernel.block_start is not None
        block = b.elementwise(arith.DivSIOp, (self.kernel.block_start, b.int(self.tile.reduction_block, self.s.index)))
        return b.cast(SIToFPOp, b.add(block, b.int(1, self.s.index)), element)

    def _reduce_whole(self, op: loop.ReduceOp, node: Node, parts: list[tuple[Accumulator, slice]]) -> None:
        """All values of the reduced loops at hand, in one piece or several."""
        s = self.s
        assert s.inner_axis is not None
        total = node.trips
        chunks: list[tuple[list[SSAValue], SSAValue | None]] = []
        seen: list[slice] = []
        again = s.keeps_halves and not any(a.is_store for a in node.all_accesses())

        def body(state: Sequence[SSAValue], mask: SSAValue | None) -> list[SSAValue]:
            self.kernel.lower_body(op.block)
            chunks.append(([s.b.to_shape(v, s.full) for v in self.kernel.yielded(op.block)], mask))
            return []

        def through(place: slice) -> list[tuple[list[SSAValue], SSAValue | None]]:
            """The values that one accumulator takes, each time it goes through them: computed again where less is kept then."""
            if seen and again:
                chunks.clear()
                self.kernel.tiled(node, [], body)
            seen.append(place)
            return [(values[place], mask) for values, mask in chunks]

        self.kernel.tiled(node, [], body)
        group, trips = self.kernel.group, self.kernel.whole(node) or 0

        def counted(member: SSAValue | None = None) -> SSAValue:
            return s.number(total) if group is None else group.elements(trips, total, self.tile.segment, self.kernel.length, member)

        count = counted()
        found: list[SSAValue] = []
        if all(acc.is_plain for acc, _ in parts):
            for acc, place in parts:
                found += acc.over_chunks(s, [(values[place], mask) for values, mask in chunks])
            found = joined_across(s, parts, found)
        else:
            for acc, place in parts:
                found += acc.whole(s, functools.partial(through, place), count, s.inner_axis)
        if self.kernel.group is not None:
            found = self.kernel.group.share([acc for acc, _ in parts], found, counted)
        self._define(op, found)

    def _define(self, op: loop.ReduceOp, values: Sequence[SSAValue]) -> None:
        """The results of a reduction; indices that were kept in 32 bits widened."""
        for result, value in zip(op.results, values, strict=True):
            wanted = scalar_type(result.type)
            self.s.values[result] = self.s.b.resize(value, wanted) if isinstance(wanted, IntegerType) else value


def accumulators(s: State, op: loop.ReduceOp) -> list[tuple[Accumulator, slice]]:
    """The accumulators of a reduction, and which of the yielded values each takes."""
    found: list[tuple[Accumulator, slice]] = []
    taken, info = 0, s.info
    for kind, values, results in op.each():
        own = [scalar_type(r.type) for r in results]
        if kind in ("argmax", "argmin") and own[1] == i64 and info.exprs.get(values[1]) not in (None, *info.opaque):
            own[1] = s.index  # a number that was loaded may be larger than this nest's indices
        part = accumulator(kind, own)
        if isinstance(part, ArgAccumulator):
            part.rising = info.exprs.get(values[1]) is _flat(info.nodes[op].loops)
            part.index_only = not results[0].uses
        found.append((part, slice(taken, taken + len(values))))
        taken += len(values)
    return found


def _flat(loops: Sequence[Loop]) -> Expr:
    """The number of an iteration among all of them, the last loop the fastest."""
    at: Expr = ZERO
    for one in loops:
        at = at * one.size + one.dim
    return at
