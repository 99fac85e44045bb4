"""Softmaxes that a program writes as exponentials and their sum, as one operator.

    p = (x - x.amax(-1, keepdim=True)).exp(); p / p.sum(-1, keepdim=True)          ->      x.softmax(-1)
    p = (x - x.amax(-1, keepdim=True)).exp(); (p @ v) / p.sum(-1, keepdim=True)    ->      x.softmax(-1) @ v
    (x - x.logsumexp(-1, keepdim=True)).exp() @ v                                  ->      x.softmax(-1) @ v
    (x - x.amax(-1, keepdim=True)).softmax(-1)                                     ->      x.softmax(-1)

The third one differs from a softmax in rows that have an infinite element: a softmax makes NaN of all of the row, and this of that element.
What such a row weighs is NaN with both, so it is one where nothing but products reads it, with gradients and without. The first two are
replaced only where gradients are taken. This happens before AOTAutograd takes gradients: that of the maximum is a search for its places,
and adds up to nothing. So attention with such a softmax is attention in training, too.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from .affine_values import argument, tensor_of, writes

EXPONENTIALS = (torch.exp, "exp")
SUMS = (torch.sum, "sum")
_MAXIMA = (torch.amax, "amax")
_MAXIMA_WITH_PLACES = (torch.max, "max")
DIFFERENCES = (operator.sub, torch.sub, torch.subtract, "sub", "subtract")
LOG_SUMS = (torch.logsumexp, "logsumexp")
SOFTMAXES = (torch.softmax, F.softmax, "softmax")
_PRODUCTS = (operator.matmul, torch.matmul, torch.bmm, "matmul", "bmm", "__matmul__")
EINSUMS = (torch.einsum, torch.functional.einsum)
_BY_ELEMENT = (F.dropout, torch.dropout, "to", "float", "type_as", "half", "bfloat16")
"""What keeps a factor of a row a factor of it."""
ADDITIONS = (operator.add, torch.add, "add")
CASTS = ("to", "float", "type_as", "half", "bfloat16")
FACTORS = (operator.mul, torch.mul, "mul")
_VIEWS = (torch.flatten, torch.reshape, "flatten", "reshape", "view", "unflatten", "contiguous")
QUOTIENTS = (operator.truediv, torch.div, torch.true_divide, "div", "divide", "true_divide")


def name_softmaxes(gm: GraphModule) -> int:
    """Replace softmaxes by hand of which gradients are taken; gives how many."""
    changed = 0
    order = {node: k for k, node in enumerate(gm.graph.nodes)}
    for end in list(gm.graph.nodes):
        found = _softmax(end)
        if found is None:
            changed += _without_shift(end)
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


def _without_shift(node: Node) -> bool:
    """Have a softmax read what is less its maximum there: as it is."""
    operands = pair(argument(node, 0, "input"), DIFFERENCES) if is_call(node, SOFTMAXES) else None
    first = maximum(operands[1]) if operands is not None else None
    made = tensor_of(operands[0]) if operands is not None else None
    if operands is None or first is None or made is None or argument(first, 0, "input") is not operands[0]:
        return False
    if kept_dim(first, made.dim()) not in (dim := argument(node, 1, "dim"), dim + made.dim()):
        return False
    shifted = argument(node, 0, "input")
    if any(writes(other) for other in between(operands[0], node)):
        return False
    node.replace_input_with(shifted, operands[0])
    return True


def between(first: Node, last: Node) -> Iterator[Node]:
    """The nodes between two, in their order."""
    node = first.next
    while node is not last:
        yield node
        node = node.next


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
    if is_call(end, EXPONENTIALS):
        return _by_log_sum(end)
    operands = pair(end, QUOTIENTS)
    if operands is None or not is_call(operands[1], SUMS):
        return None
    rows, total = operands
    power = argument(total, 0, "input")
    if not isinstance(power, Node) or not is_call(power, EXPONENTIALS) or set(total.users) != {end}:
        return None
    between = [] if rows is power else _weighed(power, rows, total)
    operands = pair(argument(power, 0, "input"), DIFFERENCES)
    if operands is None or between is None or set(power.users) != {total, between[0] if between else end}:
        return None
    x, top = operands
    own = {power, total, *power.all_input_nodes, top}
    while isinstance(top, Node) and top.op == "call_method" and top.target == "detach":
        top = argument(top, 0, "self")
        own.add(top)
    first = maximum(top)
    made = tensor_of(x)
    if first is None or argument(first, 0, "input") is not x or made is None or not _is_like(end if not between else power, x):
        return None
    dims = {kept_dim(first, made.dim()), kept_dim(total, made.dim())}
    (dim,) = dims if len(dims) == 1 else (None,)
    if dim is None or "dtype" in total.kwargs or (between and (dim != made.dim() - 1 or not _is_like(end, rows, same_type=False))):
        return None
    return _Softmax(x, dim, {*own, first, *between} - {x}, power if between else end, rows)


def _by_log_sum(end: Node) -> _Softmax | None:
    """An exponential of what is less the logarithm of the sum of all, whose rows weigh those of products."""
    operands = pair(argument(end, 0, "input"), DIFFERENCES)
    if operands is None or not is_call(operands[1], LOG_SUMS) or argument(operands[1], 0, "input") is not operands[0]:
        return None
    x, log = operands
    made = tensor_of(x)
    dim = None if made is None else kept_dim(log, made.dim())
    if made is None or dim is None or dim != made.dim() - 1 or not _is_like(end, x, trains=False) or not products_of(end):
        return None
    return _Softmax(x, dim, {end, log, *end.all_input_nodes} - {x}, end, end)


def products_of(weights: Node) -> list[Node]:
    """The products that weigh rows by weights, taken element by element or as they are; none where something else reads these."""
    worklist, seen, found = [weights], {weights}, list[Node]()
    while worklist:
        node = worklist.pop()
        for user in node.users:
            is_dead = not user.users and user.op != "output" and not writes(user)
            if is_dead:
                continue
            if (weighs_rows(user) or _keeps_labels(user)) and is_first_factor(node, user):
                found.append(user)
            elif not keeps_rows(user, node):
                return []
            elif user not in seen:
                seen.add(user)
                worklist.append(user)
    return found


def keeps_rows(node: Node, x: Node) -> bool:
    """Whether what is NaN in a row of a tensor is NaN in that row of the result, and the rows are the same ones."""
    if is_call(node, FACTORS):
        return True
    a, b = tensor_of(node), tensor_of(x)
    first = argument(node, 0, "input") is x
    return first and (is_call(node, _BY_ELEMENT) or (is_call(node, _VIEWS) and a is not None and b is not None and _same_rows(a, b)))


def _same_rows(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dim() > 1 and statically_known_true(a.numel() == b.numel()) and statically_known_true(a.shape[-1] == b.shape[-1])


def is_first_factor(node: Node, product: Node) -> bool:
    """Whether a product, as operator or einsum, has a node as its first factor alone."""
    operands = list(product.args[1:] if is_call(product, EINSUMS) else product.args)
    if operands and isinstance(operands[0], tuple | list):
        operands = list(operands[0])
    return bool(operands) and operands[0] is node and node not in operands[1:]


def _weighed(power: Node, rows: Node, total: Node) -> list[Node] | None:
    """The nodes between exponentials and rows that they weigh, with these: nothing else has any of them."""
    found: list[Node] = []
    node, weighed = rows, False
    while node is not power:
        found.insert(0, node)
        is_product = not weighed and weighs_rows(node)
        if not is_product and not is_call(node, _BY_ELEMENT):
            return None
        weighed = weighed or is_product
        operands = node.args[1] if is_call(node, EINSUMS) and isinstance(node.args[1], tuple | list) else node.args
        node = operands[1 if is_call(node, EINSUMS) and operands is node.args else 0]  # pyright: ignore[reportIndexIssue, reportOptionalSubscript, reportArgumentType, reportOperatorIssue]
        if not isinstance(node, Node) or (node is not power and len(node.users) > 1):
            return None
    a, b = tensor_of(rows), tensor_of(total)
    same = a is not None and b is not None and a.dim() == b.dim() and a.shape[:-1] == b.shape[:-1]
    return found if weighed and same else None


def weighs_rows(node: Node) -> bool:
    """Whether a node is a product whose first factor's rows are those of the result."""
    if not is_call(node, EINSUMS):
        return is_call(node, _PRODUCTS)
    equation = node.args[0].replace(" ", "") if isinstance(node.args[0], str) else ""
    sides, _, result = equation.partition("->")
    first, _, second = sides.partition(",")
    return len(first) > 1 and first[-1:] in second and first[-1:] not in result and first[:-1] == result[:-1] and result[-1:] in second


