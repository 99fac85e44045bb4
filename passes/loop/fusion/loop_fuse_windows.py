"""Producers computed by tiles in their reader: line buffers for stencils, blurs, pooling, interpolation.

Runs after loop-fuse, which computes a producer where it is read, element by element, or not at all; here rows of it are computed, kept in
memory of the iteration, and read from there, so that the whole never goes to memory. MLIR's counterparts are the slices of
`affine-loop-fusion` and `scf` tile and fuse; Halide's is `compute_at`. What is possible is in windows/plan.py; the cost model
compares each way with two nests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.dialects.func import FuncOp

from ....dialects import loop
from ....dialects.expr import strides_contiguous
from ....dialects.expr.ranges import RangeEnv
from ....dialects.nd import symbol_ranges
from ...analysis.known_layouts import Strides, known_strides
from ...analysis.nest_info import nest_info
from ...analysis.origins import title
from ...analysis.schedule_attrs import int_attr
from ...analysis.symbols import symbol_hints
from ...cost.cost_model import Work, estimate, nest_cost
from ...cost.machine.cpu import SERVER
from ...cost.nest_cost import VECTOR_LANES
from ...manager.pass_manager import Pass
from .price import MIN_PARALLEL_ELEMENTS, MIN_PARALLEL_TRIPS
from .types import Extents
from .windows.emit import write_window
from .windows.plan import Producer, WindowPlan, WindowPlanner, only_reader, producer_of

ROWS = "window_rows"
"""Attribute of a nest. Before the pass, on the reader: the iterations of a tile, 0 to leave its producers alone. Afterwards the choice."""


@dataclass(frozen=True)
class WindowFusion:
    """A producer that is computed in its reader: the nest that takes the place of both, both times in seconds, the bytes that no longer go
    to memory and come back. Or the reason why it is not."""

    producer: loop.NestOp
    reader: loop.NestOp
    reason: str = ""
    nest: loop.NestOp | None = None
    apart: float = 0.0
    together: float = 0.0
    bytes: int = 0


@dataclass(frozen=True)
class LoopFuseWindows(Pass):
    """Computes nests by tiles in the one nest that reads a window of them."""

    name = "loop-fuse-windows"

    rows: int = 0
    """Iterations of the reader's loop in a tile; 0: what the cost model finds cheapest."""

    always: bool = False
    """Wherever it is possible, whether it pays or not."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        symbols, hints = symbol_ranges(op), symbol_hints(op)
        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            search = WindowSearch(symbols, hints, self.rows, self.always, known_strides(func))
            for nest in reversed([n for n in func.body.block.ops if isinstance(n, loop.NestOp)]):
                fused = search.run(nest)
                if fused is None:
                    continue
                self.statistic("num-merged")
                if self.remarks_wanted:
                    self.remark(fused.producer, _remark(fused), "applied")
            if self.remarks_wanted:
                for refused in search.refused:
                    text = f"not computed by tiles in {title(refused.reader)}: {refused.reason}"
                    self.remark(refused.producer, text, "missed")
            self.record("window-fusion", search)


def _remark(fused: WindowFusion) -> str:
    times = f"{fused.together * 1e6:.3g} us where two nests take {fused.apart * 1e6:.3g}"
    return f"computed by tiles in its reader {title(fused.reader)}: {times}"


class WindowSearch(Extents):
    """Tries the nests of one function as producers, the last one first, so that a chain is taken up from its end."""

    def __init__(self, symbols: RangeEnv, hints: Mapping[str, int], rows: int, always: bool, strides: Strides):
        super().__init__(hints)
        self.symbols, self.rows, self.always = symbols, rows, always
        self.strides = strides
        self.fused: list[WindowFusion] = []
        self.refused: list[WindowFusion] = []

    def run(self, nest: loop.NestOp) -> WindowFusion | None:
        """Compute `nest` in its reader, if it has one and that pays."""
        if len(nest.results) != 1:
            return None
        reader = only_reader(nest.results[0])
        if isinstance(reader, str) or reader.parent is not nest.parent:
            return None
        producer = producer_of(nest, self.symbols)
        if isinstance(producer, str):
            return self._refuse(nest, reader, producer)
        asked = reader.attributes.get(ROWS)
        rows = asked.value.data if isinstance(asked, IntegerAttr) else None
        if rows == 0:
            return self._refuse(nest, reader, f"{title(reader)} says {ROWS} = 0")
        plans = WindowPlanner(producer, reader, self.symbols, rows or self.rows).plans()
        if isinstance(plans, str):
            return self._refuse(nest, reader, plans)
        return self._choose(producer, reader, plans, always=self.always or bool(rows))

    def _refuse(self, nest: loop.NestOp, reader: loop.NestOp, reason: str) -> None:
        self.refused.append(WindowFusion(nest, reader, reason))

    def _choose(self, producer: Producer, reader: loop.NestOp, plans: list[WindowPlan], *, always: bool) -> WindowFusion | None:
        nest = producer.info.op
        between = self._between(producer, reader)
        parts = [self._work(nest, between), self._work(reader, between)]
        # each of two nests alone may fit a cache that both together do not
        touched = sum(w.read + w.written for w in parts) - self.bytes(producer.result)
        apart = sum(_seconds(w, touched) for w in parts)
        fewest = min(w.iterations for w in parts)
        written = [(write_window(plan, self.symbols), plan) for plan in plans]
        costs = [_seconds(w, w.read + w.written, fewest) for w in [self._work(made) for made, _ in written]]
        best = min(range(len(costs)), key=lambda k: costs[k])
        for k, (made, _) in enumerate(written):
            if k != best:
                made.erase(safe_erase=False)
        made, plan = written[best]
        if costs[best] >= apart and not always:
            made.erase(safe_erase=False)
            us = f"{costs[best] * 1e6:.3g} us where two nests take {apart * 1e6:.3g}"
            return self._refuse(nest, reader, f"it would take {us}")
        _replace(nest, reader, made, plan)
        self.fused.append(WindowFusion(nest, reader, "", made, apart, costs[best], 2 * self.bytes(producer.result)))
        return self.fused[-1]

    def _between(self, producer: Producer, reader: loop.NestOp) -> Strides:
        """How the producer's result would lie in memory: as the largest tensor at the function's borders that the two nests access."""
        near = {*producer.info.op.outs, *reader.outs, *(r.tensor for r in (*producer.info.reads, *nest_info(reader).reads))}
        alike = [v for v, strides in self.strides.items() if v in near and len(strides) == len(producer.sizes)]
        if not alike:
            return {}
        largest = max(alike, key=lambda v: self.count(loop.shaped_dims(v.type)))
        order = sorted(range(len(producer.sizes)), key=lambda axis: -self.count([self.strides[largest][axis]]))
        dense = strides_contiguous([producer.sizes[axis] for axis in order])
        strides = tuple(dense[order.index(axis)] for axis in range(len(order)))
        return {producer.result: strides, producer.info.op.outs[0]: strides}

    def _work(self, nest: loop.NestOp, more: Strides | None = None) -> Work:
        return nest_cost(nest, self.hints, SERVER, self.symbols, {**self.strides, **(more or {})}).work


def _seconds(work: Work, touched: float, fewest: float = 0.0) -> float:
    """The time of a nest that is run again and again with others, all of which touch so many bytes: what a cache cannot hold of these has
    left it when the nest begins. More where fewer iterations than `fewest` are left to run in parallel, and fewer than threads want."""
    own = work.read + work.written
    traffic = [max(t, own if touched > level.bytes else 0.0) for t, level in zip(work.traffic, SERVER.levels, strict=False)]
    seconds = estimate(replace(work, traffic=tuple(traffic)), SERVER).seconds
    wanted = min(MIN_PARALLEL_TRIPS, fewest)
    if work.iterations < wanted and work.units > MIN_PARALLEL_ELEMENTS / VECTOR_LANES:
        return seconds * wanted / max(work.iterations, 1.0)
    return seconds


def _replace(nest: loop.NestOp, reader: loop.NestOp, made: loop.NestOp, plan: WindowPlan) -> None:
    """Put the new nest where the reader was."""
    block = reader.parent
    assert block is not None
    made.attributes.update({k: v for k, v in reader.attributes.items() if k != ROWS})
    if plan.tiling.tiles:
        made.attributes[ROWS] = int_attr(plan.tiling.tiles[0][1])
    block.insert_op_before(made, reader)
    loop.take_uses(reader.results, made.results)
    init = nest.outs[0]
    for op in (reader, nest):
        op.detach()
        op.drop_all_references()
    loop.drop_empty(init)
