"""Softmaxes that a program writes as exponentials and their sum, as one operator.

    p = (x - x.amax(-1, keepdim=True)).exp(); p / p.sum(-1, keepdim=True)      ->      x.softmax(-1)

This happens before AOTAutograd takes gradients: that of the maximum is a search for its places, and adds up to nothing. So attention with
such a softmax is attention in training, too.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from .affine_values import argument, tensor_of, writes

_EXPONENTIALS = (torch.exp, "exp")
_SUMS = (torch.sum, "sum")
_MAXIMA = (torch.amax, "amax")
_MAXIMA_WITH_PLACES = (torch.max, "max")
_DIFFERENCES = (operator.sub, torch.sub, torch.subtract, "sub", "subtract")
_QUOTIENTS = (operator.truediv, torch.div, torch.true_divide, "div", "divide", "true_divide")


def name_softmaxes(gm: GraphModule) -> int:
    """Replace softmaxes by hand of which gradients are taken; gives how many."""
    changed = 0
    order = {node: k for k, node in enumerate(gm.graph.nodes)}
    for end in list(gm.graph.nodes):
        found = _softmax(end)
        if found is None:
            continue
        x, dim, own = found
        first = min(order[node] for node in own)
        if any(writes(node) for node, k in order.items() if first < k < order[end] and node not in own):
            continue
        with gm.graph.inserting_before(end):
            made = gm.graph.call_function(torch.softmax, (x, dim))
        made.meta = dict(end.meta)
        end.replace_all_uses_with(made)
        changed += 1
    if changed:
        gm.graph.eliminate_dead_code()
        gm.recompile()
    return changed


def _softmax(end: Node) -> tuple[Node, int, set[Node]] | None:
    """The tensor and the dimension that a quotient is a softmax of, and the nodes that compute it."""
    operands = _pair(end, _QUOTIENTS)
    if operands is None:
        return None
    power, total = operands
    if not _is(power, _EXPONENTIALS) or not _is(total, _SUMS) or argument(total, 0, "input") is not power:
        return None
    operands = _pair(argument(power, 0, "input"), _DIFFERENCES)
    if operands is None or set(power.users) != {total, end} or set(total.users) != {end}:
        return None
    x, top = operands
    own = {power, total, *power.all_input_nodes, top}
    while isinstance(top, Node) and top.op == "call_method" and top.target == "detach":
        top = argument(top, 0, "self")
        own.add(top)
    first = _maximum(top)
    made, result = tensor_of(x), tensor_of(end)
    if first is None or argument(first, 0, "input") is not x or made is None or result is None:
        return None
    dims = {_kept(first, made.dim()), _kept(total, made.dim())}
    (dim,) = dims if len(dims) == 1 else (None,)
    kind = made.dtype.is_floating_point and result.requires_grad and result.dtype == made.dtype and result.shape == made.shape
    return (x, dim, {*own, first} - {x}) if dim is not None and kind and "dtype" not in total.kwargs else None


def _maximum(top: Any) -> Node | None:
    """The node that computes a maximum over a dimension."""
    if _is(top, _MAXIMA):
        return top
    values = isinstance(top, Node) and top.target in (operator.getitem, getattr) and top.args[1] in (0, "values")
    both = top.args[0] if values else None
    return both if isinstance(both, Node) and _is(both, _MAXIMA_WITH_PLACES) else None


def _kept(node: Node, rank: int) -> int | None:
    """The one dimension that is reduced to size 1; None for other reductions."""
    dim = argument(node, 1, "dim")
    dim = dim[0] if isinstance(dim, tuple | list) and len(dim) == 1 else dim
    return dim % rank if rank and isinstance(dim, int) and argument(node, 2, "keepdim", False) is True else None


def _pair(node: Any, targets: tuple[Any, ...]) -> tuple[Node, Node] | None:
    """The operands of an operation on two tensors."""
    if not _is(node, targets) or node.kwargs.keys() - {"input", "other"}:
        return None
    left, right = argument(node, 0, "input"), argument(node, 1, "other")
    return (left, right) if isinstance(left, Node) and isinstance(right, Node) else None


def _is(node: Any, targets: tuple[Any, ...]) -> bool:
    if not isinstance(node, Node) or node.op not in ("call_function", "call_method"):
        return False
    named = node.op == "call_method"
    return any(node.target == t if named else node.target is t for t in targets if isinstance(t, str) == named)
