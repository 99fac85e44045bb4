"""Gradients of attention's softmax by sums over rows of the result, which are shorter than those over rows of weights.

    p = softmax(s); o = p v; dp = do v^T;  ds = p * (dp - sum_j(dp * p))      ->      ds = p * (dp - sum_d(do * o))

Both sums are sum_jd do_d v_jd p_j. The second one reads no weights, so that all the rest of the gradient goes element by element: it can be
computed where products of it are, and nothing of the size of the weights is in memory. Dropout of the weights is part of both. What is
rounded in one of dp and the sum, and not in the other, does not cancel, as it does in the first form: so dp is not rounded.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ...equal_sizes import are_equal
from ..fx_graphs import VIEWS, Writer, same_sizes, value_of
from .repeated_scores import HALVES, Kernels, kernels_for
from .score_sums import balance_sums

aten, prims = torch.ops.aten, torch.ops.prims

_CASTS = (prims.convert_element_type.default, aten._to_copy.default)
_ROW_MAJOR = (
    aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.detach.default, aten.alias.default, aten.clone.default,
    aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims,
)  # fmt: skip
"""Operators that give the elements of their first argument, in their order; an expansion of nothing, at least."""
PRODUCTS = (aten.mm.default, aten.bmm.default)
"""Products of matrices."""


def shorten_row_sums(gm: GraphModule, kernels: Kernels = kernels_for) -> int:
    """Rewrite the gradients of softmaxes that weigh rows of a product, where these `kernels` compute them again; gives how many."""
    changed = 0
    for node in gm.graph.find_nodes(op="call_function", target=aten._softmax_backward_data.default):
        grad, y, dim, dtype = node.args
        while y.target in (aten.detach.default, aten.alias.default):
            y = y.args[0]
        t = value_of(y)
        if kernels(t) is None or t.dim() < 2 or dim not in (-1, t.dim() - 1):
            continue
        found = _rows(grad, y)
        if found is None or not _is_shorter(found[2], t):
            continue
        product, weights, rows, factors = found
        with gm.graph.inserting_before(node):
            w = Writer(node)
            known = _known(weights, rows)
            result = _rounded(w, known) if known else w(PRODUCTS[value_of(weights).dim() - 2], weights, rows)
            sums = w(aten.sum.dim_IntList, w(aten.mul.Tensor, w.wide(product.all_input_nodes[0]), w.wide(result)), [-1], True)
            sums = w(aten.view.default, sums, [*w.sizes(y)[:-1], 1])
            if all(_goes_with(factor, t) for factor in factors):
                grad = w(aten.view.default, w(product.target, *(_wide(w, x) for x in product.all_input_nodes)), w.sizes(y))
                for factor in factors:
                    grad = w(aten.mul.Tensor, grad, factor)
            made = exact = w(aten.mul.Tensor, w.wide(y), w(aten.sub.Tensor, w.wide(grad), sums))
            if value_of(made).dtype != dtype:
                made = w(prims.convert_element_type.default, made, dtype)
        if not same_sizes(value_of(made).stride(), value_of(node).stride()):
            continue  # what was added is dead code
        node.replace_all_uses_with(made)
        gm.graph.erase_node(node)
        if value_of(rows).dtype in HALVES:
            balance_sums(made, exact, y)
        changed += 1
    if changed:
        gm.graph.eliminate_dead_code()
    return changed


def _wide(w: Writer, x: Node) -> Node:
    """Matrices in f32: what they are views of is converted, which leaves the batches of a product to be seen."""
    return w(x.target, _wide(w, x.all_input_nodes[0]), *x.args[1:]) if x.target in VIEWS else w.wide(x)


def _goes_with(factor: Any, y: torch.Tensor) -> bool:
    """Whether the gradient of weights can be multiplied by a factor before it is rounded."""
    value = value_of(factor) if isinstance(factor, Node) else None
    return isinstance(value, torch.Tensor) and same_sizes(value.shape, y.shape) and value.dtype in (torch.float32, torch.float64)


def _rows(grad: Node, y: Node) -> tuple[Node, Node, Node, tuple[Any, ...]] | None:
    """The product that the gradient of weights `y` is, these as they weigh, the rows that they do, and the factors between."""
    for given, product in _behind(grad, y):
        rows = _transposed(product.args[1])
        if rows is None:
            continue
        for taken, weights in _weights(y, y):
            a, b = value_of(weights), value_of(product)
            if taken == given and same_sizes(a.shape, b.shape) and a.dtype == value_of(rows).dtype:
                return product, weights, rows, given
    return None


def _behind(grad: Any, y: Node, factors: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Node]]:
    """Products that a gradient may be, but for factors that it is multiplied by, the one that the weights meet first in front."""
    if not isinstance(grad, Node) or not _has_all(grad, y):
        return
    if grad.target in PRODUCTS:
        yield factors, grad
    elif keeps_order(grad):
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
        elif keeps_order(user) and _has_all(user, y):
            yield from _weights(user, y, factors)
        elif user.target is aten.mul.Tensor and x in user.args and _has_all(user, y):
            yield from _weights(user, y, (*factors, user.args[user.args[0] is x]))


def _rounded(w: Writer, product: Node) -> Node:
    """A product in the type that the program gives it at once, if that is another one."""
    node = product
    while len(node.users) == 1 and (user := next(iter(node.users))).target in (aten.view.default, aten._unsafe_view.default, *_CASTS):
        if user.target in _CASTS:
            return w(aten.view.default, user, w.sizes(product))
        node = user
    return product


def _known(weights: Node, rows: Node) -> Node | None:
    """The product of weights by rows that the graph has, of these or of other views of them, in batches as it has them."""
    wanted = value_of(weights).shape
    start = _whole(weights)
    worklist, seen = [start], {start}
    while worklist:
        one = worklist.pop()
        for user in one.users:
            if user.target in PRODUCTS and user.args[0] is one and _whole(user.args[1]) is _whole(rows):
                if same_sizes(value_of(one).shape, wanted):
                    return user
            elif user not in seen and user.target not in _CASTS and keeps_order(user) and _has_all(user, weights):
                seen.add(user)
                worklist.append(user)
    return None


def _whole(x: Any) -> Any:
    """What a tensor is a view of, in the same order."""
    while isinstance(x, Node) and x.target not in _CASTS and keeps_order(x) and _has_all(x, x.args[0]):  # pyright: ignore[reportArgumentType]
        x = x.args[0]
    return x


def keeps_order(node: Node) -> bool:
    """Whether an operator gives the elements of its first argument, in their order: where it has all of them."""
    if node.target in (*_ROW_MAJOR, *_CASTS):
        return True
    if node.target is not aten.permute.default:
        return False
    sizes, order = value_of(node.args[0]).shape, node.args[1]  # pyright: ignore[reportArgumentType]
    moved = [d % len(sizes) for d in order if not statically_known_true(sizes[d] == 1)]  # pyright: ignore[reportGeneralTypeIssues, reportOptionalIterable]
    return moved == sorted(moved)


def _has_all(x: Node, y: Node) -> bool:
    """Whether a tensor has as many elements as another one."""
    a, b = x.meta.get("val"), value_of(y)
    return isinstance(a, torch.Tensor) and are_equal(a.numel(), b.numel())


def _transposed(x: Any) -> Node | None:
    """The matrices that others are, transposed, whatever stands for views of them."""
    while isinstance(x, Node):
        if x.target in (aten.permute.default, aten.transpose.int, aten.t.default) and not keeps_order(x):
            return x.args[0] if _swaps(x) else None  # pyright: ignore[reportReturnType]
        if not keeps_order(x) or x.target in _CASTS or not same_sizes(value_of(x).shape[-2:], value_of(x.args[0]).shape[-2:]):  # pyright: ignore[reportArgumentType]
            return None
        x = x.args[0]
    return None


def _swaps(x: Node) -> bool:
    """Whether a permutation is that of the last two dimensions."""
    rank = value_of(x).dim()
    order = list(range(rank))
    if x.target is aten.permute.default:
        order = [d % rank for d in x.args[1]]  # pyright: ignore[reportGeneralTypeIssues, reportOptionalIterable, reportOperatorIssue]
    else:
        first, second = (d % rank for d in (*x.args[1:], 0, 1)[:2])  # pyright: ignore[reportOperatorIssue]
        order[first], order[second] = second, first
    return order == [*range(rank - 2), rank - 1, rank - 2]


def _is_shorter(rows: Node, weights: torch.Tensor) -> bool:
    """Whether rows that are weighed are no longer than those of the weights, as far as is known."""
    columns, terms = value_of(rows).shape[-1], weights.shape[-1]
    return isinstance(columns, int) and (not isinstance(terms, int) or columns <= terms)
