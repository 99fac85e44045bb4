"""Part of loop-order: collectives begin as early as their operands are ready, and are waited for as late as other work is left to do.

The steps are listed anew with a clock on which each step and each collective has its price. A collective is called as soon as what it needs
is there. Where the next step waits for one that is still under way, steps behind it that are ready come first. Collectives keep their order
among each other, which is the same on all ranks. Memory bounds all that. XLA's latency-hiding scheduler lists steps so, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

from xdsl.ir import Operation

from ...dialects import loop, nd
from ..cost.collective_cost import Clock, collective_bytes, collective_kind, group_ranks, is_begin, is_wait, link_of
from ..cost.library_cost import bytes_of, product_sizes, size
from ..cost.machine import Machine

if TYPE_CHECKING:
    from .loop_order import Graph, Profile, Tensor


def overlapped(profile: Profile, machine: Machine, bound: int, window: int) -> tuple[list[int], Clock, Clock]:
    """An order of the steps in which less time is spent waiting for collectives, and the clocks at the end of `profile`'s order and of this
    one. No more than `bound` bytes are alive in it; steps go past `window` others at most. The order that is there if none is better."""
    prices = Prices(profile.graph, machine)
    given = profile.order
    order = _within(profile, prices, bound, window)
    before, after = prices.clock(given), prices.clock(order)
    profile.place_again(order if after.now < before.now else given)
    return profile.order, before, after


def _within(profile: Profile, prices: Prices, bound: int, window: int) -> list[int]:
    """A listing that keeps to the bound. What must follow a step that was moved may need more than it; then steps are moved into less."""
    given, limit, less = profile.order, bound, 1
    while limit > 0:
        order = Listing(profile.graph, prices, given, limit, window).order()
        profile.place_again(order)
        over = max(profile.alive) - bound
        if over <= 0:
            return order
        less = 2 * max(less, over)
        limit -= less
    return given


class Prices:
    """Seconds of the steps of a graph, by roofline, and of its collectives, between as many ranks as calls say, else those of a host."""

    def __init__(self, graph: Graph, machine: Machine):
        hints = graph.hints
        self.link = link_of(machine)
        begins = {at: s.op for at, s in enumerate(graph.steps) if isinstance(s.op, nd.ExternOp) and is_begin(s.op)}
        said = [n for op in begins.values() if (n := group_ranks(op)) is not None]
        usual = max(said, default=self.link.host_ranks)
        self.begins = {
            at: self.link.seconds(collective_kind(op), collective_bytes(op, hints), group_ranks(op) or usual) for at, op in begins.items()
        }
        owners = {at: s.op.operands[0].owner for at, s in enumerate(graph.steps) if is_wait(s.op)}
        self.waits = {at: graph.position.get(owner, -1) if isinstance(owner, Operation) else -1 for at, owner in owners.items()}
        self.work = [0.0 if at in self.begins or at in self.waits else _seconds(s.op, hints, machine) for at, s in enumerate(graph.steps)]

    def run(self, clock: Clock, at: int) -> None:
        """A step takes its time."""
        if at in self.begins:
            clock.begin(at, self.begins[at])
        elif at in self.waits:
            clock.wait(self.waits[at])
        else:
            clock.work(self.work[at])

    def clock(self, order: Sequence[int]) -> Clock:
        """The time at the end of all steps in an order."""
        clock = Clock()
        for at in order:
            self.run(clock, at)
        return clock


def _seconds(op: Operation, hints: Mapping[str, int], machine: Machine) -> float:
    """What a step takes at least: its bytes from memory, or the arithmetic of a product."""
    moved = sum(bytes_of(v, hints) for v in (*op.operands, *op.results))
    flops = 0.0
    if isinstance(op, loop.ContractOp):
        flops = 2.0 * prod(size(e, hints) for e in op.loop_sizes) * size(op.depth.data, hints)
    elif isinstance(op, loop.NestOp):
        points = prod(size(e, hints) for e in op.loop_sizes)
        flops = 2.0 * points * sum(prod(size(e, hints) for e in r.loop_sizes) for r in op.walk() if isinstance(r, loop.ReduceOp))
    elif isinstance(op, nd.ExternOp) and (sizes := product_sizes(op, hints)) is not None:
        flops = 2.0 * prod(sizes)
    return max(moved / machine.bandwidth(moved), flops / machine.gflops) * 1e-9


class Listing:
    """The steps, listed one after the other; `bound` is how many bytes may be alive."""

    def __init__(self, graph: Graph, prices: Prices, given: Sequence[int], bound: int, window: int):
        self.graph, self.prices, self.bound, self.window = graph, prices, bound, window
        self.rest = list(given)
        self.listed: list[int] = []
        self.clock = Clock()
        self.missing = [len(step.before) for step in graph.steps]
        """How many of the steps that have to come before each are not listed yet."""
        self.readers: dict[Tensor, int] = {t: len(t.users) for t in graph.tensors}
        self.alive = sum(t.bytes for t in graph.tensors if t.first < 0)

    def order(self) -> list[int]:
        """List all steps. Each is listed once; what is looked at in front of a step is limited by a window."""
        begins = sorted(self.prices.begins, key=self.rest.index)
        while self.rest:
            begin = next((b for b in begins if not self._is_listed(b)), None)
            if begin is not None and self.missing[begin] == 0 and begin in self._window() and self._fits(begin):
                self._list(begin)
            else:
                self._list(self._next())
        return self.listed

    def _is_listed(self, at: int) -> bool:
        return self.missing[at] < 0

    def _next(self) -> int:
        """The first step, or where that would wait, the first one behind it that is ready and does not."""
        first = self.rest[0]
        if not self._waits(first):
            return first
        return next((at for at in self._window() if self.missing[at] == 0 and not self._waits(at) and self._fits(at)), first)

    def _window(self) -> Iterator[int]:
        """The next steps up to one that nothing goes past."""
        for at in self.rest[: self.window]:
            if self.graph.steps[at].fixed:
                return
            yield at

    def _waits(self, at: int) -> bool:
        return at in self.prices.waits and self.clock.left(self.prices.waits[at]) > 0.0

    def _fits(self, at: int) -> bool:
        step = self.graph.steps[at]
        return self.alive + step.scratch + sum(t.bytes for t in step.makes) <= self.bound

    def _list(self, at: int) -> None:
        self.rest.remove(at)
        self.listed.append(at)
        self.missing[at] = -1
        for following in self.graph.after[at]:
            self.missing[following] -= 1
        self.prices.run(self.clock, at)
        step = self.graph.steps[at]
        self.alive += sum(t.bytes for t in step.makes)
        for tensor in step.uses:
            self.readers[tensor] -= 1
        for tensor in {*step.uses, *step.makes}:
            if not tensor.kept and self.readers[tensor] == 0:
                self.alive -= tensor.bytes
