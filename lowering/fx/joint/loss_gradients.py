"""Gradients of a loss of wide rows, computed in forward, where these rows are.

    forward: l = f(x w)           backward: g = t f'(x w); dx = g w^T; dw = x^T g
    forward: l = f(x w); g = f'(x w); dx' = g w^T; dw' = x^T g            backward: dx = t dx'; dw = t dw'

The gradient of a loss is one number, t, and every gradient is a multiple of it. So nothing of the size of the rows has to be kept: what
is kept are gradients, which are smaller than the logits of a vocabulary where a row has fewer terms than there are rows. The products
are those that backward would have, so nothing is computed twice, and one graph goes through the rows block by block (`nd-row-blocks`).
Liger's kernels do so for one loss. Here it is any loss whose gradient is seen to be such a multiple.

Gradients of f16 stay: t is what keeps them from becoming 0 there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ....dialects.machine import USUAL_GPU
from ....passes.cost.machine.cpu import SERVER
from ....passes.cost.machine.gpu import machine
from ....passes.nd.row_blocks.nd_row_blocks import NdRowBlocks
from ...fx_to_nd.calls.layout_choices import size_hints
from ..fx_graphs import VIEWS, Writer, same_sizes, value_of

aten, prims = torch.ops.aten, torch.ops.prims

_PRODUCTS = (aten.mm.default, aten.addmm.default)
_OF_FIRST = VIEWS | {
    aten.neg.default, aten.clone.default, aten._to_copy.default, prims.convert_element_type.default, aten.sum.dim_IntList, aten.sum.default,
    aten.mean.dim, aten.mean.default, aten.squeeze.default, aten.t.default, aten.div.Tensor, aten.div.Scalar, aten.slice_backward.default,
    aten.select_backward.default, aten.threshold_backward.default, aten.tanh_backward.default, aten.sigmoid_backward.default,
    aten.gelu_backward.default, aten.silu_backward.default, aten.native_dropout_backward.default, aten.nll_loss_backward.default,
    aten.nll_loss2d_backward.default, aten._log_softmax_backward_data.default, aten._softmax_backward_data.default,
}  # fmt: skip
"""Operators whose result is a multiple of t where their first argument is, and no other argument is."""
_OF_ONE = frozenset((aten.mul.Tensor, aten.mul.Scalar, aten.mm.default, aten.bmm.default))
"""... where exactly one argument is."""
_OF_ALL = frozenset((aten.add.Tensor, aten.sub.Tensor))
"""... where all are."""
_SCATTERED = frozenset((aten.scatter.src, aten.scatter_add.default))
"""... where the first and the last one are."""
_NOTHING = frozenset((aten.zeros_like.default, aten.new_zeros.default))
"""Operators that give 0, of the sizes or the type of an argument."""


def gradients_in_forward(gm: GraphModule) -> int:
    """Compute the gradients of losses of wide rows without the gradient of the loss, which they are multiplied by; gives of how many
    products' rows."""
    tangents = [n for n in gm.graph.find_nodes(op="placeholder") if "tangents" in str(n.target)]
    scalars = [n for n in tangents if isinstance(t := n.meta.get("val"), torch.Tensor) and t.dim() == 0 and t.dtype.is_floating_point]
    products = [n for target in _PRODUCTS for n in gm.graph.find_nodes(op="call_function", target=target)] if scalars else []
    backward = _depending(gm.graph, tangents) if products else set[Node]()
    moved = 0
    for product in [n for n in products if n not in backward and is_large(n)]:
        backward = _depending(gm.graph, tangents)
        if any(_move_gradients(gm.graph, product, tangent, backward) for tangent in scalars):
            gm.graph.eliminate_dead_code()
            moved += 1
    return moved


def is_large(product: Node) -> bool:
    """Whether the rows of a product of two matrices are worth it: as `nd-row-blocks` asks, for rows that have a gradient."""
    sizes = [size_hints(value_of(n)) for n in (product, *product.args[-2:])]  # pyright: ignore[reportArgumentType]
    if any(s is None or len(s) != 2 for s in sizes):
        return False
    elements, rows, weight = (s[0] * s[1] for s in sizes if s is not None)
    t = value_of(product)
    cache = SERVER.levels[-2].bytes if t.device.type == "cpu" else machine(USUAL_GPU).cache_bytes
    kept = 2 * (rows + weight)  # gradients, and in backward their multiples
    return elements > kept and elements >= NdRowBlocks.wide * 2 * rows and elements * t.element_size() > cache


