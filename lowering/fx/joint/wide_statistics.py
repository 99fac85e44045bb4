"""The saved statistics of a norm in the type that torch's kernels for the CPU give them.

Where values are narrow and parameters are not (autocast), a kernel saves mean and inverse deviation as wide as the parameters; its fake
kernel says that they are as narrow as the values. Backward on rounded ones is off by a rounding of the narrow type, which a gradient
through a few elements amplifies without a bound. A training graph is mended before it is split."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

aten = torch.ops.aten
_NORMS = (
    aten._native_batch_norm_legit_functional.default, aten._native_batch_norm_legit.no_stats, aten.native_group_norm.default,
    aten.native_layer_norm.default,
)  # fmt: skip
"""Their results 1 and 2 are the saved statistics."""
_PARAMETERS = ("weight", "bias", "running_mean", "running_var")
_DETACHED = (aten.detach.default, aten.alias.default)
_BACKWARD = (aten.native_batch_norm_backward.default, aten.native_group_norm_backward.default, aten.native_layer_norm_backward.default)


def widen_statistics(gm: GraphModule) -> int:
    """Correct what a graph with forward and backward says of saved statistics; gives how many norms it was wrong about.

    The results of one whose statistics anything but its backward reads stay as they are: the others were traced for the narrow type."""
    return sum(_widen(node) for node in gm.graph.nodes if node.target in _NORMS)


def has_backward(gm: GraphModule) -> bool:
    """Whether a graph holds the backward of a norm, or of a softmax."""
    return any(node.target in (*_BACKWARD, aten._softmax_backward_data.default) for node in gm.graph.nodes)


def _widen(node: Node) -> bool:
    wide = _wide_type(node)
    saved = _saved(node)
    if wide is None or any(reader.target not in _BACKWARD and reader not in saved for value in saved for reader in value.users):
        return False
    node.meta["val"] = tuple(value.to(wide) if k in (1, 2) else value for k, value in enumerate(node.meta["val"]))
    for value in saved:
        value.meta["val"] = value.meta["val"].to(wide)
        value.meta.pop("tensor_meta", None)
    return True


def _saved(node: Node) -> dict[Node, None]:
    """The statistics that a norm gives, and these detached, as autograd saves them for backward."""
    found = {u: None for u in node.users if u.target is operator.getitem and u.args[1] in (1, 2)}
    pending = [*found]
    while pending:
        detached = [u for u in pending.pop().users if u.target in _DETACHED and u not in found]
        found.update(dict.fromkeys(detached))
        pending += detached
    return found


def _wide_type(node: Node) -> torch.dtype | None:
    """The type of the parameters (weight, bias, running mean and variance) if it is another than that of the saved statistics."""
    x = _value(node.args[0])
    given = dict(zip((a.name for a in node.target._schema.arguments), node.args, strict=False))  # pyright: ignore
    if given.get("training", True) is not True:
        return None
    if x is None or x.device.type != "cpu" or not isinstance(node.meta.get("val"), (tuple, list)):
        return None
    types = {p.dtype for p in map(_value, (given.get(name) for name in _PARAMETERS)) if p is not None}
    narrow = node.meta["val"][1].dtype
    return types.pop() if len(types) == 1 and narrow == x.dtype and narrow not in types else None


def _value(node: Any) -> torch.Tensor | None:
    return node.meta.get("val") if isinstance(node, Node) else None
