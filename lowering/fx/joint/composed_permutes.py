"""Permutations of what is permuted, as one permutation: an einsum is a product between two, which often undo those of its neighbours."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

aten = torch.ops.aten


def compose_permutes(gm: GraphModule) -> int:
    """Have each permutation read what is not permuted itself; gives how many did not."""
    changed = 0
    for node in gm.graph.find_nodes(op="call_function", target=aten.permute.default):
        source, order = node.args
        if not isinstance(source, Node) or source.target is not aten.permute.default:
            continue
        first, before = source.args
        rank = len(before)  # pyright: ignore[reportArgumentType]
        node.update_arg(0, first)
        node.update_arg(1, [before[d % rank] % rank for d in order])  # pyright: ignore
        changed += 1
    if changed:
        gm.graph.eliminate_dead_code()
    return changed
