"""The loops inside a nest: in vectors where the schedule says so, one after the other otherwise; with the
accumulators they carry.

A vector loop is cut into segments: full vectors, then what remains, under a mask of a narrower width. Each segment
keeps its own partial results, which are joined after the loops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd

from xdsl.dialects import arith
from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue

from ...dialects import loop
from ...dialects.cpu_types import lanes_of
from ...dialects.expr import Dim, Expr, as_expr, product
from ...dialects.nd_types import is_float
from ...passes.loop.nest_access import Loop, Node
from . import reductions as red
from .row_cache import has_effect
from .state import State, scalar_type

States = list[list[SSAValue]]
Step = Callable[[list[SSAValue]], list[SSAValue]]

TAIL = 16
"""Lanes of the masked loop over a remainder of unknown length."""

LONG = 512
"""Values that one accumulator of floats takes in a row before it is added to the total (a short cascade: the error of
a sum grows with the length of the longest chain)."""

UNROLL_TRIPS = 32
UNROLL_OPS = 256


@dataclass(frozen=True, slots=True)
class Span:
    """The part of a loop that is run: from `first` (0 without one) below `last`; `count` iterations if that is known,
    else a multiple of `step`."""

    first: SSAValue | None
    last: SSAValue | None
    count: int | None
    step: int = 1

    @staticmethod
    def whole(size: Expr) -> Span:
        return Span(None, None, size.value)


@dataclass(frozen=True, slots=True)
class Segment:
    """Part of a vector loop: `width` lanes, `trips` iterations (None: as many as fit, at run time), `rest` lanes of
    which count (None: all; -1: known at run time only)."""

    width: int
    trips: int | None
    start: int
    rest: int | None


def segments(span: Span, width: int) -> list[Segment]:
    """How a part of a loop is cut for vectors of `width` lanes."""
    count = span.count
    if count is None:
        if span.step % width == 0:
            return [Segment(width, None, 0, None)]
        if width <= TAIL:
            return [Segment(width, None, 0, None), Segment(width, None, -1, -1)]
        return [Segment(width, None, 0, None), Segment(TAIL, None, -1, -1)]
    found: list[Segment] = []
    trips, rest = divmod(count, width)
    if trips:
        found.append(Segment(width, trips, 0, None))
    if rest:
        lanes = 1 << (rest - 1).bit_length()
        found.append(Segment(lanes, 1, trips * width, None if lanes == rest else rest))
    return found


def run_segments(
    s: State, d: Dim, size: Expr, span: Span, parts: Sequence[Segment], states: States, step: Step
) -> States:
    """Run `step` in every segment of the loop over `d`, on the state of that segment."""
    b = s.b
    zero = b.int(0)
    first = span.first if span.first is not None else zero
    last = span.last if span.last is not None else s.scalar(size)
    results: States = []
    done = first
    for part, state in zip(parts, states, strict=True):
        width = b.int(part.width)
        if part.trips == 1:
            begin = (
                first
                if part.start == 0
                else b.add(first, b.int(part.start))
                if first is not zero
                else b.int(part.start)
            )
            s.enter_lanes(d, part.width, begin, None)
            if part.rest is not None:
                assert s.lane is not None
                s.lane.mask = s.first_lanes(b.int(part.rest))
            results.append(step(list(state)))
            s.leave_lanes()
            continue
        if part.rest is None:
            if part.trips is not None:
                end = b.int(part.trips * part.width) if first is zero else b.add(first, b.int(part.trips * part.width))
            else:
                whole = b.mul(b.udiv(b.sub(last, first), width), width)
                end = whole if first is zero else b.add(first, whole)
            begin, done = first, end
        else:
            begin, end = done, last
        index, *carried = b.begin_for(begin, end, width, state)
        s.enter_lanes(d, part.width, index, None)
        if part.rest is not None:
            assert s.lane is not None
            s.lane.mask = s.first_lanes(b.sub(last, index))
        new = step(list(carried))
        s.leave_lanes()
        results.append(list(b.end_for(new)))
    return results


def sequential(
    s: State, loops: Sequence[tuple[Loop, Span]], state: list[SSAValue], step: Step, ops: float = 1
) -> list[SSAValue]:
    """Run `step` once for every index of `loops`, carrying `state`; short loops are unrolled when there are lanes."""
    if not loops:
        return step(state)
    trips = 1
    for _, span in loops:
        trips = trips * span.count if span.count is not None and span.first is None else 1 << 30
    if trips <= (UNROLL_TRIPS if s.lane is not None else 4) and trips * ops <= UNROLL_OPS:
        return _unrolled(s, loops, state, step)
    b = s.b
    (one, span), rest = loops[0], loops[1:]
    first = span.first if span.first is not None else b.int(0)
    last = span.last if span.last is not None else s.scalar(one.size)
    index, *carried = b.begin_for(first, last, b.int(1), state)
    s.dims[one.dim] = index
    new = sequential(s, rest, list(carried), step, ops)
    return list(b.end_for(new))


def _unrolled(s: State, loops: Sequence[tuple[Loop, Span]], state: list[SSAValue], step: Step) -> list[SSAValue]:
    if not loops:
        return step(state)
    (one, span), rest = loops[0], loops[1:]
    assert span.count is not None
    for k in range(span.count):
        s.unrolled[one.dim] = as_expr(k)
        state = _unrolled(s, rest, state, step)
    s.unrolled.pop(one.dim, None)
    return state


def whole(loops: Sequence[Loop]) -> list[tuple[Loop, Span]]:
    """The loops, each over all of its indices."""
    return [(one, Span.whole(one.size)) for one in loops]


class LoopLowering:
    """Lowers `loop.for` and `loop.reduce`; `block` lowers the ops of a body."""

    def __init__(
        self, s: State, block: Callable[[loop.LoopLike], None], choice: Callable[[Node], tuple[Loop, int] | None]
    ):
        self.s = s
        self.block = block
        self.choice = choice

    def vector_loop(self, node: Node) -> tuple[Loop, int] | None:
        """The loop of `node` that runs along the lanes, and its width."""
        if self.s.lane is not None:
            return None
        return self.choice(node)

    # ---- for

    def lower_for(self, op: loop.ForOp) -> None:
        """loop.for."""
        s = self.s
        if not has_effect(op):
            return
        node = s.info.nodes[op]
        chosen = self.vector_loop(node)
        rest = [one for one in node.loops if chosen is None or one is not chosen[0]]

        def body(state: list[SSAValue]) -> list[SSAValue]:
            self.block(op)
            return []

        def vectors(state: list[SSAValue]) -> list[SSAValue]:
            assert chosen is not None
            one, width = chosen
            span = Span.whole(one.size)
            parts = segments(span, width)
            run_segments(s, one.dim, one.size, span, parts, [[] for _ in parts], body)
            return []

        sequential(s, whole(rest), [], body if chosen is None else vectors, node.num_ops + 1)

    # ---- reduce

    def lower_reduce(self, op: loop.ReduceOp) -> None:
        """loop.reduce."""
        s = self.s
        node = s.info.nodes[op]
        chosen = self.vector_loop(node)
        kinds = op.kind_names
        loops = [one for one in node.loops if chosen is None or one is not chosen[0]]
        if any(k in ("welford", "softmax") for k in kinds):
            results = self._in_chunks(op, node, loops, chosen)
        else:
            results = self._in_parts(op, self._accumulators(op), loops, chosen)
        for result, value in zip(op.outputs, results, strict=True):
            dtype = scalar_type(result.type)
            s.values[result] = value if is_float(dtype) else red.convert(s, value, dtype)

    def _in_parts(
        self, op: loop.ReduceOp, slots: Sequence[red.Accumulator], loops: list[Loop], chosen: tuple[Loop, int] | None
    ) -> list[SSAValue]:
        """One pass, or for long sums of floats a pass over each part: an accumulator takes at most LONG values one
        after the other."""
        order = [*loops, chosen[0]] if chosen is not None else loops
        sums = any(slot.kind == "sum" and is_float(slot.types[0]) for slot in slots)
        width = chosen[1] if chosen is not None else 1
        adds = product([one.size for one in order]).value
        if not sums or (adds is not None and adds <= LONG * width) or not order:
            return self._over(op, slots, order, chosen, Span.whole(order[0].size) if order else None)
        if len(order) == 1:
            size = LONG * width
        else:
            inner = product([one.size for one in order[1:]]).value
            size = max(1, LONG * width // inner) if inner else 1
        return self._chunked(order, slots, size, lambda span: self._over(op, slots, order, chosen, span))

    def _over(
        self,
        op: loop.ReduceOp,
        slots: Sequence[red.Accumulator],
        order: Sequence[Loop],
        chosen: tuple[Loop, int] | None,
        span: Span | None,
    ) -> list[SSAValue]:
        """One pass over the part `span` of the first loop and all of the others."""
        pairs = whole(order)
        if span is not None:
            pairs[0] = (order[0], span)
        if chosen is None:
            return self._pass(op, slots, pairs, None, self._values)
        return self._pass(op, slots, pairs[:-1], (chosen[0], chosen[1], pairs[-1][1]), self._values)

    def _chunked(
        self, order: Sequence[Loop], slots: Sequence[red.Accumulator], size: int, part: Callable[[Span], list[SSAValue]]
    ) -> list[SSAValue]:
        """Merge what `part` gives for every `size` iterations of the first loop."""
        s, b = self.s, self.s.b
        total = order[0].size
        step = b.int(size)
        state = [v for slot in slots for v in slot.start(s, s.width)]
        index, *carried = b.begin_for(b.int(0), s.scalar(total), step, state)
        if total.value is not None and total.value % size == 0:
            end, count = b.add(index, step), size
        else:
            end, count = b.min(b.add(index, step), s.scalar(total)), None
        known = 1 if total.value is None else gcd(size, total.value)
        found = part(Span(index, end, count, known))
        new: list[SSAValue] = []
        at = 0
        for slot in slots:
            new += slot.merge(s, list(carried[at : at + slot.count]), found[at : at + slot.count])
            at += slot.count
        return list(b.end_for(new))

    def _accumulators(self, op: loop.ReduceOp) -> list[red.Accumulator]:
        """One accumulator for each simple kind of the op."""
        s = self.s
        found: list[red.Accumulator] = []
        at = out = 0
        last = op.block.last_op
        assert last is not None
        for kind in op.kind_names:
            takes, gives = loop.KINDS[kind]
            types = [scalar_type(v.type) for v in last.operands[at : at + takes]]
            if kind in ("argmax", "argmin"):
                index = last.operands[at + 1]
                first = None
                if s.is_index(index):
                    e = s.expr(index)
                    types[1] = red.narrow_index(types[1], s.fits_i32(e))
                    start = e.subs({one.dim: as_expr(0) for one in s.info.nodes[op].loops})
                    first = None if s.varies(start) else s.number(start, types[1])
                found.append(red.ArgAccumulator(kind, types, first))
            else:
                found.append(red.Accumulator(kind, types))
            at, out = at + takes, out + gives
        return found

    def _values(self, op: loop.ReduceOp, slots: Sequence[red.Accumulator]) -> list[list[SSAValue]]:
        """What one step of the body yields for each accumulator."""
        s = self.s
        last = op.block.last_op
        assert last is not None
        found: list[list[SSAValue]] = []
        at = 0
        for slot in slots:
            values: list[SSAValue] = []
            for value, dtype in zip(last.operands[at : at + slot.count], slot.types, strict=True):
                if s.is_index(value):
                    values.append(s.b.splat(s.number(s.expr(value), dtype), s.width))
                else:
                    got = s.get_vector(value)
                    values.append(got if is_float(dtype) else red.convert(s, got, dtype))
            found.append(values)
            at += slot.count
        return found

    def _pass(
        self,
        op: loop.ReduceOp,
        slots: Sequence[red.Accumulator],
        loops: Sequence[tuple[Loop, Span]],
        chosen: tuple[Loop, int, Span] | None,
        values: Callable[[loop.ReduceOp, Sequence[red.Accumulator]], list[list[SSAValue]]],
    ) -> list[SSAValue]:
        """One pass over the loops; scalars result when the lanes are inside, else accumulators as wide as the lanes
        around."""
        s = self.s
        node = s.info.nodes[op]

        def step(state: list[SSAValue]) -> list[SSAValue]:
            self.block(op)
            got = values(op, slots)
            new: list[SSAValue] = []
            at = 0
            for slot, one in zip(slots, got, strict=True):
                if chosen is not None and s.lane is not None and s.lane.mask is not None:
                    one = slot.mask(s, one, s.lane.mask)
                new += slot.join(s, state[at : at + slot.count], one)
                at += slot.count
            return new

        def start(lanes: int) -> list[SSAValue]:
            return [v for slot in slots for v in slot.start(s, lanes)]

        ops = node.num_ops + len(slots)
        if chosen is None:
            return sequential(s, loops, start(s.width), step, ops)
        one, width, span = chosen
        parts = segments(span, width)
        if not parts:
            return start(0)
        states = [start(part.width) for part in parts]

        def vectors(flat: list[SSAValue]) -> list[SSAValue]:
            split, at = [], 0
            for state in states:
                split.append(flat[at : at + len(state)])
                at += len(state)
            return [v for state in run_segments(s, one.dim, one.size, span, parts, split, step) for v in state]

        flat = sequential(s, loops, [v for state in states for v in state], vectors, ops)
        results: list[SSAValue] = []
        at = 0
        per_state = len(states[0])
        for slot in slots:
            partial = [flat[k * per_state + at : k * per_state + at + slot.count] for k in range(len(parts))]
            narrowest = min(lanes_of(p[0].type) for p in partial)
            total = slot.fold(s, partial[0], narrowest)
            for other in partial[1:]:
                total = slot.merge(s, total, slot.fold(s, other, narrowest))
            results += slot.across(s, total) if narrowest > 0 else total
            at += slot.count
        return results

    # ---- kinds that need two passes

    def _in_chunks(
        self, op: loop.ReduceOp, node: Node, loops: list[Loop], chosen: tuple[Loop, int] | None
    ) -> list[SSAValue]:
        """welford and softmax: in chunks that stay in the first cache, twice over each; simple kinds beside them join
        in the first pass. Chunks are merged by WelfordMerge and SoftmaxMerge."""
        order = [*loops, chosen[0]] if chosen is not None else loops
        if not order:
            return self._chunk(op, order, None, Span(None, None, 1), self._two_pass_slots(op))
        one = order[0]
        inner = product([o.size for o in order[1:]]).value
        limit = 8192 if chosen is not None else 64
        size = max(1, limit // inner) if inner else 1
        if chosen is not None and len(order) == 1:
            size = max(chosen[1], size // chosen[1] * chosen[1])
        total = one.size.value
        slots = self._two_pass_slots(op)
        if total is not None and total <= size and (total > 0):
            return self._chunk(op, order, chosen, Span.whole(one.size), slots)
        return self._chunked(order, slots, size, lambda span: self._chunk(op, order, chosen, span, slots))

    def _two_pass_slots(self, op: loop.ReduceOp) -> list[red.Accumulator]:
        """The accumulators over whole chunks: the results of each kind."""
        found: list[red.Accumulator] = []
        at = 0
        simple = iter(self._accumulators_simple(op))
        for kind in op.kind_names:
            gives = loop.KINDS[kind][1]
            types = [scalar_type(r.type) for r in op.outputs[at : at + gives]]
            if kind == "welford":
                found.append(red.WelfordMerge(kind, types))
            elif kind == "softmax":
                found.append(red.SoftmaxMerge(kind, types))
            else:
                found.append(next(simple))
            at += gives
        return found

    def _accumulators_simple(self, op: loop.ReduceOp) -> list[red.Accumulator]:
        two_pass = {"welford": "sum", "softmax": "max"}
        return [a for a, k in zip(self._accumulators_as(op, two_pass), op.kind_names, strict=True) if k not in two_pass]

    def _accumulators_as(self, op: loop.ReduceOp, instead: dict[str, str]) -> list[red.Accumulator]:
        """The accumulators of a pass in which some kinds are replaced by simple ones."""
        last = op.block.last_op
        assert last is not None
        found: list[red.Accumulator] = []
        at = 0
        for kind in op.kind_names:
            takes = loop.KINDS[kind][0]
            types = [scalar_type(v.type) for v in last.operands[at : at + takes]]
            if kind in ("argmax", "argmin"):
                found.append(red.ArgAccumulator(kind, types, None))
            else:
                found.append(red.Accumulator(instead.get(kind, kind), types))
            at += takes
        return found

    def _chunk(
        self,
        op: loop.ReduceOp,
        order: Sequence[Loop],
        chosen: tuple[Loop, int] | None,
        span: Span,
        slots: Sequence[red.Accumulator],
    ) -> list[SSAValue]:
        """All kinds over one chunk of the first loop: two passes."""
        s = self.s
        spans = [span, *(Span.whole(o.size) for o in order[1:])]
        pairs = list(zip(order, spans, strict=False))
        vector = None
        if chosen is not None:
            vector = (chosen[0], chosen[1], pairs[-1][1])
            pairs = pairs[:-1]
        first_slots = self._accumulators_as(op, {"welford": "sum", "softmax": "max"})
        first = self._pass(op, first_slots, pairs, vector, self._values)
        count = self._count(order, span)
        centres: dict[int, SSAValue] = {}
        at = 0
        for k, (kind, slot) in enumerate(zip(op.kind_names, first_slots, strict=True)):
            value = first[at]
            if kind == "welford":
                n = s.b.splat(s.b.cast("sitofp", count, slot.types[0]), lanes_of(value.type))
                centres[k] = red.float_op(s, arith.DivfOp, value, n)
            elif kind == "softmax":
                centres[k] = value
            at += slot.count
        second_slots = [red.Accumulator("sum", [first_slots[k].types[0]]) for k in centres]
        cache = s.cache if chosen is not None else None
        if cache is not None:
            cache.begin_second(op)
        s.second_pass = True
        second = self._pass(op, second_slots, pairs, vector, lambda o, sl: self._centred(o, centres))
        s.second_pass = False
        if cache is not None:
            cache.end_second(op)
        results: list[SSAValue] = []
        at, done = 0, 0
        for k, (kind, slot) in enumerate(zip(op.kind_names, first_slots, strict=True)):
            if kind == "welford":
                n = s.b.splat(s.b.cast("sitofp", count, slot.types[0]), lanes_of(centres[k].type))
                results += [centres[k], second[done], n]
                done += 1
            elif kind == "softmax":
                results += [centres[k], second[done]]
                done += 1
            else:
                results += first[at : at + slot.count]
            at += slot.count
        return results

    def _count(self, order: Sequence[Loop], span: Span) -> SSAValue:
        s = self.s
        if span.count is not None:
            length = s.b.int(span.count)
        else:
            last = span.last if span.last is not None else s.scalar(order[0].size)
            length = last if span.first is None else s.b.sub(last, span.first)
        for one in order[1:]:
            length = s.b.mul(length, s.scalar(one.size))
        return red.convert(s, length, i64)

    def _centred(self, op: loop.ReduceOp, centres: dict[int, SSAValue]) -> list[list[SSAValue]]:
        """The second pass: (x - mean) squared, exp(x - maximum)."""
        s = self.s
        last = op.block.last_op
        assert last is not None
        found: list[list[SSAValue]] = []
        at = 0
        for k, kind in enumerate(op.kind_names):
            if k in centres:
                x = s.get_vector(last.operands[at])
                centre = s.b.splat(centres[k], s.width)
                if kind == "welford":
                    difference = red.float_op(s, arith.SubfOp, x, centre)
                    found.append([red.float_op(s, arith.MulfOp, difference, difference)])
                else:
                    found.append([red.exp_below(s, x, centre)])
            at += loop.KINDS[kind][0]
        return found