def _keeps_labels(node: Node) -> bool:
    """Whether a node is a product in which each row of the first factor is one of the result, in any order."""
    first, second, result = labels(node) if is_call(node, EINSUMS) else ("", "", "")
    return len(first) > 1 and first[-1] in second and {*first} - {*result} == {first[-1]} and len({*result} - {*first}) == 1


def labels(einsum: Node) -> tuple[str, str, str]:
    """The labels of the factors and of the result of an einsum of two tensors, each of which has all of its own; empty for another one."""
    equation = einsum.args[0].replace(" ", "") if isinstance(einsum.args[0], str) else ""
    names = equation.replace("->", ",").split(",")
    known = "->" in equation and len(names) == 3 and "." not in equation and all(len({*name}) == len(name) for name in names)
    return (names[0], names[1], names[2]) if known else ("", "", "")


def _is_like(node: Node, x: Node, same_type: bool = True, trains: bool = True) -> bool:
    """Whether a node gives floats of the type and the sizes of another one. `trains`: and a gradient is taken of them."""
    a, b = tensor_of(node), tensor_of(x)
    if a is None or b is None or (trains and not a.requires_grad):
        return False
    return b.dtype.is_floating_point and (not same_type or a.dtype == b.dtype) and a.shape == b.shape


def maximum(top: Any) -> Node | None:
    """The node that computes a maximum over a dimension."""
    if is_call(top, _MAXIMA):
        return top
    values = isinstance(top, Node) and top.target in (operator.getitem, getattr) and top.args[1] in (0, "values")
    both = top.args[0] if values else None
    return both if isinstance(both, Node) and is_call(both, _MAXIMA_WITH_PLACES) else None


