"""Advice in words: what a graph does that costs time or memory, and what may be done about it. Each piece says how much is at stake."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...passes.cost.machine import Machine
from .blocks import duration, size
from .model import Graph, Loops, NestPair, Place, Step

LEAST_SHARE = 0.1
"""Share of the predicted time below which a step gets no advice."""

LEAST_FACTOR = 3.0
"""A measured time is told as unexpected where it is so many times the predicted one, or the inverse."""


@dataclass(frozen=True)
class Advice:
    """A sentence, and the time (in us, as the model sees it) that it is about."""

    text: str
    weight_us: float


def advise(graphs: Sequence[Graph], machine: Machine) -> list[Advice]:
    """All advice on some graphs, what is about most time first."""
    total = sum(s.predicted_us for g in graphs for s in g.steps)
    found: list[Advice] = []
    for graph in graphs:
        found += _stored(graph, machine)
        found += _library(graph, total)
        found += _far_accesses(graph, total)
        found += _unexpected(graph)
    found += _launches(graphs, total)
    return sorted({a.text: a for a in found}.values(), key=lambda a: -a.weight_us)


def _stored(graph: Graph, machine: Machine) -> Iterator[Advice]:
    """Values that a nest of the plan stores for one reader."""
    readers: dict[str, list[Loops]] = {}
    for one in graph.loops:
        for name in dict.fromkeys(u.name for u in one.reads):
            readers.setdefault(name, []).append(one)
    makers = {u.name: one for one in graph.loops if one.group is not None for u in one.writes}
    written = {u.name for s in graph.steps if s.kind == "nest" for u in s.writes}
    read_by_others = {u.name for s in graph.steps if s.kind != "nest" for u in s.reads}
    for buffer in graph.buffers:
        maker, single = makers.get(buffer.name), readers.get(buffer.name, [])
        if maker is None or len(single) != 1 or buffer.returned or buffer.name not in written - read_by_others:
            continue
        reader = single[0]
        why = _why_stored(graph, maker, reader)
        time_us = 2 * buffer.bytes / machine.levels[-1].gbs / 1e3
        at = _at([reader.place])
        yield Advice(f"{at}`{buffer.name}` is stored though only `{reader.label}` reads it: {size(buffer.bytes)} ({why})", time_us)


def _why_stored(graph: Graph, maker: Loops, reader: Loops) -> str:
    pair = next((p for p in graph.pairs if not p.fused and _is_about(p, maker.label, reader.label)), None)
    if pair is not None:
        return pair.reason
    if reader.group in (maker.group, None):
        return f"in one nest, but `{reader.label}` needs it after the loop that makes it has ended"
    return maker.stored_because or "they are two nests"


def _is_about(pair: NestPair, maker: str, reader: str) -> bool:
    return pair.first == maker and reader in pair.second.split(", ")


def _library(graph: Graph, total_us: float) -> Iterator[Advice]:
    """Calls of ATen that take a good part of the time."""
    for step in _heavy(graph, total_us):
        if step.kind == "call":
            yield Advice(
                f"{_at(step.places)}`{step.label}` is computed by ATen, {step.predicted_us / total_us:.0%} of the time: "
                "nothing is fused with it, and what it reads and gives back goes through memory",
                step.predicted_us,
            )


def _far_accesses(graph: Graph, total_us: float) -> Iterator[Advice]:
    """Nests that wait for memory while they read or write against the order of the elements."""
    for step in _heavy(graph, total_us):
        far = step.accesses.get("strided", 0) + step.accesses.get("gathered", 0)
        count = sum(step.accesses.values()) - step.accesses.get("uniform", 0)
        if step.kind != "nest" or step.bound != "memory" or 2 * far <= count:
            continue
        yield Advice(
            f"{_at(step.places)}`{step.label}` waits for memory and makes most accesses ({far} of {count}) with a stride or through an "
            "index: a contiguous operand (`.contiguous()` where it is made) may be faster",
            step.predicted_us,
        )


def _unexpected(graph: Graph) -> Iterator[Advice]:
    """Kernels that run much slower or faster than predicted, where they were measured."""
    for step in graph.steps:
        if step.measured_us and step.predicted_us and step.measured_us > LEAST_FACTOR * step.predicted_us:
            yield Advice(
                f"{_at(step.places)}`{step.label}` takes {duration(step.measured_us)}, predicted were {duration(step.predicted_us)}: "
                "the model does not know what slows it down",
                step.measured_us,
            )


def _launches(graphs: Sequence[Graph], total_us: float) -> Iterator[Advice]:
    """Steps so small that launching them is most of their time."""
    small = [s for g in graphs for s in g.steps if s.bound == "launch"]
    spent = sum(s.predicted_us for s in small)
    if total_us and spent >= LEAST_SHARE * total_us and len(small) > 1:
        share = f"{spent / total_us:.0%} of the time"
        yield Advice(f"{len(small)} steps are so small that launching them is what they cost, {share}: larger ones are nearly free", spent)


def _heavy(graph: Graph, total_us: float) -> list[Step]:
    return [s for s in graph.steps if total_us and s.predicted_us >= LEAST_SHARE * total_us]


def _at(places: Sequence[Place]) -> str:
    known = [p for p in places if p.line]
    return f"{known[0]}: " if known else ""
