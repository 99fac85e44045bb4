"""Which convolutions of a training graph run channels-last, decided on the joint graph of forward and backward before it is split.

What forward saves lies in memory as backward reads it, so that neither of the two can choose alone what `loop-layout` chooses for a graph
by itself. The choice here is the same kind: each convolution, each gradient of one and each operator that works in either order is on
one of two sides, disagreements cost copies, and the least sum is a minimum cut. Then the graph is written as if its user had asked for
`memory_format=torch.channels_last` there: operators give what they are given, clones stand where the sides meet, and whoever looks at
strides (views, library calls, what the caller sees) gets those of before.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.node import map_arg

from ....passes.loop.loop_layout import Cut, Prices, layout_prices
from ...fx_to_nd.calls.layout_choices import cudnn_cost, cudnn_gradient_cost, onednn_cost, onednn_gradient_cost, size_hints
from ..fx_graphs import VIEWS_IN_ANY_ORDER

aten = torch.ops.aten

@dataclass(frozen=True)
class Library:
    """Who computes convolutions on a kind of device. prices: the target whose prices count for nests and copies. forward, gradients: what
    channels-last costs. orders_weights: it takes a weight in any order."""

    prices: str
    forward: Callable[..., float | None]
    gradients: Callable[..., float | None]
    orders_weights: bool


_LIBRARIES = {
    "cuda": Library("gpu", cudnn_cost, cudnn_gradient_cost, False),
    "cpu": Library("cpu", onednn_cost, onednn_gradient_cost, True),
}
"""By kind of device."""

_ROWS, _LAST = "rows", "channels-last"
_FORMATS = {_ROWS: torch.contiguous_format, _LAST: torch.channels_last}
_CONVOLUTIONS = {
    op: tuple(k for k, argument in enumerate(op._schema.arguments) if argument.name in ("grad_output", "input"))
    for op in (aten.convolution.default, aten.convolution_backward.default)
}
"""Operator -> the arguments that are images; its weight comes behind them."""

_FOLLOWING = frozenset((
    aten._native_batch_norm_legit_functional.default, aten.native_batch_norm.default, aten.native_batch_norm_backward.default,
    aten._batch_norm_with_update_functional.default, aten.batch_norm_backward.default, aten.max_pool2d_with_indices.default,
    aten.max_pool2d_with_indices_backward.default, aten.avg_pool2d.default, aten.avg_pool2d_backward.default,
    aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool2d_backward.default, aten.constant_pad_nd.default, aten.cat.default,
    aten.upsample_nearest2d.vec, aten.upsample_nearest2d.default, aten.upsample_nearest2d_backward.default,
    aten.upsample_bilinear2d.vec, aten.upsample_bilinear2d.default, aten.upsample_bilinear2d_backward.default,
    aten.hardswish.default, aten.hardswish_backward.default, aten.hardsigmoid_backward.default, aten.hardtanh_backward.default,
    aten.leaky_relu_backward.default, aten.elu_backward.default, aten.softplus_backward.default, aten.mish_backward.default,
    aten.hardshrink_backward.default, aten.softshrink_backward.default, aten.log_sigmoid_backward.default,
    aten._prelu_kernel.default, aten._prelu_kernel_backward.default,
))  # fmt: skip
"""Beside operators that torch calls pointwise: those that compute in the order of their input, and give it to their result."""

_READING = frozenset((
    aten.sum.dim_IntList, aten.sum.default, aten.mean.dim, aten.mean.default, aten.var_mean.correction, aten.var.correction,
    aten.amax.default, aten.amin.default, aten.native_layer_norm.default, aten.native_layer_norm_backward.default,
    aten.copy_.default, *VIEWS_IN_ANY_ORDER,
))  # fmt: skip
"""Operators that read either order as well, and whose result is whatever comes out."""

_NAMES = frozenset((operator.getitem, aten.detach.default, aten.alias.default))
"""What only gives a tensor another name."""

_PLANES = frozenset((aten.native_group_norm.default, aten.native_group_norm_backward.default))
"""Operators for which pixels next to each other are worth more than convolutions save (docs/lab/constants.md)."""


def choose_training_layouts(gm: GraphModule) -> int:
    """Rewrite a joint graph in place; gives how many convolutions and gradients of convolutions run channels-last that did not before.
    A graph whose convolutions are on several kinds of devices stays as it is."""
    costs = {n: cost for n in gm.graph.nodes if n.target in _CONVOLUTIONS and (cost := _cost(n)) is not None}
    if not any(cost < 0 for cost in costs.values()) or any(n.target in _PLANES for n in gm.graph.nodes):
        return 0
    libraries = {_library(n) for n in costs}
    if len(libraries) > 1:
        return 0
    last = _Problem(gm, costs, layout_prices(libraries.pop().prices)).channels_last()
    chosen = len(last & costs.keys())
    if chosen:
        graph, copies = _copied(gm.graph)
        _Rewrite(graph, {copies[n] for n in last}).run()
        gm.graph = graph
    return chosen


def _copied(graph: Graph) -> tuple[Graph, dict[Node, Node]]:
    """A graph with the same nodes, by those of the first."""
    copy, copies = Graph(), dict[Node, Node]()
    for node in graph.nodes:
        copies[node] = copy.node_copy(node, copies.__getitem__)
    copy.set_codegen(graph._codegen)
    return copy, copies


def _cost(node: Node) -> float | None:
    """Nanoseconds that a convolution takes more channels-last; None where it has no choice, or lies so already. A gradient has one where
    either of its images lies by rows."""
    backward = node.target is aten.convolution_backward.default
    images = node.args[1:3] if backward else node.args[:2]
    tensors = [_tensor(n) for n in (*images, node.args[0] if backward else node)]
    if any(t is None or t.dim() != 4 or t.device.type not in _LIBRARIES for t in tensors):
        return None
    x, weight, out = tensors
    sizes = [size_hints(t) for t in (x, weight, out)]  # pyright: ignore[reportArgumentType]
    if any(s is None or 0 in s for s in sizes) or _ROWS not in (_side(x), _side(out)) or not (backward or _side(out) == _ROWS):
        return None
    transposed = bool(node.args[7 if backward else 6])
    groups = sizes[2 if transposed else 0][1] // sizes[1][1]  # pyright: ignore[reportOptionalSubscript]  (the argument may be a symbol)
    library = _library(node)
    if backward:
        return library.gradients(sizes, x, transposed, groups, node.args[10])
    return library.forward(sizes, x, transposed, groups)


def _library(node: Node) -> Library:
    """What computes a convolution."""
    image = _tensor(node.args[0])
    assert image is not None
    return _LIBRARIES[image.device.type]


def _tensor(node: Any) -> torch.Tensor | None:
    """The dense tensor that a node gives."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, torch.Tensor) and value.layout == torch.strided else None


