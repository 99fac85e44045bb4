"""The option `max_memory` in training: which values forward saves and backward computes again.

torch's partitioner has a budget: 1 saves what makes a step fastest, 0 saves inputs alone, between them the recomputation of the fewest
operations buys the rest of the memory. Where both graphs of the usual partition are small enough, it stays. Else it is planned with the
moves of memory_bound.py, and smaller budgets are planned without, until one is small enough. What is predicted to be faster is taken.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch._functorch import config as functorch_config
from torch.fx import GraphModule
from xdsl.dialects.builtin import ModuleOp

from ...lowering.fx_to_nd import Border
from ...passes.manager.pass_manager import Pipeline
from ..compiled.counters import count, recorded, take_back
from ..options.options import Options
from .compile_graph import context, lower_graph
from .memory_bound import MemoryPlan, least_plan, plan_of

log = logging.getLogger("stepwell")

BUDGETS = tuple(part / 8 for part in (6, 4, 2, 1, 0))
"""Parts of the activations that are saved, as torch counts them, that are tried after all of them."""

Graphs = tuple[GraphModule, GraphModule]
Partition = Callable[[GraphModule], Graphs]


@dataclass(frozen=True)
class _Step:
    """The graphs of a partition under a budget, the bytes that a call of one takes at most, and the predicted seconds of both."""

    graphs: Graphs
    budget: float
    peak: int
    seconds: float


def partition_within(gm: GraphModule, partition: Partition, outputs: int, edge: Border | None, options: Options, bound: int) -> Graphs:
    """Forward and backward of a joint graph so that a call of each takes at most `bound` bytes, if that is possible.

    `partition` parts a graph, which it may change; the first `outputs` results of forward are the user's; edge: what AOTAutograd does with
    these."""

    def parted(budget: float) -> Graphs:
        with functorch_config.patch(activation_memory_budget=budget):
            return partition(_copied(gm))

    def planned(graphs: Graphs, budget: float, most: int | None = None) -> _Step:
        plans = _plans(graphs, outputs, edge, options, most)
        return _Step(graphs, budget, max(plan.peak for plan in plans), sum(plan.seconds for plan in plans))

    usual = functorch_config.activation_memory_budget
    first = planned(parted(usual), usual)
    if first.peak <= bound:
        return first.graphs
    tried = [planned(first.graphs, usual, bound)]
    for budget in (b for b in BUDGETS if b < usual):
        tried.append(planned(parted(budget), budget))
        if tried[-1].peak <= bound:
            break
    enough = [step for step in tried if step.peak <= bound]
    best = min(enough, key=lambda step: step.seconds) if enough else min(tried, key=lambda step: step.peak)
    if best.budget != usual:
        count("memory_moves.activations")
        log.info("max_memory: forward saves %g of its activations, a call takes %d bytes", best.budget, best.peak)
    return best.graphs


def _copied(gm: GraphModule) -> GraphModule:
    """A graph that can be changed; what its nodes stand for is the same."""
    return GraphModule(gm, copy.deepcopy(gm.graph), gm._get_name())


def _plans(graphs: Graphs, outputs: int, edge: Border | None, options: Options, bound: int | None) -> list[MemoryPlan]:
    """The plans of forward and backward, with `bound` by what moves make of them."""
    forward, backward = graphs
    donated = Border(donated=_saved_alone(forward, backward, outputs))
    return [_plan(forward, "forward", edge, options, bound), _plan(backward, "backward", donated, options, bound)]


def _plan(gm: GraphModule, kind: str, edge: Border | None, options: Options, bound: int | None) -> MemoryPlan:
    """The plan of one graph. Nothing is compiled, counted or shown."""
    found: list[MemoryPlan] = []

    def plan(module: ModuleOp, device: str, options: Options, debug: object, pipeline: Pipeline, watch: object = None) -> Any:
        ctx = context()
        found.append(plan_of(module, pipeline, ctx) if bound is None else least_plan(module, pipeline, bound, ctx))
        return None, b"", ""

    unbound = replace(options, max_memory=None, debug=None, print_ir=False, timing=False, no_fuse=(), fuse=(), tile={}, loop_order={})
    with _uncounted():
        lower_graph(_copied(gm), (), unbound, kind=kind, border=edge, make=plan)
    return found[-1]


@contextmanager
def _uncounted() -> Iterator[None]:
    with recorded() as counts:
        yield
    take_back(counts)


def _saved_alone(forward: GraphModule, backward: GraphModule, outputs: int) -> frozenset[int]:
    """The arguments of backward that are saved for it and nothing else: neither arguments nor results of the user's forward."""
    results: Sequence[Any] = forward.graph.output_node().args[0]  # pyright: ignore[reportAssignmentType]
    theirs = set(results[:outputs])
    saved = {node.name for node in results[outputs:] if node.op != "placeholder" and node not in theirs}
    return frozenset(k for k, node in enumerate(backward.graph.find_nodes(op="placeholder")) if node.name in saved)
