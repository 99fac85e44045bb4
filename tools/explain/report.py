"""The report of `explain` as blocks (headings, texts, tables, pictures), which the terminal and the HTML page show in their own ways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...passes.cost.machine import Machine
from .model import Eager, Graph, Operator, Pair, Place, Step, TensorUse
from .walk import listed, walk


@dataclass(frozen=True)
class Heading:
    """A title; level 1 is the whole report, 2 a graph, 3 a part."""

    level: int
    text: str


@dataclass(frozen=True)
class Text:
    """Lines of prose."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """Rows under headers; `numbers` are the columns to be set flush right."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Picture:
    """A picture of a graph, for the page only: "nests", "memory" or "roofline"."""

    name: str
    graph: int


@dataclass(frozen=True)
class Code:
    """A long text under a title, folded away, for the page only."""

    title: str
    text: str


ALIKE = 4
"""Operators that differ in their names alone have a row each up to so many, else one together (lists of tensors, loops of the program)."""

USES = 8
"""Tensors that are named of those that a step reads or writes."""

Block = Heading | Text | Table | Picture | Code


def size(n: float) -> str:
    """Bytes for people: 512 B, 8 KiB, 1.5 MiB."""
    unit = "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            break
        n /= 1024
    return f"{n:.4g} {unit}"


def number(n: float) -> str:
    """A count for people: 950, 12.5 k, 3.1 M."""
    unit = ""
    for unit in ("", " k", " M", " G"):
        if n < 1000 or unit == " G":
            break
        n /= 1000
    return f"{n:.4g}{unit}"


def duration(us: float) -> str:
    """A time for people: 0.35 us, 12.1 us, 1.2 ms."""
    return f"{us:.3g} us" if us < 1000 else f"{us / 1000:.3g} ms"


def lines_of(places: Sequence[Place]) -> str:
    """Source lines, each with its text where that can be read, the same file named once."""
    found = [f"{p}: {p.text}" if p.text else str(p) for p in places if p.line]
    return "; ".join(dict.fromkeys(found))


def report(graphs: Sequence[Graph], machine: Machine, name: str, eager: Sequence[Eager] = ()) -> list[Block]:
    """All blocks of a report; `eager` is what Dynamo did not give to the compiler."""
    blocks: list[Block] = [Heading(1, f"stepwell: {name}" if name else "stepwell")]
    if not graphs:
        blocks.append(Text((NOTHING if not eager else "Nothing was compiled: Dynamo gave no graph.",)))
        return blocks + _left(eager)
    blocks.append(
        Text(
            (
                f"{len(graphs)} graph{'s' if len(graphs) > 1 else ''}. Machine, one thread: {machine.gflops:.3g} Gflop/s (f32), "
                f"{', '.join(f'{level.gbs:.3g} GB/s from {level.name}' for level in machine.levels[1:])}; {_threads(machine)}.",
            )
        )
    )
    blocks += _left(eager)
    for k, graph in enumerate(graphs):
        blocks += [_known_columns(block) if isinstance(block, Table) else block for block in _graph(k, graph, machine)]
    return blocks


NOTHING = (
    "Nothing was compiled: the function computes nothing with tensors, or returns its inputs. "
    "(What an earlier call left to eager is not tried again before torch._dynamo.reset().)"
)


def _left(eager: Sequence[Eager]) -> list[Block]:
    """What runs in eager, and why."""
    if not eager:
        return []
    lines: list[str] = []
    for part in eager:
        where = f"{lines_of([part.place])} " if part.place.line else ""
        lines.append(f"{where}({part.what} runs in eager): {part.why}")
        lines += [f"  hint: {hint}" for hint in part.hints]
    return [Heading(2, "Left to eager by Dynamo"), Text(tuple(lines))]


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


def _threads(machine: Machine) -> str:
    return f"{machine.threads} thread{'s' if machine.threads > 1 else ''}"


def _graph(k: int, graph: Graph, machine: Machine) -> list[Block]:
    blocks: list[Block] = [Heading(2, graph.title)]
    blocks += [Heading(3, "Operators"), _operators(graph)]
    blocks += [Heading(3, "Step by step"), *(Text((title, *(f"  {line}" for line in lines))) for title, lines in walk(graph))]
    if graph.steps:
        blocks += [Heading(3, "What runs"), _steps(graph, machine), _totals(graph), Picture("nests", k), Picture("roofline", k)]
    blocks += _fusion(graph)
    if graph.steps:
        blocks += [Heading(3, "Memory over time"), *_memory(graph), Picture("memory", k)]
    if graph.remarks:
        blocks += [Heading(3, "Remarks"), Text(tuple(graph.remarks))]
    blocks += [Heading(3, "Levels"), _levels(graph)]
    blocks += [Code(f"IR after {level.name}", level.text) for level in graph.levels]
    return blocks


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
        if len(names) <= ALIKE:
            rows += [(name, *rest) for name in names]
        else:
            rows.append((f"{names[0]}, {names[1]}, ... {names[-1]} ({len(names)})", *rest))
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
    return Table(headers, tuple(rows), frozenset((6, 7, 11, 13, 14)))


def _measured(step: Step) -> tuple[str, str]:
    """The time that a step took by itself, and the bytes that it reads and writes over that."""
    if not step.measured_us:
        return "-", "-"
    return duration(step.measured_us), f"{step.bytes / step.measured_us / 1e3:.3g} GB/s"


def _totals(graph: Graph) -> Block:
    read = sum(u.bytes for s in graph.steps for u in s.reads)
    written = sum(u.bytes for s in graph.steps for u in s.writes)
    text = (
        f"{len(graph.steps)} step{'s' if len(graph.steps) != 1 else ''}: {size(read)} read, {size(written)} written, "
        f"{number(sum(s.flops for s in graph.steps))} flops, predicted {duration(sum(s.predicted_us for s in graph.steps))}."
    )
    return Text((text,))


def _pair_row(pair: Pair) -> tuple[str, ...]:
    return (pair.first, pair.second, pair.reason, size(pair.bytes), lines_of(pair.places))


def _fusion(graph: Graph) -> list[Block]:
    blocks: list[Block] = [Heading(3, "Fused")]
    fused = sorted((p for p in graph.pairs if p.fused), key=lambda p: -p.bytes)
    missed = sorted((p for p in graph.pairs if not p.fused), key=lambda p: -p.bytes)
    if fused:
        blocks.append(Table(("nest", "with", "how", "saves", "source"), tuple(map(_pair_row, fused)), frozenset((3,))))
    else:
        blocks.append(Text(("Nothing was fused.",)))
    blocks.append(Heading(3, "Not fused"))
    if missed:
        blocks.append(Table(("nest", "with", "why not", "would save", "source"), tuple(map(_pair_row, missed)), frozenset((3,))))
    else:
        blocks.append(Text(("No two nests that share data are left.",)))
    if graph.wishes:
        rows = tuple((w.text, "granted" if w.granted else "refused", w.reason) for w in graph.wishes)
        blocks += [Heading(3, "Wishes"), Table(("wish", "outcome", "reason"), rows)]
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
