"""Softmax and log-softmax, with their gradients, as arithmetics that torch's partitioner may repeat.

What eager keeps for backward is a tensor of the size of the logits, in f32 where a loss converts these first: for a language model often
the largest tensor of all. Its elements are two operations away from the logits, which are in memory anyway, and a loss reads one of a row.
So a row's maximum and the sum of its exponentials are kept, and backward computes the rest again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ..fx_graphs import Writer, readers, same_sizes, value_of

aten, prims = torch.ops.aten, torch.ops.prims

LOSS_GRADIENTS = (aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
"""Of their second argument only the type and the sizes are read; the last one is a tensor of one number."""
_GRADIENT_OF = {
    aten._softmax.default: aten._softmax_backward_data.default,
    aten._safe_softmax.default: aten._softmax_backward_data.default,
    aten._log_softmax.default: aten._log_softmax_backward_data.default,
}


def forget_shapes(graph: Graph, left: Collection[str]) -> None:
    """Give gradients of losses a small tensor in place of one that they ask for nothing but its type and sizes, so that it is not kept."""
    for node in graph.nodes:
        if node.target not in LOSS_GRADIENTS or str(node.target.overloadpacket) in left:
            continue
        _, x, target, *_, total = node.args
        if value_of(x).dtype == value_of(total).dtype:
            with graph.inserting_before(node):
                w = Writer(node)
                sizes = w.sizes(target)
                classes = 0 if value_of(x).dim() == 1 else 1
                sizes.insert(classes, w.sizes(x)[classes])
                node.update_arg(1, w(aten.expand.default, total, sizes))


def spell_out_softmaxes(graph: Graph, backward: Collection[Node], left: Collection[str], repeats: Callable[[Node, Node], bool]) -> int:
    """Rewrite the softmaxes of a joint graph whose readers in backward are their own gradients, or such that a reader `repeats` a softmax;
    gives how many. Those that are results of the graph stay as they are: they are in memory."""
    spelt = 0
    for node in list(graph.nodes):
        gradient_of = _GRADIENT_OF.get(node.target)
        if gradient_of is None or node in backward or {str(f.overloadpacket) for f in (node.target, gradient_of)} & set(left):
            continue
        gradients = [u for u in node.users if u.target is gradient_of and u.args[1] is node]
        found = list(_readers(node))
        again_read = [u for u in found if u in backward]
        if not again_read or any(u.op == "output" for u in found) or not all(u in gradients or repeats(u, node) for u in again_read):
            continue
        sizes, dim = value_of(node).shape, node.args[1]
        if sizes and statically_known_true(sizes[dim] == 0):
            continue  # there is no largest of nothing
        with graph.inserting_before(node.next):
            y, again = _values(Writer(node), node.args[0], dim)
        if y is None or again is None:
            continue  # what was added is dead code, which the partitioner takes out
        made: list[Node | None] = []
        for gradient in gradients:
            with graph.inserting_before(gradient):
                made.append(_gradient(Writer(gradient), gradient.args[0], again, dim))
        if None in made:
            continue
        node.replace_all_uses_with(again, delete_user_cb=lambda user: user in backward)
        node.replace_all_uses_with(y)
        for gradient, one in zip(gradients, made, strict=True):
            gradient.replace_all_uses_with(one)
            graph.erase_node(gradient)
        spelt += 1
    return spelt


def _readers(value: Node) -> Iterator[Node]:
    """Who reads a value, or it in another type."""
    for user in readers(value):
        yield user
        if user.target is prims.convert_element_type.default:
            yield from _readers(user)


def _values(w: Writer, x: Node, dim: int) -> tuple[Node | None, Node | None]:
    """The values, for forward and for backward. Were logarithms one node, the operators that read it in forward and that the partitioner
    does not know (losses) would make it as cheap to keep as the logits; a factor that is 1 anyway keeps them two."""
    wide = w.wide(x)
    top = w(aten.amax.default, wide, [dim], True)
    shifted = w(aten.sub.Tensor, wide, top)
    power = w(aten.exp.default, shifted)
    total = w(aten.sum.dim_IntList, power, [dim], True)
    if w.node.target is not aten._log_softmax.default:
        y = w(aten.mul.Tensor, power, w(aten.reciprocal.default, total))
        if w.node.target is aten._safe_softmax.default:  # a row without a finite number is 0
            y = w(aten.masked_fill.Scalar, y, w(aten.eq.Scalar, top, -math.inf), 0.0)
        y = _alike(w, y)
        return y, y
    log = w(aten.log.default, total)
    return _alike(w, w(aten.sub.Tensor, shifted, log)), _alike(w, w(aten.sub.Tensor, shifted, log, alpha=1))


def _gradient(w: Writer, grad: Any, y: Node, dim: int) -> Node | None:
    grad, y = w.wide(grad), w.wide(y)
    if w.node.target is aten._softmax_backward_data.default:
        grad, share = w(aten.mul.Tensor, grad, y), y
    else:
        share = w(aten.exp.default, y)
    product = w(aten.mul.Tensor, share, w(aten.sum.dim_IntList, grad, [dim], True))
    return _alike(w, w(aten.sub.Tensor, grad, product))


def _alike(w: Writer, y: Node) -> Node | None:
    """A tensor in the type and the order of memory of what the operator gives; None where that has gaps, or an order of its own."""
    wanted = value_of(w.node)
    if value_of(y).dtype != wanted.dtype:
        y = w(prims.convert_element_type.default, y, wanted.dtype)
    if same_sizes(value_of(y).stride(), wanted.stride()):
        return y
    return w(aten.clone.default, y, memory_format=torch.contiguous_format) if wanted.is_contiguous() else None
