"""mem-join-nests: small nests that need nothing of each other share one parallel region.

Starting and joining threads costs some microseconds whatever they do (`region_ns`), and a nest that takes hardly longer runs on one
thread. Nests that follow each other and touch nothing that another one of them writes can be shared among threads as one piece of work,
whatever their structure: one region in place of several, and one at all where each alone would be too little. The counterpart is OpenMP's
`sections`, with each section shared among the threads too, or horizontal fusion on a GPU (tt-join-launches).

The decision stands in the IR: nests with the same number `join` follow each other and run together; mem-to-cpu refuses those that must not.
The pass runs behind mem-plan, so that two buffers in one place of the arena keep their nests apart, and peak memory stays what it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue

from ...dialects import loop, mem
from ...dialects.expr import Expr, evaluate, free_syms
from ...dialects.expr.ranges import RangeEnv
from ..analysis.dependences import dependences
from ..analysis.lifetimes import entry_symbols
from ..analysis.nest_access import NestAccess
from ..analysis.nest_key import is_nest_in_memory, nest_key
from ..analysis.schedule_attrs import bool_attr, int_attr, update_schedule
from ..analysis.symbols import DEFAULT_SIZE, symbol_facts
from ..cost.machine import Cpu, machine_of
from ..cost.nest_cost import NS_PER_UNIT, SERIAL_NS, Cost
from ..cost.schedule_choice import choose, has_few_units
from ..manager.errors import PassError
from ..manager.pass_manager import Pass

JOIN = "join"
"""Attribute of nests that run in one parallel region: a number that they share."""
MAX_JOINED_NESTS = 16
"""Nests of one group."""
MAX_OPEN_GROUPS = 4
"""Groups that the next nest, or launch, may still join."""
MIN_GAIN_SHARE, MIN_GAIN_NS = 0.05, 500.0
"""Share of the time without joining that has to be saved, and time."""
MIN_ELEMENT_OPS = 1 << 14
"""Operations on single elements below which a nest is done in no time, so that it is not worth asking."""


@dataclass(frozen=True)
class MemJoinNests(Pass):
    """Puts small nests that do not depend on each other next to each other, to run in one parallel region."""

    name = "mem-join-nests"

    longest: float = 100.0
    """Microseconds of one thread above which a nest stays alone: what a region costs is little beside it."""

    always: bool = False
    """Join whatever may be joined, without asking the cost model."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        machine = machine_of(op, Cpu)
        if machine.threads < 2:
            return
        symbols, hints = symbol_facts(op)
        prices = _Prices(symbols, hints)
        number = max((n for nest in op.walk() if (n := join_number(nest)) is not None), default=-1)
        for func in [f for f in op.ops if isinstance(f, FuncOp) and f.body.blocks and loop.batch_symbols(f) is None]:
            work = {nest: _work(nest, hints) for nest in func.body.block.ops if is_nest_in_memory(nest) and join_number(nest) is None}
            free = {nest for nest, n in work.items() if self.always or n >= MIN_ELEMENT_OPS}
            if len(free) < 2:
                continue
            order = _Order(func, free)
            for group in list(order.groups()):
                members = [_Member(nest, prices.of(nest)) for nest in group]
                members = [m for m in members if self.always or m.price.ns <= self.longest * 1000]
                if len(members) > 1 and self._pays(members, machine):
                    number += 1
                    order.join(members, number)

    def _pays(self, members: Sequence[_Member], machine: Cpu) -> bool:
        """Whether nests should run together, with a remark."""
        alone, together = times([m.price for m in members], machine)
        pays = self.always or alone - together >= max(MIN_GAIN_SHARE * alone, MIN_GAIN_NS)
        what = f"{len(members)} nests {'' if pays else 'not '}joined"
        text = f"{what}: {alone / 1000:.1f} us one after the other, {together / 1000:.1f} us in one region, {machine.threads} threads"
        self.remark(members[0].nest, text, "applied" if pays else "missed")
        if pays:
            self.statistic("num-regions")
            self.statistic("num-joined", len(members))
        return pays


def join_number(op: Operation) -> int | None:
    """The number of the group that a nest runs with."""
    found = op.attributes.get(JOIN)
    return None if found is None else found.value.data  # pyright: ignore[reportAttributeAccessIssue]


