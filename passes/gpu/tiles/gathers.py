"""Which loops indices vary with that a nest loads or computes: neighbours along these need not lie side by side in memory."""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.ir import Operation, SSAValue

from ....dialects.expr import Expr, free_dims
from ...analysis.nest_access import NestAccess


def index_loops(info: NestAccess, stores: bool = False) -> set[Expr]:
    """The dimensions that loaded and computed indices of the nest's loads, or of its stores, depend on."""
    found: set[Expr] = set()
    seen: set[SSAValue] = set()
    worklist: list[SSAValue] = []

    def visit(dims: Iterable[Expr]) -> None:
        for d in dims:
            value = info.opaque.get(d)  # pyright: ignore[reportArgumentType]
            if value is None:
                found.add(d)
            elif value not in seen:
                seen.add(value)
                worklist.append(value)

    for access in info.access.values():
        if access.is_store == stores:
            visit(d for d in free_dims(access.offset) if d in info.opaque)
    while worklist:
        op = worklist.pop().owner
        if not isinstance(op, Operation):
            continue
        access = info.access.get(op)
        if access is not None:
            visit(free_dims(access.offset))
        for operand in op.operands:
            if operand in info.exprs:
                visit(free_dims(info.exprs[operand]))
            elif operand not in seen:
                seen.add(operand)
                worklist.append(operand)
    return found
