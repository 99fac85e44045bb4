"""What a nest costs on a machine: bytes from each level of memory, arithmetic, and the time that these predict.

    nest_cost(nest, hints, SERVER).seconds            # a nest in the IR, at the loop or the memory level
    estimate(Work(read=..., written=..., units=...), SERVER).seconds    # the same from totals, for plans that are not IR yet

All are pure functions. The time is that of the slowest of: arithmetic (vector operations of the schedule), and for each level the bytes
that come from it at its bandwidth (reads and writes alike: a copy was measured to move as many bytes a second as a sum); with a part of the
others, since they overlap only partly. Launching is added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import AnyFloat
from xdsl.ir import Block, Operation, SSAValue

from ...dialects import loop
from ...dialects.expr import Expr, free_dims, linear_coeff, sym
from ...dialects.expr.ranges import RangeEnv
from ..analysis.nest_access import Access, NestAccess, Node
from ..analysis.nest_info import HEAVY
from ..analysis.nest_key import nest_key
from ..analysis.op_costs import op_cost
from .footprint import Footprint
from .loops_inside import body_roots
from .machine.cpu import SERVER, Cpu
from .nest_cost import Cost as Units
from .nest_cost import Schedule
from .schedule_choice import choose

Bound = Literal["memory", "compute", "launch"]

_COMBINE_OPS = {"welford": 6, "scaled_prod": 8, "softmax_dot": 8}
"""Operations that a reduction takes for each element, where that is not 1."""

_NO_FLOPS = (arith.ConstantOp, arith.CmpfOp, arith.SelectOp, arith.ExtFOp, arith.TruncFOp, arith.SIToFPOp, arith.UIToFPOp)


@dataclass(frozen=True)
class Work:
    """What something does, in totals. `read`, `written`: distinct bytes. `units`: operations on 512 bits. `specials`: divisions, roots,
    functions of `math`, random numbers, for each element. `traffic`: bytes that miss each cache, nearest first (empty: as if everything was
    gone through once). `iterations`: of the parallel loops; `threads`: whether they are shared among threads."""

    read: float = 0.0
    written: float = 0.0
    units: float = 0.0
    flops: float = 0.0
    specials: float = 0.0
    launches: int = 1
    iterations: float = 1.0
    threads: bool = True
    traffic: tuple[float, ...] = ()

    def __add__(self, other: Work) -> Work:
        """Two nests, one after the other."""
        long, short = sorted((self.traffic, other.traffic), key=len, reverse=True)
        return Work(
            self.read + other.read, self.written + other.written, self.units + other.units, self.flops + other.flops,
            self.specials + other.specials, self.launches + other.launches, min(self.iterations, other.iterations),
            self.threads and other.threads, tuple(a + b for a, b in zip(long, short, strict=False)) if short else (),
        )  # fmt: skip


@dataclass(frozen=True)
class Cost:
    """The price of a `Work` on a machine. `bytes_by_level`: what comes from each level beyond the first cache, by its name. `compute_s` and
    `memory_s` are the two parts of `seconds` before they overlap. `accesses`: how many accesses are contiguous, uniform, strided, gathered
    along the vector's loop."""

    work: Work
    bytes_by_level: Mapping[str, float]
    compute_s: float
    memory_s: float
    seconds: float
    bound: Bound
    style: str = ""
    accesses: Mapping[str, int] = field(default_factory=dict)

    @property
    def bytes(self) -> float:
        """Distinct bytes read and written."""
        return self.work.read + self.work.written

    @property
    def flops(self) -> float:
        return self.work.flops

    @property
    def specials(self) -> float:
        return self.work.specials


