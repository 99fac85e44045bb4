"""Values that backward may compute again instead of reading them from memory: what normalisations give, and some activations.

The minimum cut that splits a joint graph (torch's) knows operators that it may repeat. A normalisation is none: its statistics are worth
keeping, and its values, which are one subtraction and one product away from its input, come out of the same operator. Here such values
are written as those arithmetics on the input and the saved statistics, which backward reads anyway; so a chain of convolution,
normalisation and activation keeps two tensors of its size instead of three, and forward stores one less. What backward needs as a whole
in memory (the input of a product or of a convolution) stays as it is: there nothing would be gained.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.node import map_arg

aten, prims = torch.ops.aten, torch.ops.prims

_VIEWS = frozenset((
    aten.detach.default, aten.alias.default, aten.view.default, aten._unsafe_view.default, aten.permute.default, aten.transpose.int,
    aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.slice.Tensor, aten.select.int, aten.expand.default,
))  # fmt: skip


def spell_out_recomputable(gm: GraphModule) -> int:
    """Rewrite a joint graph in place, before it is split (which takes out what nobody reads any more); gives how many operators' values
    backward may compute again since then."""
    backward = _backward(gm)
    spelt = 0
    for node in list(gm.graph.nodes):
        formula = _FORMULAS.get(node.target)
        value = None if formula is None else _first(node) if isinstance(node.meta.get("val"), (tuple, list)) else node
        if formula is None or value is None or not _gains(node, value, backward):
            continue
        with gm.graph.inserting_before(_behind(node)):
            made = formula(_Writer(node))
        if made is not None and _same(made, value):
            value.replace_all_uses_with(made)
            spelt += 1
    return spelt


def _gains(node: Node, value: Node, backward: set[Node]) -> bool:
    """Whether something can be computed again because of how a value is written."""
    if value is not node:
        return node not in backward and _read_by_element(value, backward)
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
    return target in _ACTIVATIONS or (isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags)


def _read_by_element(value: Node, backward: set[Node]) -> bool:
    """Whether backward reads a value, or something computed from it element by element, only element by element: computed again it is
    part of the reader then."""
    waiting, seen = [value], {value}
    while waiting:
        readers = list(_readers(waiting.pop()))
        ours = [u for u in readers if u in backward]
        if ours and all(_pointwise(u) for u in ours):
            return True
        further = [u for u in readers if u not in backward and u not in seen and _pointwise(u)]
        waiting += further
        seen.update(further)
    return False


def _readers(value: Node) -> Iterator[Node]:
    """Who reads a value or a view of it."""
    for user in value.users:
        if user.target in _VIEWS:
            yield from _readers(user)
        else:
            yield user


def _same(made: Node, value: Node) -> bool:
    """Whether a node gives the type, sizes and strides of another one."""
    a, b = made.meta["val"], value.meta["val"]
    pairs = zip((*a.shape, *a.stride()), (*b.shape, *b.stride()), strict=True)
    return a.dtype == b.dtype and a.dim() == b.dim() and all(statically_known_true(x == y) for x, y in pairs)


class _Writer:
    """Adds calls that stand for an operator, with its place in the user's program."""

    def __init__(self, node: Node):
        self.node = node
        self.graph = node.graph
        self.mode: Any = next(v.fake_mode for v in map(_value, node.all_input_nodes) if isinstance(v, FakeTensor))

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        made = self.graph.call_function(target, args, kwargs)
        made.meta.update({k: v for k, v in self.node.meta.items() if k not in ("val", "tensor_meta")})
        values = map_arg(args, _value)
        with self.mode, torch.no_grad():
            made.meta["val"] = target(*values, **kwargs)
        return made

    def wide(self, x: Node) -> Node:
        """In the type that the operator computes in: f32 for f16 and bf16."""
        dtype = _value(x).dtype
        return x if dtype in (torch.float32, torch.float64) else self(prims.convert_element_type.default, x, torch.float32)

    def like(self, y: Node, x: Node) -> Node:
        """Converted to the type of `x`."""
        dtype = _value(x).dtype
        return y if _value(y).dtype == dtype else self(prims.convert_element_type.default, y, dtype)

    def sizes(self, x: Node) -> list[Any]:
        """The sizes of a tensor, of symbols the nodes that give them."""
        every = enumerate(_value(x).shape)
        return [n if isinstance(n, int) else self(aten.sym_size.int, x, k) for k, n in every]

    def results(self) -> tuple[Node, Node]:
        """The nodes of the second and third result."""
        found = {u.args[1]: u for u in self.node.users if u.target is operator.getitem}
        return tuple(found.get(k) or self(operator.getitem, self.node, k) for k in (1, 2))  # pyright: ignore[reportReturnType]

    def statistics(self, wide: Node, dims: list[int], eps: Any) -> tuple[Node, Node]:
        """Mean and inverse deviation that values are normalised by: what the operator gives, or computed apart where it rounds them."""
        given = self.results()
        if _value(given[0]).dtype == _value(wide).dtype:
            return given
        both = self(aten.var_mean.correction, wide, dims, correction=0, keepdim=True)
        var, mean = (self(operator.getitem, both, k) for k in (0, 1))
        return mean, self(aten.rsqrt.default, self(aten.add.Tensor, var, eps))

    def affine(self, x: Node, steps: list[tuple[Any, Any]], sizes: list[Any] | None) -> Node:
        """`x` through (operator, operand) one after the other, operands in these sizes and in the type of x."""
        for target, operand in steps:
            if operand is not None:
                shaped = operand if sizes is None else self(aten.view.default, operand, sizes)
                x = self(target, x, self.like(shaped, x))
        return x


