"""Products whose programs have equal shares of the steps of all blocks (stream K, lowering/mem_to_tt/program/shares.py): which these may
be, and how much programs tell each other."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Attribute

from ....dialects import loop
from ...analysis.nest_access import NestAccess, Node
from ..shared_rows import numbers_in_word, words_of
from .product_nests import block_reduction, factors, picked_index, product_nodes, row_sums
from .tile import Tile

STREAM_K_NEEDS = "stream_k is for one loop of products of all terms, with nothing stored in front of it, where sums may have any order"


def shared_node(info: NestAccess) -> Node | None:
    """The loop of a nest's products, if programs may have any part of it; None for another nest."""
    nodes = product_nodes(info)
    if len(nodes) != 1 or list(info.root.children) != nodes or block_reduction(info) is not None or picked_index(info) is not None:
        return None
    (node,) = nodes
    parts = factors(info, node)
    if not parts or row_sums(info, node) or any(one.choice is not None for one in parts):
        return None
    ops = list(info.root.op.regions[0].blocks[0].ops)
    return node if not any(isinstance(op, loop.StoreOp) for op in ops[: ops.index(node.op)]) else None


def share_words(sums: Sequence[Attribute], tile: Tile) -> int:
    """Words of i64 that a program writes of the sums of a block, which have these types."""
    elements = tile.axes[0][1] * tile.axes[1][1]
    return sum(elements // numbers_in_word(kind) * words_of("sum", [kind] * numbers_in_word(kind)) for kind in sums)
