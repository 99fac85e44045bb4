"""The option `max_memory`: of the plans of a graph that take no more than so many bytes, the one that is predicted to be the fastest.

A move is passes of the pipeline with other options, or without them, so that less is in memory at once. Where the usual plan takes too
much, each move is planned by itself, then each of the others beside the one that gains most for its time, until a plan is small enough
or no move makes it smaller. The memory is that of `mem-check-memory`, which refuses what is left; the time is the cost model's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from ...passes.analysis.symbols import symbol_hints
from ...passes.cost.machine import machine_of
from ...passes.manager.pass_manager import Pipeline, run
from ...passes.manager.pipelines import MEASURING
from ...passes.mem.mem_check_memory import MemCheckMemory, called_functions, peak_moment
from ..compiled.counters import count
from ..compiled.step_price import step_cost
from ..options.options import OptionError

log = logging.getLogger("stepwell")

Setting = Callable[[int], Mapping[str, Any]]
"""A bound in bytes -> options of a pass."""


@dataclass(frozen=True)
class MemoryMove:
    """A way to have less in memory at once. settings: pass -> its options under a bound; without: passes that are left out; more: passes
    that are put in, each with its stage and place."""

    name: str
    settings: Mapping[str, Setting]
    without: Sequence[str] = ()
    more: Sequence[tuple[str, str, str]] = ()

    def made(self, pipeline: Pipeline, bound: int) -> Pipeline | None:
        """A pipeline with the move; None where it changes nothing."""
        changed = pipeline.copy()
        names = {p.name for p in pipeline.passes()}
        for name in names.intersection(self.without):
            changed.remove(name)
        for name, stage, position in self.more:
            if name not in names and position.partition(":")[2] in names:
                changed.add(stage, name, position)

        def set_options(p: ModulePass) -> ModulePass:
            return replace(p, **self.settings[p.name](bound)) if p.name in self.settings else p

        changed.update(set_options)
        return None if changed == pipeline else changed


MOVES = (
    MemoryMove("order", {"loop-order": lambda bound: {"moves": 1024, "window": 1024}}),
    MemoryMove("apart", {}, without=("loop-batch", "nd-stack-products")),
    MemoryMove("unpacked", {}, without=("mem-pack-operands",)),
    MemoryMove("recompute", {}, more=(("loop-recompute", "loop", "after:loop-fuse-windows"),)),
    MemoryMove("few-blocks", {"nd-row-blocks": lambda bound: {"bytes": max(bound // 2, 1)}}),
    MemoryMove("blocks", {"nd-row-blocks": lambda bound: {"bytes": max(bound // 8, 1), "blocks": 64}}),
    MemoryMove("scores", {"nd-weigh-rows": lambda bound: {"fewest": 1}}),
    MemoryMove("parts", {"nd-library-products": lambda bound: {"part": max(bound // 8, 1)}}),
)
"""What is tried, each by itself and then beside others."""


@dataclass(frozen=True)
class MemoryPlan:
    """What a pipeline makes of a graph. peak: bytes that count while most is alive; seconds: of all kernels and calls, predicted; moves:
    names of those that it is made by."""

    peak: int
    seconds: float
    pipeline: Pipeline
    moves: tuple[str, ...] = ()


def plan_of(module: ModuleOp, pipeline: Pipeline, ctx: Context, moves: tuple[str, ...] = ()) -> MemoryPlan:
    """What a pipeline makes of an imported graph, which stays as it is. Raises what its passes raise."""
    planning = pipeline.to_stage("mem")
    not_needed = {MemCheckMemory.name, *(name for name, replaced in MEASURING.items() if not replaced)}
    for name in {p.name for p in planning.passes()} & not_needed:
        planning.remove(name)
    planned = module.clone()
    run(planning, planned, ctx)
    hints, machine = symbol_hints(planned), machine_of(planned)
    peak, seconds = 0, 0.0
    for func in called_functions(planned):
        moment = peak_moment(func, hints)
        peak = max(peak, 0 if moment is None else moment.counted)
        costs = (step_cost(op, hints, machine) for op in func.body.block.ops)
        seconds += sum(cost.seconds for cost in costs if cost is not None)
    return MemoryPlan(peak, seconds, pipeline, moves)


def least_plan(module: ModuleOp, pipeline: Pipeline, bound: int, ctx: Context) -> MemoryPlan:
    """The fastest of the plans that were tried and take at most `bound` bytes; where there is none, the smallest."""
    found = plan_of(module, pipeline, ctx)
    left: Sequence[MemoryMove] = MOVES
    while found.peak > bound and left:
        tried: list[tuple[MemoryMove, MemoryPlan]] = []
        for move in left:
            changed = move.made(found.pipeline, bound)
            if changed is not None:
                plan = plan_of(module, changed, ctx, (*found.moves, move.name))
                tried.append((move, plan))
        smaller = [(move, plan) for move, plan in tried if plan.peak < found.peak]
        enough = [plan for _, plan in smaller if plan.peak <= bound]
        if enough:
            return min(enough, key=lambda plan: plan.seconds)
        if not smaller:
            break
        before = found
        taken, found = max(smaller, key=lambda one: _gain(before, one[1]))
        left = [move for move, _ in smaller if move is not taken]
    return found


def _gain(before: MemoryPlan, after: MemoryPlan) -> tuple[bool, float]:
    """How good a plan is that is smaller than another: it takes no more time, then the bytes that it saves for each second more."""
    saved, longer = before.peak - after.peak, after.seconds - before.seconds
    return (True, saved) if longer <= 0 else (False, saved / longer)


def within_bound(module: ModuleOp, pipeline: Pipeline, bound: int, ctx: Context) -> Pipeline:
    """The pipeline with what is needed for a graph to take at most `bound` bytes. Raises OptionError for one that would not check it."""
    names = {p.name for p in pipeline.passes()}
    if MemCheckMemory.name not in names:
        raise OptionError(f"option 'max_memory': the pipeline has no '{MemCheckMemory.name}', which holds it")
    if "mem" not in pipeline.stage_names:
        return pipeline
    plan = least_plan(module, pipeline, bound, ctx)
    for name in plan.moves:
        count(f"memory_moves.{name}")
    if plan.moves:
        log.info("max_memory: a call takes %d bytes by %s", plan.peak, ", ".join(plan.moves))
    return plan.pipeline
