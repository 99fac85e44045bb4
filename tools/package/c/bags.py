"""Bags of embeddings in graphs for machines without a library: rows that are added where their bags are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule, Node

from .spelled_out import replace_first_result

BAGS = (torch.ops.aten._embedding_bag.default, torch.ops.aten._embedding_bag_forward_only.default)
SUM, MEAN = 0, 1


def spell_out_bags(gm: GraphModule, table: dict[Any, Callable[..., Any]]) -> None:
    """Replace sums and means of bags; maxima, weights for each row and rows that are left out stay calls."""
    calls = [n for n in gm.graph.nodes if n.target in BAGS and _is_plain(n)]
    for call in calls:
        mean, last = _argument(call, 4, SUM) == MEAN, bool(_argument(call, 7, False))
        operands = [n for n in call.args[:3] if isinstance(n, Node)]
        replace_first_result(gm, call, operands, partial(_bags, mean=mean, last=last), table)
    if calls:
        gm.graph.eliminate_dead_code()
        gm.recompile()


def _argument(call: Node, place: int, default: Any) -> Any:
    return call.args[place] if place < len(call.args) else default


def _is_plain(call: Node) -> bool:
    known = _argument(call, 6, None) is None and _argument(call, 8, -1) in (-1, None)
    return known and not call.kwargs and _argument(call, 4, SUM) in (SUM, MEAN) and all(u.args[1] == 0 for u in call.users if u.users)


def _bags(weight: Any, indices: Any, offsets: Any, *, mean: bool, last: bool) -> Any:
    begins = offsets[:-1] if last else offsets
    places = torch.arange(indices.shape[0], device=indices.device)
    bags = (begins[None, :] <= places[:, None]).sum(1) - 1
    sums = weight.new_zeros(begins.shape[0], weight.shape[1]).index_add(0, bags, weight[indices])
    if not mean:
        return sums
    counts = weight.new_zeros(begins.shape[0]).index_add(0, bags, torch.ones_like(indices, dtype=weight.dtype))
    return sums / counts.clamp(min=1)[:, None]