def _depending(graph: Graph, start: list[Node]) -> set[Node]:
    found = set(start)
    for node in graph.nodes:
        if not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


# ---- multiples of a number


def _multiples(graph: Graph, tangent: Node, backward: set[Node]) -> dict[Node, None]:
    """The values that are multiples of the gradient of a loss, in order. Other values of `backward` are in none of them."""
    found: dict[Node, None] = {tangent: None}
    for node in graph.nodes:
        if node in backward and node not in found and node.op == "call_function" and _is_multiple(node, found, backward):
            found[node] = None
    return found


def _is_multiple(node: Node, known: dict[Node, None], backward: set[Node]) -> bool:
    needed = [n for n in node.all_input_nodes if n in backward]
    value = node.meta.get("val")
    if not all(n in known for n in needed) or not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
        return False
    if node.target in _OF_FIRST:
        return needed == [node.args[0]] and node.args[0] not in node.args[1:]
    if node.target in _OF_ONE:
        return sum(a in known for a in node.args if isinstance(a, Node)) == 1
    if node.target in _OF_ALL:
        return all(a in known for a in node.args[:2])
    if node.target in _NOTHING:
        return True
    if node.target in _SCATTERED:
        base, _, index, added = node.args
        return index not in backward and all(a in known or _is_zero(a) for a in (base, added))
    if node.target is aten.masked_fill.Scalar:
        return node.args[1] not in backward and _is_zero(node.args[2])
    if node.target is aten.where.self:
        return node.args[0] not in backward and all(a in known or _is_zero(a) for a in node.args[1:])
    return False


def _is_zero(x: Any) -> bool:
    if not isinstance(x, Node):
        return x == 0
    at = {aten.full.default: 1, aten.scalar_tensor.default: 0}.get(x.target)  # pyright: ignore[reportArgumentType, reportCallIssue]
    return x.target in (aten.zeros.default, *_NOTHING) or bool(at is not None and x.args[at] == 0)


# ---- what is moved


def _move_gradients(graph: Graph, product: Node, tangent: Node, backward: set[Node]) -> bool:
    """Compute what is a multiple of one gradient and follows from a product without that; whether there was something to move."""
    multiples = _multiples(graph, tangent, backward)
    ends = _ends(graph, product, multiples, backward)
    needed = _needed(ends, multiples)
    if not ends or any(value_of(n).dtype == torch.float16 for n in needed):
        return False
    new = {tangent: _one(tangent, needed[0])}
    for node in needed:
        with graph.inserting_before(node):
            new[node] = graph.node_copy(node, lambda n: new.get(n, n))
    scaled: dict[Node, Node] = {}
    for node in ends:
        with graph.inserting_after(node):
            scaled[node] = Writer(node)(aten.mul.Tensor, new[node], tangent)
    if not all(_is_alike(value_of(made), value_of(node)) for node, made in scaled.items()):
        return False  # what was added is dead code
    for node, made in scaled.items():
        node.replace_all_uses_with(made)
    return True


def _ends(graph: Graph, product: Node, multiples: dict[Node, None], backward: set[Node]) -> list[Node]:
    """What is computed of the multiples of a product's size that follow from it; nothing where something else reads such values."""
    after = _depending(graph, [product])
    elements = value_of(product).numel()
    wide = {n for n in backward if isinstance(t := n.meta.get("val"), torch.Tensor) and statically_known_true(t.numel() == elements)}
    if wide.isdisjoint(after) or not (wide & after) <= multiples.keys():
        return []
    ends = dict.fromkeys(u for n in multiples if n in wide for u in n.users if u not in wide)
    return list(ends) if ends.keys() <= multiples.keys() else []


def _needed(ends: list[Node], multiples: dict[Node, None]) -> list[Node]:
    """The multiples that some are computed by, and these, in order; without the gradient itself."""
    found = set(ends)
    for node in reversed(multiples):
        if node in found:
            found.update(n for n in node.all_input_nodes if n in multiples)
    return [n for n in multiples if n in found and n.op != "placeholder"]


def _one(tangent: Node, before: Node) -> Node:
    """A gradient of 1."""
    t = value_of(tangent)
    with tangent.graph.inserting_before(before):
        return Writer(before)(aten.full.default, [], 1.0, dtype=t.dtype, device=t.device, pin_memory=False)


def _is_alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and same_sizes(a.stride(), b.stride())