def estimate(work: Work, machine: Cpu = SERVER) -> Cost:
    """The price of `work`."""
    threads = min(machine.threads, max(1.0, work.iterations)) if work.threads else 1
    compute = work.units * machine.unit_ns / threads
    bytes_by_level: dict[str, float] = {}
    memory = 0.0
    touched = work.read + work.written
    for k, level in enumerate(machine.levels[1:]):
        inner = machine.levels[k].bytes
        if work.traffic:
            moved = work.traffic[k] if k < len(work.traffic) else 0.0
        else:
            moved = touched if touched > inner else 0.0
        bytes_by_level[level.name] = moved
        memory = max(memory, moved / (level.gbs if threads == 1 else min(level.all_gbs, level.gbs * threads)))
    launch = work.launches * machine.launch_ns + (machine.region_ns if threads > 1 else 0.0)
    busy = machine.busy(compute, memory)
    bound: Bound = "launch" if launch > busy else "compute" if compute >= memory else "memory"
    return Cost(work, bytes_by_level, compute * 1e-9, memory * 1e-9, (busy + launch) * 1e-9, bound)


# ---- nests

_CACHE: dict[tuple[object, ...], Cost] = {}
_CACHE_LIMIT = 4096


def nest_cost(
    nest: loop.NestOp,
    hints: Mapping[str, int] | None = None,
    machine: Cpu = SERVER,
    symbols: RangeEnv | None = None,
    strides: Mapping[SSAValue, Sequence[Expr]] | None = None,
) -> Cost:
    """The price of a nest, at the loop level (tensors count as row-major, but for those of `strides`) or at the memory level, under its
    schedule or the one that it would get. `hints` are typical values of the size symbols by name (else 64); `symbols` what is known of
    their ranges."""
    same, numbers = nest_key(nest)
    layouts = tuple((numbers[v], *found) for v, found in (strides or {}).items() if v in numbers)
    key = (same, layouts, tuple(sorted((hints or {}).items())), machine)
    found = _CACHE.get(key)
    if found is None:
        if len(_CACHE) >= _CACHE_LIMIT:
            _CACHE.clear()
        known: dict[Expr, int] = {sym(n): v for n, v in (hints or {}).items()}
        found = _CACHE[key] = _nest_cost(nest, known, machine, symbols or RangeEnv({}), strides)
    return found


def _nest_cost(
    nest: loop.NestOp, hints: dict[Expr, int], machine: Cpu, symbols: RangeEnv, strides: Mapping[SSAValue, Sequence[Expr]] | None
) -> Cost:
    info = NestAccess(nest, symbols, strides=strides)
    schedule = choose(info, hints)
    work, units = nest_work(info, schedule, hints, machine)
    return replace(estimate(work, machine), style=schedule.style, accesses=access_kinds(units, schedule))


def nest_work(info: NestAccess, schedule: Schedule, hints: Mapping[Expr, int], machine: Cpu) -> tuple[Work, Units]:
    """The totals of a nest whose accesses are known."""
    units = Units(info, hints)
    footprint = Footprint(info, units, schedule)
    read, written = footprint.touched()
    trips = units.trips(info.root.loops)
    flops, specials = body_work(info.root.op.regions[0].blocks[0], trips, units)
    traffic = tuple(sum(footprint.traffic(level.bytes)) for level in machine.levels[:-1])
    work = Work(read, written, schedule.cost - _repeated(units, schedule, trips), flops, specials, 1, trips, schedule.parallel, traffic)
    return work, units


def _repeated(units: Units, schedule: Schedule, trips: float) -> float:
    """Operations that the schedule's cost counts for each iteration, though they run outside of a loop on which they do not depend: what
    is the same in all lanes, and, where the other loops run inside of the vector loop, what is the same in all of these."""
    if schedule.style == "inner":
        return min(_same_in_lanes(units.info.root, units, schedule, None, trips, {}), 0.9 * schedule.cost)
    info = units.info
    if schedule.style != "lanes" or schedule.vector is None or info.root.children:
        return 0.0
    lanes = schedule.vector.dim
    inside = units.trips([one for one in info.root.loops if one.dim in schedule.inside])
    saved = 0.0
    for op, roots in body_roots(units, units.info.nest.regions[0].blocks[0], {}):
        if op in info.access or op.results[0] in info.exprs:
            continue
        if lanes not in roots:
            saved += op_cost(op) * (1 - 1 / schedule.lanes)
        elif schedule.inside and roots.isdisjoint(schedule.inside):
            saved += op_cost(op) * (1 - 1 / inside)
    return min(saved / 16 * trips, 0.9 * schedule.cost)