def joined_nests(func: FuncOp) -> list[list[loop.NestOp]]:
    """The groups of a function, in order. Raises PassError for nests of one group that do not follow each other or depend on each other."""
    found: dict[int, list[loop.NestOp]] = {}
    last: int | None = None
    for op in func.body.block.ops:
        if isinstance(op, _DEFINITIONS):
            continue
        number = join_number(op)
        if number is not None:
            if not is_nest_in_memory(op):
                raise PassError(f"'{JOIN}' is for nests on buffers, not for {op.name}", pass_name=MemJoinNests.name, op=op)
            assert isinstance(op, loop.NestOp)
            if number in found and number != last:
                raise PassError(f"the nests of join = {number} do not follow each other", pass_name=MemJoinNests.name, op=op)
            found.setdefault(number, []).append(op)
        last = number
    if found:
        home = {nest: number for number, nests in found.items() for nest in nests}
        for one in dependences(func):
            number = home.get(one.first)  # pyright: ignore[reportArgumentType]
            if number is not None and number == home.get(one.second):  # pyright: ignore[reportArgumentType]
                message = f"this nest cannot run together with another one of join = {number}: {one.kind}"
                raise PassError(message, pass_name=MemJoinNests.name, op=one.second)
    return list(found.values())


_DEFINITIONS = (mem.AllocOp, mem.ViewOp)
"""Ops that only say where memory is."""


@dataclass
class _Group:
    """Nests that may run together. `first`: the position of the first one; `crossed`: whether something else stands behind it."""

    first: int
    nests: list[loop.NestOp] = field(default_factory=list)
    crossed: bool = False


# ---- what it costs


@dataclass(frozen=True)
class Price:
    """One nest alone: `ns` on one thread, whether threads may share it, whether they do when it runs alone, and how much is worth one."""

    ns: float
    divisible: bool
    shared: bool
    grain: int = SERIAL_NS


@dataclass
class _Member:
    nest: loop.NestOp
    price: Price


@dataclass
class _Prices:
    """Prices of nests, once for equal ones."""

    symbols: RangeEnv
    hints: dict[Expr, int]
    known: dict[object, Price] = field(default_factory=dict)

    def of(self, nest: loop.NestOp) -> Price:
        key = nest_key(nest)[0]
        found = self.known.get(key)
        if found is None:
            info = NestAccess(nest, self.symbols)
            schedule = choose(info, self.hints)
            divisible = schedule.free and not has_few_units(Cost(info, self.hints), schedule)
            found = self.known[key] = Price(schedule.cost * NS_PER_UNIT, divisible, schedule.parallel, schedule.grain)
        return found


def _work(op: Operation, hints: Mapping[Expr, int]) -> float:
    """Operations on single elements that a nest or a loop in it does."""
    body = op.regions[0].block
    inside = sum(_work(inner, hints) if isinstance(inner, loop.LoopLike) else 1.0 for inner in body.ops)
    for size in op.loop_sizes if isinstance(op, loop.LoopLike) else ():
        inside *= evaluate(size, {s: hints.get(s, DEFAULT_SIZE) for s in free_syms(size)}) if size.value is None else size.value
    return inside


def times(prices: Sequence[Price], machine: Cpu) -> tuple[float, float]:
    """(ns of nests one after the other, ns in one region) on the threads of `machine`."""
    alone = sum(_shared_time(p.ns, machine, p.grain) if p.shared else p.ns for p in prices)
    total = sum(p.ns for p in prices)
    longest = max((p.ns for p in prices if not p.divisible), default=0.0)
    together = _shared_time(total, machine, min(p.grain for p in prices), longest)
    return alone + (len(prices) - 1) * machine.launch_ns, together


def _shared_time(ns: float, machine: Cpu, grain: int, longest: float = 0.0) -> float:
    """Time of work that threads share, of which one part of `longest` ns runs on one of them."""
    threads = min(machine.threads, int(ns / grain))
    return ns if threads < 2 else max(ns / threads, longest) + machine.region_ns


# ---- which may run together, and where they stand


