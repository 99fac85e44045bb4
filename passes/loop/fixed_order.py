"""The order of the sums of a nest, where it may depend on nothing but their terms (`stepwell.order = "fixed"`).

    loop.reduce (%k = s0) ... attributes {vector = 0 : i64, lanes = 32 : i64}   // term k joins lane k % 32, the lanes join in halves
    loop.reduce (%k = s0) ... attributes {vector = "none"}                     // one term after the other

Lanes run along the terms where all that is read along them lies side by side, and nothing else is asked: not how many rows there are, nor
what they cost. Windows are added up term after term: a loop around goes side by side through them, too. Terms that change nothing (zeros
behind a mask) may follow: a prefix of a row has the bits that it has alone.
"""

from __future__ import annotations

from xdsl.dialects.builtin import IntegerAttr, StringAttr

from ...dialects import loop
from ...dialects.expr import ZERO, Expr, linear_coeff
from ..analysis.nest_access import Loop, NestAccess, Node
from ..analysis.schedule_attrs import int_attr, update_schedule
from ..cost.nest_cost import LANE_COUNTS, _loop_at, _number

ORDERED_LANES = LANE_COUNTS[1]
"""Lanes of a reduction whose order is fixed, whatever else its body computes."""
ORDERED = (loop.ReduceOp, loop.ScanOp)


def fix_order(info: NestAccess) -> None:
    """Write the order of each reduction and scan of a nest, and "none" on the loops around those that take lanes."""
    lanes: set[Node] = set()
    for node in reversed([n for n in info.root.walk() if n is not info.root]):
        within = not lanes.isdisjoint(node.children)
        terms = next((one for one in reversed(node.loops) if _side_by_side(node, one)), None) if isinstance(node.op, ORDERED) else None
        if within or terms is not None:
            lanes.add(node)
        if terms is not None and not within:
            node.op.attributes |= {"vector": int_attr(_place(node, terms)), "lanes": int_attr(ORDERED_LANES)}
        elif within or isinstance(node.op, ORDERED):
            node.op.attributes["vector"] = StringAttr("none")
    if not lanes.isdisjoint(info.root.children):
        update_schedule(info.nest, {"vector": StringAttr("inner")})


def _place(node: Node, one: Loop) -> int:
    """The number of a loop of the operation."""
    number = _number(node, one)
    assert number is not None
    return number


def _side_by_side(node: Node, one: Loop) -> bool:
    """Whether a loop can be named, and all that is read along it lies side by side along it, and along no loop around."""
    number = _number(node, one)
    if number is None or _loop_at(node, number) is not one or one.size.value == 1:
        return False
    read = [access.offset for access in node.accesses if not access.is_store and linear_coeff(access.offset, one.dim) is not ZERO]
    around = [outer.dim for outer in _loops_around(node)]
    return bool(read) and all(_is_one(offset, one.dim) and not any(_is_one(offset, d) for d in around) for offset in read)


def _loops_around(node: Node) -> list[Loop]:
    found: list[Loop] = []
    while node.parent is not None:
        node = node.parent
        found += node.loops
    return found


def _is_one(offset: Expr, along: Expr) -> bool:
    """Whether an offset moves by one element along a loop."""
    step = linear_coeff(offset, along)
    return step is not None and step.value == 1


def order_problem(op: loop.ReduceOp | loop.ScanOp) -> str:
    """Why the order of a reduction may depend on more than its terms; "" if it does not."""
    vector, lanes = op.attributes.get("vector"), op.attributes.get("lanes")
    if vector is None:
        return "its schedule does not say in which order its terms are taken (loop-schedule does)"
    if isinstance(vector, IntegerAttr) and lanes != int_attr(ORDERED_LANES):
        return f"its terms are taken by {lanes.value.data if isinstance(lanes, IntegerAttr) else 'any'} lanes, not by {ORDERED_LANES}"
    return ""