def _value(node: Node) -> Any:
    return node.meta["val"]


def _batch_norm(w: _Writer) -> Node | None:
    x, weight, bias = w.node.args[:3]
    if w.node.target is aten._native_batch_norm_legit_functional.default and w.node.args[5] is not True:
        return None
    mean, rstd = w.results()
    steps = [(aten.sub.Tensor, mean), (aten.mul.Tensor, rstd), (aten.mul.Tensor, weight), (aten.add.Tensor, bias)]
    y = w.affine(w.wide(x), steps, [-1, *[1] * (_value(x).dim() - 2)])  # pyright: ignore[reportArgumentType]
    return w.like(y, x)  # pyright: ignore[reportArgumentType]


def _layer_norm(w: _Writer) -> Node | None:
    x, shape, weight, bias, eps = w.node.args
    wide = w.wide(x)  # pyright: ignore[reportArgumentType]
    rank = _value(wide).dim()
    mean, rstd = w.statistics(wide, list(range(rank - len(shape), rank)), eps)  # pyright: ignore[reportArgumentType]
    steps = [(aten.sub.Tensor, mean), (aten.mul.Tensor, rstd), (aten.mul.Tensor, weight), (aten.add.Tensor, bias)]
    return w.like(w.affine(wide, steps, None), x)  # pyright: ignore[reportArgumentType]


def _group_norm(w: _Writer) -> Node | None:
    x, weight, bias, *_, groups, eps = w.node.args
    channels = _value(x).shape[1]  # pyright: ignore[reportArgumentType]
    if not isinstance(channels, int) or not isinstance(groups, int):
        return None
    n, _, *places = sizes = w.sizes(x)  # pyright: ignore[reportArgumentType]
    ones = [1] * len(places)
    y = w(aten.view.default, w.wide(x), [n, groups, channels // groups, *places])  # pyright: ignore[reportArgumentType]
    mean, rstd = w.statistics(y, list(range(2, 3 + len(places))), eps)
    y = w.affine(y, [(aten.sub.Tensor, mean), (aten.mul.Tensor, rstd)], [n, groups, 1, *ones])
    y = w.affine(y, [(aten.mul.Tensor, weight), (aten.add.Tensor, bias)], [groups, channels // groups, *ones])
    return w.like(w(aten.view.default, y, sizes), x)  # pyright: ignore[reportArgumentType]


def _hardswish(w: _Writer) -> Node | None:
    (x,) = w.node.args
    wide = w.wide(x)  # pyright: ignore[reportArgumentType]
    clamped = w(aten.clamp.default, w(aten.add.Tensor, wide, 3), 0, 6)
    return w.like(w(aten.div.Tensor, w(aten.mul.Tensor, wide, clamped), 6), x)  # pyright: ignore[reportArgumentType]


def _hardswish_backward(w: _Writer) -> Node | None:
    grad, x = w.node.args
    wide, x = w.wide(grad), w.wide(x)  # pyright: ignore[reportArgumentType]
    middle = w(aten.mul.Tensor, wide, w(aten.add.Tensor, w(aten.div.Tensor, x, 3), 0.5))
    inner = w(aten.where.self, w(aten.lt.Scalar, x, 3), middle, wide)
    return w.like(w(aten.where.ScalarSelf, w(aten.le.Scalar, x, -3), 0.0, inner), grad)  # pyright: ignore[reportArgumentType]


_ACTIVATIONS: dict[Any, Callable[[_Writer], Node | None]] = {
    aten.hardswish.default: _hardswish,
    aten.hardswish_backward.default: _hardswish_backward,
}
_FORMULAS: dict[Any, Callable[[_Writer], Node | None]] = {
    aten._native_batch_norm_legit_functional.default: _batch_norm,
    aten._native_batch_norm_legit.no_stats: _batch_norm,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_group_norm.default: _group_norm,
    **_ACTIVATIONS,
}
"""What an operator's (first) result is, by operators that torch's partitioner may repeat; None where that is another number."""