def _lies_as(t: torch.Tensor, strides: Sequence[Any]) -> bool:
    """Whether a tensor has these strides, where they matter."""
    pairs = zip(t.shape, t.stride(), strides, strict=True)
    return all(statically_known_true(n == 1) or statically_known_true(a == b) for n, a, b in pairs)


def _strides(t: torch.Tensor, side: str) -> tuple[Any, ...]:
    n, c, h, w = t.shape
    return (c * h * w, h * w, w, 1) if side == _ROWS else (h * w * c, 1, w * c, c)


def _side(t: torch.Tensor | None) -> str | None:
    """How a 4-d tensor lies, if in one of the two orders and not in both."""
    if t is None or t.dim() != 4:
        return None
    sides = [side for side in (_ROWS, _LAST) if _lies_as(t, _strides(t, side))]
    return sides[0] if len(sides) == 1 else None


def _follows(node: Node) -> bool:
    """Whether an operator gives its result the order of its input."""
    target = node.target
    if target in _FOLLOWING:
        return True
    if target is aten.clone.default or target is aten._to_copy.default:
        return node.kwargs.get("memory_format") in (None, torch.preserve_format)
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags and target not in _READING


def _source(node: Node) -> Node:
    """The operator of whose results this is one, or another name."""
    while node.target in _NAMES:
        node = node.args[0]  # pyright: ignore[reportAssignmentType]
    return node


class _Problem:
    """Who pays how much for being on another side than whom."""

    def __init__(self, gm: GraphModule, costs: dict[Node, float], prices: Prices):
        self.prices = prices
        self.costs = costs
        self.cut = Cut()
        for node in gm.graph.nodes:
            if node in costs:
                self.cut.edge(node, _ROWS if costs[node] > 0 else _LAST, abs(costs[node]))
                for k in _CONVOLUTIONS[node.target]:
                    self._pay(node.args[k], node, self.prices.copy_ns_per_byte, self.prices.launch_ns)
            elif _follows(node):
                for n in node.all_input_nodes:
                    self._pay(n, node, self.prices.across_ns_per_byte)
            elif node.target is not operator.getitem and node.target not in _READING:
                for n in node.all_input_nodes:
                    self._pay(n, self._owner(n, fixed=True), self.prices.copy_ns_per_byte, self.prices.launch_ns)

    def channels_last(self) -> set[Node]:
        """The operators that run channels-last in the cheapest assignment."""
        rows = self.cut.side_of(_ROWS)
        return {n for n in self.cut.room if isinstance(n, Node) and n not in rows}

    def _owner(self, node: Node, fixed: bool = False) -> object:
        """Who decides how the result of a node lies: an operator with a choice, or a side; `fixed`: how it lies before a choice."""
        source, side = _source(node), _side(_tensor(node))
        if side == _ROWS and not fixed and (source in self.costs or _follows(source)):
            return source
        return side

    def _pay(self, read: Any, reader: object, ns_a_byte: float, fixed: float = 0.0) -> None:
        owner, t = self._owner(read), _tensor(read)
        if owner is not None and reader is not None and t is not None:
            self.cut.edge(owner, reader, fixed + ns_a_byte * self._bytes(t))

    def _bytes(self, t: torch.Tensor) -> int:
        sizes = size_hints(t)
        return 0 if sizes is None else prod(sizes) * t.element_size()


