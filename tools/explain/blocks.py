"""What a report of `explain` is made of: headings, texts, tables, pictures, code; and how numbers are written for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...passes.cost.machine import Gpu, Machine
from .model import Place


@dataclass(frozen=True)
class Heading:
    """A title; level 1 is the whole report, 2 a graph, 3 a part. `id` is what links go to."""

    level: int
    text: str
    id: str = ""


@dataclass(frozen=True)
class Text:
    """Lines of prose."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """Rows under headers; `numbers` are the columns to be set flush right.

    On the page row k has the id `ids[k]`, and its cells link to `links[k]` (column -> id)."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[int] = frozenset()
    ids: tuple[str, ...] = ()
    links: tuple[Mapping[int, str], ...] = ()


@dataclass(frozen=True)
class Picture:
    """A picture of a graph, for the page only: "nests", "memory" or "roofline"."""

    name: str
    graph: int


@dataclass(frozen=True)
class Code:
    """A long text under a title, folded away, for the page only. `marks`: number of a line -> (its id, the id that it links to)."""

    title: str
    text: str
    marks: Mapping[int, tuple[str, str]] = field(default_factory=dict)


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


def plural(n: int, word: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{n} {word}{'' if n == 1 else 's'}"


def step_id(graph: int, step: int) -> str:
    """The id of a step in the table of what runs; `graph` counts from 0."""
    return f"g{graph + 1}-step{step}"


def box_id(graph: int, step: int) -> str:
    """The id of a step in the picture of what runs."""
    return f"g{graph + 1}-box{step}"


def code_id(graph: int, step: int) -> str:
    """The id of a step's line in the IR at the memory level."""
    return f"g{graph + 1}-ir{step}"


def title_of(machine: Machine) -> str:
    """What predictions are for, in a few words."""
    return f"{machine.rates.card} ({machine.name})" if isinstance(machine, Gpu) else plural(machine.threads, "thread")
