"""What `explain` knows about a compiled graph: plain data, free of IR, that texts and pictures are made from."""

from __future__ import annotations

import linecache
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Place:
    """A line of the user's program (`line` 0: not known)."""

    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line}" if self.line else ""

    @property
    def text(self) -> str:
        """The line itself."""
        return linecache.getline(self.file, self.line).strip() if self.line else ""


@dataclass(frozen=True)
class Eager:
    """A part of the program that Dynamo left to eager: where, what (`the line`, or all of a function), why, and what may help."""

    place: Place
    what: str
    why: str
    hints: tuple[str, ...] = ()


@dataclass(frozen=True)
class Operator:
    """An operator of the graph: its name (that of the FX node), what it calls, and where the user wrote it."""

    name: str
    call: str
    place: Place

    @property
    def updates(self) -> bool:
        """Whether it gives an argument its new value at the end of the graph."""
        return self.call.startswith("aten.copy_.")


@dataclass(frozen=True)
class TensorUse:
    """A tensor that a nest reads or writes: its name, the index over the nest's loops, its bytes."""

    name: str
    index: str
    bytes: int


@dataclass
class Loops:
    """A nest as nd-to-loop made it, before fusion. `group` is the fused nest that it is in; None when its readers compute it."""

    label: str
    operator: str
    place: Place
    sizes: str
    what: str
    reads: list[TensorUse]
    writes: list[TensorUse]
    ops: int
    heavy: int
    group: int | None = None
    readers: list[str] = field(default_factory=list)
    stored_because: str = ""


@dataclass(frozen=True)
class NestPair:
    """Two nests, or a nest and its readers: whether they became one, how or why not, and the bytes that this saves or would save."""

    first: str
    second: str
    fused: bool
    reason: str
    bytes: int
    places: tuple[Place, ...] = ()


@dataclass(frozen=True)
class Directive:
    """A user's directive about fusion, tiles or the order of loops, and what became of it."""

    text: str
    granted: bool
    reason: str


@dataclass
class FusedGroup:
    """A nest of the plan: the nests that share its loops, those computed inside of them, its shared loops."""

    number: int
    members: list[str]
    inside: list[str]
    sizes: str


@dataclass
class Step:
    """Something that the compiled program does: a kernel (nest or contraction) or a call of the library."""

    number: int
    label: str
    kind: str
    operators: list[str]
    places: list[Place]
    reads: list[TensorUse]
    writes: list[TensorUse]
    flops: float = 0.0
    ops: int = 0
    schedule: str = ""
    predicted_us: float = 0.0
    """What the cost model says (docs/explanation/cost-model.md), on all threads of the machine; `alone_us` on one."""
    alone_us: float = 0.0
    measured_us: float = 0.0
    """What it takes by itself, where that was measured (else 0)."""
    compute_us: float = 0.0
    memory_us: float = 0.0
    bound: str = ""
    """What the time is spent on: memory, compute or launch."""
    levels: dict[str, float] = field(default_factory=dict)
    """Bytes that come from each level of memory beyond the first cache."""
    accesses: dict[str, int] = field(default_factory=dict)
    """How many accesses are contiguous, uniform, strided, gathered, scalar."""
    after: list[int] = field(default_factory=list)
    """Steps that must come before: those that write what this one touches."""

    @property
    def bytes(self) -> int:
        """Bytes read and written, each element once."""
        return sum(u.bytes for u in (*self.reads, *self.writes))

    @property
    def intensity(self) -> float:
        """Floating point operations for each byte."""
        return self.flops / self.bytes if self.bytes else 0.0


@dataclass
class Buffer:
    """A piece of memory: `kind` is arena, output, pooled, in output or extern (made by a library call); alive from step `first` to
    step `last`; whether the caller gets it."""

    name: str
    kind: str
    bytes: int
    first: int
    last: int
    returned: bool = False


@dataclass(frozen=True)
class Communication:
    """What the schedule of a graph with collectives takes, simulated between `ranks`, each of which computes the same: the whole time, that
    of the collectives one after the other, and the part of it in which nothing else is done, in microseconds."""

    ranks: int
    us: float
    communication_us: float
    exposed_us: float


@dataclass
class Level:
    """The IR after a stage: how many ops of each kind, and its text."""

    name: str
    counts: dict[str, int]
    text: str


@dataclass
class Graph:
    """Everything about one graph."""

    title: str
    operators: dict[str, Operator] = field(default_factory=dict)
    arguments: list[TensorUse] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    levels: list[Level] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    """Operators that the nd level folded, merged or found unused."""

    loops: list[Loops] = field(default_factory=list)
    groups: list[FusedGroup] = field(default_factory=list)
    pairs: list[NestPair] = field(default_factory=list)
    directives: list[Directive] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    """Units of the plan that are no nests: contractions, library calls."""

    order: list[str] = field(default_factory=list)
    reordered: bool = False
    steps: list[Step] = field(default_factory=list)
    communication: list[Communication] = field(default_factory=list)
    """For each number of ranks that is looked at; none without collectives."""

    buffers: list[Buffer] = field(default_factory=list)
    arena: int = 0
    in_place: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def alive(self, step: int) -> list[Buffer]:
        """The buffers alive at a step, the largest first."""
        return sorted((b for b in self.buffers if b.first <= step <= b.last), key=lambda b: -b.bytes)

    @property
    def peak(self) -> tuple[int, int]:
        """(step, bytes) where the most memory is alive."""
        totals = [(sum(b.bytes for b in self.alive(s.number)), -s.number) for s in self.steps]
        best = max(totals, default=(0, 0))
        return -best[1], best[0]

    @property
    def views(self) -> list[str]:
        """Operators that are neither gone nor computed by a step: views, constants and what is only handed on."""
        computed = {name for s in self.steps for name in s.operators} | {one.operator for one in self.loops}
        return [n for n, op in self.operators.items() if n not in computed and n not in self.gone and not op.updates]
