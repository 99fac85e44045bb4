"""Softmaxes that a program writes as exponentials and their sum, as one operator.

    p = (x - x.amax(-1, keepdim=True)).exp(); p / p.sum(-1, keepdim=True)          ->      x.softmax(-1)
    p = (x - x.amax(-1, keepdim=True)).exp(); (p @ v) / p.sum(-1, keepdim=True)    ->      x.softmax(-1) @ v
    (x - x.logsumexp(-1, keepdim=True)).exp() @ v                                  ->      x.softmax(-1) @ v

The last one differs from a softmax in rows that have an infinite element: a softmax makes NaN of all of the row, and this of that element.
What such a row weighs is NaN with both, so it is one where nothing but products reads it, with gradients and without. The others are
replaced only where gradients are taken. This happens before AOTAutograd takes gradients: that of the maximum is a search for its places,
and adds up to nothing. So attention with such a softmax is attention in training, too.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from .affine_values import argument, tensor_of, writes

_EXPONENTIALS = (torch.exp, "exp")
_SUMS = (torch.sum, "sum")
_MAXIMA = (torch.amax, "amax")
_MAXIMA_WITH_PLACES = (torch.max, "max")
_DIFFERENCES = (operator.sub, torch.sub, torch.subtract, "sub", "subtract")
_LOG_SUMS = (torch.logsumexp, "logsumexp")
_PRODUCTS = (operator.matmul, torch.matmul, torch.bmm, "matmul", "bmm", "__matmul__")
_EINSUMS = (torch.einsum, torch.functional.einsum)
_BY_ELEMENT = (F.dropout, torch.dropout, "to", "float", "type_as", "half", "bfloat16")
"""What keeps a factor of a row a factor of it."""
_FACTORS = (operator.mul, torch.mul, "mul")
_VIEWS = (torch.flatten, torch.reshape, "flatten", "reshape", "view", "unflatten", "contiguous")
_QUOTIENTS = (operator.truediv, torch.div, torch.true_divide, "div", "divide", "true_divide")


def name_softmaxes(gm: GraphModule) -> int:
    """Replace softmaxes by hand of which gradients are taken; gives how many."""
    changed = 0
    order = {node: k for k, node in enumerate(gm.graph.nodes)}
    for end in list(gm.graph.nodes):
        found = _softmax(end)
        if found is None:
            continue
        first = min(order[node] for node in found.own)
        if any(writes(node) for node, k in order.items() if first < k < order[end] and node not in found.own):
            continue
        with gm.graph.inserting_before(found.result):
            made = gm.graph.call_function(torch.softmax, (found.x, found.dim))
        made.meta = dict(found.result.meta)
        found.result.replace_all_uses_with(made)
        if found.result is not end:
            end.replace_all_uses_with(found.rows)
        changed += 1
    if changed:
        gm.graph.eliminate_dead_code()
        gm.recompile()
    return changed


@dataclass(frozen=True)
class _Softmax:
    """A softmax by hand: of a tensor over a dimension, the nodes that compute it, and the one whose place it takes. `rows`: what is
    divided by the sum later, where the exponentials are the result."""

    x: Node
    dim: int
    own: set[Node]
    result: Node
    rows: Node


def _softmax(end: Node) -> _Softmax | None:
    """The softmax that a node completes."""
    if _is(end, _EXPONENTIALS):
        return _by_log_sum(end)
    operands = _pair(end, _QUOTIENTS)
    if operands is None or not _is(operands[1], _SUMS):
        return None
    rows, total = operands
    power = argument(total, 0, "input")
    if not isinstance(power, Node) or not _is(power, _EXPONENTIALS) or set(total.users) != {end}:
        return None
    between = [] if rows is power else _weighed(power, rows, total)
    operands = _pair(argument(power, 0, "input"), _DIFFERENCES)
    if operands is None or between is None or set(power.users) != {total, between[0] if between else end}:
        return None
    x, top = operands
    own = {power, total, *power.all_input_nodes, top}
    while isinstance(top, Node) and top.op == "call_method" and top.target == "detach":
        top = argument(top, 0, "self")
        own.add(top)
    first = _maximum(top)
    made = tensor_of(x)
    if first is None or argument(first, 0, "input") is not x or made is None or not _is_like(end if not between else power, x):
        return None
    dims = {_kept(first, made.dim()), _kept(total, made.dim())}
    (dim,) = dims if len(dims) == 1 else (None,)
    if dim is None or "dtype" in total.kwargs or (between and (dim != made.dim() - 1 or not _is_like(end, rows, same_type=False))):
        return None
    return _Softmax(x, dim, {*own, first, *between} - {x}, power if between else end, rows)


def _by_log_sum(end: Node) -> _Softmax | None:
    """An exponential of what is less the logarithm of the sum of all, whose rows weigh those of products."""
    operands = _pair(argument(end, 0, "input"), _DIFFERENCES)
    if operands is None or not _is(operands[1], _LOG_SUMS) or argument(operands[1], 0, "input") is not operands[0]:
        return None
    x, log = operands
    made = tensor_of(x)
    dim = None if made is None else _kept(log, made.dim())
    if made is None or dim is None or dim != made.dim() - 1 or not _is_like(end, x, trains=False) or not _only_weighs(end):
        return None
    return _Softmax(x, dim, {end, log, *end.all_input_nodes} - {x}, end, end)


def _only_weighs(weights: Node) -> bool:
    """Whether nothing but products that weigh rows reads weights, element by element or as they are."""
    worklist, seen = [weights], {weights}
    while worklist:
        node = worklist.pop()
        for user in node.users:
            is_dead = not user.users and user.op != "output" and not writes(user)
            if is_dead or (_weighs_rows(user) and _is_first_factor(node, user)):
                continue
            if not _keeps_rows(user, node):
                return False
            if user not in seen:
                seen.add(user)
                worklist.append(user)
    return True


def _keeps_rows(node: Node, x: Node) -> bool:
    """Whether what is NaN in a row of a tensor is NaN in that row of the result, and the rows are the same ones."""
    if _is(node, _FACTORS):
        return True
    a, b = tensor_of(node), tensor_of(x)
    first = argument(node, 0, "input") is x
    return first and (_is(node, _BY_ELEMENT) or (_is(node, _VIEWS) and a is not None and b is not None and _same_rows(a, b)))


def _same_rows(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dim() > 1 and statically_known_true(a.numel() == b.numel()) and statically_known_true(a.shape[-1] == b.shape[-1])


def _is_first_factor(node: Node, product: Node) -> bool:
    """Whether a product, as operator or einsum, has a node as its first factor alone."""
    operands = list(product.args[1:] if _is(product, _EINSUMS) else product.args)
    if operands and isinstance(operands[0], tuple | list):
        operands = list(operands[0])
    return bool(operands) and operands[0] is node and node not in operands[1:]


def _weighed(power: Node, rows: Node, total: Node) -> list[Node] | None:
    """The nodes between exponentials and rows that they weigh, with these: nothing else has any of them."""
    found: list[Node] = []
    node, weighed = rows, False
    while node is not power:
        found.insert(0, node)
        is_product = not weighed and _weighs_rows(node)
        if not is_product and not _is(node, _BY_ELEMENT):
            return None
        weighed = weighed or is_product
        operands = node.args[1] if _is(node, _EINSUMS) and isinstance(node.args[1], tuple | list) else node.args
        node = operands[1 if _is(node, _EINSUMS) and operands is node.args else 0]  # pyright: ignore[reportIndexIssue, reportOptionalSubscript, reportArgumentType, reportOperatorIssue]
        if not isinstance(node, Node) or (node is not power and len(node.users) > 1):
            return None
    a, b = tensor_of(rows), tensor_of(total)
    same = a is not None and b is not None and a.dim() == b.dim() and a.shape[:-1] == b.shape[:-1]
    return found if weighed and same else None


def _weighs_rows(node: Node) -> bool:
    """Whether a node is a product whose first factor's rows are those of the result."""
    if not _is(node, _EINSUMS):
        return _is(node, _PRODUCTS)
    equation = node.args[0].replace(" ", "") if isinstance(node.args[0], str) else ""
    sides, _, result = equation.partition("->")
    first, _, second = sides.partition(",")
    return len(first) > 1 and first[-1:] in second and first[-1:] not in result and first[:-1] == result[:-1] and result[-1:] in second


def _is_like(node: Node, x: Node, same_type: bool = True, trains: bool = True) -> bool:
    """Whether a node gives floats of the type and the sizes of another one. `trains`: and a gradient is taken of them."""
    a, b = tensor_of(node), tensor_of(x)
    if a is None or b is None or (trains and not a.requires_grad):
        return False
    return b.dtype.is_floating_point and (not same_type or a.dtype == b.dtype) and a.shape == b.shape


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
