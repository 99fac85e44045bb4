"""Gradients of attention's softmax by sums over rows of the result, which are shorter than those over rows of weights.

    p = softmax(s); o = p v; dp = do v^T;  ds = p * (dp - sum_j(dp * p))      ->      ds = p * (dp - sum_d(do * o))

Both sums are sum_jd do_d v_jd p_j. The second one reads no weights, so that all the rest of the gradient goes element by element: it can be
computed where products of it are, and nothing of the size of the weights is in memory. Dropout of the weights is part of both. What is
rounded in one of dp and the sum, and not in the other, does not cancel, as it does in the first form: so dp is not rounded.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ..fx_graphs import VIEWS, Writer, same_sizes, value_of

aten, prims = torch.ops.aten, torch.ops.prims

_CASTS = (prims.convert_element_type.default, aten._to_copy.default)
_SAME_ORDER = (
    *_CASTS, aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.detach.default, aten.alias.default,
    aten.clone.default,
)  # fmt: skip
"""Operators that give the elements of their first argument, in their order; an expansion of nothing, at least."""
_PRODUCTS = (aten.mm.default, aten.bmm.default)


def shorten_row_sums(gm: GraphModule, devices: Collection[str] = ("cuda",)) -> int:
    """Rewrite the gradients of softmaxes that weigh rows of a product on `devices`; gives how many."""
    changed = 0
    for node in gm.graph.find_nodes(op="call_function", target=aten._softmax_backward_data.default):
        grad, y, dim, dtype = node.args
        while y.target in (aten.detach.default, aten.alias.default):
            y = y.args[0]
        t = value_of(y)
        if t.device.type not in devices or t.dim() < 2 or dim not in (-1, t.dim() - 1):
            continue
        found = _rows(grad, y)
        if found is None or not _is_shorter(found[2], t):
            continue
        product, weights, rows, exact = found
        with gm.graph.inserting_before(node):
            w = Writer(node)
            known = [u for u in weights.users if u.target in _PRODUCTS and u.args == (weights, rows)]
            result = known[0] if known else w(_PRODUCTS[value_of(weights).dim() - 2], weights, rows)
            sums = w(aten.sum.dim_IntList, w(aten.mul.Tensor, w.wide(product.all_input_nodes[0]), w.wide(result)), [-1], True)
            sums = w(aten.view.default, sums, [*w.sizes(y)[:-1], 1])
            if exact:
                grad = w(aten.view.default, w(product.target, *(_wide(w, x) for x in product.all_input_nodes)), w.sizes(y))
            made = w(aten.mul.Tensor, w.wide(y), w(aten.sub.Tensor, w.wide(grad), sums))
            if value_of(made).dtype != dtype:
                made = w(prims.convert_element_type.default, made, dtype)
        if not same_sizes(value_of(made).stride(), value_of(node).stride()):
            continue  # what was added is dead code
        node.replace_all_uses_with(made)
        gm.graph.erase_node(node)
        changed += 1
    if changed:
        gm.graph.eliminate_dead_code()
    return changed


def _wide(w: Writer, x: Node) -> Node:
    """Matrices in f32: what they are views of is converted, which leaves the batches of a product to be seen."""
    return w(x.target, _wide(w, x.all_input_nodes[0]), *x.args[1:]) if x.target in VIEWS else w.wide(x)


def _rows(grad: Node, y: Node) -> tuple[Node, Node, Node, bool] | None:
    """The product that the gradient of weights `y` is, these as they weigh, the rows that they do, and whether nothing is between."""
    for given, product in _behind(grad, y):
        rows = _transposed(product.args[1])
        if rows is None:
            continue
        for taken, weights in _weights(y, y):
            a, b = value_of(weights), value_of(product)
            if taken == given and same_sizes(a.shape, b.shape) and a.dtype == value_of(rows).dtype:
                return product, weights, rows, not given
    return None


def _behind(grad: Any, y: Node, factors: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Node]]:
    """Products that a gradient may be, but for factors that it is multiplied by, the one that the weights meet first in front."""
    if not isinstance(grad, Node) or not _has_all(grad, y):
        return
    if grad.target in _PRODUCTS:
        yield factors, grad
    elif grad.target in _SAME_ORDER:
        yield from _behind(grad.args[0], y, factors)
    elif grad.target is aten.native_dropout_backward.default:
        yield from _behind(grad.args[0], y, (*factors, grad.args[1]))
    elif grad.target is aten.mul.Tensor:
        for one, other in (grad.args, grad.args[::-1]):
            yield from _behind(one, y, (*factors, other))


def _weights(x: Node, y: Node, factors: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Node]]:
    """Weights in other types and shapes, and what they were multiplied by."""
    yield factors, x
    for user in x.users:
        if user.target is aten.native_dropout.default:
            found = {u.args[1]: u for u in user.users if u.target is operator.getitem}
            if 0 in found and 1 in found:
                yield from _weights(found[0], y, (*factors, found[1]))
        elif user.target in _SAME_ORDER and _has_all(user, y):
            yield from _weights(user, y, factors)
        elif user.target is aten.mul.Tensor and x in user.args and _has_all(user, y):
            yield from _weights(user, y, (*factors, user.args[user.args[0] is x]))


def _has_all(x: Node, y: Node) -> bool:
    """Whether a tensor has as many elements as another one, and rows as long."""
    a, b = value_of(x), value_of(y)
    return a.dim() > 1 and same_sizes(a.shape[-2:], b.shape[-2:]) and statically_known_true(a.numel() == b.numel())


def _transposed(x: Any) -> Node | None:
    """The matrices that others are, transposed."""
    if not isinstance(x, Node):
        return None
    rank = value_of(x).dim()
    order = list(range(rank))
    if x.target is aten.permute.default:
        order = [d % rank for d in x.args[1]]  # pyright: ignore[reportGeneralTypeIssues, reportOptionalIterable, reportOperatorIssue]
    elif x.target in (aten.transpose.int, aten.t.default):
        first, second = (d % rank for d in (*x.args[1:], 0, 1)[:2])  # pyright: ignore[reportOperatorIssue]
        order[first], order[second] = second, first
    return x.args[0] if order == [*range(rank - 2), rank - 1, rank - 2] else None  # pyright: ignore[reportReturnType]


def _is_shorter(rows: Node, weights: torch.Tensor) -> bool:
    """Whether rows that are weighed are no longer than those of the weights, as far as is known."""
    columns, terms = value_of(rows).shape[-1], weights.shape[-1]
    return isinstance(columns, int) and (not isinstance(terms, int) or columns <= terms)
