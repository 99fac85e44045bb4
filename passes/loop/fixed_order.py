"""The order of the sums of a nest, where it may depend on nothing but their terms (`stepwell.order = "fixed"`).

    loop.reduce (%k = s0) ... attributes {vector = 0 : i64, lanes = 32 : i64}   // term k joins lane k % 32, the lanes join in halves
    loop.reduce (%k = s0) ... attributes {vector = "none"}                     // one term after the other

Lanes run along the terms where all that is read along them lies side by side, and nothing else is asked: not how many rows there are, nor
what they cost. Windows are added up term after term: a loop around goes side by side through them, too. Terms that change nothing (zeros
behind a mask) may follow: a prefix of a row has the bits that it has alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects import arith
from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, StringAttr
from xdsl.ir import Attribute, SSAValue

from ...dialects import loop
from ...dialects.expr import ZERO, Expr, linear_coeff
from ...dialects.nd.types import element_bytes, is_float
from ..analysis.nest_access import Loop, NestAccess, Node
from ..analysis.schedule_attrs import int_attr, update_schedule
from ..cost.machine.gpu import HALF_BYTES
from ..cost.nest_cost import LANE_COUNTS, _loop_at, _number

ORDERED_LANES = LANE_COUNTS[1]
"""Lanes of a reduction whose order is fixed, whatever else its body computes."""
LANES = ORDERED_LANES * ORDERED_LANES
"""The same on a GPU. A sum has fewer where it has fewer terms: those of the other lanes would be zeros."""
PRODUCT_SIDE = ORDERED_LANES + ORDERED_LANES
"""Rows and columns of the block of a product that a program of a GPU has, and terms that it takes at once, where blocks of terms are added
up. Units for groups of warps take as many rows."""
UNIT_TERMS = ORDERED_LANES // 2
"""Terms of 16-bit factors that one instruction of a unit for products adds to a sum."""
UNITS = {"group": (PRODUCT_SIDE, 4), "warp": (UNIT_TERMS, 1)}
"""Units whose instructions take terms of a sum in order, whatever block of the result they make: of how many rows the first side of a block
has a multiple, and of how many warps a program."""
ORDERED = (loop.ReduceOp, loop.ScanOp)
ORDERLESS = frozenset(("max", "min", "argmax", "argmin"))
"""Kinds of reductions whose result is the same in every order."""


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


def has_order(op: loop.ReduceOp | loop.ScanOp) -> bool:
    """Whether another order of the terms may give another result."""
    kinds = op.kind_names if isinstance(op, loop.ReduceOp) else [op.kind]
    values = op.results if isinstance(op, loop.ReduceOp) else op.do_block.args[1:]
    return any(is_float(v.type) for v in values) and not set(kinds) <= ORDERLESS


def gpu_order_problem(op: loop.ReduceOp | loop.ScanOp, tile: Mapping[str, Attribute], most: int | None) -> str:
    """The same of a nest for a GPU, whose tile is `tile`; the reduction has `most` terms at most (None: nobody knows)."""
    vector, lanes, terms = (op.attributes.get(key) for key in ("vector", "lanes", "terms"))
    if vector == StringAttr("none"):
        return ""
    if tile.get("group", int_attr(1)) != int_attr(1):
        return "several programs share its terms"
    if terms is not None:
        return _product_problem(op, tile, terms)
    if lanes is None:
        return "its schedule does not say in which order its terms are taken (gpu-schedule does)"
    block = tile.get("reduction_block")
    taken = block.value.data if isinstance(block, IntegerAttr) else 0
    if not taken and most is not None and most <= LANES:
        return ""  # straight code
    if lanes != int_attr(LANES):
        return f"its schedule says {lanes.value.data if isinstance(lanes, IntegerAttr) else 'other'} lanes, the order has {LANES}"
    if taken > LANES or (taken < LANES and (most is None or most > taken)):
        return f"its terms are taken by {taken or 'any'} lanes, not by {LANES}"
    return "it adds up products, and its nest has loops or sums that keep a unit for products from them" if _is_product(op) else ""


def _product_problem(op: loop.ReduceOp | loop.ScanOp, tile: Mapping[str, Attribute], terms: Attribute) -> str:
    """The same of a sum of products that a unit makes, `terms` with each instruction or block."""
    blocks, block, warps = (tile.get(key) for key in ("blocks", "reduction_block", "warps"))
    unit, sides = op.attributes.get("unit"), list(blocks.data) if isinstance(blocks, ArrayAttr) else []
    if unit is None:
        same = terms == block == int_attr(PRODUCT_SIDE) and sides == [int_attr(PRODUCT_SIDE)] * 2
        return "" if same else f"its block of a product is not one of {PRODUCT_SIDE} rows, columns and terms"
    name = unit.data if isinstance(unit, StringAttr) else ""
    wanted = terms_in_order(op)
    if name not in UNITS or terms != int_attr(wanted) or not has_narrow_factors(op):
        return f"its schedule says that a unit '{name}' adds up {terms} of its terms in order, which none does"
    rows, least = UNITS[name]
    first, taken, shared = (n.value.data if isinstance(n, IntegerAttr) else 0 for n in (*sides[:1], block, warps))
    other = taken != wanted if is_weighed(op) else not taken or taken % UNIT_TERMS
    if not sides or first % rows or shared % least or other:
        return f"its tile has other units make the product: '{name}' has blocks of {rows} rows, {wanted} terms and {least} warps"
    return ""


def _is_product(op: loop.ReduceOp | loop.ScanOp) -> bool:
    """Whether a sum may be made by a unit for products."""
    last = op.block.last_op
    return last is not None and any(loop.is_contracted(v.owner) for v in last.operands)


def is_weighed(op: loop.ReduceOp | loop.ScanOp) -> bool:
    """Whether a reduction weighs rows by a softmax of its terms' scores: all before a block of terms is scaled by the new maximum."""
    return isinstance(op, loop.ReduceOp) and op.kind_names == ["softmax_dot"]


