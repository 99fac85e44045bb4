"""How much memory a nest touches, and how much of it comes from which level: footprints, and reuse by the order of the loops.

Accesses of one buffer that move alike (the same strides along every loop) are one stream. The footprint of a stream over some loops is the
number of elements, or of bytes in whole cache lines, that it touches while these loops run. Going from the inner loops outwards, data is
found again in a cache as long as one iteration of the next loop touches no more than the cache holds; beyond that each iteration
fetches its footprint anew (the model of Wolf and Lam for tiled loops, with line sizes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, prod

from xdsl.ir import SSAValue

from ...dialects import loop, mem
from ...dialects.expr import Expr, evaluate, free_dims, free_syms
from ...dialects.expr.ranges import RangeEnv
from ...dialects.nd.types import element_bytes
from ..analysis.nest_access import Access, NestAccess, Node
from .nest_cost import LINE_BYTES, VECTOR_LANES, Cost, Schedule


@dataclass
class Stream:
    """Accesses of a buffer with equal strides. `steps`: elements by which the address moves for one step of a loop; `jumps`: the same for
    indices that were loaded (extent: how many there are at most, and the loops that they depend on)."""

    buffer: SSAValue
    element: int
    total: int
    """Elements of the buffer."""
    steps: dict[Expr, float]
    jumps: list[tuple[float, float, frozenset[Expr]]] = field(default_factory=list)
    starts: set[float] = field(default_factory=set)
    nodes: list[Node] = field(default_factory=list)
    loads: int = 0
    """Loads of what was there before the nest."""
    back: int = 0
    """Loads of an out of the nest."""
    stores: int = 0
    adds: int = 0
    """Stores that combine with what is there."""

    def _walk(self, extents: Mapping[Expr, float], line: float) -> tuple[float, float, float]:
        """(runs, elements of a run, elements that a run spans): `line` elements are fetched together."""
        parts = [(step, extents[d]) for d, step in self.steps.items() if extents.get(d, 1) > 1]
        if len(self.starts) > 1:
            low, high = min(self.starts), max(self.starts)
            parts.append(((high - low) / (len(self.starts) - 1), len(self.starts)))
        count, elements, span = 1.0, 1.0, 1.0
        counted = set(self.steps)
        for step, most, roots in self.jumps:
            n = min(most, prod(extents.get(d, 1) for d in roots if d not in counted))
            counted |= roots
            if step and n >= most:
                parts.append((step, most))  # every place that there is, whatever their order
            elif step:
                count *= max(1, n)
        for step, n in sorted(parts):
            if step <= max(span, line):
                wider = step * (n - 1) + span
                elements = min(elements * n, elements * wider / span) if step <= span else elements * n
                span = wider
            else:
                count *= n
        return count, elements, span

    def place(self, extents: Mapping[Expr, float]) -> object:
        """Equal for streams that touch the same elements while the loops of `extents` run."""
        moves = sorted((step, n) for d, step in self.steps.items() if (n := extents.get(d, 1.0)) > 1)
        return self.buffer, tuple(moves), tuple(self.jumps), frozenset(self.starts)

    def elements(self, extents: Mapping[Expr, float]) -> float:
        """Distinct elements that are touched while the loops of `extents` run, each so many times."""
        count, elements, _ = self._walk(extents, 0.0)
        return min(count * elements, self.total)

    def lines(self, extents: Mapping[Expr, float]) -> float:
        """Bytes of the cache lines that are touched."""
        count, _, span = self._walk(extents, LINE_BYTES / self.element / 2)
        apart = 1.0 if self.jumps else max(1.0, min(self.steps.values(), default=1.0))
        return min(count * max(span * self.element, LINE_BYTES), max(self.total * min(apart * self.element, LINE_BYTES), LINE_BYTES))


@dataclass
class LoopOrder:
    """The loops of a node in the order in which they run, outermost first: (loop, how often, indices of it in a step)."""

    node: Node
    loops: list[tuple[Expr, float]]
    children: list[LoopOrder]
    streams: list[int] = field(default_factory=list)
    """Streams that the body itself accesses."""


class Footprint:
    """The streams of a nest and the order of its loops under a schedule. Sizes that are symbols count with their hints."""

    def __init__(self, info: NestAccess, cost: Cost, schedule: Schedule):
        self.info, self.cost = info, cost
        self.streams: list[Stream] = []
        self._known: dict[tuple[object, ...], int] = {}
        self.inner: dict[Expr, float] = {}
        self.plan = self._plan(info.root, schedule)

    # ---- streams

    def _stream(self, access: Access, node: Node) -> int:
        info = self.info
        e = access.offset
        dims = free_dims(e)
        zero: dict[Expr, int] = {d: 0 for d in dims}
        zero.update((s, self.cost.hints.get(s, 64)) for s in free_syms(e))
        start = evaluate(e, zero)
        steps: dict[Expr, float] = {}
        jumps: list[tuple[float, float, frozenset[Expr]]] = []
        for d in dims:
            value = info.opaque.get(d)
            if value is None:
                step = self._slope(e, d, zero, start)
                if step:
                    steps[d] = step
                continue
            owner = value.owner
            size = self.cost.size(owner.size.data) if isinstance(owner, loop.BoundOp) else inf
            jumps.append((abs(evaluate(e, {**zero, d: 1}) - start), size, self.cost.roots(d)))
        buffer = access.buffer
        while isinstance(buffer.owner, mem.ViewOp):
            buffer = buffer.owner.input
        key = (buffer, frozenset(steps.items()), tuple(sorted(j[:2] for j in jumps)))
        number = self._known.get(key)
        if number is None:
            number = self._known[key] = len(self.streams)
            total = prod(self.cost.size(s) for s in loop.shaped_dims(access.buffer.type))
            self.streams.append(Stream(buffer, element_bytes(access.dtype), total, steps, jumps))
        found = self.streams[number]
        found.starts.add(start)
        found.nodes.append(node)
        if not access.is_store:
            out = access.op.shaped is not access.buffer
            found.back += out
            found.loads += not out
        elif access.mode == "set":
            found.stores += 1
        else:
            found.adds += 1
        return number

    def _slope(self, e: Expr, d: Expr, zero: Mapping[Expr, int], start: int) -> float:
        """How far the address moves on average for a step of `d`, whatever divisions there are."""
        n = self.cost.size(self._sizes[d]) if d in self._sizes else 2
        if not e.has_div:
            return abs(evaluate(e, {**zero, d: 1}) - start)
        return abs(evaluate(e, {**zero, d: max(1, n - 1)}) - start) / max(1, n - 1)

    # ---- order

    def _plan(self, root: Node, schedule: Schedule) -> LoopOrder:
        self._sizes: dict[Expr, Expr] = {one.dim: one.size for node in root.walk() for one in node.loops}
        sizes: list[tuple[Expr, float]] = [(one.dim, float(max(1, self.cost.size(one.size)))) for one in root.loops]
        lanes = schedule.vector.dim if schedule.vector is not None else None
        rows = schedule.tile.dim if schedule.tile is not None else None
        loops = [(d, n) for d, n in sizes if d is not lanes and d is not rows]
        for d, n in sizes:
            if d is rows or d is lanes:
                side = min(n, VECTOR_LANES if rows is not None else schedule.lanes)
                self.inner[d] = side
                if schedule.inside and rows is None:
                    loops.sort(key=lambda one: one[0] in schedule.inside)
                place = sum(1 for one, _ in loops if one not in schedule.inside)
                loops.insert(place, (d, n / side))
        return LoopOrder(root, loops, [self._child(c, schedule) for c in root.children], self._own(root))

    def _own(self, node: Node) -> list[int]:
        return list(dict.fromkeys(self._stream(a, node) for a in node.accesses))

    def _child(self, node: Node, schedule: Schedule) -> LoopOrder:
        choice = schedule.inner.get(node)
        last = choice[0].dim if choice else None
        loops: list[tuple[Expr, float]] = [(one.dim, float(max(1, self.cost.size(one.size)))) for one in node.loops]
        loops.sort(key=lambda one: one[0] is last)
        return LoopOrder(node, loops, [self._child(c, schedule) for c in node.children], self._own(node))

    # ---- questions

    def extents(self, plan: LoopOrder, first: int = 0) -> dict[Expr, float]:
        """How often each loop runs in all while the loops of `plan` from number `first` on, and all inside, run once."""
        found = dict(self.inner)
        for d, n in plan.loops[first:]:
            found[d] = found.get(d, 1.0) * n
        for child in plan.children:
            found.update((d, n) for d, n in self.extents(child).items() if d not in self.inner)
        return found

    def under(self, plan: LoopOrder) -> list[int]:
        """The streams of `plan` and all inside."""
        found = dict.fromkeys(plan.streams)
        for child in plan.children:
            found.update(dict.fromkeys(self.under(child)))
        return list(found)

    def distinct(self, plan: LoopOrder, extents: Mapping[Expr, float]) -> list[int]:
        """The streams under `plan` that touch different memory while the loops of `extents` run: loops inside of a nest that go through
        the same elements one after the other have loops of their own, and a stream each."""
        found: dict[object, int] = {}
        for k in self.under(plan):
            found.setdefault(self.streams[k].place(extents), k)
        return list(found.values())

    def by_buffer(self) -> tuple[dict[SSAValue, int], dict[SSAValue, int]]:
        """(bytes read, bytes written) of each buffer: distinct elements, each once whatever the number of accesses; what the nest itself
        stored before does not count as read, and the memory of one iteration not at all."""
        everything = self.extents(self.plan)
        read: dict[SSAValue, dict[object, float]] = {}
        written: dict[SSAValue, dict[object, float]] = {}
        most: dict[SSAValue, float] = {}
        made = {s.buffer for s in self.streams if s.stores}
        for stream in [s for s in self.streams if s.buffer not in self.info.local]:
            size = stream.elements(everything) * stream.element
            most[stream.buffer] = max(most.get(stream.buffer, 0.0), stream.total * stream.element)
            if stream.stores or stream.adds:
                written.setdefault(stream.buffer, {})[stream.place(everything)] = size
            if stream.loads or ((stream.back or stream.adds) and stream.buffer not in made):
                read.setdefault(stream.buffer, {})[stream.place(everything)] = size

        def total(table: dict[SSAValue, dict[object, float]]) -> dict[SSAValue, int]:
            return {b: int(min(sum(parts.values()), most[b])) for b, parts in table.items()}

        return total(read), total(written)

    def touched(self) -> tuple[int, int]:
        """(bytes read, bytes written) in all, see by_buffer."""
        read, written = self.by_buffer()
        return sum(read.values()), sum(written.values())

    def working_set(self, plan: LoopOrder, first: int) -> float:
        """Bytes, in lines, that one run of the loops from `first` on touches."""
        extents = self.extents(plan, first)
        return sum(self.streams[k].lines(extents) for k in self.distinct(plan, extents))

    def reuse(self, stream: int) -> list[tuple[Expr, float]]:
        """Where a stream meets its elements again: each loop along which it does not move, outermost first, with the reuse distance: the
        bytes, in lines, that all streams touch in one iteration of that loop. A cache that holds them keeps the elements."""
        found: list[tuple[Expr, float]] = []
        worklist = [self.plan]
        while worklist:
            plan = worklist.pop(0)
            if stream not in self.under(plan):
                continue
            still = [k for k, (d, n) in enumerate(plan.loops) if n > 1 and not self._moves(stream, d)]
            found += [(plan.loops[k][0], self.working_set(plan, k + 1)) for k in still]
            worklist += plan.children
        return found

    def _moves(self, stream: int, d: Expr) -> bool:
        one = self.streams[stream]
        return d in one.steps or any(d in roots for _, _, roots in one.jumps)

    def traffic(self, capacity: float) -> list[float]:
        """For each stream, the bytes that do not come from a cache of so many bytes. What fits as a whole is there already."""
        found = [0.0] * len(self.streams)
        if self.working_set(self.plan, 0) > capacity:
            self._traffic(self.plan, 1.0, capacity, found)
        return found

    def _traffic(self, plan: LoopOrder, times: float, capacity: float, found: list[float]) -> None:
        for first in range(len(plan.loops) + 1):
            if self.working_set(plan, first) <= capacity:
                break
        else:
            for _, n in plan.loops:
                times *= n
            for k in plan.streams:
                found[k] += times * self.streams[k].lines(self.inner)
            for child in plan.children:
                self._traffic(child, times, capacity, found)
            return
        kept = max(0, first - 1)
        for _, n in plan.loops[:kept]:
            times *= n
        extents = self.extents(plan, kept)
        for k in self.distinct(plan, extents):
            found[k] += times * self.streams[k].lines(extents)


def of_nest(nest: loop.NestOp, hints: Mapping[Expr, int]) -> Footprint:
    """The footprint of a nest for questions in which the order of its loops does not matter."""
    info = NestAccess(nest, RangeEnv({}), normalise=False)
    return Footprint(info, Cost(info, hints), Schedule("inner"))


def touched_bytes(nest: loop.NestOp, hints: Mapping[Expr, int]) -> tuple[int, int]:
    """(bytes read, bytes written) by a nest, see Footprint.by_buffer."""
    return of_nest(nest, hints).touched()
