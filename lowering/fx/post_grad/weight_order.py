"""The order in memory of weights that are constants: output channels side by side, where code of ours computes with them.

    weight [O, C, window...] of a convolution   ->   the same tensor, laid out as [window..., C, O]
    weight [K, N] of a matrix product, N rows   ->   the same tensor, laid out as [K, N]

Products then read rows of the weight as they lie, and a depthwise convolution has its lanes along the channels.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx import GraphModule, Node

from ....passes.cost.convolution_cost import Convolution, computed_here, has_few_taps

aten = torch.ops.aten


def order_weights(gm: GraphModule) -> None:
    """Lay out anew the constants of a graph that only convolutions or products read as their weights."""
    for node in [n for n in gm.graph.nodes if n.op == "get_attr"]:
        value = getattr(gm, str(node.target), None)
        if not isinstance(value, torch.Tensor) or value.device.type != "cpu" or not node.users:
            continue
        if all(_is_weight(user, node) for user in node.users):
            _lay_out(gm, node, value)


def _is_weight(user: Node, node: Node) -> bool:
    """Whether a convolution of ours has this weight, and it is nothing else in it."""
    if user.target is not aten.convolution.default or [a for a in user.all_input_nodes if a is node] != [node] or user.args[1] is not node:
        return False
    found = convolution_of(user)
    return found is not None and computed_here(found)


def convolution_of(node: Node) -> Convolution | None:
    """The facts of a convolution with known channels and window, sizes of its image by their hints; None for others."""
    x, weight, out = (n.meta.get("val") if isinstance(n, Node) else None for n in (node.args[0], node.args[1], node))
    if not all(isinstance(t, torch.Tensor) for t in (x, weight, out)):
        return None
    image, window, result = (tuple(_hints(t.shape)) for t in (x, weight, out))  # pyright: ignore[reportOptionalMemberAccess]
    if None in image or None in window or None in result:
        return None
    transposed, groups, dilation = bool(node.args[6]), int(node.args[8]), list(node.args[5])  # pyright: ignore[reportArgumentType]
    known = all(isinstance(n, int) for n in out.shape[2:])  # pyright: ignore[reportOptionalMemberAccess]
    width = x.element_size() if x.is_floating_point() else 0  # pyright: ignore[reportOptionalMemberAccess]
    return Convolution(image, window, result, groups, transposed, has_few_taps(window[2:], dilation[-1]), known, width)  # pyright: ignore


def _hints(shape: torch.Size) -> Iterator[int | None]:
    for n in shape:
        yield n if isinstance(n, int) else n.node.hint


def _lay_out(gm: GraphModule, node: Node, value: torch.Tensor) -> None:
    order = [*range(2, value.dim()), 1, 0]
    laid = value.permute(order).contiguous().permute([order.index(k) for k in range(value.dim())])
    setattr(gm, str(node.target), laid)
    mode = getattr(node.meta.get("val"), "fake_mode", None)
    node.meta["val"] = laid if mode is None else mode.from_tensor(laid, static_shapes=True)
