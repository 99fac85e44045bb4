"""loop-order: nests, contractions and calls in an order in which less memory is alive at the peak.

Any order that keeps the dependences computes the same; the graph's own is eager's. Where most memory is alive, a step that frees more
than it makes comes before it, or one that makes more than it frees comes behind it: the gradient of a weight before that of the
activation, since the saved activation goes with it. Steps that read the same (a weight) come behind it together, since one of them alone
would only keep that alive. List scheduling by bytes would begin anew and lose what neighbours share in the cache; moves from the given
order leave it where it does no harm. XLA's memory scheduler chooses among whole schedules instead. Collectives are put where other work
runs beside them (collective_order.py), for which no more memory than in the program's own order is taken, and one bucket of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import DictionaryAttr, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from ...dialects import loop, nd
from ...dialects.expr import product
from ...dialects.machine import max_memory
from ...dialects.nd.base import prop
from ...dialects.nd.types import TensorType, element_bytes
from ..analysis.symbols import symbol_hints
from ..cost.collective_cost import is_begin, is_wait, link_of
from ..cost.machine import machine_of
from ..manager.pass_manager import Pass
from ..mem.arena.peak import DONATED, value_of
from ..mem.arena.pooled import MIN_GAIN_PARTS
from ..mem.arena.scratch import scratch_bytes
from .collective_order import overlapped

MIN_PEAK_SHARE = 0.9
"""Bytes above this part of the first peak count when two orders with the same peak are compared."""


@dataclass(eq=False)
class Tensor:
    """Memory: a tensor with its views and what is built on it."""

    bytes: int
    kept: bool = False
    """Alive to the end: a result, or the new value of an argument."""
    first: int = -1
    """The step that makes it, -1 for donated arguments."""
    users: set[int] = field(default_factory=set)


@dataclass(eq=False)
class MovableOp:
    """What is moved as one: an operation on tensors."""

    op: Operation
    makes: list[Tensor] = field(default_factory=list)
    uses: list[Tensor] = field(default_factory=list)
    before: set[int] = field(default_factory=set)
    """Steps that have to come first."""
    scratch: int = 0
    """Bytes that it takes while it runs."""
    fixed: bool = False
    """It stays where it is, and nothing goes past it."""


@dataclass(frozen=True)
class LoopOrder(Pass):
    """Puts nests, contractions and calls into an order with a lower peak of memory."""

    name = "loop-order"

    moves: int = 48
    """Moves that are tried in a function."""

    window: int = 48
    """How many steps from the peak are looked at."""

    room: int = 0
    """Bytes by which the peak may be above that of the program's own order for collectives to begin earlier; not with `max_memory`."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        hints = symbol_hints(op)
        for func in [f for f in op.ops if isinstance(f, FuncOp) and not f.is_declaration]:
            graph = Graph(func, hints)
            if not graph.steps:
                continue
            profile, before, after = lower_peak(graph, self.moves, self.window)
            if before - after < max(before // MIN_GAIN_PARTS, 1):
                profile = Profile(graph, self.window)
            if graph.has_collectives:
                bucket = int(link_of(machine_of(op)).small_bytes)
                self._overlap(func, profile, max(profile.alive) if max_memory(op) is not None else before + bucket + self.room)
            moved, after = sum(a != b for a, b in enumerate(profile.order)), max(profile.alive)
            if not moved:
                continue
            write(func, graph, profile.order)
            self.statistic("num-moved", moved)
            if after < before:
                self.statistic("bytes-saved", before - after)
                self.remark(func, f"other order of {len(profile.order)} steps: {after} bytes at the peak, not {before}", "applied")

    def _overlap(self, func: FuncOp, profile: Profile, bound: int) -> None:
        given = profile.order
        order, before, after = overlapped(profile, machine_of(func), bound, self.window)
        told = [f"{c.communication * 1e6:.0f} us of communication, {c.exposed * 1e6:.0f} us of them exposed" for c in (before, after)]
        if order == given:
            self.remark(func, f"collectives stay where they are: {told[0]}", "missed")
        else:
            self.remark(func, f"other work beside collectives: {told[1]}, before {told[0]}", "applied")


class Graph:
    """The steps of a function, what they make and need, and which have to come before which."""

    def __init__(self, func: FuncOp, hints: Mapping[str, int]):
        self.hints = hints
        self.steps: list[MovableOp] = []
        self.position: dict[Operation, int] = {}
        self.tensors: list[Tensor] = []
        self.memory: dict[SSAValue, Tensor | None] = {}
        """For every tensor; None for arguments that the caller keeps."""
        self.needs = _needs(func)
        self._collective: int | None = None
        self._readers: dict[SSAValue, set[int]] = {}
        """Steps that read a value, or a view of it."""
        self._base: dict[SSAValue, SSAValue] = {}
        self._arguments(func)
        updates: list[nd.UpdateOp] = []
        for op in func.body.block.ops:
            if isinstance(op, nd.UpdateOp):
                updates.append(op)
            elif isinstance(op, nd.IndexViewOp):
                self.memory[op.result] = self.memory[op.input]
                self._base[op.result] = self._base.get(op.input, op.input)
            elif isinstance(op, ReturnOp):
                self._keep(op.operands)
            elif not isinstance(op, loop.EmptyOp):
                self._step(op)
        self._keep([u.value for u in updates])
        for update in updates:
            self._write_after_reads(update)
        self.after: list[list[int]] = [[] for _ in self.steps]
        """For each step those that have to come behind it."""
        for at, step in enumerate(self.steps):
            for b in step.before:
                self.after[b].append(at)

    def _arguments(self, func: FuncOp) -> None:
        attrs = func.arg_attrs.data if func.arg_attrs is not None else ()
        bases: dict[object, Tensor] = {}
        for k, argument in enumerate(func.body.block.args):
            if not isinstance(argument.type, TensorType):
                continue
            attr = attrs[k].data if k < len(attrs) and isinstance(attrs[k], DictionaryAttr) else {}
            self.memory[argument] = None
            if DONATED in attr:
                made = bases.get(attr.get("nd.base")) or self._tensor(argument, -1)
                self.memory[argument] = made
                if "nd.base" in attr:
                    bases[attr["nd.base"]] = made

    @property
    def has_collectives(self) -> bool:
        """Whether a step begins a collective."""
        return self._collective is not None

    def _tensor(self, value: SSAValue, first: int) -> Tensor:
        t = value.type
        assert isinstance(t, TensorType)
        made = Tensor(value_of(product(t.dims), self.hints) * element_bytes(t.element_type), first=first)
        self.tensors.append(made)
        return made

    def _keep(self, values: Iterable[SSAValue]) -> None:
        for value in values:
            found = self.memory.get(value)
            if found is not None:
                found.kept = True

    def _step(self, op: Operation) -> None:
        at = len(self.steps)
        step = MovableOp(op, scratch=scratch_bytes(op, self.hints) if isinstance(op, nd.ExternOp) else 0, fixed=_stays(op))
        self.steps.append(step)
        self.position[op] = at
        if is_begin(op):  # they keep their order, which is the same on all ranks
            if self._collective is not None:
                step.before.add(self._collective)
            self._collective = at
        for value in self.needs.get(op, ()):
            base = self._base.get(value, value)
            if isinstance(base.owner, Operation) and base.owner in self.position:
                step.before.add(self.position[base.owner])
            self._readers.setdefault(base, set()).add(at)
            found = self.memory.get(value)
            if found is not None and at not in found.users:
                found.users.add(at)
                step.uses.append(found)
        for result, built_on in _results(op):
            base = None if built_on is None else self._base.get(built_on, built_on)
            if base is None or base not in self.memory:
                made = self.memory[result] = self._tensor(result, at)
                step.makes.append(made)
                continue
            # stored in place only when nobody reads the old value afterwards
            step.before.update(self._readers.get(base, set()) - {at})
            self.memory[result] = self.memory[base]

    def _write_after_reads(self, update: nd.UpdateOp) -> None:
        """The nests that build up an argument's new value may store in place after what reads the old one: that stays before them."""
        value: SSAValue | None = update.value
        readers = self._readers.get(update.target, set())
        while value is not None:
            value = self._base.get(value, value)
            at = self.position.get(value.owner) if isinstance(value.owner, Operation) else None
            if at is None:
                return
            self.steps[at].before.update(r for r in readers if r < at)
            value = next((base for result, base in _results(self.steps[at].op) if result is value), None)


def _stays(op: Operation) -> bool:
    """Whether a step has effects, or defines numbers that later types speak of."""
    if isinstance(op, nd.ExternOp):
        return any(key in op.properties for key in ("effect", "binds")) or not all(isinstance(r.type, TensorType) for r in op.results)
    return not isinstance(op, (loop.NestOp, loop.ContractOp, loop.BatchOp))


def _needs(func: FuncOp) -> dict[Operation, list[SSAValue]]:
    """For every operation of the function's block the values of that block that it, or something inside of it, uses; each once."""
    block = func.body.block
    found: dict[Operation, dict[SSAValue, None]] = {}
    for value in (*block.args, *(r for op in block.ops for r in op.results)):
        for use in value.uses:
            user = use.operation
            while user.parent is not block:
                outer = user.parent_op()
                assert outer is not None
                user = outer
            found.setdefault(user, {})[value] = None
    return {user: list(values) for user, values in found.items()}


def _results(op: Operation) -> Iterator[tuple[SSAValue, SSAValue | None]]:
    """The tensors that a step makes, each with the one in whose memory it may be."""
    built: dict[SSAValue, SSAValue] = {}
    if isinstance(op, (loop.NestOp, loop.ContractOp)):
        built = dict(zip(op.results, op.outs, strict=True))
    elif is_wait(op):
        built = {op.results[0]: op.operands[0]}
    elif isinstance(op, nd.ExternOp):
        mutates, aliases = prop(op, "mutates") or (), prop(op, "aliases") or ()
        built = {r: op.operands[k] for r, k in zip(op.results, aliases, strict=False) if k >= 0}
        written = op.results[len(op.results) - len(mutates) :]
        built |= {r: op.operands[k] for r, k in zip(written, mutates, strict=True)}
    for result in op.results:
        if isinstance(result.type, TensorType):
            base = built.get(result)
            yield result, None if base is None or isinstance(base.owner, loop.EmptyOp) else base


# ---- what is alive, and moves


@dataclass(frozen=True)
class Move:
    """Steps that change their place together."""

    gain: int
    """Bytes less at the peak, as it promises."""
    steps: tuple[tuple[int, int | None], ...]
    """Each with the step that it comes to stand in front of; None: it comes last."""


class Profile:
    """An order of the steps and the bytes alive at each place in it."""

    def __init__(self, graph: Graph, window: int):
        self.graph = graph
        self.window = window
        self.order = list(range(len(graph.steps)))
        self.place = list(self.order)
        self.alive: list[int] = []
        self.measure()

    def measure(self) -> None:
        """Count anew."""
        place, steps = self.place, self.graph.steps
        count = len(steps)
        change = [0] * (count + 1)
        for tensor in self.graph.tensors:
            start = place[tensor.first] if tensor.first >= 0 else 0
            change[start] += tensor.bytes
            if not tensor.kept:
                change[max((place[u] for u in tensor.users), default=start) + 1] -= tensor.bytes
        now = 0
        alive = self.alive = []
        for at, k in enumerate(self.order):
            now += change[at]
            alive.append(now + steps[k].scratch - self._in_place(steps[k], at))

    def _in_place(self, step: MovableOp, at: int) -> int:
        """Bytes that a nest's results have in common with what dies in it."""
        if not isinstance(step.op, loop.NestOp) or not step.makes:
            return 0
        dying = sorted(t.bytes for t in step.uses if not t.kept and self._last(t) == at and t not in step.makes)
        shared = 0
        for tensor in step.makes:
            if tensor.bytes in dying:
                dying.remove(tensor.bytes)
                shared += tensor.bytes
        return shared

    def _last(self, tensor: Tensor) -> int:
        return max((self.place[u] for u in tensor.users), default=-1)

    def move(self, move: Move) -> None:
        """Make a move."""
        order = list(self.order)
        for k, following in move.steps:
            order.remove(k)
            order.insert(len(order) if following is None else order.index(following), k)
        self.place_again(order)

    def place_again(self, order: list[int]) -> None:
        """Take `order`, and count anew."""
        self.order = order
        for at, k in enumerate(order):
            self.place[k] = at
        self.measure()

    def moves(self, peak: int) -> list[Move]:
        """Legal moves past the place `peak` that promise less memory there, the best first."""
        found = [*self._earlier(peak), *self._later(peak)]
        return sorted(found, key=lambda m: (-m.gain, self._distance(m), self.place[m.steps[0][0]]))

    def _distance(self, move: Move) -> int:
        return sum(abs(self.place[k] - (len(self.order) if following is None else self.place[following])) for k, following in move.steps)

    def _earlier(self, peak: int) -> Iterator[Move]:
        steps, place = self.graph.steps, self.place
        for at in range(peak + 1, min(peak + self.window, len(self.order))):
            k = self.order[at]
            step = steps[k]
            if step.fixed:
                return
            if all(place[b] < peak for b in step.before):
                freed = sum(t.bytes for t in step.uses if not t.kept and all(place[u] < peak or u == k for u in t.users))
                gain = freed - sum(t.bytes for t in step.makes)
                if gain > 0:
                    yield Move(gain, ((k, self.order[peak]),))

    def _later(self, peak: int) -> Iterator[Move]:
        """Steps that go to just before what needs them: each alone, and those together that use the same memory, which is then alive for
        longer once for all of them."""
        steps, place, order = self.graph.steps, self.place, self.order
        until = min(next((at for at in range(peak, len(order)) if steps[order[at]].fixed), len(order)), peak + self.window)
        together: dict[Tensor, list[tuple[int, int, int | None]]] = {}
        for at in range(peak - 1, max(peak - self.window, -1), -1):
            k = order[at]
            step = steps[k]
            if step.fixed:
                break
            first = min([place[u] for u in self.graph.after[k]] + [until])
            if first <= peak:
                continue
            following = order[first] if first < len(order) else None
            longer = [t for t in step.uses if not t.kept and all(place[u] <= peak for u in t.users)]
            gain = sum(t.bytes for t in step.makes) - sum(t.bytes for t in longer)
            if gain > 0:
                yield Move(gain, ((k, following),))
            for t in longer:
                if gain + t.bytes > 0:
                    together.setdefault(t, []).append((gain + t.bytes, k, following))
        for t, users in together.items():
            gain = sum(g for g, _, _ in users) - t.bytes
            if len(users) > 1 and gain > 0:
                yield Move(gain, tuple((k, following) for _, k, following in users))


def lower_peak(graph: Graph, tries: int, window: int) -> tuple[Profile, int, int]:
    """An order of the steps with a lower peak, the peak before and with it; so many moves are tried, within a window around the peak."""
    now = Profile(graph, window)
    first = max(now.alive)
    floor = int(first * MIN_PEAK_SHARE)

    def weight() -> tuple[int, int]:
        return max(now.alive), sum(a - floor for a in now.alive if a > floor)

    best = weight()
    refused: set[tuple[tuple[int, ...], int]] = set()
    while tries > 0:
        peak = max(range(len(now.alive)), key=lambda at: now.alive[at])
        for move in now.moves(peak):
            key = tuple(k for k, _ in move.steps), now.order[peak]
            if tries == 0 or key in refused:
                continue
            tries -= 1
            before = now.order
            now.move(move)
            found = weight()
            if found < best:
                best = found
                break
            refused.add(key)
            now.place_again(before)
        else:
            break
    return now, first, best[0]


def write(func: FuncOp, graph: Graph, order: list[int]) -> None:
    """Put the operations of `func` into the order of the steps; views and empty tensors go before what needs them first."""
    block = func.body.block
    rest = [op for op in block.ops if op not in graph.position]
    waiting = set(rest)
    placed: list[Operation] = []

    def put(op: Operation) -> None:
        for value in graph.needs.get(op, ()):
            owner = value.owner
            if isinstance(owner, Operation) and owner in waiting:
                waiting.discard(owner)
                put(owner)
        placed.append(op)

    for k in order:
        put(graph.steps[k].op)
    for op in rest:
        if op in waiting:
            waiting.discard(op)
            put(op)
    for op in placed:
        op.detach()
    block.add_ops(placed)
