"""Which nests can be computed by tiles in their reader, and by which tiles; nothing is rewritten here.

A nest (the producer) whose result only one other nest reads, in a window that is known for each iteration of that one's outer loops, need
not go to memory: the rows of the window are computed into memory of the iteration (`loop.local`) and read there. This is Halide's
`compute_at`, and the line buffer of image pipelines. The windows come from the index expressions of the reads: `span` bounds an index while
inner loops run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.ir import Operation, SSAValue

from .....dialects import loop
from .....dialects.expr import (
    ZERO,
    Add,
    Dim,
    Expr,
    FloorDiv,
    Max,
    Min,
    as_expr,
    ceildiv,
    dim,
    dims_subs,
    free_dims,
    maximum,
    minimum,
)
from .....dialects.expr.ranges import Range, RangeEnv, range_of
from .....dialects.nd.types import element_bytes
from ....analysis.nest_info import NestInfo, TensorAccess, nest_info
from ....analysis.origins import title
from ..rows.plan import MARKED

MAX_LOCAL_BYTES = 128 * 1024
"""Memory that the tiles, or the kept rows, of one nest may take: it lies on a thread's stack, and should stay in the second cache at
worst."""

TILE_TRIPS = (64, 32, 16, 8, 4)
"""Tiles that are tried, in iterations of the reader's loop."""

ROW_STEP_ELEMENTS = 512
"""Elements of a row of unknown length that are computed at a time."""

FIRST_INNER_DIM = 1 << 16
"""Where the dimensions of loops inside of an iteration begin in a plan; those before it are the outer loops of the new nest."""


@dataclass(frozen=True)
class Span:
    """Where an index lies while inner loops run: at `low` or at most `width` elements after it."""

    low: Expr
    width: int


def span(e: Expr, inner: Mapping[Expr, int], env: RangeEnv) -> Span | None:
    """Where `e` lies while the loops `inner` (dimension: iterations) run; None where that is not known."""
    if free_dims(e).isdisjoint(inner):
        return Span(e, 0)
    if isinstance(e, Dim):
        return Span(ZERO, inner[e] - 1)
    if isinstance(e, FloorDiv):
        return _quotient(e, inner, env)
    if isinstance(e, (Min, Max)):
        parts = [span(a, inner, env) for a in e.args]
        known = [p for p in parts if p is not None]
        if len(known) < len(parts):
            return None
        pick = minimum if isinstance(e, Min) else maximum
        return Span(pick(*(p.low for p in known)), max(p.width for p in known))
    if not isinstance(e, Add):
        return None
    low, width = as_expr(e.constant), 0
    for term, factor in e.terms:
        part = span(term, inner, env)
        if part is None:
            return None
        low = low + (part.low if factor > 0 else part.low + part.width) * factor
        width += part.width * abs(factor)
    return Span(low, width)