def _same_in_lanes(
    node: Node, units: Units, schedule: Schedule, lanes: tuple[Expr, int] | None, trips: float, roots: dict[SSAValue, frozenset[Expr]]
) -> float:
    """Operations that are counted in all lanes of the loops inside of a nest, and are the same there. `lanes`: the loop that runs along the
    lanes in the body of `node`, and how many."""
    saved = 0.0
    for region in node.op.regions:
        for op, own in body_roots(units, region.blocks[0], roots):
            if lanes is not None and lanes[0] not in own and op not in units.info.access and op.results[0] not in units.info.exprs:
                saved += op_cost(op) * (1 - 1 / lanes[1]) / 16 * trips
    for child in node.children:
        choice = schedule.inner.get(child)
        inside = lanes if choice is None else (choice[0].dim, choice[1])
        times = 1.0 if child.op in units.info.repeated else trips
        saved += _same_in_lanes(child, units, schedule, inside, times * units.trips(child.loops), roots)
    return saved


def access_kinds(units: Units, schedule: Schedule) -> dict[str, int]:
    """How many accesses are contiguous, uniform, strided or gathered along the loop that runs along the lanes (scalar where none does)."""
    found: dict[str, int] = {}
    for node in units.info.root.walk():
        lanes = _lanes(node, schedule)
        for access in node.accesses:
            kind = _kind(access, lanes, units)
            found[kind] = found.get(kind, 0) + 1
    return found


def _lanes(node: Node, schedule: Schedule) -> Expr | None:
    if schedule.vector is not None:
        return schedule.vector.dim
    at: Node | None = node
    while at is not None:
        choice = schedule.inner.get(at)
        if choice is not None:
            return choice[0].dim
        at = at.parent
    return None


def _kind(access: Access, lanes: Expr | None, units: Units) -> str:
    if lanes is None:
        return "scalar"
    if lanes not in units.roots(access.offset):
        return "uniform"
    stride = linear_coeff(access.offset, lanes) if lanes in free_dims(access.offset) else None
    if stride is None or any(lanes in units.roots(d) for d in free_dims(access.offset) if d in units.info.opaque):
        return "gathered"
    return "contiguous" if stride.value == 1 else "strided"


def op_flops(op: Operation) -> int:
    """Floating point operations of one body op."""
    if isinstance(op, math.FmaOp):
        return 2
    if isinstance(op, _NO_FLOPS) or not op.results or op.name.partition(".")[0] not in ("arith", "math"):
        return 0
    return int(isinstance(op.results[0].type, AnyFloat))


def body_work(block: Block, trips: float, units: Units) -> tuple[float, float]:
    """(floating point operations, special functions) of a block that runs `trips` times."""
    flops = specials = 0.0
    for op in block.ops:
        flops += op_flops(op) * trips
        specials += (op.name in HEAVY) * trips
        if isinstance(op, loop.LoopLike):
            inner = 1.0 if op in units.info.repeated else trips
            for e in op.loop_sizes:
                inner *= units.size(e)
            if isinstance(op, loop.ReduceOp):
                flops += inner * sum(_COMBINE_OPS.get(k, 1) for k in op.kind_names)
            elif isinstance(op, loop.ScanOp):
                flops += inner
            for region in op.regions:
                for body in region.blocks:
                    more = body_work(body, inner, units)
                    flops, specials = flops + more[0], specials + more[1]
    return flops, specials
