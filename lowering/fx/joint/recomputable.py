"""Values that backward may compute again instead of reading them from memory: what normalisations and softmaxes give, and some activations.

The minimum cut that splits a joint graph (torch's) knows operators that it may repeat. A normalisation is none: its statistics are worth
keeping, and its values, which are one subtraction and one product away from its input, come out of the same operator. Here such values
are written as those arithmetics on the input and the saved statistics, which backward reads anyway; so a chain of convolution,
normalisation and activation keeps two tensors of its size instead of three, and forward stores one less. What backward needs as a whole
in memory (the input of a product or of a convolution) stays as it is: there nothing would be gained. Views that the cut does not know
are written as those that it does.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from ..fx_graphs import VIEWS, Writer, readers, same_sizes, value_of
from .max_pool_offsets import keep_offsets
from .recomputable_activations import ACTIVATIONS, BY_SIDE, Formula
from .recomputable_scores import is_product, recompute_scores
from .recomputable_softmax import forget_shapes, spell_out_softmaxes
from .repeated_scores import Kernels, kernels_for

aten = torch.ops.aten


def spell_out_recomputable(gm: GraphModule, left: Collection[str] = (), kernels: Kernels = kernels_for) -> int:
    """Rewrite a joint graph in place, before it is split (which takes out what nobody reads any more); gives how many operators' values
    backward may compute again since then. `left`: names of operators ("aten.elu_backward") that stay as they are. `kernels`: which scores
    of attention are computed again."""
    _spell_out_views(gm)
    _spell_out_frozen_gradients(gm, left)
    keep_offsets(gm, left)
    forget_shapes(gm.graph, left)
    backward = _backward(gm)
    spelt = spell_out_softmaxes(gm.graph, backward, left, lambda node, softmax: _pointwise(node) or is_product(node, softmax, kernels))
    for node in list(gm.graph.nodes):
        formula = _FORMULAS.get(node.target)
        value = None if formula is None else _first(node) if isinstance(node.meta.get("val"), (tuple, list)) else node
        if formula is None or value is None or str(node.target.overloadpacket) in left or not _gains(node, value, backward):
            continue
        with gm.graph.inserting_before(_behind(node)):
            made = formula(Writer(node), *node.args, **node.kwargs)
        if made is not None and _same(made, value):
            value.replace_all_uses_with(made)
            spelt += 1
    spelt += recompute_scores(gm, backward, _pointwise, kernels)
    _save_shared(gm, backward)
    return spelt


def _save_shared(gm: GraphModule, backward: set[Node]) -> None:
    """Have what backward reads saved where it is of f16 or bf16 and many places share its elements, such as gates of channels. It is
    small, and its rounding does not average out over these places: what is saved is rounded where forward reads it, too
    (`nd-to-loop`), so that both, and eager, see the same numbers."""
    for node in gm.graph.nodes:
        if node in backward or "recompute" in node.meta or not _pointwise(node) or not any(u in backward for u in readers(node)):
            continue
        value = value_of(node)
        if isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16) and _is_shared(node):
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _is_shared(value: Node) -> bool:
    """Whether an operator on elements reads a value, or a view of it, of other sizes than its result has."""
    sizes = value_of(value).shape
    for user in value.users:
        given = user.meta.get("val")
        repeats = user.target is aten.expand.default and not same_sizes(value_of(user).shape, sizes)
        if repeats or (user.target in VIEWS and _is_shared(user)):
            return True
        if _pointwise(user) and isinstance(given, torch.Tensor) and not same_sizes(given.shape, sizes):
            return True
    return False


def _spell_out_views(gm: GraphModule) -> None:
    """Read what a view without a change is of, where that is no result; transposes are permutations."""
    for node in list(gm.graph.nodes):
        if node.target in (aten.detach.default, aten.alias.default):
            node.replace_all_uses_with(node.args[0], delete_user_cb=lambda user: user.op != "output")
        elif node.target in (aten.transpose.int, aten.t.default) and value_of(node).dim() > 1:
            x, *swapped = (*node.args, 0, 1)[:3]
            order = list(range(value_of(node).dim()))
            first, second = (order[k] for k in swapped)
            order[first], order[second] = second, first
            with gm.graph.inserting_before(node):
                made = gm.graph.call_function(aten.permute.default, (x, order))
            made.meta.update(node.meta)
            node.replace_all_uses_with(made)


def _spell_out_frozen_gradients(gm: GraphModule, left: Collection[str]) -> None:
    """Gradients of batch norms by running statistics, without one of the weight, are a product, for which the input is not needed."""
    for node in list(gm.graph.nodes):
        if node.target is not aten.native_batch_norm_backward.default or "aten.native_batch_norm_backward" in left:
            continue
        grad, _, weight, _, var, _, _, train, eps, wanted = node.args
        found = {u.args[1]: u for u in node.users}
        if train or wanted[1] or not found.keys() <= {0, 2}:
            continue
        with gm.graph.inserting_before(node):
            w = Writer(node)
            wide = w.wide(grad)
            made = [_normalised_by(w, wide, var, eps, weight), w(aten.sum.dim_IntList, wide, [0, *range(2, value_of(wide).dim())])]
            made = {k: w.like(made[k // 2], u) for k, u in found.items()}
        if all(_same(made[k], u) for k, u in found.items()):
            for k, u in found.items():
                u.replace_all_uses_with(made[k])
                gm.graph.erase_node(u)
            gm.graph.erase_node(node)


def _gains(node: Node, value: Node, backward: set[Node]) -> bool:
    """Whether something can be computed again because of how a value is written."""
    if value is not node:
        return node not in backward and _read_by_element(value, backward)
    if node.target in BY_SIDE and node in backward:
        return any(n not in backward and not _in_memory(n, backward) for n in node.all_input_nodes)
    # an activation that the partitioner does not know keeps what it reads in memory, too
    return any(n not in backward and _pointwise(n) for n in node.all_input_nodes) or _read_by_element(node, backward)


def _backward(gm: GraphModule) -> set[Node]:
    """Nodes that need a gradient of an output."""
    found: set[Node] = set()
    for node in gm.graph.nodes:
        tangent = node.op == "placeholder" and "tangents" in str(node.target)
        if tangent or not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def _first(node: Node) -> Node | None:
    """The node of the first of an operator's results."""
    return next((u for u in node.users if u.target is operator.getitem and u.args[1] == 0), None)


