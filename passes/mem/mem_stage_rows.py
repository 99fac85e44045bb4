"""mem-stage-rows: functions of a row that a loop inside of another one would compute for each column run once, in vectors.

    loop.for (%i = 64) { loop.reduce (%j = 128) { exp(%s[%j]) * %v[%j, %i] } }
      ->   %e = loop.local;  loop.for (%j = 128) { %e[%j] = exp(%s[%j]) };
           loop.for (%i = 64) { loop.reduce (%j = 128) { %e[%j] * %v[%j, %i] } }

With the lanes along the columns such a function is scalar code that runs for each vector of columns; with the lanes along the row it runs
for each column. Shares of attention times values, the forward algorithm of a hidden Markov model. The row stays in memory of the iteration.
The counterpart in MLIR: hoisting with packing. It runs behind loop-to-mem; nests whose own loops run along the lanes stay as they are,
since memory of an iteration would keep them from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue

from ...dialects import loop, mem
from ...dialects.expr import IndexMap
from ...dialects.nd.types import element_bytes
from ...dialects.support.replace import erase_op
from ..analysis.dependences import memory_of
from ..analysis.nest_access import NestAccess
from ..analysis.nest_key import nests_in_memory
from ..analysis.schedule_attrs import schedule_table
from ..analysis.symbols import symbol_facts
from ..cost.loops_inside import MIN_INNER_TRIPS
from ..cost.schedule_choice import choose
from ..loop.transform.loop_rewrite import needed
from ..manager.pass_manager import Pass
from .mem_split_scalars import has_buffer, is_function, is_plain


@dataclass(frozen=True)
class MemStageRows(Pass):
    """Computes functions of a row once, where a loop inside of another one would compute them for each column."""

    name = "mem-stage-rows"

    bytes: int = 32768
    """Memory that an iteration of a nest may take for its rows."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        symbols, hints = symbol_facts(op)
        for func in [f for f in op.ops if isinstance(f, FuncOp) and f.body.blocks and loop.batch_symbols(f) is None]:
            for nest in nests_in_memory(func):
                rows = list(_rows(nest))
                if not rows or schedule_table(nest) or choose(NestAccess(nest, symbols), hints).style != "inner":
                    continue
                left = self.bytes - sum(o.bytes for o in nest.block.ops if isinstance(o, loop.LocalOp))
                for row in rows:
                    left -= row.bytes
                    if left >= 0:
                        row.stage(nest)
                        self.remark(nest, f"functions of {len(row.values)} rows of {row.length} are computed once", "applied")
                        self.statistic("num-rows", len(row.values))


@dataclass
class _Row:
    """What loops `inner`, in the body of `outer`, compute from their own indices alone: `ops`, and of their results those that other ops
    need and that take a function, `values`."""

    outer: loop.ForOp
    inner: loop.LoopLike
    ops: list[Operation]
    values: list[SSAValue]

    @property
    def length(self) -> int:
        return prod(int(size) for size in self.inner.loop_sizes)

    @property
    def bytes(self) -> int:
        return sum(self.length * element_bytes(v.type) for v in self.values)

    def stage(self, nest: loop.NestOp) -> None:
        sizes = self.inner.loop_sizes
        identity = IndexMap.identity(len(sizes))
        fill = loop.ForOp.build_for(sizes)
        copies: dict[SSAValue, SSAValue] = dict(zip(self.inner.indices, fill.indices, strict=True))
        sources = needed(self.values, self.inner.block)
        for op in self.ops:
            if op in sources:
                fill.block.add_op(op.clone(copies))
        for value in self.values:
            local = loop.LocalOp.make(mem.BufferType.get(sizes, value.type))
            nest.block.insert_op_before(local, self.outer)
            fill.block.add_op(loop.StoreOp.new(copies[value], local.result, identity, fill.indices))
            load = loop.LoadOp.new(local.result, identity, self.inner.indices)
            assert isinstance(value.owner, Operation)
            self.inner.block.insert_op_before(load, value.owner)
            value.replace_all_uses_with(load.result)
        nest.block.insert_op_before(fill, self.outer)
        for op in reversed(self.ops):
            if not any(True for _ in op.results[0].uses):
                erase_op(op)


def _rows(nest: loop.NestOp) -> Iterator[_Row]:
    """The rows in a nest that are worth it."""
    for outer in nest.block.ops:
        if not isinstance(outer, loop.ForOp) or outer.sequential is not None:
            continue
        for inner in outer.block.ops:
            if not isinstance(inner, loop.ReduceOp | loop.ForOp) or isinstance(inner, loop.ForOp) and inner.sequential is not None:
                continue
            if any(size.value is None for size in inner.loop_sizes) or prod(int(size) for size in inner.loop_sizes) < MIN_INNER_TRIPS:
                continue
            row = _row(outer, inner)
            if row is not None:
                yield row


def _row(outer: loop.ForOp, inner: loop.LoopLike) -> _Row | None:
    """The row of one inner loop; None where it computes no function from its own index alone."""
    if not any(is_function(op) for op in inner.block.ops):
        return None
    stored = {memory_of(o.target) for o in loop.walk_bodies(outer) if isinstance(o, loop.StoreOp)}
    own: set[SSAValue] = set(inner.indices)
    dear: set[SSAValue] = set()
    ops: list[Operation] = []
    for op in inner.block.ops:
        if not is_plain(op) or isinstance(op, loop.LoadOp) and memory_of(op.source) in stored:
            continue
        if all(v in own or not _is_in(v, outer) for v in op.operands):
            own.add(op.results[0])
            ops.append(op)
            if is_function(op) or any(v in dear for v in op.operands):
                dear.add(op.results[0])
    among = set(ops)
    values = [v for op in ops if (v := op.results[0]) in dear and any(u.operation not in among for u in v.uses)]
    if not values or not all(has_buffer(v) for v in values):
        return None
    return _Row(outer, inner, ops, list(values))


def _is_in(value: SSAValue, outer: Operation) -> bool:
    """Whether a value is computed (or an index) inside of `outer`."""
    block: Block | None = value.owner if isinstance(value.owner, Block) else value.owner.parent
    while block is not None:
        op = block.parent_op()
        if op is outer:
            return True
        block = op.parent if op is not None else None
    return False
