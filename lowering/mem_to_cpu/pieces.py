"""Cutting loops where a condition on their index changes (concatenation, padding): each piece then knows the condition.

The counterpart is index-set splitting. Only for nests without inner loops, at constant places, and where each piece
is long enough.
"""

from __future__ import annotations

from itertools import pairwise, product

from xdsl.dialects import arith

from ...dialects.expr import Dim, Expr, free_dims, linear_coeff
from ...dialects.expr.ranges import Range, RangeEnv
from ...passes.analysis.nest_access import NestAccess
from ...passes.cost.nest_cost import Schedule

MAX_SPLIT_SEGMENTS = 4
MIN_SEGMENT_VECTORS = 32
MIN_SEGMENT_ROWS = 8

Piece = dict[Expr, tuple[int, int]]


def pieces(info: NestAccess, schedule: Schedule) -> list[Piece]:
    """The parts in which the nest is run: for each, the loops that are cut, from where to where. One empty part where
    nothing is cut."""
    if schedule.style != "lanes" or info.root.children:
        return [{}]
    cuts = _cuts(info)
    chosen: dict[Expr, list[tuple[int, int]]] = {}
    count = 1
    for one in info.root.loops:
        size = one.size.value
        places = sorted(c for c in cuts.get(one.dim, ()) if size is not None and 0 < c < size)
        if not places or size is None:
            continue
        parts = list(pairwise([0, *places, size]))
        shortest = MIN_SEGMENT_VECTORS if one is schedule.vector else MIN_SEGMENT_ROWS
        if count * len(parts) > MAX_SPLIT_SEGMENTS or any(last - first < shortest for first, last in parts):
            continue
        chosen[one.dim] = parts
        count *= len(parts)
    return [dict(zip(chosen, combination, strict=True)) for combination in product(*chosen.values())]


def _cuts(info: NestAccess) -> dict[Dim, set[int]]:
    """For each loop, the indices at which a comparison of index expressions changes its outcome."""
    found: dict[Dim, set[int]] = {}
    for op in info.nest.regions[0].blocks[0].ops:
        if not isinstance(op, arith.CmpiOp) or op.lhs not in info.exprs or op.rhs not in info.exprs:
            continue
        predicate = op.predicate.value.data
        if not 2 <= predicate <= 5:  # slt sle sgt sge
            continue
        difference = info.exprs[op.lhs] - info.exprs[op.rhs]
        dims = free_dims(difference)
        if len(dims) != 1:
            continue
        (d,) = dims
        step = linear_coeff(difference, d)
        if step is None or step.value not in (1, -1):
            continue
        rest = difference - step * d
        if rest.value is None:
            continue
        # d + r < 0 changes at -r, d + r <= 0 at -r + 1; with -d the outcome is turned round
        strict = predicate in (2, 5)
        place = -rest.value if step.value == 1 else rest.value
        later = (not strict) if step.value == 1 else strict
        found.setdefault(d, set()).add(place + (1 if later else 0))
    return found


def ranges_within(info: NestAccess, piece: Piece) -> RangeEnv:
    """What is known of dimensions inside a piece."""
    return RangeEnv({**info.ranges, **{d: Range(first, last - 1) for d, (first, last) in piece.items()}})
