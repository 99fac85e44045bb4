"""Columns that a loop over rows accumulates, kept on chip until its end.

    loop.for (%i = 64) { ...; loop.for (%j = 4096) { ...; loop.store %v, %sums[%p, %j] add } }

The sums are carried by the loop over the rows, and combined with memory once, after it.

Where all that a row stores stands under the condition %p + %i * P < N (gpu-split-rows), the loop ends with the last row for which it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xdsl.dialects import arith
from xdsl.dialects.builtin import f32, f64, i32, i64
from xdsl.ir import SSAValue

from ...dialects import loop
from ...dialects.expr import ZERO, Expr, free_dims, linear_coeff
from ...dialects.expr.ranges import prove_ge0, simplify
from ...dialects.tt.types import shape_of
from ...passes.analysis.dependences import memory_of
from ...passes.analysis.nest_access import Access, Node
from ...passes.analysis.reduction_kinds import CMPI, identity
from ...passes.gpu.atomics import KINDS
from .memory import put

if TYPE_CHECKING:
    from .kernel import NestLowering


def accumulated(kernel: NestLowering, node: Node) -> list[Access]:
    """The stores in the loops of `node` that combine with elements which are the same in every iteration, where a row is on chip."""
    s = kernel.s
    if s.inner or s.inner_axis is None or not node.children:
        return []
    rows = {one.dim for one in node.loops}
    found: list[Access] = []
    for child in node.children:
        for access in child.all_accesses():
            if not access.is_store or access.mode == "set":
                continue
            dims = free_dims(access.offset)
            op = access.op
            assert isinstance(op, loop.StoreOp)
            fixed = dims.isdisjoint(rows) and dims.isdisjoint(s.info.opaque) and op.value.type in (f32, f64, i32, i64)
            if not fixed or access.node is not child or kernel.how(child) != "tile" or kernel.whole(child) is None:
                return []
            found.append(access)
    touched = {memory_of(a.buffer) for a in found}
    others = {memory_of(a.buffer) for a in node.all_accesses() if a not in found}
    return found if len(touched) == len(found) and touched.isdisjoint(others) else []


def _condition(node: Node) -> SSAValue | None:
    """The condition on the row under which all stores in the loops of `node` stand, if there is one."""
    masks: list[SSAValue | None] = []
    for access in node.all_accesses():
        if isinstance(access.op, loop.StoreOp):
            masks.append(access.op.mask)
    there = next((m for m in masks if m is not None and _is_bound(m, node)), None)
    return there if there is not None and all(m is there or _needs(m, there) for m in masks) else None


def _is_bound(mask: SSAValue, node: Node) -> bool:
    """Whether a condition is one of the body of a loop on an index."""
    owner = mask.owner
    return isinstance(owner, arith.CmpiOp) and owner.parent_op() is node.op and owner.predicate.value.data == CMPI["slt"]


def _needs(mask: SSAValue | None, there: SSAValue) -> bool:
    return mask is not None and isinstance(mask.owner, arith.AndIOp) and there in mask.owner.operands


def _rows_there(kernel: NestLowering, node: Node, there: SSAValue) -> Expr | None:
    """How many iterations of `node` there are for which a condition holds, which are the first ones; None where that cannot be told, or
    depends on the row of the tile."""
    s = kernel.s
    owner = there.owner
    assert isinstance(owner, arith.CmpiOp)
    left = s.info.expr(owner.rhs) - s.info.expr(owner.lhs)
    if len(node.loops) != 1 or not s.is_index(owner.lhs) or not s.is_index(owner.rhs):
        return None
    (one,) = node.loops
    step = linear_coeff(left, one.dim)
    if step is None or step.value is None or step.value >= 0:
        return None
    beyond = s.fix(left.subs({one.dim: ZERO}) * -1 - one.size * step)
    trips = simplify(one.size - beyond // -step.value, s.info.ranges)
    return trips if prove_ge0(beyond, s.info.ranges) and shape_of(s.number(trips).type) is None else None


def accumulate(kernel: NestLowering, node: Node, op: loop.ForOp, columns: Sequence[Access]) -> None:
    """The loops of `node` one iteration after the other, with what `columns` combine carried along."""
    s = kernel.s
    chunks: list[int] = []
    start: list[SSAValue] = []
    for access in columns:
        element = access.op.operands[0].type
        chunks.append(-(-(kernel.whole(access.node) or 1) // kernel.tile.reduction_block))
        start += [s.b.constant(identity(KINDS[access.mode], element), element, s.full)] * chunks[-1]

    def step(at: SSAValue, state: Sequence[SSAValue]) -> list[SSAValue]:
        values = iter(state)
        s.carried = {a.op: [next(values) for _ in range(n)] for a, n in zip(columns, chunks, strict=True)}
        kernel.s.decode(at, node.loops)
        kernel.lower_body(op.block)
        return [v for a in columns for v in s.carried[a.op]]

    s.carried = {a.op: [] for a in columns}
    there = _condition(node)
    trips = None if there is None else _rows_there(kernel, node, there)
    if there is not None and trips is not None:
        s.certain.add(there)
    sums = iter(kernel.sequential(node, start, step, trips))
    s.carried = {}
    for access in columns:

        def store(state: Sequence[SSAValue], mask: SSAValue | None, access: Access = access) -> list[SSAValue]:
            put(s, access, next(sums), None)
            return []

        kernel.tiled(access.node, [], store)