def terms_in_order(op: loop.ReduceOp | loop.ScanOp) -> int:
    """How many terms a unit takes one step after the other, of which there may be several at once unless a softmax weighs them."""
    return PRODUCT_SIDE if is_weighed(op) else UNIT_TERMS


def has_narrow_factors(op: loop.ReduceOp | loop.ScanOp) -> bool:
    """Whether each sum is one of products as they are, of factors that have 16 bits at most: a unit adds them up by itself. Parts of wider
    ones, and products with scales, are added up block by block."""
    last = op.block.last_op
    if is_weighed(op):
        weighed = last.operands[1] if last is not None else None  # times what each weight is multiplied by, where it is
        beside = weighed.owner.operands if weighed is not None and isinstance(weighed.owner, arith.MulfOp) else [weighed]
        return any(one is not None and _is_narrow(one) for one in beside)
    terms = [_chosen(v) for v in last.operands] if last is not None else []
    plain = all(isinstance(t, arith.MulfOp) and t.fastmath == loop.CONTRACTED and all(map(_is_narrow, t.operands)) for t in terms)
    return bool(terms) and plain


def _chosen(value: SSAValue) -> object:
    """What makes a term, where a condition decides whether there is one."""
    owner = value.owner
    return owner.lhs.owner if isinstance(owner, arith.SelectOp) else owner


def _is_narrow(value: SSAValue) -> bool:
    op = value.owner
    if isinstance(op, loop.LoadOp):
        return element_bytes(loop.element_type(op.source.type)) <= HALF_BYTES
    return isinstance(op, arith.ExtFOp | arith.SIToFPOp | arith.UIToFPOp) and element_bytes(op.operands[0].type) <= HALF_BYTES


def order_problem(op: loop.ReduceOp | loop.ScanOp) -> str:
    """Why the order of a reduction may depend on more than its terms; "" if it does not."""
    vector, lanes = op.attributes.get("vector"), op.attributes.get("lanes")
    if vector is None:
        return "its schedule does not say in which order its terms are taken (loop-schedule does)"
    if isinstance(vector, IntegerAttr) and lanes != int_attr(ORDERED_LANES):
        return f"its terms are taken by {lanes.value.data if isinstance(lanes, IntegerAttr) else 'any'} lanes, not by {ORDERED_LANES}"
    return ""
