"""mem-view-offsets: what a nest accesses behind the beginning of a buffer it accesses through a view that begins there.

    loop.nest (%i = 256, %j = 50257) outs(%o = %all : 8192 x 50257) { ...; loop.store %v, %o[%i + 512, %j] }
      ->  %part = mem.view %all : 8192 x 50257 -> 256 x 50257 from element 25731584
          loop.nest (%i = 256, %j = 50257) outs(%o = %part : 256 x 50257) { ...; loop.store %v, %o[%i, %j] }

Nests that differ only in where they begin (the parts of a product or a concatenation that stay apart) are one kernel then, which is
compiled once: launches pass addresses. Views begin at multiples of 16 bytes, as loads of several elements want them.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import Rewriter

from ...dialects import loop, mem
from ...dialects.expr import Add, Expr, IndexMap, as_expr, dims_subs
from ...dialects.expr.ranges import RangeEnv, range_of
from ...dialects.expr.syntax import IndexMapAttr
from ...dialects.nd.types import element_bytes
from ..analysis.dependences import memory_of
from ..analysis.nest_access import NestAccess
from ..analysis.nest_key import nests_in_memory
from ..analysis.symbols import symbol_facts
from ..cost.machine.gpu import VECTOR_BYTES
from ..manager.pass_manager import Pass


@dataclass(frozen=True)
class MemViewOffsets(Pass):
    """Gives nests views that begin where they access a buffer first."""

    name = "mem-view-offsets"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        symbols, _ = symbol_facts(op)
        for func in [f for f in op.ops if isinstance(f, FuncOp) and f.body.blocks and loop.batch_symbols(f) is None]:
            nests = nests_in_memory(func)
            late = {b for n in nests for o in loop.walk_bodies(n) if _starts_late(o) for b in _outside(n, o)}
            if not late:
                continue
            reaches = [r for n in nests for r in _reaches(n, symbols, late)]
            apart: dict[SSAValue, set[int]] = {}
            for one in reaches:
                apart.setdefault(one.buffer, set()).update(k for k, start in enumerate(one.starts) if start)
            for one in reaches:
                t = one.view_type(apart[one.buffer])
                if t != one.buffer.type:
                    one.through(t)
                    self.statistic("views", 1)


def _starts_late(op: Operation) -> bool:
    return isinstance(op, loop.LoadOp | loop.StoreOp) and any(_constant(e) > 0 for e in op.index_map.results)


def _constant(e: Expr) -> int:
    """The number that an index is larger than what depends on loops or sizes."""
    return int(e.constant) if isinstance(e, Add) else e.value or 0


def _outside(nest: loop.NestOp, access: Operation) -> list[SSAValue]:
    """The buffer of an access in a nest, as it is called outside."""
    value = access.shaped  # pyright: ignore[reportAttributeAccessIssue]
    return [out for out, argument in zip(nest.outs, nest.out_args, strict=True) if argument is value] or [value]


@dataclass
class Reach:
    """What a nest accesses of a buffer: from element `starts` on, `sizes` elements of each dimension (None: maybe all)."""

    nest: loop.NestOp
    buffer: SSAValue
    ops: list[loop.LoadOp | loop.StoreOp]
    starts: list[int]
    sizes: list[int | None]

    def view_type(self, dims: Container[int]) -> mem.BufferType:
        """The part of the buffer that the nest accesses, along these dimensions."""
        t = self.buffer.type
        assert isinstance(t, mem.BufferType)
        both = enumerate(zip(self.sizes, t.dims, strict=True))
        sizes = [as_expr(n) if k in dims and n is not None else have for k, (n, have) in both]
        return mem.BufferType.get(sizes, t.element_type, t.stride_exprs, t.offset_expr + _offset(t, self.starts), t.device.data)

    def through(self, t: mem.BufferType) -> None:
        """Have the nest access the buffer through a view of this type."""
        view = mem.ViewOp.create(operands=[self.buffer], result_types=[t])
        view.location = self.nest.location
        block = self.nest.parent
        assert block is not None
        block.insert_op_before(view, self.nest)
        for op in self.ops:
            m = op.index_map
            op.properties["map"] = IndexMapAttr.get(
                IndexMap(m.num_dims, [e - c for e, c in zip(m.results, self.starts, strict=True)])
            )
        for op in (self.nest, *self.ops):
            for k, value in enumerate(op.operands):
                if value is self.buffer:
                    op.operands[k] = view.result
        for out, argument in zip(self.nest.outs, self.nest.out_args, strict=True):
            if out is view.result:
                Rewriter.replace_value_with_new_type(argument, t)


def _offset(t: mem.BufferType, starts: Sequence[int]) -> Expr:
    return sum((c * stride for c, stride in zip(starts, t.stride_exprs, strict=True)), start=as_expr(0))


def _reaches(nest: loop.NestOp, symbols: RangeEnv, buffers: Container[SSAValue]) -> list[Reach]:
    """What a nest accesses of `buffers`, where that is a part with known bounds that begins at a multiple of 16 bytes."""
    info = NestAccess(nest, symbols, normalise=False)
    accesses: dict[SSAValue, list[loop.LoadOp | loop.StoreOp]] = {}
    for access in info.access.values():
        accesses.setdefault(access.buffer, []).append(access.op)
    memories = [memory_of(b) for b in dict.fromkeys((*nest.outs, *accesses))]
    found: list[Reach] = []
    for buffer, ops in accesses.items():
        if buffer not in buffers or buffer in info.local or memories.count(memory_of(buffer)) != 1:
            continue
        one = _reach(nest, buffer, ops, info)
        if one is not None:
            found.append(one)
    return found


def _reach(nest: loop.NestOp, buffer: SSAValue, ops: list[loop.LoadOp | loop.StoreOp], info: NestAccess) -> Reach | None:
    t = buffer.type
    starts = [_constant(e) for e in ops[0].index_map.results]
    if not isinstance(t, mem.BufferType) or any(op.masked or [_constant(e) for e in op.index_map.results] != starts for op in ops):
        return None
    begin = _offset(t, starts).value
    if min(starts, default=0) < 0 or begin is None or begin * element_bytes(t.element_type) % VECTOR_BYTES:
        return None
    sizes: list[int | None] = []
    for k, start in enumerate(starts):
        indices = [dims_subs(op.index_map.results[k], [info.expr(v) for v in op.index_operands]) for op in ops]
        ranges = [range_of(index - start, info.ranges) for index in indices]
        known = [r.hi + 1 for r in ranges if r.lo is not None and r.hi is not None and 0 <= r.lo <= r.hi]
        sizes.append(max(known) if len(known) == len(ops) else None)
        if start and sizes[-1] is None:
            return None
    return Reach(nest, buffer, ops, starts, sizes)