class _Order:
    """The ops of a function with their positions. `free`: nests that may be moved."""

    def __init__(self, func: FuncOp, free: AbstractSet[Operation]):
        self.func = func
        self.free = free
        self.position: dict[Operation, int] = {op: k for k, op in enumerate(func.body.block.ops)}
        self.known = entry_symbols(func)

    def groups(self) -> Iterator[list[loop.NestOp]]:
        """Nests that depend neither on each other nor on what stands between them, as many as there are, in the order of the program."""
        after: dict[Operation, int] = {}
        for one in dependences(self.func):
            after[one.second] = max(after.get(one.second, -1), self.position[one.first])
        groups: list[_Group] = []
        for k, op in enumerate(self.position):
            if isinstance(op, _DEFINITIONS):
                continue
            if self._stays(op):
                yield from (g.nests for g in groups)
                groups.clear()
                continue
            home = None
            if op in self.free:
                assert isinstance(op, loop.NestOp)
                waits = max(after.get(op, -1), *(self._made_at(v) for v in _captured(op)))
                home = next((g for g in groups if waits < g.first and self._fits(g, op)), None)
                if home is None:
                    home = _Group(k)
                    groups.append(home)
                home.nests.append(op)
            for group in groups:
                group.crossed |= group is not home
            if len(groups) > MAX_OPEN_GROUPS:
                yield groups.pop(0).nests
        yield from (g.nests for g in groups)

    def _stays(self, op: Operation) -> bool:
        """Whether nothing goes past an op: a call that gives nothing (a check), or one that defines sizes, which nests use without a value
        that would say so."""
        if not isinstance(op, mem.ExternOp):
            return False
        if op.binds is not None or not (op.results or op.out or op.mutates):
            return True
        types = [r.type for r in op.results if isinstance(r.type, mem.BufferType)]
        return any(not free_syms(e) <= self.known for t in types for e in (*t.dims, *t.stride_exprs))

    def _fits(self, group: _Group, nest: loop.NestOp) -> bool:
        """Whether a group has room for a nest. Memory outside of the arena is not taken before other steps: it would be held for longer."""
        return len(group.nests) < MAX_JOINED_NESTS and not (group.crossed and self._allocates(nest, group.first))

    def _made_at(self, value: SSAValue) -> int:
        """The last op that has to be done before `value` is there; memory can be named anywhere."""
        owner = value.owner
        if not isinstance(owner, Operation):
            return -1
        if isinstance(owner, _DEFINITIONS):
            return max((self._made_at(v) for v in owner.operands), default=-1)
        return self.position[owner]

    def _allocates(self, nest: loop.NestOp, first: int) -> bool:
        """Whether a nest needs memory outside of the arena that is taken behind position `first`."""
        worklist = list(nest.outs)
        while worklist:
            owner = worklist.pop().owner
            if isinstance(owner, _DEFINITIONS) and self.position[owner] > first:
                if isinstance(owner, mem.AllocOp) and (owner.kind.data != "arena" or owner.at is None):
                    return True
                worklist += owner.operands
        return False

    def join(self, members: Sequence[_Member], number: int) -> None:
        """Put nests behind the first one, the memory that they name before it, and mark them."""
        first = last = members[0].nest
        block = self.func.body.block
        for member in members:
            nest = member.nest
            if nest is not first:
                for value in _captured(nest):
                    self._define_before(value, first)
                nest.detach()
                block.insert_op_after(nest, last)
                last = nest
            nest.attributes[JOIN] = int_attr(number)
            if member.price.divisible and not member.price.shared:
                update_schedule(nest, {"parallel": bool_attr(True)})

    def _define_before(self, value: SSAValue, place: Operation) -> None:
        """Have memory named before `place`."""
        owner = value.owner
        if not isinstance(owner, _DEFINITIONS) or self.position[owner] < self.position[place]:
            return
        for operand in owner.operands:
            self._define_before(operand, place)
        owner.detach()
        self.func.body.block.insert_op_before(owner, place)
        self.position[owner] = self.position[place] - 1


def _captured(nest: loop.NestOp) -> dict[SSAValue, None]:
    """What a nest uses from outside."""
    found: dict[SSAValue, None] = dict.fromkeys(nest.operands)
    for op in loop.walk_bodies(nest):
        for value in op.operands:
            owner = value.owner
            if (owner if isinstance(owner, Block) else owner.parent) is nest.parent:
                found[value] = None
    return found
