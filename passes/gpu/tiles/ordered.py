"""Tiles of products whose sums have an order of their own, and how the order is written on the sums of a nest (loop/fixed_order.py).

How many rows there are does not decide which unit computes a product: of one row, the others of its block are zeros. Each instruction of a
unit adds some terms to a sum, in order, so that the block of the result is free. Where blocks of terms are added up, it is not.
"""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr

from ....dialects import loop
from ...analysis.nest_access import NestAccess, Node
from ...analysis.schedule_attrs import int_attr
from ...cost.machine.gpu import Gpu
from ...loop.fixed_order import LANES, ORDERED, PRODUCT_SIDE, UNITS, has_narrow_factors, has_order, terms_in_order
from .product_nests import product_nodes, product_sides
from .product_tiles import GROUPED_BLOCK_ROWS, product_tile
from .tile import MAX_STRAIGHT_OPS, MAX_UNROLLED_TRIPS, Sizes, Tile, power_of_two
from .weighed_products import weighed_tile


def takes_lanes(node: Node) -> bool:
    """Whether the terms of a reduction go along an axis of the tile however few there are. One term alone does not."""
    if not node.loops or node.children or not isinstance(node.op, loop.ReduceOp):
        return False
    return has_order(node.op) and not is_straight(node)


def is_straight(node: Node) -> bool:
    """Whether a reduction over several loops is straight code, as windows are. Its terms are joined as those in lanes."""
    trips, op = node.trips.value, node.op
    if trips is None or trips > MAX_UNROLLED_TRIPS or len(node.loops) < 2 or node.children or not isinstance(op, loop.ReduceOp):
        return False
    return has_order(op) and trips * len(op.block.ops) <= MAX_STRAIGHT_OPS


def lanes_and_pieces(most: int | None, pieces: int) -> tuple[int, int]:
    """How many terms are taken at once of sums of at most `most` terms (None: nobody knows), and how many such blocks are on chip, of
    which there may be `pieces`."""
    if most is None:
        return LANES, 1
    lanes = min(LANES, power_of_two(most))
    count = max(1, -(-most // lanes))
    return lanes, count if count <= pieces else 1


def unit_of(info: NestAccess, gpu: Gpu) -> str:
    """The unit that adds up the terms of each product of a nest in order; "" where blocks of terms are added up, or nobody knows."""
    sums = [n.op for n in product_nodes(info) if isinstance(n.op, ORDERED) and has_order(n.op)]
    narrow = gpu.takes_ptx and all(map(has_narrow_factors, sums))
    return "" if not narrow else "group" if gpu.multiplies_in_groups else "warp"


def ordered_weights(info: NestAccess, gpu: Gpu) -> Tile | None:
    """The tile of rows that a softmax of products weighs; None for another nest."""
    unit = unit_of(info, gpu)
    return weighed_tile(info, gpu, UNITS[unit][0]) if unit else None


def ordered_product(info: NestAccess, sizes: Sizes, gpu: Gpu) -> Tile | None:
    """The tile of a product; None for another nest."""
    sides = product_sides(info) if gpu.multiplies_halves else []
    if not sides:
        return None
    if unit := unit_of(info, gpu):
        return product_tile(info, sizes, gpu, least_rows=UNITS[unit][0])
    rest = [one for one in info.root.loops if all(one not in side for side in sides)]
    axes = [(list(side), PRODUCT_SIDE) for side in sides]
    return Tile(axes, rest, PRODUCT_SIDE, stages=2, dot=1, band=GROUPED_BLOCK_ROWS)


def write_order(info: NestAccess, tile: Tile, gpu: Gpu) -> None:
    """Say in which order each sum of a nest with this tile takes its terms."""
    for node in info.root.walk():
        op = node.op
        if not isinstance(op, loop.ReduceOp | loop.ScanOp) or not has_order(op):
            continue
        if isinstance(op, loop.ReduceOp) and tile.dot:
            unit = unit_of(info, gpu)
            op.attributes["terms"] = int_attr(terms_in_order(op) if unit else tile.reduction_block)
            op.attributes |= {"unit": StringAttr(unit)} if unit else {}
        elif isinstance(op, loop.ReduceOp) and _in_lanes(info, node, tile):
            op.attributes["lanes"] = int_attr(LANES)
        else:
            op.attributes["vector"] = StringAttr("none")


def _in_lanes(info: NestAccess, node: Node, tile: Tile) -> bool:
    """Whether the terms of a reduction go along the last axis of the tile."""
    around = node.parent
    while around is not None and around is not info.root:
        if isinstance(around.op, loop.ReduceOp | loop.ScanOp):
            return False  # of a term of another one
        around = around.parent
    return is_straight(node) or (bool(tile.reduction_block) and (takes_lanes(node) or not node.children))
