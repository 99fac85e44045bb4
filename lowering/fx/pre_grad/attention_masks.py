"""Masks of attention that hide nothing, and causal ones that a program spells out.

A mask that is a tensor costs: torch's fast kernels for attention refuse many (one broadcast over the keys, say), so that the scores are
computed in memory in float32, and the others read it. Models build their masks from positions; where what a mask comes to is known while
compiling (`affine_values`), `scaled_dot_product_attention` is called without it, or as causal. This happens on Dynamo's graph, before
AOTAutograd takes attention apart, so that gradients gain too."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from .affine_values import AffineValues, size_of, tensor_of, truth

ATTENTION = torch._C._nn.scaled_dot_product_attention  # pyright: ignore[reportAttributeAccessIssue]
_PARAMETERS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


def simplify_masks(gm: GraphModule) -> int:
    """Call attention without masks that hide nothing, and as causal where its mask says that; gives how many calls changed."""
    calls = [n for n in gm.graph.nodes if n.op == "call_function" and n.target is ATTENTION]
    if not calls:
        return 0
    values = AffineValues(gm.graph)
    changed = sum(_simplify(node, values) for node in calls)
    if changed:
        gm.recompile()
    return changed


def _simplify(node: Node, values: AffineValues) -> bool:
    given: dict[str, Any] = {**dict(zip(_PARAMETERS, node.args, strict=False)), **node.kwargs}
    mask = given.get("attn_mask")
    made = tensor_of(mask) if isinstance(mask, Node) else None
    if made is None or made.dtype != torch.bool or given.get("is_causal"):
        return False
    value = values(mask)
    causal = value is not None and is_causal(value.constant, value.steps) and _is_square(given, made)
    if truth(value) is not True and not causal:
        return False
    node.args = ()
    node.kwargs = {**given, "attn_mask": None, "is_causal": causal}
    return True


def is_causal(constant: int, steps: tuple[int, ...]) -> bool:
    """Whether row i sees column j where j <= i: constant + s * (i - j) >= 0 with 0 <= constant < s."""
    if len(steps) < 2 or any(steps[:-2]):
        return False
    return steps[-2] == -steps[-1] and 0 <= constant < steps[-2]


def _is_square(given: dict[str, Any], mask: torch.Tensor) -> bool:
    """Whether there are as many queries as keys, and the mask has them all: torch's kernels disagree about what is causal otherwise."""
    query, key = (tensor_of(given[name]) if isinstance(given[name], Node) else None for name in ("query", "key"))
    if query is None or key is None:
        return False
    sizes = [size_of(n) for n in (query.shape[-2], key.shape[-2], *mask.shape[-2:])]
    return all(n == sizes[0] for n in sizes)