def _behind(node: Node) -> Node:
    """Where an operator and the nodes of its results are over."""
    at = node.next
    while at.target is operator.getitem and at.args[0] is node:
        at = at.next
    return at


def _pointwise(node: Node) -> bool:
    target = node.target
    return target in ACTIVATIONS or (isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags)


def _read_by_element(value: Node, backward: set[Node]) -> bool:
    """Whether backward reads a value, or something computed from it element by element, only element by element: computed again it is
    part of the reader then."""
    waiting, seen = [value], {value}
    while waiting:
        found = list(readers(waiting.pop()))
        ours = [u for u in found if u in backward]
        if ours and all(_pointwise(u) for u in ours):
            return True
        further = [u for u in found if u not in backward and u not in seen and _pointwise(u)]
        waiting += further
        seen.update(further)
    return False


def _in_memory(value: Node, backward: set[Node]) -> bool:
    """Whether backward finds a value in memory whatever is saved: what is passed in, and what it reads as a whole."""
    return value.op == "placeholder" or any(u in backward and not _pointwise(u) for u in readers(value))


def _same(made: Node, value: Node) -> bool:
    """Whether a node gives the type, sizes and strides of another one."""
    a, b = made.meta["val"], value.meta["val"]
    return a.dtype == b.dtype and same_sizes((*a.shape, *a.stride()), (*b.shape, *b.stride()))


def _results(w: Writer) -> tuple[Node, Node]:
    """The nodes of an operator's second and third result."""
    found = {u.args[1]: u for u in w.node.users if u.target is operator.getitem}
    return tuple(found.get(k) or w(operator.getitem, w.node, k) for k in (1, 2))  # pyright: ignore[reportReturnType]


