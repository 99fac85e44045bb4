"""Which blocks of terms a reduction goes through by lists in memory (ragged loops): conditions that say whether a list has a block.

    %hit = loop.reduce (%n = N) any { yield (%list[%i floordiv 128, %n] == %j floordiv 64) & (%n < %count) } attributes {listed}
    yield select(%hit & %mask, %x, -inf)

`listed` promises that a list names no block twice, and no two lists of a reduction the same one. A target that goes through the lists has
each term once; one that knows nothing of it computes the condition. `gpu-list-blocks` writes them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import SSAValue

from ...dialects import loop
from ...dialects.expr import Add, Dim, Expr, FloorDiv, free_dims
from .needed_terms import condition_bounds, guards_by_kind
from .nest_access import Access, Loop, NestAccess, Node

LISTED = "listed"
"""The attribute of a loop.reduce that says whether a list has a block of terms."""

CASTS = (arith.ExtSIOp, arith.ExtUIOp, arith.TruncIOp, arith.IndexCastOp)


@dataclass(frozen=True)
class ListedBlocks:
    """One list of blocks of `block` terms: `index` loads the number of the one at `place`, of `count`; `hit` says whether it has a term."""

    hit: SSAValue
    place: Loop
    index: Access
    count: SSAValue
    block: int


def is_list(node: Node) -> bool:
    """Whether a loop says if a list has a block."""
    return isinstance(node.op, loop.ReduceOp) and LISTED in node.op.attributes


def listed_blocks(info: NestAccess, node: Node) -> list[ListedBlocks]:
    """The lists that have all terms of a reduction which may count; none where these say less."""
    if len(node.loops) != 1:
        return []
    found = [_list_of(info, child, node.loops[0]) for child in node.children if is_list(child)]
    lists = [one for one in found if one is not None]
    if not lists or len(lists) < len(found) or not are_all(info, node, {one.hit for one in lists}):
        return []
    return lists


def are_all(info: NestAccess, node: Node, hits: set[SSAValue]) -> bool:
    """Whether a term counts only where one of these conditions holds."""
    nowhere = dict.fromkeys(hits, False)
    kinds = guards_by_kind(info, node)
    return bool(kinds) and all(any(decided(g.condition, nowhere) is (not g.holds) for g in guards) for guards in kinds)


def decided(value: SSAValue, known: Mapping[SSAValue, bool]) -> bool | None:
    """What a condition is, as far as the values of others say."""
    if value in known:
        return known[value]
    op = value.owner
    if isinstance(op, arith.ConstantOp) and isinstance(op.value, IntegerAttr):
        return bool(op.value.value.data)
    if not isinstance(op, arith.AndIOp | arith.OrIOp | arith.XOrIOp):
        return None
    left, right = (decided(v, known) for v in op.operands)
    if isinstance(op, arith.XOrIOp):
        return None if left is None or right is None else left != right
    ends = isinstance(op, arith.OrIOp)  # what decides it alone
    if ends in (left, right):
        return ends
    return None if None in (left, right) else not ends


def rows_of_block(lists: list[ListedBlocks], rows: Dim) -> int | None:
    """How many iterations of a loop share their lists, from a multiple of that number on; 0: all, None: not even two."""
    found = 0
    for one in lists:
        for e in one.index.offset.terms if isinstance(one.index.offset, Add) else ((one.index.offset, 1),):
            by = block_of(e[0], rows)
            if rows in free_dims(e[0]) and by is None:
                return None
            found = math.gcd(found, by or 0)
    return found


def block_of(e: Expr, d: Dim) -> int | None:
    """The divisor where an expression is a quotient of an index by a number."""
    return e.rhs.value if isinstance(e, FloorDiv) and e.lhs is d else None


def bounds_in_lists(info: NestAccess, node: Node) -> list[Expr]:
    """Expressions none of which is negative where a term counts by more than a list says: how many terms of the lists count, about."""
    hits = {child.op.results[0] for child in node.children if is_list(child)}
    found: list[Expr] = []
    worklist = [guard.condition for guards in guards_by_kind(info, node) for guard in guards if guard.holds] if hits else []
    while worklist:
        value = worklist.pop()
        if value in hits:
            continue
        if isinstance(value.owner, arith.AndIOp | arith.OrIOp) and decided(value, dict.fromkeys(hits, False)) is not None:
            worklist += value.owner.operands
        else:
            found += condition_bounds(info, value)
    return found


def needed_in_list(info: NestAccess, node: Node, known: Mapping[SSAValue, bool]) -> list[Expr]:
    """Expressions none of which is negative where a term counts whose block a list has. known: what conditions are for such a block."""
    found: list[Expr] | None = None
    for guards in guards_by_kind(info, node):
        here = [e for guard in guards for e in condition_bounds(info, _left_of(guard.condition, known), guard.holds)]
        found = here if found is None else [e for e in found if e in here]
    return list(dict.fromkeys(found or []))


def _left_of(value: SSAValue, known: Mapping[SSAValue, bool]) -> SSAValue:
    """What a condition hangs on, of a choice of two of which one is known and does not decide it."""
    op = value.owner
    if isinstance(op, arith.AndIOp | arith.OrIOp):
        for one, other in (op.operands, op.operands[::-1]):
            if decided(one, known) is isinstance(op, arith.AndIOp):
                return _left_of(other, known)
    return value


def _list_of(info: NestAccess, node: Node, terms: Loop) -> ListedBlocks | None:
    """The list whose search a loop is."""
    op = node.op
    last = op.regions[0].block.last_op
    if len(node.loops) != 1 or last is None or not isinstance(both := last.operands[0].owner, arith.AndIOp):
        return None
    compared = [v.owner for v in both.operands]
    if not all(isinstance(c, arith.CmpiOp) for c in compared):
        return None
    (place,) = node.loops
    names = [arith.CMPI_COMPARISON_OPERATIONS[c.predicate.value.data] for c in compared]  # pyright: ignore[reportAttributeAccessIssue]
    if sorted(names) != ["eq", "slt"]:
        return None
    same, within = compared[names.index("eq")], compared[names.index("slt")]
    sides = [without_casts(v) for v in same.operands]  # pyright: ignore[reportAttributeAccessIssue]
    loads = [v.owner for v in sides if isinstance(v.owner, loop.LoadOp)]
    blocks = [block_of(info.exprs[v], terms.dim) for v in sides if v in info.exprs]
    number, count = (without_casts(v) for v in within.operands)  # pyright: ignore[reportAttributeAccessIssue]
    if len(loads) != 1 or len(blocks) != 1 or blocks[0] is None or info.exprs.get(number) is not place.dim:
        return None
    return ListedBlocks(op.results[0], place, info.access[loads[0]], count, blocks[0])


def without_casts(value: SSAValue) -> SSAValue:
    """An integer before it was widened or narrowed."""
    while isinstance(value.owner, CASTS):
        value = value.owner.operands[0]
    return value
