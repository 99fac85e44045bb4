"""Which loops of a nest run inside of its vector loop: those on which much of the body does not depend.

What a body computes from the other loops alone is then computed once for a vector of each, and kept in registers or on the stack: the
places and weights of a resampled image for all of its channels, a column's function for all rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import TYPE_CHECKING

from xdsl.ir import Block, Operation, SSAValue

from ...dialects.expr import Expr
from ...dialects.nd.types import element_bytes
from ..analysis.nest_access import Access, Loop
from ..analysis.op_costs import op_cost
from .machine.accesses import ACCESSES
from .machine.cpu import SERVER

if TYPE_CHECKING:
    from .nest_cost import Cost

MIN_INVARIANT_COST = 10.0
"""Cost of what does not depend on loops from which on they run inside of the vector loop."""
MIN_INNER_TRIPS = 4
"""Iterations of the loops inside from which on it is worth asking."""
MAX_OUTER_LOOPS = 4
"""Of more loops around the vector loop no parts are tried, only all of them."""


def body_roots(cost: Cost, block: Block, roots: dict[SSAValue, frozenset[Expr]]) -> Iterator[tuple[Operation, frozenset[Expr]]]:
    """(op, dimensions that its result depends on) for the ops directly in a body of the nest that have one result. `roots` has what values
    of the bodies around it depend on, and gets what those of this one do."""
    info = cost.info
    for op in block.ops:
        if len(op.results) != 1:
            continue
        access = info.access.get(op)
        if access is not None:
            found = cost.roots(access.offset)
        elif op.results[0] in info.exprs:
            found = cost.roots(info.exprs[op.results[0]])
        else:
            found = frozenset()
        roots[op.results[0]] = found.union(*(roots.get(v, frozenset()) for v in op.operands))
        yield op, roots[op.results[0]]


def loops_inside(cost: Cost, vector: Loop, lanes: int) -> frozenset[Expr]:
    """The dimensions of the loops that run inside of the vector loop of a nest without inner loops: all where enough depends on that loop
    alone, else those that save most, else none."""
    loops = [one for one in cost.info.root.loops if one is not vector]
    if not loops or cost.size(vector.size) <= lanes:
        return frozenset()
    body = cost.info.nest.regions[0].blocks[0]
    work = [(op, roots) for op, roots in body_roots(cost, body, {}) if op not in cost.info.access]
    if cost.trips(loops) >= MIN_INNER_TRIPS and sum(op_cost(op) for op, roots in work if roots == {vector.dim}) >= MIN_INVARIANT_COST:
        return frozenset(one.dim for one in loops)
    if len(loops) > MAX_OUTER_LOOPS:
        return frozenset()
    best: tuple[float, frozenset[Expr]] = (MIN_INVARIANT_COST, frozenset())
    for number in range(1, len(loops)):
        for some in combinations(loops, number):
            inside = frozenset(one.dim for one in some)
            saved = sum(op_cost(op) for op, roots in work if vector.dim in roots and inside.isdisjoint(roots))
            gain = saved * (1 - 1 / cost.trips(some)) - _moves(cost, vector, inside)
            best = max(best, (gain, inside), key=lambda found: found[0])
    return best[1]


def _moves(cost: Cost, vector: Loop, inside: frozenset[Expr]) -> float:
    """What the accesses of one run of the body cost more, because the loops inside jump from one row of memory to another."""
    moved = [a for a in cost.info.root.accesses if vector.dim in (roots := cost.roots(a.offset)) and not inside.isdisjoint(roots)]
    near = sum(_bytes(cost, a) for a in moved) <= SERVER.levels[-2].bytes / 4
    return len(moved) * (ACCESSES.near_row_vector if near else ACCESSES.far_row_vector)


def _bytes(cost: Cost, access: Access) -> float:
    """The bytes that an access reaches while the nest runs."""
    roots = cost.roots(access.offset)
    return element_bytes(access.dtype) * cost.trips([one for one in cost.info.root.loops if one.dim in roots])