def kept_dim(node: Node, rank: int) -> int | None:
    """The one dimension that is reduced to size 1; None for other reductions."""
    dim = argument(node, 1, "dim")
    dim = dim[0] if isinstance(dim, tuple | list) and len(dim) == 1 else dim
    return dim % rank if rank and isinstance(dim, int) and argument(node, 2, "keepdim", False) is True else None


def pair(node: Any, targets: tuple[Any, ...]) -> tuple[Node, Node] | None:
    """The operands of an operation on two tensors."""
    if not is_call(node, targets) or node.kwargs.keys() - {"input", "other"}:
        return None
    left, right = argument(node, 0, "input"), argument(node, 1, "other")
    return (left, right) if isinstance(left, Node) and isinstance(right, Node) else None


def is_call(node: Any, targets: tuple[Any, ...]) -> bool:
    if not isinstance(node, Node) or node.op not in ("call_function", "call_method"):
        return False
    named = node.op == "call_method"
    return any(node.target == t if named else node.target is t for t in targets if isinstance(t, str) == named)


def same_shape(one: Node, other: Node) -> bool:
    """Whether two tensors have the same sizes."""
    a, b = tensor_of(one), tensor_of(other)
    return a is not None and b is not None and a.dim() == b.dim() and all(map(statically_known_true, map(operator.eq, a.shape, b.shape)))


def uncast(node: Any) -> Any:
    """What a tensor of floats is in front of casts between such."""
    while is_call(node, CASTS) and (made := tensor_of(node)) is not None and made.dtype.is_floating_point:
        node = argument(node, 0, "self")
    return node
