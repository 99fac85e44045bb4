"""Graphs of a model on the CPU as graphs for a GPU, which need not be there: what the nodes say of devices is changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

aten = torch.ops.aten


def device_of(gm: GraphModule) -> str:
    """Where a graph computes: the first device among its values that is not the CPU."""
    devices = [str(v.device) for n in gm.graph.nodes for v in pytree.tree_leaves(n.meta.get("val")) if isinstance(v, torch.Tensor)]
    return next((one for one in devices if one != "cpu"), "cpu")


def attention_in_parts() -> dict[Any, Callable[..., Any]]:
    """Attention by products and a softmax: torch chooses among its kernels by the device, which is another one then."""

    def attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        names = ("attn_mask", "dropout_p", "is_causal")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        mask, dropout = given.pop("attn_mask", None), given.pop("dropout_p", 0.0)
        causal = given.pop("is_causal", False)
        if mask is not None and mask.dtype is torch.bool:  # the operator takes numbers that are added
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, float("-inf"))
        return aten._scaled_dot_product_attention_math(query, key, value, mask, dropout, causal, None, **given)[0]

    return {aten.scaled_dot_product_attention.default: attention}


def on_device(gm: GraphModule, device: str) -> GraphModule:
    """The graph with all tensors on a device."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    made = GraphModule(gm, graph)
    for node in graph.nodes:
        _move(node, torch.device(device))
    for name, child in gm.named_children():  # subgraphs of control flow
        if isinstance(child, GraphModule):
            setattr(made, name, on_device(child, device))
    made.recompile()
    return made


def _move(node: Node, device: torch.device) -> None:
    node.args = pytree.tree_map(lambda leaf: device if isinstance(leaf, torch.device) else leaf, node.args)
    node.kwargs = {name: device if name == "device" and value is not None else value for name, value in node.kwargs.items()}
    if "val" in node.meta:
        node.meta["val"] = pytree.tree_map(lambda leaf: _elsewhere(leaf, device), node.meta["val"])


def _elsewhere(value: Any, device: torch.device) -> Any:
    """A tensor without data, of the same layout on a device."""
    if not isinstance(value, torch.Tensor):
        return value
    with torch.no_grad(), value.fake_mode:  # pyright: ignore[reportAttributeAccessIssue]
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
