"""What a nest at the memory level does: operators, bytes, floating point operations, estimated time of its arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import AnyFloat, StringAttr
from xdsl.ir import Block, Operation

from ..dialects import loop, mem
from ..dialects.expr import Expr, evaluate, free_syms
from ..dialects.expr_ranges import RangeEnv
from ..passes.loop.fusion_wishes import origins
from ..passes.loop.loop_schedule import NS_PER_UNIT, Schedule, choose
from ..passes.loop.nest_access import NestAccess
from ..passes.loop.schedule_attrs import asked_at, is_fixed, schedule_table, tile_sizes
from .explain_model import Place, Step, TensorUse
from .explain_names import Names
from .traffic import bytes_of, touched

_COMBINE = {"welford": 6}
"""Operations that a reduction takes for each element, where that is not 1."""

_NO_FLOPS = (arith.ConstantOp, arith.CmpfOp, arith.SelectOp, arith.ExtFOp, arith.TruncFOp, arith.SIToFPOp, arith.UIToFPOp)


def size(sizes: Sequence[Expr], hints: Mapping[str, int]) -> int:
    """Iterations of loops, with typical values of symbols."""
    total = 1
    for e in sizes:
        total *= e.value if e.value is not None else evaluate(e, {s: hints.get(s.name, 64) for s in free_syms(e)})
    return total


def flops(op: Operation) -> int:
    """Floating point operations of one body op."""
    if isinstance(op, math.FmaOp):
        return 2
    if isinstance(op, _NO_FLOPS) or not op.results or op.name.partition(".")[0] not in ("arith", "math"):
        return 0
    return int(isinstance(op.results[0].type, AnyFloat))


def body_work(block: Block, trips: int, hints: Mapping[str, int]) -> tuple[float, int]:
    """(floating point operations in all, ops in the body) of a block that runs `trips` times."""
    work, ops = 0.0, 0
    for op in block.ops:
        ops += not isinstance(op, arith.ConstantOp | loop.YieldOp)
        work += flops(op) * trips
        if isinstance(op, loop.LoopLike):
            inner = trips * size(op.loop_sizes, hints)
            if isinstance(op, loop.ReduceOp):
                work += inner * sum(_COMBINE.get(k, 1) for k in op.kind_names)
            elif isinstance(op, loop.ScanOp):
                work += inner
            for region in op.regions:
                for body in region.blocks:
                    more, count = body_work(body, inner, hints)
                    work, ops = work + more, ops + count
    return work, ops


def sources(op: Operation) -> tuple[list[str], list[Place]]:
    """The operators that an op was made from and the user's lines, in the order of the code."""
    names: dict[str, None] = {}
    places: dict[Place, None] = {}
    for inner in (*loop.walk_bodies(op), op):
        for name, file, line in origins(inner.location):
            if name:
                names[name] = None
            if line:
                places[Place(file, line)] = None
    return list(names), list(places)


def kernel_step(
    op: loop.NestOp | loop.ContractOp, number: int, names: Names, symbols: RangeEnv, facts: Mapping[Expr, int], hints: dict[str, int]
) -> Step:
    """The step of a nest or contraction."""
    operators, places = sources(op)
    reads, writes = touched(op)
    label = op.label.data if op.label is not None else "_".join(operators[-3:]) or "contract"
    step = Step(
        number,
        label,
        "nest" if isinstance(op, loop.NestOp) else "contraction",
        operators,
        places,
        _uses(reads, names, hints),
        _uses(writes, names, hints),
    )
    trips = size(op.loop_sizes, hints)
    step.flops, step.ops = body_work(op.block, trips, hints)
    if isinstance(op, loop.ContractOp):
        step.flops += 2.0 * trips * size([op.depth.data], hints)
        step.schedule = op.schedule.data if isinstance(op.schedule, StringAttr) else ""
        step.threads = True
    else:
        schedule = choose(NestAccess(op, symbols), facts)
        step.compute_us = schedule.cost * NS_PER_UNIT / 1000
        step.threads = schedule.parallel
        step.schedule = ", ".join(_schedule_words(op, schedule))
    return step


def _schedule_words(nest: loop.NestOp, schedule: Schedule) -> list[str]:
    """How a nest runs, in a few words."""
    words = [schedule.style]
    tiles = tile_sizes(schedule_table(nest))
    if tiles:
        words.append(f"tiles {' x '.join(str(t) if t else 'all' for t in tiles)}")
    elif is_fixed(nest):
        words.append("loops in a fixed order")
    if schedule.parallel:
        words.append("threads")
    place = asked_at(nest)
    return [*words, f"asked for by the user at {place}"] if place else words


def call_step(op: mem.ExternOp, number: int, names: Names, hints: dict[str, int]) -> Step:
    """The step of a call of the library."""
    operators, places = sources(op)
    reads = [v for v in op.operands if isinstance(v.type, mem.BufferType)]
    writes = [v for v in op.outputs if isinstance(v.type, mem.BufferType)]
    label = operators[0] if operators else "call"
    return Step(number, label, "call", operators, places, _uses(reads, names, hints), _uses(writes, names, hints), schedule="library")


def _uses(buffers, names: Names, hints: dict[str, int]) -> list[TensorUse]:
    found = [TensorUse(names.of(b), "", bytes_of(b, hints)) for b in buffers]
    return sorted(found, key=lambda u: (-u.bytes, u.name))
