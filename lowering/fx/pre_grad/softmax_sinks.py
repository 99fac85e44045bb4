"""Softmaxes with more in their sums than the weights that are used (attention sinks, "softmax plus one"), as softmaxes of these alone.

    p = torch.cat([x, c], -1).softmax(-1)[..., :-1]; p @ v                         z = torch.logaddexp(l, c)
    e = (x - m).exp(); e / (e.sum(-1, keepdim=True) + (c - m).exp()) @ v     ->    (x.softmax(-1) @ v) * (l - z).exp()
    (x - torch.logaddexp(l, c)).exp() @ v                                          where l = x.logsumexp(-1, keepdim=True)

p is the softmax of x times exp(l - z), a factor of the row, which multiplies the rows that are weighed as well: where nothing but products
that weigh rows reads p. Whatever m is, p does not change with it. A row without a finite score weighs nothing.
This happens before AOTAutograd takes gradients: scores are on chip, or in the first-level cache, as those of any attention are, with the
gradient of c from numbers of rows. Those numbers have 32 bits at least: in 16 the gradient of c would be what rounding left of 1 - p.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from . import softmaxes
from .affine_values import argument, tensor_of, writes
from .softmaxes import CASTS, DIFFERENCES, EXPONENTIALS, SOFTMAXES, is_call, kept_dim, maximum, pair, products_of, same_shape, uncast

_CATS = (torch.cat, torch.concat, torch.concatenate)
_LOG_ADDITIONS = (torch.logaddexp, "logaddexp")
_NEGATIONS = (operator.neg, torch.neg, "neg", "negative")


@dataclass(frozen=True)
class _Sinks:
    """Weights of rows `x` with `others` in their sums: exponents of each row, or a number. They come from a softmax of type `type`.
    alone: the softmax of x, times others, which are factors of each row."""

    weights: Node
    x: Node
    others: tuple[Node | float, ...]
    type: torch.dtype
    alone: Node | None = None


def part_sinks(gm: GraphModule) -> int:
    """Replace softmaxes with more in their sums than weighs rows; gives how many."""
    changed = 0
    for node in list(gm.graph.nodes):
        found = _of_slice(node) or _of_quotient(node) or _of_log_sum(node) or _of_factor(node)
        if found is None or _is_written(found):
            continue
        ends = products_of(found.weights)
        if ends and all(_has_rows(end, found.x) for end in ends):
            _write(gm, found, ends)
            changed += 1
    if changed:
        gm.graph.eliminate_dead_code()
        gm.recompile()
    return changed


def _of_slice(node: Node) -> _Sinks | None:
    """A softmax of a concatenation of which one part is read."""
    softmax = argument(node, 0, "input")
    while is_call(softmax, CASTS) and len(softmax.users) == 1:
        softmax = argument(softmax, 0, "self")
    made, all_of_it = tensor_of(node), tensor_of(softmax) if isinstance(softmax, Node) else None
    start = _start(node)
    if made is None or all_of_it is None or start is None or not is_call(softmax, SOFTMAXES) or len(softmax.users) > 1:
        return None
    found = _parts(uncast(argument(softmax, 0, "input")))
    if found is None or argument(softmax, 1, "dim") not in (-1, all_of_it.dim() - 1):
        return None
    at: Any = 0
    for k, (part, width) in enumerate(found):
        if statically_known_true(start == at) and statically_known_true(width == made.shape[-1]):
            return _Sinks(node, part, tuple(other for j, (other, _) in enumerate(found) if j != k), all_of_it.dtype)
        at = at + width
    return None


def _start(node: Node) -> Any:
    """Where the part of a last dimension begins that a node takes; None where it takes something else, or all."""
    if not is_call(node, (operator.getitem,)) or not isinstance(node.args[0], Node) or not isinstance(places := node.args[1], tuple):
        return None
    whole = tensor_of(node.args[0])
    if whole is None or not all(one is Ellipsis or one == slice(None) for one in places[:-1]) or not isinstance(last := places[-1], slice):
        return None
    if last.step not in (None, 1) or last == slice(None) or (Ellipsis not in places[:-1] and len(places) != whole.dim()):
        return None
    start = last.start.meta.get("example_value") if isinstance(last.start, Node) else last.start or 0
    return start + whole.shape[-1] if isinstance(start, int) and start < 0 else start


def _parts(cat: Any) -> list[tuple[Node, Any]] | None:
    """What a node concatenates along the last dimension, with the sizes there."""
    if not is_call(cat, _CATS) or (made := tensor_of(cat)) is None:
        return None
    parts = argument(cat, 0, "tensors")
    values = [tensor_of(part) for part in parts]
    if argument(cat, 1, "dim", 0) not in (-1, made.dim() - 1) or any(val is None or val.dim() != made.dim() for val in values):
        return None
    return [(part, val.shape[-1]) for part, val in zip(parts, values, strict=True) if val is not None]


def _of_quotient(node: Node) -> _Sinks | None:
    """Exponentials over their sum and more, or rows that they weigh over that."""
    operands = pair(node, softmaxes.QUOTIENTS)
    if operands is None or not is_call(operands[1], softmaxes.ADDITIONS):
        return None
    both = argument(operands[1], 0, "input"), argument(operands[1], 1, "other")
    for total, other in (both, both[::-1]):
        power = argument(total, 0, "input") if is_call(total, softmaxes.SUMS) else None
        if not is_call(power, EXPONENTIALS):
            continue
        assert isinstance(power, Node)
        made = tensor_of(power)
        exponent = argument(power, 0, "input")
        shifted = pair(exponent, DIFFERENCES)
        x, shift = shifted if shifted is not None and _is_row(shifted[1], made) else (exponent, None)
        sink = _exponent(other, shift, made)
        if made is None or sink is None or kept_dim(total, made.dim()) != made.dim() - 1 or "dtype" in total.kwargs:
            return None
        return _Sinks(node, x, (sink,), made.dtype) if operands[0] is power else None
    return None


def _exponent(power: Any, shift: Node | None, x: torch.Tensor | None) -> Node | float | None:
    """c of exp(c - shift), which is a number of each row."""
    if isinstance(power, int | float):
        return math.log(power) if shift is None and power > 0 else None
    if not is_call(power, EXPONENTIALS):
        return None
    exponent = argument(power, 0, "input")
    if shift is None:
        return exponent if _is_row(exponent, x) else None
    if is_call(exponent, _NEGATIONS):
        return 0.0 if _are_equal(argument(exponent, 0, "input"), shift) else None
    operands = pair(exponent, DIFFERENCES)
    if operands is None or not _are_equal(operands[1], shift) or not _is_row(operands[0], x):
        return None
    return operands[0]


def _are_equal(one: Any, other: Any) -> bool:
    """Whether two nodes are one, or compute the same of one tensor, detached or not."""
    one, other = (_undetached(node) for node in (one, other))
    if one is other or not isinstance(one, Node) or not isinstance(other, Node):
        return one is other
    maxima = [maximum(node) for node in (one, other)]
    nodes = maxima if None not in maxima else (one, other)
    return len({(node.op, node.target, node.args, tuple(node.kwargs.items())) for node in nodes if node is not None}) == 1


def _undetached(node: Any) -> Any:
    while is_call(node, ("detach",)):
        node = argument(node, 0, "self")
    return node


def _is_row(node: Any, x: torch.Tensor | None) -> bool:
    """Whether a tensor has one number for each row of another one."""
    made = tensor_of(node) if isinstance(node, Node) else None
    if made is None or x is None or not made.dtype.is_floating_point or made.dim() > x.dim():
        return False
    return made.dim() == 0 or statically_known_true(made.shape[-1] == 1)


def _of_log_sum(node: Node) -> _Sinks | None:
    """Exponentials of what is less the logarithm of a sum of its own exponentials and of others."""
    operands = pair(argument(node, 0, "input"), DIFFERENCES) if is_call(node, EXPONENTIALS) else None
    made = tensor_of(node)
    if operands is None or made is None:
        return None
    x, total = operands[0], uncast(operands[1])
    if is_call(total, softmaxes.LOG_SUMS) and kept_dim(total, made.dim()) == made.dim() - 1:
        parts = _parts(uncast(argument(total, 0, "input"))) or []
        others = [part for part, _ in parts if part is not x]
        return _Sinks(node, x, tuple(others), made.dtype) if others and len(others) + 1 == len(parts) else None
    sums = pair(total, _LOG_ADDITIONS)
    for own, other in (sums, sums[::-1]) if sums is not None else ():
        if is_call(own, softmaxes.LOG_SUMS) and uncast(argument(own, 0, "input")) is uncast(x) and _is_row(other, made):
            return _Sinks(node, x, (other,), made.dtype) if kept_dim(own, made.dim()) == made.dim() - 1 else None
    return None


def _of_factor(node: Node) -> _Sinks | None:
    """A softmax times a factor of each row, or of all."""
    found, made = factor_of(node), tensor_of(node)
    if found is None or made is None:
        return None
    weights, factor = found
    return _Sinks(node, argument(uncast(weights), 0, "input"), (factor,), made.dtype, weights)


def factor_of(node: Node) -> tuple[Node, Node | float] | None:
    """The softmax over the last dimension and the factor of each row, or of all, whose product a node is."""
    if not is_call(node, softmaxes.FACTORS):
        return None
    operands = argument(node, 0, "input"), argument(node, 1, "other")
    for weights, factor in (operands, operands[::-1]):
        made = tensor_of(node)
        if made is None or not isinstance(weights, Node) or not is_call(softmax := uncast(weights), SOFTMAXES):
            continue
        known = isinstance(factor, int | float) or _is_row(factor, made)
        if known and argument(softmax, 1, "dim") in (-1, made.dim() - 1) and same_shape(weights, node):
            return weights, factor
    return None


def _is_written(found: _Sinks) -> bool:
    """Whether something may write to what the weights are computed of, between."""
    node = found.x
    while node is not found.weights:
        node = node.next
        if node.op == "root" or writes(node):
            return True
    return False


def _has_rows(end: Node, x: Node) -> bool:
    """Whether the first factor of a product has the rows of a tensor, in whatever dimensions."""
    a, b = tensor_of(_first(end)), tensor_of(x)
    return a is not None and b is not None and b.dim() > 1 and statically_known_true(a.numel() == b.numel())


def _first(product: Node) -> Node:
    """The first factor of a product."""
    operands: Any = product.args[1:] if is_call(product, softmaxes.EINSUMS) else product.args
    return operands[0][0] if isinstance(operands[0], tuple | list) else operands[0]


def _write(gm: GraphModule, found: _Sinks, ends: list[Node]) -> None:
    """Write the weights without the others, and the factor of each row behind the products."""
    x, made = tensor_of(found.x), tensor_of(found.weights)
    assert x is not None and made is not None
    graph = gm.graph
    call = graph.call_function
    alone = found.alone
    with graph.inserting_before(found.weights):
        if alone is None:
            shown = found.x
            if made.requires_grad:  # the gradient of a logarithm of 0 is NaN, and that of what is hidden 0
                shown = graph.call_method("masked_fill", (shown, call(operator.eq, (shown, -math.inf)), -math.inf))
            alone = call(torch.ops.aten._safe_softmax.default, (shown, -1), {"dtype": found.type})
            wide = shown if x.dtype.itemsize >= 4 else graph.call_method("float", (shown,))
            own = total = call(torch.logsumexp, (wide, -1, True))
            for other in found.others:
                total = call(torch.logaddexp, (total, _row(graph, other, own)))
            factor: Any = call(torch.exp, (call(operator.sub, (own, total)),))
        else:
            (factor,) = found.others
        given = tensor_of(alone)
        if given is None or given.dtype != made.dtype:
            alone = graph.call_method("to", (alone, made.dtype))
    alone.meta = dict(found.weights.meta)
    found.weights.replace_all_uses_with(alone)
    for end in ends:
        with graph.inserting_before(end.next):
            rows = graph.call_method("type_as", (call(operator.mul, (end, _like(graph, factor, end, found.x))), end))
        rows.meta = dict(end.meta)
        end.replace_all_uses_with(rows, delete_user_cb=lambda user, rows=rows: user not in (rows, *rows.all_input_nodes))


def _row(graph: Graph, other: Node | float, own: Node) -> Node:
    """The logarithm of the sum of exponentials of others, in the type of a row's own."""
    if not isinstance(other, Node):
        return graph.call_method("new_full", (own, (), other))
    val = tensor_of(other)
    assert val is not None
    row = graph.call_method("type_as", (other, own))
    return row if not val.dim() or statically_known_true(val.shape[-1] == 1) else graph.call_function(torch.logsumexp, (row, -1, True))


def _like(graph: Graph, factor: Node | float, end: Node, x: Node) -> Node | float:
    """A factor of each row of `x` in the dimensions of a product of these."""
    if not isinstance(factor, Node):
        return factor
    given = _first(end)
    first, _, result = softmaxes.labels(end) if is_call(end, softmaxes.EINSUMS) else ("", "", "")
    if not (is_same := same_shape(given, x)) or first:
        factor = graph.call_method("expand", (factor, *_sizes(graph, x), 1))
    if not is_same:
        factor = graph.call_method("reshape", (factor, *_sizes(graph, given), 1))
    if not first:
        return factor
    own = [label for label in result if label in first]
    factor = graph.call_method("permute", (graph.call_method("squeeze", (factor, -1)), *(first.index(label) for label in own)))
    (column,) = (k for k, label in enumerate(result) if label not in first)
    return graph.call_method("unsqueeze", (factor, column))


def _sizes(graph: Graph, x: Node) -> list[Node]:
    """The sizes of a tensor but for the last one."""
    val = tensor_of(x)
    return [] if val is None else [graph.call_method("size", (x, k)) for k in range(val.dim() - 1)]
