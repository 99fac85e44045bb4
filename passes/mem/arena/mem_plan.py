"""mem-plan: one block of memory for all arena buffers of a function, and the place of each in it.

Buffers whose lifetimes do not meet share memory. Those of constant size are packed by best fit, tried in several orders
(largest first, earliest first, longest first, ...) of which the smallest result is kept. Behind them lie the buffers whose size depends on
symbols: they share slots (slots.py). What the memory plan
of TFLite and the arena planner of TVM do. Before that, buffers that are dead when an output is written move into the
memory of that output (output_reuse.py), and large ones that are needed for a short time are taken from the pool (pooled.py).

The size of the block is the function's attribute `mem.arena_bytes`. A buffer whose size is known only in the middle
of the function (it depends on a number that a library call returned) gets no place: it is allocated when its turn
comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import DictionaryAttr, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from ....dialects import mem
from ....dialects.expr import Expr, as_expr, ceildiv, free_syms, simplify
from ....dialects.expr.ranges import RangeEnv
from ....dialects.expr.syntax import ExprAttr
from ....dialects.nd import symbol_ranges
from ....dialects.nd.types import RangeAttr
from ...analysis.levels import refuse_tensors
from ...analysis.lifetimes import Lifetime, Touched, entry_symbols, lifetimes
from ...manager.pass_manager import Pass
from .output_reuse import leave_arena
from .peak import highest_sum
from .slots import Sizes, share_slots

MAX_BUFFERS_FOR_ALL_ORDERS = 300
"""Buffers above which only two orders are tried: the time of each grows with the square of their number."""


@dataclass(frozen=True)
class MemPlan(Pass):
    """Gives every arena buffer its place in one block."""

    name = "mem-plan"
    use_outputs: bool = True
    """Put buffers that are dead before an output is written into the memory of that output, where this lowers the peak."""

    use_pool: bool = True
    """Take large buffers from the pool for the time of their use only, where this lowers the peak."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Plans the functions of the module."""
        refuse_tensors(self, op)
        sizes = Sizes(symbol_ranges(op), symbol_hints(op))
        for func in [f for f in op.ops if isinstance(f, FuncOp) and not f.is_declaration]:
            touched: Touched = {}
            if self.use_outputs or self.use_pool:
                reused, pooled = leave_arena(func, sizes, self.use_outputs, self.use_pool, touched)
                self.statistic("num-in-outputs", reused)
                self.statistic("num-pooled", pooled)
            plan = plan_function(func, sizes, touched)
            if plan is None:
                continue
            for one, at in plan.places.items():
                alloc = one.owner
                assert isinstance(alloc, mem.AllocOp)
                alloc.properties["at"] = ExprAttr.get(at)
            func.attributes[mem.ARENA_BYTES] = ExprAttr.get(plan.total)
            self.statistic("num-arena-buffers", len(plan.places))
            if plan.total.is_const:
                self.statistic("arena-bytes", int(plan.total))


@dataclass
class ArenaPlan:
    """Where each buffer of a function begins, in bytes, and how large the block is."""

    places: dict[SSAValue, Expr] = field(default_factory=dict)
    total: Expr = field(default_factory=lambda: as_expr(0))


def symbol_hints(module: ModuleOp) -> dict[str, int]:
    """A typical value for each size symbol."""
    table = module.attributes.get("nd.symbols")
    if not isinstance(table, DictionaryAttr):
        return {}
    return {name: value.bounds[2] for name, value in table.data.items() if isinstance(value, RangeAttr)}


def plan_function(func: FuncOp, sizes: Sizes, touched: Touched | None = None) -> ArenaPlan | None:
    """The plan for the arena buffers of `func`; None when it has none."""
    known = entry_symbols(func)
    found = [one for one in lifetimes(func, touched) if one.kind == "arena" and free_syms(one.bytes) <= known]
    if not found:
        return None
    fixed, symbolic = [], []
    for one in found:
        one.bytes = _rounded_up(one.bytes, sizes.env)
        (fixed if one.bytes.is_const else symbolic).append(one)
    plan = ArenaPlan()
    offsets, end = pack(fixed)
    plan.places.update({one.buffer: as_expr(at) for one, at in zip(fixed, offsets, strict=True)})
    plan.total = as_expr(end)
    for slot in share_slots(symbolic, sizes):
        plan.places.update({one.buffer: plan.total for one in slot.members})
        plan.total = plan.total + slot.bytes
    return plan


def _rounded_up(size: Expr, env: RangeEnv) -> Expr:
    rounded = ceildiv(size, mem.ALIGNMENT) * mem.ALIGNMENT
    return rounded if rounded.is_const else simplify(rounded, env)


# ---- constant sizes


def pack(buffers: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Offsets of buffers of constant size, in their order, and the size of the block."""
    orders: list[Callable[[Lifetime], tuple[int, ...]]] = [
        lambda one: (-int(one.bytes), one.first),
        lambda one: (one.first, -int(one.bytes)),
        lambda one: (-int(one.bytes) * (one.last - one.first + 1), one.first),
        lambda one: (one.first - one.last, -int(one.bytes)),
        lambda one: (-one.last, -int(one.bytes)),
    ]
    least = highest_sum(buffers, 1 + max((one.last for one in buffers), default=0))
    together = _alive_together(buffers)
    best: tuple[list[int], int] | None = None
    for order in orders:
        if best is not None and (best[1] == least or (len(buffers) > MAX_BUFFERS_FOR_ALL_ORDERS and order is not orders[1])):
            continue
        candidate = _pack_in_order(buffers, together, sorted(range(len(buffers)), key=lambda k: order(buffers[k])))
        if best is None or candidate[1] < best[1]:
            best = candidate
    assert best is not None
    return best


def _alive_together(buffers: Sequence[Lifetime]) -> list[list[int]]:
    """For each buffer the others that live at some time that it does."""
    found: list[list[int]] = [[] for _ in buffers]
    alive: list[int] = []
    used = [k for k, one in enumerate(buffers) if one.first <= one.last]
    for k in sorted(used, key=lambda k: buffers[k].first):
        alive = [n for n in alive if buffers[n].last >= buffers[k].first]
        for n in alive:
            found[n].append(k)
        found[k] += alive
        alive.append(k)
    return found


def _pack_in_order(buffers: Sequence[Lifetime], together: Sequence[Sequence[int]], order: Sequence[int]) -> tuple[list[int], int]:
    """Each buffer goes into the smallest gap, between those placed that live at the same time, that holds it."""
    offsets = [-1] * len(buffers)
    sizes = [int(one.bytes) for one in buffers]
    end = 0
    for k in order:
        size = sizes[k]
        at, waste, cursor = -1, 0, 0
        for start, stop in sorted([(offsets[n], offsets[n] + sizes[n]) for n in together[k] if offsets[n] >= 0]):
            gap = start - cursor
            if gap >= size and (at < 0 or gap - size < waste):
                at, waste = cursor, gap - size
            cursor = max(cursor, stop)
        offsets[k] = at = cursor if at < 0 else at
        end = max(end, at + size)
    return offsets, end
