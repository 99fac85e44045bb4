"""Sums of the gradients of scores over rows and terms, each times a number that is given: what a program learns that way is a slope.

    s = .. + slope * d; p = softmax(s); ds = p * (dp - t)
    sum_ij(d * ds)      ->      sum_ij(d * ds) - sum_i(sum_j(ds) * sum_j(d * p))

t is the sum over a row of the result times its gradient, of a result that was rounded: it is not quite sum_j(p * dp), by an error that the
distances d of a row multiply. The gradients of a row are 0 together, and the sum that they have is that error. All three are sums over the
terms of a row, which one kernel makes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import torch
from torch.fx import Node

from ...equal_sizes import are_equal
from ..fx_graphs import Writer, same_sizes, value_of

aten, prims = torch.ops.aten, torch.ops.prims

_KEEP = (
    prims.convert_element_type.default, aten._to_copy.default, aten.view.default, aten._unsafe_view.default, aten.expand.default,
    aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.detach.default, aten.alias.default, aten.clone.default,
)  # fmt: skip
"""Operators that give what they are given, where it has the same matrices behind them."""

_SUMS = (aten.sum.dim_IntList, aten.sum.default)


def balance_sums(gradient: Node, exact: Node, weights: Node) -> None:
    """Correct the sums of a gradient of scores. exact: the gradient before it is converted; weights: the softmax, of as many dimensions."""
    for total, factors in list(_sums(gradient, weights, ())):
        if not (summed := _summed(total, weights)):
            continue
        w = Writer(total)
        with total.graph.inserting_before(total.next):
            weighed = w.wide(weights)
            for target, *others in factors:
                weighed = w(target, weighed, *others)
            lost = w(aten.mul.Tensor, w(aten.sum.dim_IntList, exact, [-1]), w(aten.sum.dim_IntList, weighed, [-1]))
            lost = w(aten.sum.dim_IntList, lost, summed)
            given = w.wide(total)
            right = w.like(w(aten.sub.Tensor, given, w(aten.view.default, lost, w.sizes(total))), total)
        total.replace_all_uses_with(right, delete_user_cb=lambda user, own=(given, right): user not in own)


def _sums(x: Node, weights: Node, factors: tuple[Any, ...]) -> Iterator[tuple[Node, tuple[Any, ...]]]:
    """Sums over all rows and terms of a value, and what its elements are multiplied by in front of them: calls without their first
    argument."""
    for user in x.users:
        val = user.meta.get("val")
        if not isinstance(val, torch.Tensor):
            continue
        if user.target in _SUMS:
            shape = _matrices(_summed_shape(user))
            if are_equal(shape[1], 1) and are_equal(shape[2], 1):
                yield user, factors
            elif same_sizes(_matrices(val.shape), shape):
                yield from _sums(user, weights, factors)
        elif user.target in _KEEP:
            if val.dtype.is_floating_point and same_sizes(_matrices(val.shape), _matrices(value_of(x).shape)):
                yield from _sums(user, weights, factors)
        elif (factor := _factor(user, x)) is not None and _spreads(factor[1], weights):
            yield from _sums(user, weights, (*factors, factor))


def _factor(node: Node, x: Node) -> tuple[Any, ...] | None:
    """The call that a node is of a value, without that, if what it gives is proportional to it."""
    if node.target is aten.mul.Tensor and x in node.args:
        return node.target, node.args[node.args[0] is x]
    if node.target in (aten.mul.Scalar, aten.div.Scalar, aten.div.Tensor) and node.args[0] is x:
        return node.target, node.args[1]
    if node.target is aten.neg.default:
        return aten.mul.Tensor, -1
    if node.target is aten.masked_fill.Scalar and node.args[0] is x and node.args[2] == 0:
        return node.target, *node.args[1:]
    if node.target is aten.where.self and x in node.args[1:]:
        condition, *ways = node.args
        if _is_zero(ways[0]):
            return aten.masked_fill.Scalar, condition, 0
        return (aten.mul.Tensor, condition) if _is_zero(ways[1]) else None
    return None


def _is_zero(x: Any) -> bool:
    if not isinstance(x, Node):
        return False
    if x.target in (aten.zeros_like.default, aten.zeros.default):
        return True
    return bool((x.target is aten.full.default and x.args[1] == 0) or (x.target is aten.scalar_tensor.default and x.args[0] == 0))


def _spreads(factor: Any, weights: Node) -> bool:
    """Whether weights times a factor have the shape of weights."""
    if not isinstance(factor, Node):
        return isinstance(factor, int | float)
    val, shape = factor.meta.get("val"), value_of(weights).shape
    if not isinstance(val, torch.Tensor) or val.is_complex():
        return False
    if val.dim() > len(shape):
        return False
    return all(are_equal(a, 1) or are_equal(a, b) for a, b in zip(val.shape, shape[len(shape) - val.dim() :], strict=True))


def _summed_shape(node: Node) -> list[Any]:
    """The sizes of what a sum adds up, with 1 for those that it adds up."""
    sizes = list(value_of(node.args[0]).shape)  # pyright: ignore[reportArgumentType]
    dims: Any = node.args[1] if len(node.args) > 1 else None
    for k in dims or range(len(sizes)):
        sizes[k] = 1
    return sizes


def _matrices(shape: Sequence[Any]) -> Sequence[Any]:
    """The last three sizes: heads, rows and terms."""
    return [*[1] * (3 - len(shape)), *shape[-3:]]


def _summed(total: Node, weights: Node) -> list[int]:
    """The dimensions of the weights, but for terms, that a sum adds up: all, or all but heads, or rows alone; none where it is something
    else."""
    *batches, heads, _, _ = (1, *value_of(weights).shape) if value_of(weights).dim() == 2 else value_of(weights).shape
    dims, count = list(range(value_of(weights).dim() - 1)), value_of(total).numel()
    if are_equal(count, 1):
        return dims
    if not are_equal(_matrices(_summed_shape(total))[0], heads):
        return []
    if are_equal(count, heads):
        return [k for k in dims if k != len(dims) - 2]
    return dims[-1:] if are_equal(count, heads * prod(batches)) else []
