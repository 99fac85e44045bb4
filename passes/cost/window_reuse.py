"""Loops whose neighbouring iterations read the same elements: a window that moves along a row, with other loops along the lanes.

    loop.for (%j = 28, %k = 28) { loop.reduce (%m = 5, %n = 5) sum { %x[%j + %m - 2, %k + %n - 2, lanes] if ... * %w[%m, %n, lanes] } }

Several iterations of %k stand one after the other then (unroll and jam), with their windows spelled out: an element that several windows
have is loaded once and kept in a register, as one vector of lanes. Where the window hangs over an end of the row, its conditions are
decided by itself; between the ends they are known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xdsl.dialects import arith

from ...dialects import loop
from ...dialects.expr import Dim, Expr, free_dims, linear_coeff
from ...dialects.expr.ranges import range_of
from ..analysis.nest_access import Access, Loop, NestAccess, Node

if TYPE_CHECKING:
    from .nest_cost import Schedule


@dataclass(frozen=True)
class WindowReuse:
    """How a loop runs: `together` iterations at a time from `first` below `last`, where all conditions are known, the others one by one."""

    one: Loop
    together: int
    first: int
    last: int

    @property
    def end(self) -> int:
        """Behind the last iteration that runs with others."""
        return self.first + (self.last - self.first) // self.together * self.together


def window_reuses(info: NestAccess, schedule: Schedule, most_ops: int, most_sums: int) -> dict[Expr, WindowReuse]:
    """By dimension, the loops of a nest whose lanes run along `schedule.vector` that are to run so. `most_ops`: of a straight body, about;
    `most_sums`: iterations whose sums the registers hold beside weights and pixels."""
    vector = schedule.vector
    if schedule.style != "lanes" or vector is None or schedule.fixed or schedule.tiles:
        return {}
    found: dict[Expr, WindowReuse] = {}
    for node in info.root.walk():
        if isinstance(node.op, loop.ReduceOp) and node.parent is not None and not node.children:
            reuse = _reuse(info, node.parent, node, vector, most_ops, most_sums)
            if reuse is not None:
                found[reuse.one.dim] = reuse
    return found


def _reuse(info: NestAccess, node: Node, window: Node, vector: Loop, most_ops: int, most_sums: int) -> WindowReuse | None:
    """The last loop of a node beside the lanes, if windows that follow each other along it share elements."""
    loops = [one for one in node.loops if one is not vector]
    sizes = [one.size.value for one in window.loops]
    if not loops or None in sizes or isinstance(node.op, loop.ReduceOp | loop.ScanOp) or len(node.children) != 1:
        return None
    one, terms = loops[-1], 1
    for size in sizes:
        terms *= size or 0
    size = one.size.value
    if size is None or not 1 < terms <= most_ops // 2 or not any(_is_shared(a, one, window, vector) for a in window.accesses):
        return None
    ends = _between(info, window, one.dim, size)
    if ends is None:
        return None
    first, last = ends
    between = last - first
    bodies = max(between * terms // most_ops, -(-between // most_sums), 1)  # of equal length, so that few iterations are left over
    reuse = WindowReuse(one, max(2, between // bodies), first, last)
    alone = size - (reuse.end - reuse.first)
    return reuse if alone * terms <= 4 * most_ops else None


def _is_shared(access: Access, one: Loop, window: Node, vector: Loop) -> bool:
    """Whether an access reads elements again one iteration later, in lanes that lie side by side and are no part of the window."""
    steps = {d: linear_coeff(access.offset, d) for d in free_dims(access.offset)}
    along, lanes = steps.get(one.dim), steps.get(vector.dim)
    if along is None or lanes is None or lanes.value != 1 or not along.value:
        return False
    taps = [(step.value, t.size.value or 0) for t in window.loops if (step := steps.get(t.dim)) is not None and step.value]
    if any(step == 1 for step, _ in taps):
        return False
    return any(step and along.value % step == 0 and 0 < along.value // step < size for step, size in taps)


def _between(info: NestAccess, window: Node, d: Dim, size: int) -> tuple[int, int] | None:
    """The indices of a loop, from the first to behind the last, between which the conditions of a window do not depend on it; None where
    that is not said by comparisons near its ends."""
    first, last = 0, size
    for begin, end in _undecided(info, window, d, size):
        if 2 * end <= size + 1:
            first = max(first, end)
        elif 2 * begin >= size - 1:
            last = min(last, begin)
        else:
            return None
    return first, max(first, last)


def _undecided(info: NestAccess, window: Node, d: Dim, size: int) -> Iterator[tuple[int, int]]:
    """For each comparison with the index in it, from where to where the other loops decide; (0, size) where that is not known."""
    for op in window.op.regions[0].blocks[0].ops:
        if not isinstance(op, arith.CmpiOp):
            continue
        left, right = (info.exprs.get(v) for v in op.operands)
        if left is None or right is None:
            continue
        difference, predicate = left - right, op.predicate.value.data
        if d not in free_dims(difference):
            continue
        step = linear_coeff(difference, d)
        if step is None or not step.value or not 2 <= predicate <= 5:  # slt sle sgt sge
            yield 0, size
            continue
        rest = range_of(difference - step * d, info.ranges)
        if rest.lo is None or rest.hi is None:
            yield 0, size
            continue
        low, high = (n - (predicate in (3, 4)) for n in (rest.lo, rest.hi))  # a difference is at most 0 where less one it is negative
        if step.value < 0:
            low, high = -high - 1, -low - 1
        begin, end = (min(max(-(n // abs(step.value)), 0), size) for n in (high, low))
        if begin < end:
            yield begin, end
