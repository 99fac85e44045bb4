"""The saved statistics of batch norm in the type that torch's kernel for the CPU gives them.

Where values are narrow and parameters are not (autocast), the kernel saves mean and inverse deviation as wide as the parameters; its fake
kernel says that they are as narrow as the values. Backward on rounded ones gives a gradient of the weight that is off by a rounding of the
narrow type (measured: four orders of magnitude more than eager's). A training graph is mended before it is split."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

aten = torch.ops.aten
_FORWARD = (aten._native_batch_norm_legit_functional.default,)
_BACKWARD = (aten.native_batch_norm_backward.default,)


def widen_statistics(gm: GraphModule) -> int:
    """Correct what a joint graph says of saved statistics; gives how many batch norms it was wrong about.

    The results of one whose statistics anything but its backward reads stay as they are: the others were traced for the narrow type."""
    return sum(_widen(node) for node in gm.graph.nodes if node.target in _FORWARD)


def _widen(node: Node) -> bool:
    wide = _wide_type(node)
    saved = [u for u in node.users if u.target is operator.getitem and u.args[1] in (1, 2)]
    if wide is None or any(reader.target not in _BACKWARD for value in saved for reader in value.users):
        return False
    values = list(node.meta["val"])
    for k in (1, 2):
        values[k] = values[k].to(wide)
    node.meta["val"] = tuple(values)
    for value in saved:
        value.meta["val"] = values[value.args[1]]  # pyright: ignore[reportArgumentType, reportCallIssue]
        value.meta.pop("tensor_meta", None)
    return True


def _wide_type(node: Node) -> torch.dtype | None:
    """The type of the parameters (weight, bias, running mean and variance) if it is another than that of the saved statistics."""
    x, *parameters = (_value(n) for n in node.args[:5])
    if x is None or x.device.type != "cpu" or node.args[5] is not True or not isinstance(node.meta.get("val"), (tuple, list)):
        return None
    types = {p.dtype for p in parameters if p is not None}
    narrow = node.meta["val"][1].dtype
    return types.pop() if len(types) == 1 and narrow == x.dtype and narrow not in types else None


def _value(node: Any) -> torch.Tensor | None:
    return node.meta.get("val") if isinstance(node, Node) else None
