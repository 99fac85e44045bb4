"""How much memory a planned function takes at once: the arena, and the outputs and results of library calls that are
alive together."""

from __future__ import annotations

from xdsl.dialects.func import FuncOp

from ...dialects.expr import Expr, as_expr
from ...dialects.expr_syntax import ExprAttr
from .lifetimes import Lifetime, lifetimes
from .mem_plan import ARENA_BYTES


def peak_bytes(func: FuncOp) -> int | Expr:
    """Bytes of the arena plus the largest sum of outputs and results of library calls that are alive at the same
    time; arguments are not counted. An expression when a size depends on symbols: then all outputs and results count,
    whether they meet or not."""
    total = func.attributes.get(ARENA_BYTES)
    arena = total.data if isinstance(total, ExprAttr) else as_expr(0)
    others = [one for one in lifetimes(func) if one.kind != "arena"]
    if all(one.bytes.is_const for one in others):
        arena = arena + max((_alive(others, one.first) for one in others), default=0)
    else:
        arena = sum((one.bytes for one in others), arena)
    return int(arena) if arena.is_const else arena


def _alive(buffers: list[Lifetime], at: int) -> int:
    return sum(int(one.bytes) for one in buffers if one.first <= at <= one.last)
