"""The report of `explain` as blocks (headings, texts, tables, pictures), which the terminal and the explorer's page show their own ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ...passes.cost.machine import Gpu, Machine
from .blocks import Block, Heading, Picture, Table, Text, duration, lines_of, number, plural, size, title_of
from .model import Graph, NestPair, Operator, Step, TensorUse
from .walk import listed, walk

ALIKE = 4
"""Operators that differ in their names alone have a row each up to so many, else one together (lists of tensors, loops of the program)."""

USES = 8
"""Tensors that are named of those that a step reads or writes."""


def details(k: int, graph: Graph, machine: Machine) -> list[Block]:
    """Everything about graph `k` (from 0) but the walk."""
    return [_known_columns(block) if isinstance(block, Table) else block for block in _graph(k, graph, machine)]


def walked(graph: Graph) -> list[Block]:
    """What a scheduler does when it is initialised, and what was decided at each step for a graph."""
    texts = [Text((title, *(f"  {line}" for line in lines))) for title, lines in walk(graph)]
    return [Heading(3, "Step by step"), *texts]


def machine_line(machine: Machine) -> Text:
    """What the predictions are for."""
    levels = ", ".join(f"{level.gbs:.3g} GB/s from {level.name}" for level in machine.levels[1:])
    if isinstance(machine, Gpu):
        return Text((f"Machine: {title_of(machine)}, {machine.gflops:.3g} Gflop/s (bf16), {levels}.",))
    return Text((f"Machine, one thread: {machine.gflops:.3g} Gflop/s (f32), {levels}; {plural(machine.threads, 'thread')}.",))


def _known_columns(table: Table) -> Table:
    """A table without the column of the user's lines where none is known (a module of a library that was compiled by itself)."""
    if "source" not in table.headers:
        return table
    at = table.headers.index("source")
    if any(row[at] for row in table.rows):
        return table
    numbers = frozenset(k - (k > at) for k in table.numbers)
    return Table(_without(table.headers, at), tuple(_without(row, at) for row in table.rows), numbers)


def _without(row: tuple[str, ...], at: int) -> tuple[str, ...]:
    return row[:at] + row[at + 1 :]


def _graph(k: int, graph: Graph, machine: Machine) -> list[Block]:
    heading = partial(Heading, 3)
    blocks: list[Block] = []
    if graph.steps:
        blocks += [heading("What runs"), _steps(graph, machine), _totals(graph), *_communication(graph)]
        blocks += [Picture("nests", k), Picture("roofline", k)]
    blocks += [heading("Operators"), _operators(graph)]
    blocks += _fusion(graph, heading)
    if graph.steps:
        blocks += [heading("Memory over time"), *_memory(graph), Picture("memory", k)]
    if graph.remarks:
        blocks += [heading("Remarks"), Text(tuple(graph.remarks))]
    return [*blocks, heading("Levels"), _levels(graph)]


def _operators(graph: Graph) -> Block:
    at: dict[str, list[str]] = {}
    for step in graph.steps:
        for name in step.operators:
            at.setdefault(name, []).append(str(step.number))
    views = set(graph.views)

    def where(op: Operator) -> str:
        if op.name in at:
            return f"step {', '.join(at[op.name])}"
        if op.name in graph.gone:
            return "gone"
        if op.updates:
            return "update of an argument"
        return "view, part or constant" if op.name in views else "computed in a step"

    alike: dict[tuple[str, str, str], list[str]] = {}
    for op in graph.operators.values():
        alike.setdefault((op.call, where(op), lines_of([op.place])), []).append(op.name)
    rows: list[tuple[str, ...]] = []
    for rest, names in alike.items():
        shown = names if len(names) <= ALIKE else [f"{names[0]}, {names[1]}, ... {names[-1]} ({len(names)})"]
        rows += [(name, *rest) for name in shown]
    return Table(("operator", "calls", "runs in", "source"), tuple(rows))


def _uses(uses: Sequence[TensorUse]) -> str:
    """Tensors with their bytes, the largest first; of many the first ones."""
    return listed([f"{u.name} {size(u.bytes)}" for u in uses], USES) if uses else "nothing"


def _limit(step: Step, machine: Machine) -> str:
    """Place on the roofline: flops for each byte, and which roof is above it."""
    return f"{step.intensity:.2f} flop/B, {machine.limit(step.flops, step.bytes)}" if step.flops else "no flops"


def _levels_of(step: Step) -> str:
    """What comes from which level of memory."""
    shown = [f"{name} {size(n)}" for name, n in step.levels.items() if n]
    return ", ".join(shown) or "all in the first cache"


