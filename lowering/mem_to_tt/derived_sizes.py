"""What is computed from sizes that are symbols, once for all programs: the host does it and passes the number.

    %x[%i + (s0 + 1) floordiv 2]   ->   func @k(..., %s0 : i64 {tt.divisibility = 16}, %half : i64 {tt.divisibility = 16})

A kernel knows nothing of a quotient; the host sees whether it is a multiple of 16, as halves of a row and sizes of windows often are, and
takes another variant of the kernel if not."""

from __future__ import annotations

from collections.abc import Mapping

from ...dialects.expr import Expr, FloorDiv, Max, Min, Mod, evaluate, free_dims, free_syms
from ...dialects.expr.walk import children
from ...passes.analysis.nest_access import NestAccess


def shared_quotients(info: NestAccess) -> list[Expr]:
    """Quotients, remainders, minima and maxima of sizes in the indices and lengths of a nest."""
    found: dict[Expr, None] = {}
    seen: set[Expr] = set()

    def visit(e: Expr) -> None:
        if e in seen or not e.has_div:
            return
        seen.add(e)
        if isinstance(e, (FloorDiv, Mod, Min, Max)) and not free_dims(e):
            found[e] = None
            return
        for part in children(e):
            visit(part)

    for node in info.root.walk():
        for one in node.loops:
            visit(one.size)
        for access in node.accesses:
            visit(access.offset)
    for e in info.exprs.values():
        visit(e)
    return sorted(found, key=str)


def typical_value(e: Expr, sizes: Mapping[Expr, int]) -> int:
    """The example of a size; 1 where there is none."""
    return evaluate(e, sizes) if all(s in sizes for s in free_syms(e)) else 1