def _statistics(w: Writer, wide: Node, dims: list[int], eps: Any) -> tuple[Node, Node]:
    """Mean and inverse deviation that values are normalised by: what the operator gives, or computed apart where it rounds them."""
    given = _results(w)
    if value_of(given[0]).dtype == value_of(wide).dtype:
        return given
    both = w(aten.var_mean.correction, wide, dims, correction=0, keepdim=True)
    var, mean = (w(operator.getitem, both, k) for k in (0, 1))
    return mean, w(aten.rsqrt.default, w(aten.add.Tensor, var, eps))


def _affine(w: Writer, x: Node, steps: list[tuple[Any, Any]], sizes: list[Any] | None) -> Node:
    """`x` through (operator, operand) one after the other, operands in these sizes and in the type of x."""
    for target, operand in steps:
        if operand is not None:
            shaped = operand if sizes is None else w(aten.view.default, operand, sizes)
            x = w(target, x, w.like(shaped, x))
    return x


def _batch_norm(w: Writer, x: Node, weight: Any, bias: Any, *rest: Any) -> Node | None:
    if w.node.target is aten._native_batch_norm_legit_functional.default and rest[2] is not True:
        return None
    mean, rstd = _results(w)
    steps = [(aten.sub.Tensor, mean), (aten.mul.Tensor, rstd), (aten.mul.Tensor, weight), (aten.add.Tensor, bias)]
    y = _affine(w, w.wide(x), steps, [-1, *[1] * (value_of(x).dim() - 2)])
    return w.like(y, x)


def _normalised_by(w: Writer, x: Node, var: Node, eps: float, weight: Any, bias: Any = None) -> Node:
    """`x`, of f32 or f64, by the deviation of running statistics, times weight, plus bias."""
    rstd = w(aten.rsqrt.default, w(aten.add.Tensor, w.like(var, x), eps))
    steps = [(aten.mul.Tensor, rstd), (aten.mul.Tensor, weight), (aten.add.Tensor, bias)]
    return _affine(w, x, steps, [-1, *[1] * (value_of(x).dim() - 2)])


def _batch_norm_inference(w: Writer, x: Node, weight: Any, bias: Any, mean: Node, var: Node, _momentum: Any, eps: float) -> Node:
    centred = _affine(w, w.wide(x), [(aten.sub.Tensor, mean)], [-1, *[1] * (value_of(x).dim() - 2)])
    return w.like(_normalised_by(w, centred, var, eps, weight, bias), x)


def _layer_norm(w: Writer, x: Node, shape: list[Any], weight: Any, bias: Any, eps: float) -> Node:
    wide = w.wide(x)
    rank = value_of(wide).dim()
    mean, rstd = _statistics(w, wide, list(range(rank - len(shape), rank)), eps)
    steps = [(aten.sub.Tensor, mean), (aten.mul.Tensor, rstd), (aten.mul.Tensor, weight), (aten.add.Tensor, bias)]
    return w.like(_affine(w, wide, steps, None), x)


def _group_norm(w: Writer, x: Node, weight: Any, bias: Any, *sizes_groups_eps: Any) -> Node | None:
    *_, groups, eps = sizes_groups_eps
    channels = value_of(x).shape[1]
    if not isinstance(channels, int) or not isinstance(groups, int):
        return None
    n, _, *places = sizes = w.sizes(x)
    ones = [1] * len(places)
    y = w(aten.view.default, w.wide(x), [n, groups, channels // groups, *places])
    mean, rstd = _statistics(w, y, list(range(2, 3 + len(places))), eps)
    y = _affine(w, y, [(aten.sub.Tensor, mean), (aten.mul.Tensor, rstd)], [n, groups, 1, *ones])
    y = _affine(w, y, [(aten.mul.Tensor, weight), (aten.add.Tensor, bias)], [groups, channels // groups, *ones])
    return w.like(w(aten.view.default, y, sizes), x)


_FORMULAS: dict[Any, Formula] = {
    aten._native_batch_norm_legit_functional.default: _batch_norm,
    aten._native_batch_norm_legit.no_stats: _batch_norm,
    aten._native_batch_norm_legit_no_training.default: _batch_norm_inference,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_group_norm.default: _group_norm,
    **ACTIVATIONS,
}
"""What an operator's (first) result is, by operators that torch's partitioner may repeat; None where that is another number."""