def _steps(graph: Graph, machine: Machine) -> Block:
    rows = []
    measured = any(step.measured_us for step in graph.steps)
    for step in graph.steps:
        rows.append(
            (
                str(step.number),
                f"{step.kind} {step.label}",
                listed(step.operators) if step.operators else "",
                "; ".join(dict.fromkeys(str(p) for p in step.places)),
                _uses(step.reads),
                _uses(step.writes),
                number(step.flops),
                "-" if step.kind == "call" else str(step.ops),
                _limit(step, machine),
                _levels_of(step),
                step.schedule,
                duration(step.predicted_us),
                step.bound,
                *(_measured(step) if measured else ()),
            )
        )
    headers = (
        "step", "what", "operators", "source", "reads", "writes", "flops", "ops", "roofline", "fetched from", "schedule", "predicted",
        "spent on", *(("measured", "bandwidth") if measured else ()),
    )  # fmt: skip
    numbers = ("flops", "ops", "predicted", "measured", "bandwidth")
    return Table(headers, tuple(rows), frozenset(k for k, head in enumerate(headers) if head in numbers))


def _measured(step: Step) -> tuple[str, str]:
    """The time that a step took by itself, and the bytes that it reads and writes over that."""
    if not step.measured_us:
        return "-", "-"
    return duration(step.measured_us), f"{step.bytes / step.measured_us / 1e3:.3g} GB/s"


def _totals(graph: Graph) -> Block:
    read = sum(u.bytes for s in graph.steps for u in s.reads)
    written = sum(u.bytes for s in graph.steps for u in s.writes)
    text = (
        f"{plural(len(graph.steps), 'step')}: {size(read)} read, {size(written)} written, "
        f"{number(sum(s.flops for s in graph.steps))} flops, predicted {duration(sum(s.predicted_us for s in graph.steps))}."
    )
    return Text((text,))


def _communication(graph: Graph) -> list[Block]:
    """What collectives take between few ranks and many, and how much of it other work hides."""
    if not graph.communication:
        return []
    rows = tuple((str(c.ranks), duration(c.us), duration(c.communication_us), duration(c.exposed_us)) for c in graph.communication)
    headers = ("ranks", "a call", "communication", "of it exposed")
    return [Heading(3, "Collectives, simulated"), Table(headers, rows, frozenset(range(len(headers))))]


def _pair_row(pair: NestPair) -> tuple[str, ...]:
    return (pair.first, pair.second, pair.reason, size(pair.bytes), lines_of(pair.places))


def _fusion(graph: Graph, heading: Callable[[str], Heading]) -> list[Block]:
    blocks: list[Block] = [heading("Fused")]
    fused = sorted((p for p in graph.pairs if p.fused), key=lambda p: -p.bytes)
    missed = sorted((p for p in graph.pairs if not p.fused), key=lambda p: -p.bytes)
    if fused:
        blocks.append(Table(("nest", "with", "how", "saves", "source"), tuple(map(_pair_row, fused)), frozenset((3,))))
    else:
        blocks.append(Text(("Nothing was fused.",)))
    blocks.append(heading("Not fused"))
    if missed:
        blocks.append(Table(("nest", "with", "why not", "would save", "source"), tuple(map(_pair_row, missed)), frozenset((3,))))
    else:
        blocks.append(Text(("No two nests that share data are left.",)))
    if graph.directives:
        rows = tuple((w.text, "granted" if w.granted else "refused", w.reason) for w in graph.directives)
        blocks += [heading("Directives"), Table(("directive", "outcome", "reason"), rows)]
    return blocks


def _memory(graph: Graph) -> list[Block]:
    peak, most = graph.peak
    rows = []
    for step in graph.steps:
        alive = graph.alive(step.number)
        total = sum(b.bytes for b in alive)
        arena = sum(b.bytes for b in alive if b.kind == "arena")
        bar = "#" * round(24 * total / most) if most else ""
        freed = [b.name for b in graph.buffers if b.last == step.number and not b.returned]
        rows.append((str(step.number), step.label, size(arena), size(total), bar, listed(freed) if freed else "-"))
    alive = [f"{b.name} ({b.kind}, {size(b.bytes)})" for b in graph.alive(peak)]
    held = listed(alive) if alive else "nothing"
    arguments = sum(a.bytes for a in graph.arguments)
    text = (
        f"Peak {size(most)} at step {peak}; alive then: {held}.",
        f"The arena is one block of {size(graph.arena)}; arguments ({size(arguments)}) are not counted.",
    )
    headers = ("step", "label", "arena alive", "all alive", "", "free afterwards")
    return [Table(headers, tuple(rows), frozenset((2, 3))), Text(text)]


def _levels(graph: Graph) -> Block:
    rows = [(level.name, str(sum(level.counts.values())), _counts(level.counts)) for level in graph.levels]
    return Table(("after", "ops", "of which"), tuple(rows), frozenset((1,)))


def _counts(counts: dict[str, int]) -> str:
    shown = [f"{n} {name}" for name, n in list(counts.items())[:8]]
    return ", ".join(shown) + (", ..." if len(counts) > 8 else "")
