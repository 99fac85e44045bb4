"""The data of `explain` as JSON: what other programs read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ...passes.cost.machine import Cpu, Machine
from .advice import advise
from .blocks import title_of
from .model import Eager, Graph


def as_json(graphs: Sequence[Graph], machine: Machine, name: str, eager: Sequence[Eager]) -> str:
    """Name, total predicted time, advice, what runs in eager, and every graph; fields are those of model.py, without the IR."""
    data = {
        "name": name,
        "predicted_us": sum(s.predicted_us for g in graphs for s in g.steps),
        "machine": title_of(machine),
        **({"threads": machine.threads} if isinstance(machine, Cpu) else {}),
        "advice": [a.text for a in advise(graphs, machine)],
        "eager": [asdict(part) for part in eager],
        "graphs": [_graph(g) for g in graphs],
    }
    return json.dumps(data, indent=1)


def _graph(graph: Graph) -> dict[str, Any]:
    data = asdict(graph)
    for level in data["levels"]:
        del level["text"]
    return data
