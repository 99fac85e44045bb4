"""Whether accesses surely go to different elements.

    never_equal((i,), (n + j,), ranges)          two indices
    separate_iterations(offset, loops, opaque)   one access, in different iterations
    separate_in_program(a, b, loops, ranges)     two accesses, all iterations of one with all of the other
    separate_in_row(a, b, rows, ranges)          the same within an iteration of the loops `rows`
    separate_vectors(a, b, reach, ranges)        two runs of `reach` elements

Every answer is one-sided: False says that it is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from math import gcd

from xdsl.ir import Operation

from ....dialects.expr import ONE, ZERO, Add, Expr, free_dims, linear_coeff, prove_ge0
from ....dialects.expr.ranges import RangeEnv, prove_lt, range_of
from ..dependences import memory_of
from ..nest_access import Access, Loop, NestAccess


def never_equal(a: Sequence[Expr], b: Sequence[Expr], ranges: RangeEnv) -> bool:
    """Whether two indices of one tensor never name the same element: in some place one is always below the other.

    For two iterations, the loops of `b` are other dimensions than those of `a`.
    """
    return any(prove_lt(x, y, ranges) or prove_lt(y, x, ranges) for x, y in zip(a, b, strict=True))


def separate_vectors(a: Expr, b: Expr, reach: int, ranges: RangeEnv) -> bool:
    """Whether two vectors over `reach` elements, at offsets `a` and `b`, have no element in common."""
    difference = a - b
    return prove_ge0(difference - reach, ranges) or prove_ge0(-difference - reach, ranges)


def separate_iterations(offset: Expr, loops: Iterable[Loop], opaque: Container[Expr], symbols: bool = True) -> bool:
    """Whether different iterations of `loops` access different elements; `opaque` are dimensions that stand for loaded indices. Without
    `symbols`, only where all sizes are numbers."""
    if any(d in opaque for d in free_dims(offset)):
        return False
    loops = list(loops)
    steps = _known_steps([offset], loops)
    return _steps_over(1, steps) if steps is not None else symbols and _is_dense(offset, loops)


def separate_in_program(a: Access, b: Access, loops: Sequence[Loop], ranges: RangeEnv) -> bool:
    """Whether two accesses of the same memory, from one address on, have no element in common over all iterations of `loops`.

    Either their parts of a row lie side by side, or they take turns, as even and odd elements do.
    """
    steps = _known_steps([a.offset, b.offset], loops)
    if steps is None:
        return False
    own: dict[Expr, Expr] = {one.dim: ZERO for one in loops}
    first, second = a.offset.subs(own), b.offset.subs(own)
    if _take_turns(first, second, steps):
        return True
    x, y = range_of(first, ranges), range_of(second, ranges)
    if x.lo is None or y.lo is None or x.hi is None or y.hi is None or not (x.hi < y.lo or y.hi < x.lo):
        return False
    return _steps_over(max(x.hi, y.hi) - min(x.lo, y.lo) + 1, [(step, size) for step, size in steps if size > 1])


def separate_in_row(a: Access, b: Access, rows: Container[Expr], ranges: RangeEnv) -> bool:
    """Whether two accesses have no element in common in one iteration of the loops `rows`, whose share of both offsets is the same."""
    if memory_of(a.buffer) is not memory_of(b.buffer):
        return True
    if a.buffer is not b.buffer:
        return False
    row, other_row = _share(a.offset, rows), _share(b.offset, rows)
    x, y = range_of(a.offset - row, ranges), range_of(b.offset - other_row, ranges)
    if row is not other_row or x.lo is None or x.hi is None or y.lo is None or y.hi is None:
        return False
    return x.hi < y.lo or y.hi < x.lo


def touched_between(
    info: NestAccess, ops: Sequence[Operation], members: Sequence[Access], is_separate: Callable[[Access], bool] = lambda _: False
) -> bool:
    """Whether one of `ops` may see, or change, what `members` access: all of one memory, and all loads or all stores.

    `is_separate` says of a store between them that it goes elsewhere.
    """
    memory, stores = memory_of(members[0].buffer), members[0].is_store
    for op in ops:
        if op.regions:
            return True
        other = info.access.get(op)
        if other is None or other in members or memory_of(other.buffer) is not memory or not (other.is_store or stores):
            continue
        if not (other.is_store and is_separate(other)):
            return True
    return False


def _known_steps(offsets: Sequence[Expr], loops: Iterable[Loop]) -> list[tuple[int, int]] | None:
    """By loop, how many elements apart its iterations are in all of `offsets`, and how many there are; None where that is not known."""
    found: list[tuple[int, int]] = []
    for one in loops:
        step, *others = (linear_coeff(e, one.dim) for e in offsets)
        if step is None or step.value is None or one.size.value is None or any(other is not step for other in others):
            return None
        found.append((abs(step.value), one.size.value))
    return found


def _steps_over(extent: int, steps: Iterable[tuple[int, int]]) -> bool:
    """Whether each loop, from the smallest step on, steps over all that the loops below it reach from `extent` elements."""
    for step, size in sorted(steps):
        if step < extent:
            return False
        extent += step * (size - 1)
    return True


def _is_dense(offset: Expr, loops: Sequence[Loop]) -> bool:
    """Whether each loop, from that of step 1 on, begins where the one below it ends: sizes may be symbols."""
    left = {one.dim: (linear_coeff(offset, one.dim), one.size) for one in loops}
    extent: Expr = ONE
    while left:
        following = next((d for d, (step, _) in left.items() if step is extent), None)
        if following is None:
            return False
        extent = extent * left.pop(following)[1]
    return True


def _take_turns(a: Expr, b: Expr, steps: Sequence[tuple[int, int]]) -> bool:
    """Whether all steps of two offsets have a common divisor, of which their beginnings are not a multiple apart."""
    own = [linear_coeff(e, d) for e in (a, b) for d in free_dims(e)]
    if any(step is None or step.value is None for step in own):
        return False
    common = gcd(*(step.value or 0 for step in own if step is not None), *(step for step, _ in steps))
    begin = (_beginning(a) - _beginning(b)).value
    return begin is not None and common > 0 and begin % common != 0


def _beginning(offset: Expr) -> Expr:
    return offset.subs(dict.fromkeys(free_dims(offset), ZERO))


def _share(offset: Expr, rows: Container[Expr]) -> Expr:
    """The terms of an offset that depend on loops of `rows` alone."""
    every = offset.terms if isinstance(offset, Add) else ((offset, 1),)
    return sum((t * c for t, c in every if free_dims(t) and all(d in rows for d in free_dims(t))), start=ZERO)
