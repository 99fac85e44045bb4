"""Results that the caller rebuilds as views of its inputs.

AOTAutograd keeps of such a result only sizes, strides and storage offset, and applies them to the input's memory. The
functional graph computes the result from the input's new value, which need not lie in memory as the input does (the sum
of a window and a number is dense), so that this metadata would be wrong. Here the views between the new value and the
result are replayed on the input itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from .aliases import view_source

aten = torch.ops.aten


@dataclass(frozen=True)
class Border:
    """What the caller does with the outputs of a graph, by position.

    views: outputs that it rebuilds as views of inputs -> the input's position as far as the caller knows it.
    updates: outputs that it copies into an input -> the input's position.
    donated: inputs whose memory nobody needs after their last use in the graph, by position."""

    views: Mapping[int, int] = field(default_factory=dict)
    updates: Mapping[int, int] = field(default_factory=dict)
    donated: frozenset[int] = frozenset()


@dataclass(frozen=True)
class InputView:
    """A view of the input `node`, laid out as the fake tensor `val`."""

    node: Node
    val: torch.Tensor


def input_views(nodes: Sequence[Node], border: Border) -> dict[int, InputView]:
    """For each output of the graph that the caller rebuilds as a view of an input, where that is known: the view."""
    if not border.views:
        return {}
    outputs: Any = nodes[-1].args[0]
    inputs = [n for n in nodes if n.op == "placeholder"]
    written = _new_values(nodes, outputs, inputs, border.updates)
    found: dict[int, InputView] = {}
    for position, hint in border.views.items():
        chain: list[Node] = []
        node = outputs[position]
        while isinstance(node, Node) and node not in written:
            chain.append(node)
            node = view_source(node)
        if node is None or not isinstance(node, Node):
            continue
        owners = written[node]
        owner = inputs[hint] if hint < len(inputs) and inputs[hint] in owners else owners[0]
        val = _replayed(owner.meta["val"], chain)
        if val is not None and val.shape == outputs[position].meta["val"].shape:
            found[position] = InputView(owner, val)
    return found


def _new_values(
    nodes: Sequence[Node], outputs: Sequence[Any], inputs: Sequence[Node], updates: Mapping[int, int]
) -> dict[Node, list[Node]]:
    """The values that become those of inputs: by a copy at the end of the graph, or by the caller."""
    found: dict[Node, list[Node]] = {}
    for node in nodes:
        if node.target is not aten.copy_.default:
            continue
        target, value = node.args[:2]
        if isinstance(value, Node) and isinstance(target, Node) and target.op == "placeholder":
            found.setdefault(value, []).append(target)
    for position, place in updates.items():
        if isinstance(outputs[position], Node) and place < len(inputs):
            found.setdefault(outputs[position], []).append(inputs[place])
    return found


def _replayed(val: Any, chain: Sequence[Node]) -> torch.Tensor | None:
    """What a chain of views, the last one first, makes of a fake tensor; None where it is no view of that."""
    mode = getattr(val, "fake_mode", None)
    if mode is None:
        return None
    start = val
    with mode, torch.no_grad():
        for node in reversed(chain):
            call: Any = node.args[0] if getattr(node.target, "__name__", "") == "getitem" else node
            args, kwargs = pytree.tree_map_only(Node, lambda n: n.meta["val"], (call.args[1:], call.kwargs))
            try:
                val = call.target(val, *args, **kwargs)
            except RuntimeError:  # sizes and strides of which no view can be made
                return None
            if call is not node:
                val = val[node.args[1]]
    return val if val.untyped_storage()._cdata == start.untyped_storage()._cdata else None
