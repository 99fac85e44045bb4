"""The loops inside a nest: in vectors where the schedule says so, one after the other otherwise; with the
accumulators they carry.

A vector loop is cut into segments: full vectors, then what remains, under a mask of a narrower width. Each segment
keeps its own partial results, which are joined after the loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.ir import SSAValue

from ...dialects import loop
from ...dialects.expr import Dim, Expr, Range, as_expr
from ...passes.analysis.dependences import memory_of
from ...passes.analysis.nest_access import Loop, Node
from ...passes.analysis.op_costs import has_effect
from ...passes.cost.nest_cost import UNROLL_OPS, UNROLL_TRIPS, VECTOR_LANES
from ...passes.cost.window_reuse import WindowReuse
from .reductions.windows import WindowRows
from .state import State

States = list[list[SSAValue]]
Step = Callable[[list[SSAValue]], list[SSAValue]]

NEVER_UNROLL = 1 << 20
"""Operations of a body that is too large for straight code, however few its iterations are."""


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


def segments(span: Span, width: int, narrow: bool = True) -> list[Segment]:
    """How a part of a loop is cut for vectors of `width` lanes. `narrow`: the last vector may have fewer."""
    count = span.count
    if count is None:
        if span.step % width == 0:
            return [Segment(width, None, 0, None)]
        if width <= VECTOR_LANES or not narrow:
            return [Segment(width, None, 0, None), Segment(width, None, -1, -1)]
        return [Segment(width, None, 0, None), Segment(VECTOR_LANES, None, -1, -1)]
    found: list[Segment] = []
    trips, rest = divmod(count, width)
    if trips:
        found.append(Segment(width, trips, 0, None))
    if rest:
        lanes = 1 << (rest - 1).bit_length() if narrow else width
        found.append(Segment(lanes, 1, trips * width, None if lanes == rest else rest))
    return found


def straight(trips: int, ops: float) -> bool:
    """Whether so few vectors of so many ops stand one after the other, without a loop: loops over the same short row
    then share what they load and compute."""
    return trips == 1 or (trips <= 2 and trips * ops <= 160) or (trips <= 4 and trips * ops <= 48)


def run_segments(
    s: State, d: Dim, size: Expr, span: Span, parts: Sequence[Segment], states: States, step: Step, ops: float = 100.0
) -> States:
    """Run `step`, of `ops` operations, in every segment of the loop over `d`, on the state of that segment."""
    b = s.b
    zero = b.int(0)
    first = span.first if span.first is not None else zero
    last = span.last if span.last is not None else s.scalar(size)
    results: States = []
    done = first
    for part, state in zip(parts, states, strict=True):
        width = b.int(part.width)
        if part.trips is not None and straight(part.trips, ops):
            for k in range(part.trips):
                start = part.start + k * part.width
                begin = b.int(start) if first is zero else b.add(first, b.int(start)) if start else first
                s.enter_lanes(d, part.width, begin)
                if part.rest is not None:
                    assert s.lane is not None
                    s.lane.mask = s.first_lanes(b.int(part.rest))
                state = step(list(state))
                s.leave_lanes()
            results.append(state)
            continue
        if part.rest is None:
            if part.trips is not None:
                end = b.int(part.trips * part.width) if first is zero else b.add(first, b.int(part.trips * part.width))
            else:
                whole = b.mul(b.quotient(b.sub(last, first), width), width)
                end = whole if first is zero else b.add(first, whole)
            begin, done = first, end
        else:
            begin, end = done, last
        index, *carried = b.begin_for(begin, end, width, state)
        s.enter_lanes(d, part.width, index)
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
    reuse = s.windows.get(loops[0][0].dim)
    if reuse is not None and len(loops) == 1 and s.lane is not None and loops[0][1] == Span.whole(reuse.one.size):
        return _together(s, reuse, state, step)
    counts = [span.count for _, span in loops if span.count is not None and span.first is None]
    trips = prod(counts)
    if len(counts) == len(loops) and s.rows is not None:
        return _window(s, s.rows, loops, state, step)
    if len(counts) == len(loops) and trips <= (UNROLL_TRIPS if s.lane is not None else 4) and trips * ops <= UNROLL_OPS:
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
        s.fixed[one.dim] = as_expr(k)
        state = _unrolled(s, rest, state, step)
    s.fixed.pop(one.dim, None)
    return state


def _window(s: State, rows: WindowRows, loops: Sequence[tuple[Loop, Span]], state: list[SSAValue], step: Step) -> list[SSAValue]:
    """The terms of a window, its first loop of several iterations row by row."""
    lone = next((k for k, (_, span) in enumerate(loops) if span.count != 1), len(loops) - 1)
    (one, span), rest = loops[lone], [*loops[:lone], *loops[lone + 1 :]]
    assert span.count is not None
    for k in range(span.count):
        rows.row()
        s.fixed[one.dim] = as_expr(k)
        state = _unrolled(s, rest, state, step)
    s.fixed.pop(one.dim, None)
    rows.end()
    return state


def _together(s: State, reuse: WindowReuse, state: list[SSAValue], step: Step) -> list[SSAValue]:
    """A loop several iterations of which run one after the other in a straight body, so that their windows share what they load."""
    d, b, size = reuse.one.dim, s.b, int(reuse.one.size)
    state = _iterations(s, d, range(reuse.first), state, step)
    if reuse.end > reuse.first:
        base = s.info.new_dim(Range(reuse.first, reuse.end - reuse.together))
        index, *carried = b.begin_for(b.int(reuse.first), b.int(reuse.end), b.int(reuse.together), state)
        s.dims[base] = index
        state = list(b.end_for(_iterations(s, d, [base + k for k in range(reuse.together)], list(carried), step)))
    for first in range(reuse.end, size, reuse.together):
        state = _iterations(s, d, range(first, min(first + reuse.together, size)), state, step)
    return state


def _iterations(s: State, d: Dim, indices: Iterable[Expr | int], state: list[SSAValue], step: Step) -> list[SSAValue]:
    """The steps of a loop with these indices, row by row of their windows."""
    s.rows = WindowRows(s.b.levels[-1].block)
    for k in indices:
        s.fixed[d] = as_expr(k)
        s.rows.begin()
        state = step(state)
    if not any(memory_of(a.buffer) in s.written for a in s.info.root.all_accesses() if not a.is_store):
        s.rows.reorder()
    s.rows = None
    s.fixed.pop(d, None)
    return state


def whole(loops: Sequence[Loop]) -> list[tuple[Loop, Span]]:
    """The loops, each over all of its indices."""
    return [(one, Span.whole(one.size)) for one in loops]


class LoopLowering:
    """Lowers `loop.for`; `block` lowers the ops of a body, `choice` tells which loop of an op runs along the lanes."""

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
            run_segments(s, one.dim, one.size, span, parts, [[] for _ in parts], body, node.num_ops + 2)
            return []

        sequential(s, whole(rest), [], body if chosen is None else vectors, node.num_ops + 1)