def _quotient(e: FloorDiv, inner: Mapping[Expr, int], env: RangeEnv) -> Span | None:
    if not free_dims(e.rhs).isdisjoint(inner):
        return None
    part, least = span(e.lhs, inner, env), range_of(e.rhs, env).lo
    if part is None or least is None or least < 1:
        return None
    return Span(part.low // e.rhs, -(-part.width // least))


def without_clamp(e: Expr, size: Expr) -> Expr:
    """An index before it was moved into [0, size): the same element of a row of which those outside repeat the first and the last."""
    while isinstance(e, (Min, Max)):
        limit = size - 1 if isinstance(e, Min) else ZERO
        rest = [a for a in e.args if a is not limit]
        if len(rest) != 1 or len(rest) == len(e.args):
            return e
        e = rest[0]
    return e


@dataclass(frozen=True)
class Window:
    """The part of one dimension of the producer's result that an iteration needs: `count` elements from `low` on, where those that lie
    outside stand for the nearest one inside. `whole`: all of it, by its own index."""

    low: Expr
    count: int
    whole: bool = False


@dataclass(frozen=True)
class Tiling:
    """How the reader's loops (by number) run in the new nest: as they are (`outer`), in tiles of so many iterations, the rest inside."""

    outer: tuple[int, ...]
    tiles: tuple[tuple[int, int], ...]

    def outer_sizes(self, sizes: Sequence[Expr]) -> list[Expr]:
        """The loops of the new nest: the outer ones, then those over tiles."""
        return [*(sizes[k] for k in self.outer), *(ceildiv(sizes[k], rows) for k, rows in self.tiles)]

    def places(self, sizes: Sequence[Expr], inner: Sequence[Expr]) -> list[Expr]:
        """The index of each loop of the reader, over the new nest's loops and `inner`, those in the body in order. A last tile may go
        beyond the end of a loop."""
        rest = iter(inner)
        tiled = dict(self.tiles)
        found: list[Expr] = []
        for k in range(len(sizes)):
            if k in self.outer:
                found.append(dim(self.outer.index(k)))
            else:
                found.append(self._tiled(k, next(rest)) if k in tiled else next(rest))
        return found

    def inner_sizes(self, sizes: Sequence[Expr]) -> list[Expr]:
        """The reader's loops in the body of the new nest, in its order."""
        tiled = dict(self.tiles)
        return [as_expr(tiled[k]) if k in tiled else size for k, size in enumerate(sizes) if k not in self.outer]

    def _tiled(self, k: int, row: Expr) -> Expr:
        number = [t for t, _ in self.tiles].index(k)
        return dim(len(self.outer) + number) * self.tiles[number][1] + row


@dataclass(frozen=True)
class WindowPlan:
    """A producer that is computed in the iterations of its reader: the reader's loops, and the window of each dimension of the result."""

    producer: Producer
    reader: NestInfo
    tiling: Tiling
    windows: tuple[Window, ...]


class Producer:
    """A nest that may be computed in its reader. `axes`: for each dimension of its result the loop of the nest that it is, None where an
    inner loop goes over all of it."""

    def __init__(self, info: NestInfo, axes: list[int | None]):
        self.info = info
        self.axes = axes
        self.result: SSAValue = info.op.results[0]
        self.sizes = loop.shaped_dims(self.result.type)
        self.element = element_bytes(loop.element_type(self.result.type))


def producer_of(op: loop.NestOp, symbols: RangeEnv) -> Producer | str:
    """The facts about a nest as a producer, or why it is none."""
    if "no_fuse" in op.attributes:
        return MARKED
    if len(op.results) != 1 or not isinstance(op.outs[0].owner, loop.EmptyOp):
        return "it has several results, or is built on another tensor"
    info = nest_info(op)
    if info.sequential or info.has_memory:
        return "its loops run in order, or it has tiles of its own"
    (out,) = info.out_args
    stores = [w for w in info.writes if w.tensor is out]
    if len(stores) != 1 or any(r.tensor is out for r in info.reads):
        return "it does not store each element once"
    (store,) = stores
    assert isinstance(store.op, loop.StoreOp)
    sizes = loop.shaped_dims(op.results[0].type)
    axes: list[int | None] = []
    for e, size in zip(store.index, sizes, strict=True):
        if not isinstance(e, Dim) or e in info.opaque or (range_of(size, symbols).lo or 0) < 1:
            return "its stores are not its loops, each once"
        if info.dims[e.index] is not size:
            return "its stores are not its loops, each once"
        axes.append(e.index if e.index < len(info.sizes) else None)
    own_axes = [k for k in axes if k is not None]
    whole = len({*store.index}) == len(axes) and sorted(own_axes) == list(range(len(info.sizes)))
    if not whole or store.op.mode is not None or store.op.masked is not None:
        return "its stores are not its loops, each once"
    if any(k is None and size.value is None for k, size in zip(axes, sizes, strict=True)):
        return "a row that it stores has no known length"
    return Producer(info, axes)


def only_reader(result: SSAValue) -> loop.NestOp | str:
    """The one nest that reads a tensor, or why there is none."""
    users = [use.operation for use in result.uses]
    if not all(isinstance(op, loop.LoadOp) for op in users):
        return "it is needed in memory (a result, an update or an operand of a library call or contraction)"
    found = {loop.nest_around(op) for op in users}
    if None in found:
        return "a contraction reads it"
    (reader,) = found if len(found) == 1 else (None,)
    return reader or (f"{len(found)} nests read it" if found else "nothing reads it")


class WindowPlanner:
    """Plans for one producer and its reader."""

    def __init__(self, producer: Producer, reader: loop.NestOp, symbols: RangeEnv, rows: int):
        self.producer = producer
        self.reader = nest_info(reader)
        self.symbols = symbols
        self.rows = rows
        """Iterations of the first tiled loop, 0 to choose."""
        self.used = sum(op.bytes for op in reader.block.ops if isinstance(op, loop.LocalOp))
        self.has_tiles = self.reader.has_memory
        self.reads: list[TensorAccess] = [r for r in self.reader.reads if r.tensor is producer.result]

    def plans(self) -> list[WindowPlan] | str:
        """The ways to do it, or why there is none."""
        info = self.reader
        if "no_fuse" in info.op.attributes:
            return MARKED
        if any(isinstance(op, (loop.ScanOp, loop.ForOp)) and _is_ordered(op) for op in loop.walk_bodies(info.op)):
            return f"the loops of {title(info.op)} run in order"
        if any(isinstance(op, loop.LoadOp) and op.source in info.out_args for op in loop.walk_bodies(info.op)):
            return f"{title(info.op)} reads again what it stores"
        found: list[WindowPlan] = []
        reason = ""
        for tiling in self._tilings():
            windows = self._windows(tiling)
            if isinstance(windows, str):
                reason = reason or windows
                continue
            found.append(WindowPlan(self.producer, info, tiling, windows))
        return found or reason or "no loop of its reader can run in tiles"

    # ---- the reader's loops

    def _tilings(self) -> list[Tiling]:
        sizes = self.reader.sizes
        everything = tuple(range(len(sizes)))
        if self.has_tiles:
            return [Tiling(everything, ())]
        outer = self._shared()
        rest = [k for k in everything if k not in outer]
        if not rest:
            return []
        # what has no known length runs in tiles; so does the first loop, in several ways
        long = tuple((k, ROW_STEP_ELEMENTS) for k in rest[1:] if sizes[k].value is None)
        found = [Tiling(outer, ((rest[0], rows), *long)) for rows in self._row_counts(sizes[rest[0]])]
        if sizes[rest[0]].value is not None and not self.rows:
            found.insert(0, Tiling(outer, long))
        return found

    def _shared(self) -> tuple[int, ...]:
        """The loops, from the outermost on, each of which is one dimension of the producer's result wherever it is read."""
        found: list[int] = []
        for k in range(len(self.reader.sizes)):
            d = dim(k)
            axes = [[p for p, e in enumerate(r.index) if e is d] for r in self.reads]
            alone = all(len(a) == 1 and a == axes[0] for a in axes)
            if not alone or any(d in free_dims(e) for r in self.reads for p, e in enumerate(r.index) if p != axes[0][0]):
                break
            found.append(k)
        return tuple(found)

    def _row_counts(self, size: Expr) -> list[int]:
        if self.rows:
            return [self.rows]
        count = size.value
        if count is None:
            return list(TILE_TRIPS)
        found: dict[int, None] = {}
        for rows in TILE_TRIPS:
            if rows < count:
                divisor = next(n for n in range(rows, 0, -1) if count % n == 0)
                found[divisor if 2 * divisor > rows else rows] = None
        return list(found)

    # ---- windows

    def _windows(self, tiling: Tiling) -> tuple[Window, ...] | str:
        info, producer = self.reader, self.producer
        own = [dim(FIRST_INNER_DIM + k) for k in range(len(info.sizes) - len(tiling.outer))]
        outer = tiling.outer_sizes(info.sizes)
        inside = [*own, *(dim(FIRST_INNER_DIM + len(own) + k) for k in range(len(info.inner_sizes)))]
        loops = dict(zip(inside, (*tiling.inner_sizes(info.sizes), *info.inner_sizes), strict=True))
        inner: dict[Expr, int] = {d: n for d, size in loops.items() if (n := size.value) is not None}
        loops.update((dim(k), size) for k, size in enumerate(outer))
        env = RangeEnv({**self.symbols, **{d: Range.of_size(size) for d, size in loops.items()}})
        places = [*tiling.places(info.sizes, own), *inside[len(own) :]]
        # loaded indices have the dimensions after those of all loops: nothing is known of them
        unknown = dim(FIRST_INNER_DIM - 1)
        places += [unknown] * len(info.opaque)
        allowed = frozenset([dim(k) for k in range(len(outer))])
        found: list[Window] = []
        for axis, size in enumerate(producer.sizes):
            indices = [dims_subs(r.index[axis], places) for r in self.reads]
            window = self._window(axis, size, indices, inner, allowed, env)
            if window is None:
                return f"what an iteration of {title(info.op)} reads of dimension {axis} is not a window of known length"
            found.append(window)
        total = self.used + producer.element * prod(w.count for w in found)
        if total > MAX_LOCAL_BYTES:
            return f"the tiles would take {total} bytes"
        return tuple(found)

    def _window(
        self, axis: int, size: Expr, indices: list[Expr], inner: Mapping[Expr, int], allowed: frozenset[Expr], env: RangeEnv
    ) -> Window | None:
        whole = None if size.value is None else Window(ZERO, size.value, True)
        if self.producer.axes[axis] is None:
            return whole
        spans: list[Span] = []
        for e in indices:
            part = span(without_clamp(e, size), inner, env)
            if part is None or not free_dims(part.low) <= allowed:
                return whole
            spans.append(part)
        first = spans[0].low
        apart = [(s.low - first).value for s in spans]
        if any(a is None for a in apart):
            return whole
        offsets = [a for a in apart if a is not None]
        start = min(offsets)
        count = max(a + s.width for a, s in zip(offsets, spans, strict=True)) - start + 1
        if size.value is not None and count >= size.value:
            return whole
        return Window(first + start, count)


def _is_ordered(op: Operation) -> bool:
    return isinstance(op, loop.ScanOp) or (isinstance(op, loop.ForOp) and op.sequential is not None)