class _Rewrite:
    """Goes through a graph in its order and lays out what the operators in `last` give channels-last; the others follow."""

    def __init__(self, graph: Graph, last: set[Node]):
        self.graph, self.last = graph, last
        self.before: dict[Node, torch.Tensor] = {n: t for n in graph.nodes if (t := _tensor(n)) is not None}
        self.changed: set[Node] = set()
        """Nodes whose strides are others than before."""
        self.made: dict[tuple[Any, ...], Node] = {}
        self.mode: Any = next(t.fake_mode for t in self.before.values() if isinstance(t, FakeTensor))

    def run(self) -> None:
        for node in list(self.graph.nodes):
            if node.op not in ("call_function", "output"):
                continue
            if _follows(node):
                if node in self.last:
                    self._now(node, self._turned(node.meta["val"]))
                continue
            if node.target in _CONVOLUTIONS and node in self.last:
                self._images(node, _LAST)
            elif self.changed.isdisjoint(node.all_input_nodes):
                continue
            elif node.target in _CONVOLUTIONS:
                self._images(node, _ROWS)
            elif node.target not in _READING and node.target is not operator.getitem:
                self._as_before(node)
            if node.op == "call_function":
                self._now(node, self._value(node))

    def _turned(self, value: Any) -> Any:
        """The results of an operator, those that lie by rows channels-last."""
        if isinstance(value, (tuple, list)):
            return tuple(self._turned(v) for v in value)
        if _side(value if isinstance(value, torch.Tensor) else None) != _ROWS:
            return value
        with self.mode:
            return torch.empty_strided(value.shape, _strides(value, _LAST), dtype=value.dtype, device=value.device)

    def _images(self, node: Node, side: str) -> None:
        """Give a convolution its tensors on one side; the weight of one that stays row-major is as it was."""
        places = _CONVOLUTIONS[node.target]  # pyright: ignore[reportArgumentType]
        for k in places if _library(node).orders_weights else (*places, places[-1] + 1):
            if (given := node.args[k]) is not None and _side(_tensor(given)) not in (side, None):
                node.update_arg(k, self._clone(given, _FORMATS[side]))

    def _as_before(self, node: Node) -> None:
        """Give an operator that looks at strides those that there were; memory with holes becomes dense."""
        for given in node.all_input_nodes:
            if given not in self.changed or (then := self.before.get(given)) is None:
                continue
            steps = then.stride()
            order = sorted(range(then.dim()), key=steps.__getitem__, reverse=True)
            if then.is_contiguous() or any(not isinstance(n, int) for n in steps):
                laid_out = self._clone(given, torch.contiguous_format)
            else:
                turned = self._call(aten.permute.default, given, order)
                back = [order.index(k) for k in range(len(order))]
                laid_out = self._call(aten.permute.default, self._clone(turned, torch.contiguous_format), back)
            node.replace_input_with(given, laid_out)
            if laid_out.meta["val"].stride() != steps:
                self.changed.add(laid_out)

    def _clone(self, given: Any, memory_format: torch.memory_format) -> Node:
        return self._call(aten.clone.default, given, memory_format=memory_format)

    def _call(self, target: Any, given: Node, *args: Any, **kwargs: Any) -> Node:
        """A new call behind `given` (once); the arguments of the graph stay in front."""
        key = (target, given, *map(str, args), *map(str, kwargs.values()))
        if key not in self.made:
            behind = given if given.op != "placeholder" else [n for n in self.graph.nodes if n.op == "placeholder"][-1]
            with self.graph.inserting_after(behind):
                node = self.graph.call_function(target, (given, *args), kwargs)
            node.meta.update({k: v for k, v in given.meta.items() if k not in ("val", "tensor_meta")})
            node.meta["val"] = self._value(node)
            self.made[key] = node
        return self.made[key]

    def _value(self, node: Node) -> Any:
        args, kwargs = map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        with self.mode, torch.no_grad():
            return node.target(*args, **kwargs)  # pyright: ignore[reportCallIssue]

    def _now(self, node: Node, value: Any) -> None:
        """Note what an operator gives now."""
        node.meta["val"] = value
        node.meta.pop("tensor_meta", None)
        now, then = _tensor(node), self.before.get(node)
        if now is None or then is None or now.stride() != then.stride():
            self.changed.add(node)
