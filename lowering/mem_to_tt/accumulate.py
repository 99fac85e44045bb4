"""Columns that a loop over rows accumulates, kept on chip until its end.

    loop.for (%i = 64) { ...; loop.for (%j = 4096) { ...; loop.store %v, %sums[%p, %j] add } }

The sums are carried by the loop over the rows, and combined with memory once, after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import f32, f64, i32, i64
from xdsl.ir import SSAValue

from ...dialects import loop
from ...dialects.expr import free_dims
from ...passes.loop.nest_access import Access, Node
from ...passes.loop.reduction_kinds import identity
from .memory import put

if TYPE_CHECKING:
    from .kernel import NestLowering

KINDS = {"add": "sum", "prod": "prod", "max": "max", "min": "min"}
"""The reduction that does what stores of a mode do."""


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
            fixed = dims.isdisjoint(rows) and dims.isdisjoint(s.info.opaque) and op.mask is None and op.value.type in (f32, f64, i32, i64)
            if not fixed or access.node is not child or kernel.how(child) != "tile" or kernel.whole(child) is None:
                return []
            found.append(access)
    touched = {a.buffer for a in found}
    return found if len(touched) == len(found) and not any(a.buffer in touched and a not in found for a in node.all_accesses()) else []


def accumulate(kernel: NestLowering, node: Node, op: loop.ForOp, columns: Sequence[Access]) -> None:
    """The loops of `node` one iteration after the other, with what `columns` combine carried along."""
    s = kernel.s
    pieces: list[int] = []
    start: list[SSAValue] = []
    for access in columns:
        element = access.op.operands[0].type
        pieces.append(-(-(kernel.whole(access.node) or 1) // kernel.tile.inner))
        start += [s.b.constant(identity(KINDS[access.mode], element), element, s.full)] * pieces[-1]

    def step(at: SSAValue, state: Sequence[SSAValue]) -> list[SSAValue]:
        values = iter(state)
        s.carried = {a.op: [next(values) for _ in range(n)] for a, n in zip(columns, pieces, strict=True)}
        kernel.decode(at, node.loops)
        kernel.lower_body(op.block)
        return [v for a in columns for v in s.carried[a.op]]

    s.carried = {a.op: [] for a in columns}
    sums = iter(kernel.sequential(node, start, step))
    s.carried = {}
    for access in columns:

        def store(state: Sequence[SSAValue], mask: SSAValue | None, access: Access = access) -> list[SSAValue]:
            put(s, access, next(sums), None)
            return []

        kernel.tiled(access.node, [], store)
