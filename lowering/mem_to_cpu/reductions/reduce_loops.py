"""Reductions: their loops, the accumulators that these carry, long ones in parts, very long ones on threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import gcd

from xdsl.ir import Attribute, SSAValue

from ....dialects import loop
from ....dialects.expr import Expr, as_expr, product
from ....dialects.nd.types import is_float
from ....passes.analysis.nest_access import Loop, Node
from ..loops import NEVER_UNROLL, Span, run_segments, segments, sequential, straight, whole
from ..shared_loops import MAX_CASCADE_VALUES, FlatRows, Share, SharedLoop, columns_of, row_elements
from ..state import State, scalar_type
from . import reductions as red
from .term_bounds import needed_part
from .two_passes import TwoPassReduction, chunk_size

MIN_SHARED_REDUCTION_TRIPS = 128
"""Iterations of a reduction without loops inside from which on threads share it."""

ReductionPart = tuple[red.Accumulators, Callable[[Span], list[SSAValue]]]
"""Accumulators of a reduction, and what computes their results over a part of the first loop."""

YieldedValues = Callable[[loop.ReduceOp, red.Accumulators], list[list[SSAValue]]]
"""What one step of the body gives each accumulator."""


class ReduceLowering:
    """Lowers `loop.reduce`; `block` lowers the ops of a body, `choice` tells which loop of an op runs along the
    lanes. `share`, where there is one, runs a function on threads: reductions outside of all loops are shared then, unless they are
    `ordered` (passes/loop/fixed_order.py)."""

    def __init__(
        self,
        s: State,
        block: Callable[[loop.LoopLike], None],
        choice: Callable[[Node], tuple[Loop, int] | None],
        share: Share | None,
        ordered: bool = False,
    ):
        self.s = s
        self.block = block
        self.choice = choice
        self.share = share
        self.ordered = ordered
        self.flat: dict[loop.LoopLike, FlatRows] = {}
        """The loops of ops that run as one."""

    def vector_loop(self, node: Node) -> tuple[Loop, int] | None:
        """The loop of `node` that runs along the lanes, and its width."""
        return self.choice(node) if self.s.lane is None else None

    def lower_reduce(self, op: loop.ReduceOp) -> None:
        """loop.reduce."""
        s = self.s
        node = s.info.nodes[op]
        chosen = self.vector_loop(node)
        order = [one for one in node.loops if chosen is None or one is not chosen[0]]
        if chosen is not None:
            order.append(chosen[0])
        shared = self._shared(node, order)
        if shared is not None and chosen is None and node.children:
            order = [self._flat(op, order)]
        if any(k in ("welford", "softmax") for k in op.kind_names):
            part = TwoPassReduction(self).part(op, order, chosen)
        else:
            part = self._in_parts(op, order, chosen)
        results = part[1](self._first(order)) if shared is None else shared.run(order[0], *part)
        for result, value in zip(op.outputs, results, strict=True):
            dtype = scalar_type(result.type)
            s.values[result] = value if is_float(dtype) else red.convert(s, value, dtype)

    def lower_rows(self, op: loop.ForOp) -> bool:
        """loop.for with loops inside: in parts on threads, with columns of their own. False where that cannot be done."""
        s = self.s
        node = s.info.nodes[op]
        if not node.children or not node.loops or op.sequential is not None or self.vector_loop(node) is not None:
            return False
        shared = self._shared(node, node.loops)
        if shared is None:
            return False
        one = self._flat(op, node.loops)

        def step(state: list[SSAValue]) -> list[SSAValue]:
            self._body(op)
            return []

        shared.run(one, red.Accumulators(()), lambda span: sequential(s, [(one, span)], [], step, NEVER_UNROLL))
        return True

    def _body(self, op: loop.LoopLike) -> None:
        rows = self.flat.get(op)
        if rows is not None:
            rows.enter()
        self.block(op)

    def _flat(self, op: loop.LoopLike, loops: Sequence[Loop]) -> Loop:
        """The loops of an op as one."""
        rows = self.flat[op] = FlatRows(self.s, loops)
        return rows.one

    @staticmethod
    def _first(order: Sequence[Loop]) -> Span:
        """All of the first loop."""
        return Span.whole(order[0].size) if order else Span(None, None, 1)

    def _in_parts(self, op: loop.ReduceOp, order: list[Loop], chosen: tuple[Loop, int] | None) -> ReductionPart:
        """One pass, or for long sums of floats a pass over each part: an accumulator takes at most MAX_CASCADE_VALUES values one
        after the other."""
        slots = self.accumulators(op, {})
        sums = any(slot.kind == "sum" and is_float(slot.types[0]) for slot in slots.each)
        width = chosen[1] if chosen is not None else 1
        inner = product([one.size for one in order[1:]]).value
        limit = MAX_CASCADE_VALUES * width
        size = as_expr(limit if len(order) == 1 else max(1, limit // inner) if inner else 1)
        if self.ordered:  # beside welford or not
            size = chunk_size(order, chosen)
            limit = (size.value or 1) * (inner or 1)
        node = self.s.info.nodes[op]

        def run(span: Span) -> list[SSAValue]:
            if span.count is None or not straight(-(-span.count // width), node.num_ops):
                span = needed_part(self.s, node, span)
            adds = None if span.count is None or inner is None else span.count * inner
            if not sums or (adds is not None and adds <= limit):
                return self.over(op, slots, order, chosen, span, self.yielded_values)
            return self.merge_chunks(order, slots, size, span, lambda part: self.over(op, slots, order, chosen, part, self.yielded_values))

        return slots, run

    # ---- threads

    def _shared(self, node: Node, order: Sequence[Loop]) -> SharedLoop | None:
        """How a loop is run in parts, if it is: one outside of all others that is long, or whose iterations combine values in columns."""
        if self.ordered or len(self.s.b.levels) != 1 or not order:
            return None
        columns = columns_of(node)
        if columns is None:
            return None
        size = order[0].size.value
        if not columns and (self.share is None or (size is not None and size < (2 if node.children else MIN_SHARED_REDUCTION_TRIPS))):
            return None
        return SharedLoop(self.s, self.share, columns, row_elements(node))

    # ---- passes

    def over(
        self,
        op: loop.ReduceOp,
        slots: red.Accumulators,
        order: Sequence[Loop],
        chosen: tuple[Loop, int] | None,
        span: Span,
        values: YieldedValues,
    ) -> list[SSAValue]:
        """One pass over the part `span` of the first loop and all of the others."""
        pairs = whole(order)
        if pairs:
            pairs[0] = (order[0], span)
        if chosen is None:
            return self.run_pass(op, slots, pairs, None, values)
        return self.run_pass(op, slots, pairs[:-1], (chosen[0], chosen[1], pairs[-1][1]), values)

    def merge_chunks(
        self,
        order: Sequence[Loop],
        slots: red.Accumulators,
        size: Expr,
        span: Span,
        part: Callable[[Span], list[SSAValue]],
    ) -> list[SSAValue]:
        """Merge what `part` gives for every `size` iterations of `span`, a part of the first loop."""
        s, b = self.s, self.s.b
        first = b.int(0) if span.first is None else span.first
        last = s.scalar(order[0].size) if span.last is None else span.last
        step = s.scalar(size)
        index, *carried = b.begin_for(first, last, step, slots.start(s, s.width))
        known = span.step if span.count is None else span.count
        each = size.value
        if each is not None and known % each == 0:
            end, count = b.add(index, step), each
        else:
            end, count = b.min(b.add(index, step), last), None
        found = part(Span(index, end, count, gcd(each or 1, known)))
        return list(b.end_for(slots.merge(s, carried, found)))

    def accumulators(self, op: loop.ReduceOp, instead: Mapping[str, str]) -> red.Accumulators:
        """One accumulator for each kind of the op, of some kinds that of another one `instead`."""
        s = self.s
        found: list[red.Accumulator] = []
        for kind, values, results in op.each():
            types = [scalar_type(v.type) for v in values]
            composed = red.of_results(kind, [scalar_type(r.type) for r in results])
            if composed is not None:
                found.append(composed)
            elif kind in ("argmax", "argmin"):
                index, first = values[1], None
                if s.is_index(index):
                    e = s.expr(index)
                    types[1] = red.narrow_index(types[1], s.fits_i32(e))
                    start = e.subs({one.dim: as_expr(0) for one in s.info.nodes[op].loops})
                    first = None if s.varies(start) else s.integer(start, types[1])
                found.append(red.ArgAccumulator(kind, types, first))
            else:
                found.append(red.Accumulator(instead.get(kind, kind), types))
        return red.Accumulators(found)

    def yielded(self, value: SSAValue, dtype: Attribute) -> SSAValue:
        """A yielded value in every lane, integers in the type of the accumulator."""
        s = self.s
        if s.is_index(value):
            return s.b.splat(s.integer(s.expr(value), dtype), s.width)
        got = s.get_vector(value)
        return got if is_float(dtype) else red.convert(s, got, dtype)

    def yielded_values(self, op: loop.ReduceOp, slots: red.Accumulators) -> list[list[SSAValue]]:
        """What one step of the body yields for each accumulator."""
        kinds = zip(op.each(), slots.each, strict=True)
        return [[self.yielded(v, t) for v, t in zip(one.values, slot.types, strict=False)] for one, slot in kinds]

    def run_pass(
        self,
        op: loop.ReduceOp,
        slots: red.Accumulators,
        loops: Sequence[tuple[Loop, Span]],
        chosen: tuple[Loop, int, Span] | None,
        values: YieldedValues,
    ) -> list[SSAValue]:
        """One pass over the loops; scalars result when the lanes are inside, else accumulators as wide as the lanes
        around."""
        s = self.s
        node = s.info.nodes[op]

        def step(state: list[SSAValue]) -> list[SSAValue]:
            self._body(op)
            mask = s.lane.mask if chosen is not None and s.lane is not None else None
            return slots.join(s, state, values(op, slots), mask)

        ops = node.num_ops + len(slots.each)
        if chosen is None:
            return sequential(s, loops, slots.start(s, s.width), step, ops)
        one, width, span = chosen
        parts = segments(span, width, narrow=not self.ordered)
        if not parts:
            return slots.start(s, 0)
        count = len(slots.types)

        def by_part(flat: list[SSAValue]) -> list[list[SSAValue]]:
            return [flat[k * count : (k + 1) * count] for k in range(len(parts))]

        def vectors(flat: list[SSAValue]) -> list[SSAValue]:
            return [v for state in run_segments(s, one.dim, one.size, span, parts, by_part(flat), step, ops) for v in state]

        return slots.across(s, by_part(sequential(s, loops, [v for part in parts for v in slots.start(s, part.width)], vectors, ops)))
