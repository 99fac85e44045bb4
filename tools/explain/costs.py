"""What a nest, contraction or library call at the memory level does: operators, bytes, floating point operations, predicted time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from xdsl.dialects import arith
from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Operation, SSAValue

from ...dialects import loop, mem
from ...dialects.expr import Expr
from ...dialects.expr.ranges import RangeEnv
from ...dialects.nd.base import prop
from ...passes.analysis.nest_access import NestAccess
from ...passes.analysis.origins import origins
from ...passes.analysis.schedule_attrs import asked_at, is_fixed, schedule_table, tile_sizes
from ...passes.cost.batch_cost import batch_bytes, body_nests
from ...passes.cost.collective_cost import is_begin, is_wait
from ...passes.cost.footprint import of_nest
from ...passes.cost.machine import Gpu, Machine
from ...passes.cost.schedule_choice import choose
from ...passes.gpu.tiles.candidates import read_tile
from ...passes.gpu.tiles.rules import choose as choose_tile
from ...passes.gpu.tiles.tile import Tile
from ..compiled.step_price import step_cost
from ..compiled.traffic import bytes_of, touched
from .model import Place, Step, TensorUse
from .names import Names


def sources(op: Operation) -> tuple[list[str], list[Place]]:
    """The operators that an op was made from and the user's lines, in the order of the code."""
    names: dict[str, None] = {}
    places: dict[Place, None] = {}
    for inner in _inside_out(op):
        for name, file, line in origins(inner.location):
            if name:
                names[name] = None
            if line:
                places[Place(file, line)] = None
    return list(names), list(places)


def _inside_out(op: Operation) -> Iterator[Operation]:
    """An operation behind all that it holds: a sum behind what it is of, in the order of the program."""
    for region in op.regions:
        for inner in region.block.ops if region.blocks else ():
            yield from _inside_out(inner)
    yield op


def kernel_step(
    op: loop.NestOp | loop.ContractOp, number: int, names: Names, symbols: RangeEnv, facts: Mapping[Expr, int], machine: Machine
) -> Step:
    """The step of a nest or contraction. `symbols` and `facts` are what is known of the size symbols, and their typical values."""
    operators, places = sources(op)
    label = op.label.data if op.label is not None else "_".join(operators[-3:]) or "contract"
    hints = {str(s): n for s, n in facts.items()}
    if isinstance(op, loop.NestOp):
        reads, writes = of_nest(op, facts).by_buffer()
        schedule = ", ".join(_schedule_words(op, NestAccess(op, symbols), facts, machine))
    else:
        reads, writes = ({b: bytes_of(b, hints) for b in buffers} for buffers in touched(op))
        schedule = op.schedule.data if isinstance(op.schedule, StringAttr) else ""
    kind = "nest" if isinstance(op, loop.NestOp) else "contraction"
    step = Step(number, label, kind, operators, places, _uses(reads, names), _uses(writes, names), schedule=schedule)
    step.ops = sum(not isinstance(o, arith.ConstantOp | loop.YieldOp) for o in loop.walk_bodies(op))
    _predict(step, op, hints, machine)
    return step


def batch_step(op: loop.BatchOp, number: int, names: Names, hints: Mapping[str, int], machine: Machine) -> Step:
    """The step of a batch: one kernel over all entries."""
    operators, places = sources(op)
    nests = body_nests(op)
    label = "+".join(nest.label.data for nest in nests if nest.label is not None) or op.callee.string_value()
    reads, writes = batch_bytes(op, hints)
    schedule = f"a list of {op.count} entries, threads share them"
    step = Step(number, label, "nest", operators, places, _uses(reads, names), _uses(writes, names), schedule=schedule)
    step.ops = sum(not isinstance(o, arith.ConstantOp | loop.YieldOp) for nest in nests for o in loop.walk_bodies(nest))
    _predict(step, op, hints, machine)
    return step


def _predict(step: Step, op: Operation, hints: Mapping[str, int], machine: Machine) -> None:
    """Put what the cost model says into a step."""
    cost = step_cost(op, hints, machine)
    alone = cost if isinstance(machine, Gpu) else step_cost(op, hints, machine.with_threads(1))
    assert cost is not None and alone is not None
    step.flops, step.bound = cost.flops, cost.bound
    step.predicted_us, step.alone_us = cost.seconds * 1e6, alone.seconds * 1e6
    step.compute_us, step.memory_us = cost.compute_s * 1e6, cost.memory_s * 1e6
    step.levels, step.accesses = dict(cost.bytes_by_level), dict(cost.accesses)


def _schedule_words(nest: loop.NestOp, info: NestAccess, facts: Mapping[Expr, int], machine: Machine) -> list[str]:
    """How a nest runs, in a few words."""
    if isinstance(machine, Gpu):
        return _tile_words(read_tile(nest, info) or choose_tile(info, facts, machine))
    schedule = choose(info, facts)
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


def _tile_words(tile: Tile) -> list[str]:
    """How a program of a GPU has its part of a nest."""
    words = ["blocks " + " x ".join(str(block) for _, block in tile.axes)] if tile.axes else []
    words += [f"{tile.reduction_block} terms at once"] if tile.reduction_block else []
    words += ["units for products"] if tile.dot else []
    return [*words, f"{tile.warps} warps"]


def call_step(op: mem.ExternOp, number: int, names: Names, hints: Mapping[str, int], machine: Machine) -> Step:
    """The step of a call of the library."""
    operators, places = sources(op)
    made = [op.operands[k] for k in prop(op, "out") or ()]
    reads = {v: bytes_of(v, hints) for v in op.operands if isinstance(v.type, mem.BufferType) and v not in made}
    writes: dict[SSAValue, int] = {v: bytes_of(v, hints) for v in (*made, *op.outputs) if isinstance(v.type, mem.BufferType)}
    label = operators[0] if operators else "call"
    schedule = "library" if op.schedule is None else op.schedule.data
    step = Step(number, label, "call", operators, places, _uses(reads, names), _uses(writes, names), schedule=schedule)
    if is_begin(op) or is_wait(op):
        step.schedule = "communication"  # beside the other steps: their times are in the table of ranks
    else:
        _predict(step, op, hints, machine)
    return step


def _uses(buffers: Mapping[SSAValue, int], names: Names) -> list[TensorUse]:
    found = [TensorUse(names.of(b), "", size) for b, size in buffers.items()]
    return sorted(found, key=lambda u: (-u.bytes, u.name))
