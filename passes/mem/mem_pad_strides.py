"""mem-pad-strides: padding behind the rows of intermediate buffers, where the cost model says that it pays.

    %b = mem.alloc {kind = "arena"} : !mem.buffer<512 x 1024 x f32>   ->   !mem.buffer<512 x 1024 x f32, [1040, 1]>

A cache keeps a few lines (its ways) for all addresses a multiple of size / ways apart. A nest that walks down a column of a
matrix whose rows are that long uses these few lines only, and fetches each line again for the next column. A line of padding puts the
rows of a column into different sets. What it costs: a loop over all elements becomes one over rows and columns. Products want the
beginning of each row at a multiple of so many bytes (`align`).

Only buffers of our own: what the caller sees, what a library call is given or a view shows keeps its strides. Run it between loop-to-mem
and mem-plan. Inductor's `comprehensive_padding` decides by the length of the rows alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import Rewriter

from ...dialects import loop, mem
from ...dialects.expr import ONE, Expr, as_expr, strides_contiguous, sym
from ...dialects.expr.ranges import RangeEnv
from ...dialects.nd import symbol_ranges
from ...dialects.nd.types import element_bytes
from ..analysis.nest_access import NestAccess
from ..analysis.symbols import symbol_hints
from ..cost.cost_model import nest_cost
from ..cost.footprint import LINE_BYTES, Footprint, LoopOrder, Stream
from ..cost.machine.cpu import SERVER, Cpu
from ..cost.nest_cost import Cost
from ..cost.schedule_choice import choose
from ..manager.pass_manager import Pass

MIN_GAIN_SHARE = 0.02
"""Part of the time of the nests around a buffer that padding has to save."""


@dataclass(frozen=True)
class MemPadStrides(Pass):
    """Pads the rows of intermediate buffers that are walked down their columns, where the cost model says that it is faster."""

    name = "mem-pad-strides"

    padding: int = LINE_BYTES
    """Bytes behind a row whose length is a multiple of what the ways of the first cache are apart."""

    align: int = 0
    """Rows also begin at multiples of so many bytes where a product reads them (0: wherever they begin)."""

    always: bool = False
    """Pad all buffers that may be padded, whatever the cost model says."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        symbols, hints = symbol_ranges(op), symbol_hints(op)
        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            for alloc in [o for o in func.body.block.ops if isinstance(o, mem.AllocOp)]:
                self._buffer(alloc, hints, symbols)

    def _buffer(self, alloc: mem.AllocOp, hints: Mapping[str, int], symbols: RangeEnv) -> None:
        t = alloc.result.type
        assert isinstance(t, mem.BufferType)
        strides = self._padded(alloc, t)
        if strides is None:
            return
        reason = _why_not(alloc)
        users = _users(alloc.result)
        before = sum(_seconds(op, hints, symbols) for op in users) if reason is None else 0.0
        if reason is None:
            _set_type(alloc, mem.BufferType.get(t.dims, t.element_type, strides, t.offset_expr, t.device.data), users)
            after = sum(_seconds(op, hints, symbols) for op in users)
            figures = f"{before * 1e6:.1f} us dense, {after * 1e6:.1f} us padded"
            if self.always or after < before * (1 - MIN_GAIN_SHARE) or self._for_product(alloc, t):
                self.remark(alloc, f"rows of {' x '.join(map(str, t.dims))} are padded: {figures}", kind="applied")
                self.statistic("num-padded")
                return
            _set_type(alloc, t, users)
            reason = figures
        self.remark(alloc, f"rows of {' x '.join(map(str, t.dims))} stay dense: {reason}", kind="missed")

    def _padded(self, alloc: mem.AllocOp, t: mem.BufferType) -> tuple[Expr, ...] | None:
        """Strides with padding behind the innermost rows that want it; None where none do."""
        dense = strides_contiguous(t.dims)
        if t.stride_exprs != dense or len(dense) < 2:
            return None
        size = element_bytes(t.element_type)
        period = int(SERVER.levels[0].bytes) // SERVER.cache_ways
        for k in range(len(dense) - 2, -1, -1):
            row = dense[k].value
            if row is None or row <= 1 or t.dims[k] is ONE:
                continue
            pad = 0
            if row * size % period == 0:
                pad = self.padding // size
            elif self.align and k == len(dense) - 2 and row * size % self.align and _in_product(alloc.result):
                pad = -row % (self.align // gcd(self.align, size))
            if pad:
                inner = dense[k + 1 :]
                return (*_outer(t.dims[: k + 1], as_expr(row + pad)), *inner)
        return None

    def _for_product(self, alloc: mem.AllocOp, t: mem.BufferType) -> bool:
        rows = t.stride_exprs[-2].value or 0
        return bool(self.align) and rows * element_bytes(t.element_type) % self.align != 0 and _in_product(alloc.result)


def _outer(dims: Sequence[Expr], row: Expr) -> tuple[Expr, ...]:
    """The strides of outer dimensions around rows that are `row` elements apart."""
    found = [row]
    for size in reversed(dims[1:]):
        found.append(found[-1] * size)
    return tuple(reversed(found))


# ---- what may be padded


def _why_not(alloc: mem.AllocOp) -> str | None:
    """Why the strides of a buffer are not ours to choose; None where they are."""
    if alloc.kind.data == "output":
        return "the caller gets it"
    if alloc.at is not None or alloc.inside is not None:
        return "it has its place in memory already; run this pass before mem-plan"
    for use in alloc.result.uses:
        op = use.operation
        if not isinstance(op, loop.NestOp | loop.ContractOp | loop.AccessOp):
            what = {"mem.view": "a view shows it", "mem.extern": "a library call takes it", "func.return": "the caller gets it"}
            return what.get(op.name, f"{op.name} takes it")
    return None


def _users(buffer: SSAValue) -> list[Operation]:
    """The nests and contractions that read or write a buffer, each once."""
    found: dict[Operation, None] = {}
    for use in buffer.uses:
        op: Operation | None = use.operation
        while op is not None and not isinstance(op, loop.NestOp | loop.ContractOp):
            op = op.parent_op()
        if op is not None:
            found[op] = None
    return list(found)


def _in_product(buffer: SSAValue) -> bool:
    return any(isinstance(use.operation, loop.ContractOp) for use in buffer.uses)


def _set_type(alloc: mem.AllocOp, t: mem.BufferType, users: Sequence[Operation]) -> None:
    """Give a buffer another type, in the bodies that store to it too."""
    Rewriter.replace_value_with_new_type(alloc.result, t)
    for op in users:
        assert isinstance(op, loop.NestOp | loop.ContractOp)
        for argument, out in zip(op.out_args, op.outs, strict=True):
            if out is alloc.result:
                Rewriter.replace_value_with_new_type(argument, t)


# ---- what it is worth


def _seconds(op: Operation, hints: Mapping[str, int], symbols: RangeEnv) -> float:
    """Seconds of a nest, with what its walks down columns fetch again; products cost the same either way."""
    if not isinstance(op, loop.NestOp):
        return 0.0
    return nest_cost(op, hints, SERVER).seconds + conflict_seconds(op, hints, symbols)


def conflict_seconds(nest: loop.NestOp, hints: Mapping[str, int], symbols: RangeEnv, machine: Cpu = SERVER) -> float:
    """Seconds for the lines of the first cache that a nest on buffers fetches again, since more rows than the cache has ways lie at
    addresses that share them."""
    info = NestAccess(nest, symbols)
    facts: dict[Expr, int] = {sym(name): size for name, size in hints.items()}
    schedule = choose(info, facts)
    footprint = Footprint(info, Cost(info, facts), schedule)
    extents = footprint.extents(footprint.plan)
    home = machine.home(sum(s.lines(extents) for s in footprint.streams))
    priced = schedule.style == "lanes" and home in machine.levels[:2]
    again = 0.0
    for plan in _plans(footprint.plan):
        for k in plan.streams:
            stream = footprint.streams[k]
            again += _refetched(stream, plan, footprint, machine, priced) * stream.lines(extents)
    return again / (home if home is not machine.levels[0] else machine.levels[1]).gbs * 1e-9


def _plans(plan: LoopOrder) -> Iterator[LoopOrder]:
    yield plan
    for child in plan.children:
        yield from _plans(child)


def _refetched(stream: Stream, plan: LoopOrder, footprint: Footprint, machine: Cpu, priced: bool) -> float:
    """How often each line of a stream is fetched again because its rows share sets: the lines of a column are gone before the next
    column, in the same lines, is read. `priced`: where the rows are the lanes of one vector, the price of the load says so already."""
    capacity, ways = machine.levels[0].bytes, machine.cache_ways
    order = [d for d, _ in footprint.plan.loops]
    counts = dict(footprint.plan.loops)
    if plan is not footprint.plan:
        order, counts = order + [d for d, _ in plan.loops], counts | dict(plan.loops)
    for d, step in stream.steps.items():
        rows = counts.get(d, 1.0) * footprint.inner.get(d, 1.0)
        if step * stream.element % (capacity / ways) or rows <= ways or rows * LINE_BYTES > capacity or d not in order:
            continue
        if priced and footprint.inner.get(d, 1.0) > ways:
            continue
        for other, near in stream.steps.items():
            wide = near * stream.element * footprint.inner.get(other, 1.0)
            if other in order and order.index(other) < order.index(d) and 0 < wide < LINE_BYTES:
                return LINE_BYTES / wide - 1
    return 0.0
