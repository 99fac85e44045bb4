"""The explorer's document: everything that was found as one JSON value, whose form docs/reference/explorer-json.md describes."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ...passes.cost.machine import Cpu, Machine
from ..explain.advice import advise
from ..explain.blocks import title_of
from .watch import Watcher, graph_data

if TYPE_CHECKING:
    from ..explain.main import Explanation

FORMAT = "stepwell-explorer"
VERSION = 1
"""Rises when a reader of older documents would misread a new one; fields may be added without."""


def document(watcher: Watcher, found: Explanation, call: dict[str, Any]) -> dict[str, Any]:
    """The document of what a watcher saw and explain found; `call` is what was compiled, as the command line has it."""
    from ... import __version__

    tables, graphs = watcher.tables, watcher.graphs
    return {
        "format": FORMAT,
        "version": VERSION,
        "stepwell": __version__,
        "name": found.name,
        "call": call,
        "machine": _machine(watcher.machine),
        "predicted_us": sum(s.predicted_us for g in graphs for s in g.steps),
        "advice": [one.text for one in advise(graphs, watcher.machine)],
        "eager": [asdict(part) for part in found.eager],
        "report": found.data(),
        "graphs": [graph_data(graph, record) for graph, record in zip(graphs, watcher.records, strict=True)],
        "sources": tables.sources(),
        "operations": tables.operations,
        "types": tables.types.items,
        "texts": tables.texts.items,
    }


def _machine(machine: Machine) -> dict[str, Any]:
    levels = [{"name": one.name, "gbs": one.gbs} for one in machine.levels[1:]]  # beyond what a kernel holds itself
    data: dict[str, Any] = {"name": title_of(machine), "gflops": machine.gflops, "levels": levels}
    return {**data, "threads": machine.threads} if isinstance(machine, Cpu) else data
