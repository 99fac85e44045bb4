"""What a report of `explain` is made of: headings, texts, tables, pictures; and how numbers are written for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...passes.cost.machine import Gpu, Machine
from .model import Place


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
    """Rows under headers; `numbers` are the columns to be set flush right. A cell of `#` alone is a bar."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Picture:
    """A picture of a graph, for the page only: "nests", "memory" or "roofline"."""

    name: str
    graph: int


Block = Heading | Text | Table | Picture


def as_data(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    """The blocks as JSON: `heading` (the level) and `text`; `lines`; `headers`, `rows` and `numbers`; `picture` and `graph`."""
    return [_data(block) for block in blocks]


def _data(block: Block) -> dict[str, Any]:
    if isinstance(block, Heading):
        return {"heading": block.level, "text": block.text}
    if isinstance(block, Text):
        return {"lines": list(block.lines)}
    if isinstance(block, Picture):
        return {"picture": block.name, "graph": block.graph}
    return {"headers": list(block.headers), "rows": [list(row) for row in block.rows], "numbers": sorted(block.numbers)}


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


def plural(n: int, word: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{n} {word}{'' if n == 1 else 's'}"


def title_of(machine: Machine) -> str:
    """What predictions are for, in a few words."""
    return f"{machine.rates.card} ({machine.name})" if isinstance(machine, Gpu) else plural(machine.threads, "thread")
