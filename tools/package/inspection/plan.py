"""What the IR in a package says of a call: the memory that it takes, and the time that the cost model expects."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from ....errors import StepwellError
from ....targets.package.format import PackageFile

log = logging.getLogger("stepwell")


@dataclass(frozen=True)
class PlanFacts:
    """A call of an entry point with typical sizes (`sizes`).

    arena: bytes of the block in which values between kernels lie; peak: bytes that are alive at once beyond weights and arguments;
    microseconds: of all kernels and calls of ATen, by the cost model, on `machine`."""

    entry: str
    target: str
    sizes: tuple[str, ...]
    arena: int
    peak: int
    microseconds: float
    machine: str


LEVELS = ("import", "nd", "loop", "mem", "cpu", "tt", "host")
"""The levels of IR that a package may hold, top first."""


def ir_text(file: PackageFile, entry: str, level: str) -> list[tuple[str, str]]:
    """The IR of an entry point at a level, as (target, text): of each target that has one of its own. PackageError where there is none."""
    from ..code import read_ir

    name = f"{entry}/{level}"
    found = [s for s in file.of_kind("ir") if s.name == name]
    if not found:
        known = sorted({s.name.rpartition("/")[2] for s in file.of_kind("ir")}, key=lambda one: (*LEVELS, one).index(one))
        has = f"it has {', '.join(known)}" if known else "it was written without IR"
        raise file.error(f"it has no IR of level '{level}' for entry point '{entry}'; {has}")
    return [(s.target, read_ir(file, s)) for s in found]


def plans_of(file: PackageFile, entries: Sequence[str]) -> list[PlanFacts]:
    """The plan of each entry point for each target whose IR is there; none where what reads IR is not installed."""
    found: list[PlanFacts] = []
    if find_spec("xdsl") is None:
        return found
    for entry in entries:
        if any(s.name == f"{entry}/mem" for s in file.of_kind("ir")):
            for target, text in ir_text(file, entry, "mem"):
                try:
                    found.append(_plan(entry, target, text, file.path))
                except StepwellError as error:  # of another release: the rest of the file can be shown
                    log.warning("no plan of '%s' for %s: %s", entry, target, error)
    return found


def _plan(entry: str, target: str, text: str, place: str) -> PlanFacts:
    from xdsl.dialects.func import FuncOp

    from ....dialects import mem
    from ....dialects.expr.syntax import ExprAttr
    from ....passes.analysis.symbols import symbol_hints
    from ....passes.cost.machine import machine_of
    from ....passes.mem.arena.peak import memory_over_time, value_of
    from ...backend.compile_graph import context
    from ...compiled.step_price import step_cost
    from ...ir_parser import parse_file

    module, _ = parse_file(text, f"{place}, IR of {entry} for {target}", context())
    func = next(op for op in module.body.block.ops if isinstance(op, FuncOp) and not op.is_declaration)
    hints, machine = symbol_hints(module), machine_of(module)
    moments = memory_over_time(func, hints)
    costs = [step_cost(op, hints, machine) for op in func.body.block.ops]
    arena = func.attributes.get(mem.ARENA_BYTES)
    return PlanFacts(
        entry,
        target,
        tuple(f"{name} = {n}" for name, n in sorted(hints.items())),
        value_of(arena.data, hints) if isinstance(arena, ExprAttr) else 0,
        max((m.total - m.arguments for m in moments), default=0),
        sum(cost.seconds for cost in costs if cost is not None) * 1e6,
        getattr(machine, "name", machine.kind),
    )
