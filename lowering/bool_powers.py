"""Booleans to the power of True or False: torch's fake tensors call the result int64, where the operator gives booleans.

A graph traced from such a fake tensor would return what its metadata says. In Dynamo's graph the power is still one node, and is replaced
there by what it means.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node


def keep_bool_powers(gm: GraphModule) -> None:
    """Have `x ** True` and `x ** False` of boolean tensors in a graph of Dynamo's, and in its subgraphs, give booleans."""
    for module in gm.modules():
        if not isinstance(module, GraphModule):
            continue
        found = [n for n in module.graph.nodes if _is_bool_power(n)]
        for node in found:
            node.op, node.target = "call_function", _power
        if found:
            module.recompile()


def _is_bool_power(node: Node) -> bool:
    named = node.target in (operator.pow, torch.pow) if node.op == "call_function" else node.op == "call_method" and node.target == "pow"
    if not named or len(node.args) != 2 or node.kwargs or not isinstance(node.args[1], bool):
        return False
    base: Any = node.args[0]
    meta = base.meta.get("example_value") if isinstance(base, Node) else None
    return isinstance(meta, torch.Tensor) and meta.dtype is torch.bool


def _power(x: torch.Tensor, exponent: bool) -> torch.Tensor:
    """x ** exponent of booleans."""
    return x.clone() if exponent else torch.ones_like(x)
