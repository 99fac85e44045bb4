"""Which nests add up, over loops of their own, what is computed of products element by element, and their tile.

    loop.nest (%h, %i, %j) {
      loop.reduce (%b) sum { %s = loop.reduce (%e) sum { %q[%b, %h, %i, %e] * %k[%b, %h, %j, %e] } ... loop.yield f(%s) }
    }

The gradient of what is added to the scores of several batches is one. A program has a block of rows %i and columns %j, and goes through the
iterations of %b one after the other: in each it has the whole products.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....dialects import loop
from ....dialects.expr.ranges import range_of
from ...analysis.nest_access import Loop, NestAccess, Node
from ...cost.block_price import PROGRAM_WARPS
from ...cost.contraction_price import MAX_WEIGHED_ELEMENTS, WEIGHED_SIDE
from ...cost.machine.gpu import Gpu
from .product_nests import Factors, block_reduction, factors
from .tile import MIN_DOT_SIDE, Tile, power_of_two
from .weighed_products import weighed_product


def summed_product(info: NestAccess) -> tuple[Loop, Loop] | None:
    """The loops along which the rows and the columns of the products lie that a nest adds up; None for another nest."""
    if len(info.root.children) != 1 or block_reduction(info) is not None:
        return None
    (node,) = info.root.children
    op = node.op
    if not isinstance(op, loop.ReduceOp) or set(op.kind_names) != {"sum"} or not node.children or any(c.children for c in node.children):
        return None
    parts = [part for child in node.children for part in factors(info, child) or (None,)]
    if any(part is None or part.choice is not None or part.picked is not None for part in parts):
        return None
    if any(access.is_store for access in node.all_accesses()):
        return None
    sides = {side[-1].dim: side[-1] for part in parts if part is not None for side in part.along}
    if len(sides) != 2:
        return None
    rows, columns = sorted(sides.values(), key=info.root.loops.index)  # one program has one of the heads that share a factor
    if not all(summed_factors(info, child, (rows, columns)) for child in node.children):
        return None
    most = [range_of(one.size, info.ranges).hi for child in node.children for one in child.loops]
    short = all(n is not None and n <= MAX_WEIGHED_ELEMENTS for n in most)
    return (rows, columns) if short and weighed_product(info) is None else None


def summed_factors(info: NestAccess, node: Node, loops: Sequence[Loop]) -> Sequence[Factors]:
    """The factors of the products that a reduction inside makes, each along one of two loops; none where they are others."""
    for found in (factors(info, node), factors(info, node, loops)):
        if found and all(set(part.along) == {(one,) for one in loops} for part in found):
            return found
    return ()


def summed_tile(info: NestAccess, gpu: Gpu) -> Tile | None:
    """The tile of such a nest."""
    found = summed_product(info) if gpu.multiplies_halves else None
    if found is None:
        return None
    (node,) = info.root.children
    depths = [range_of(one.size, info.ranges).hi or 1 for child in node.children for one in child.loops]
    blocks = [
        max(MIN_DOT_SIDE, min(WEIGHED_SIDE, power_of_two(range_of(one.size, info.ranges).hi or WEIGHED_SIDE)))
        for one in found
    ]
    rest = [one for one in info.root.loops if one not in found]
    axes = [([one], block) for one, block in zip(found, blocks, strict=True)]
    warps = PROGRAM_WARPS[not gpu.multiplies_in_groups]  # factors in registers leave no room for a thread's sums
    return Tile(axes, rest, max(MIN_DOT_SIDE, power_of_two(max(depths))), stages=2, warps=warps, dot=1)
