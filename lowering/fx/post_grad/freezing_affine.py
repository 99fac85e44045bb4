"""Nodes that scale and shift the result of a convolution or matrix product channel by channel (batch normalisation in inference, sums and
products with vectors or numbers), and the product that does it at once: conv(x, w) * s + t = conv(x, w * s) + t."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

aten = torch.ops.aten


@dataclass(frozen=True)
class Affine:
    """`result` is product(x) * scale + shift with vectors over the channels (or single numbers).

    product: the node of the convolution or matrix product; weight, bias: its operands; axis: the channels in the weight.
    views: the nodes between the product and what scales it."""

    product: Node
    weight: Node
    bias: Node | None
    axis: int
    result: Node
    scale: torch.Tensor
    shift: torch.Tensor
    views: tuple[Node, ...]

    def call(self, weight: Node | None, bias: Node | None) -> tuple[Any, tuple[Any, ...]]:
        """Function and arguments of the product with other weights."""
        args = self.product.args
        if self.product.target is aten.convolution.default:
            return aten.convolution.default, (args[0], weight, bias, *args[3:])
        x = args[0] if self.product.target is aten.mm.default else args[1]
        return (aten.mm.default, (x, weight)) if bias is None else (aten.addmm.default, (bias, x, weight))

    def again(self, graph: Graph, product: Node, before: Node) -> Node:
        """The views between product and result, of another product."""
        for view in reversed(self.views):
            with graph.inserting_before(before):
                new = graph.call_function(view.target, (product, *view.args[1:]))  # pyright: ignore[reportArgumentType]
            new.meta = dict(view.meta)
            product = new
        return product


_BINARY: dict[Any, str] = {
    aten.add.Tensor: "add",
    aten.add.Scalar: "add",
    aten.sub.Tensor: "sub",
    aten.sub.Scalar: "sub",
    aten.rsub.Tensor: "rsub",
    aten.rsub.Scalar: "rsub",
    aten.mul.Tensor: "mul",
    aten.mul.Scalar: "mul",
    aten.div.Tensor: "div",
    aten.div.Scalar: "div",
}


def affine_of(node: Node, values: Mapping[Node, Any]) -> Affine | None:
    """What `node` does to a product whose only reader it is, if it is of this form; `values` has the constants."""
    if node.target is aten._native_batch_norm_legit_no_training.default:
        return _batch_norm(node, values)
    if node.target in _BINARY:
        return _binary(node, values)
    return None


def _batch_norm(node: Node, values: Mapping[Node, Any]) -> Affine | None:
    x, gamma, beta, mean, var = node.args[:5]
    if any(n is not None and n not in values for n in (gamma, beta, mean, var)):  # pyright: ignore[reportArgumentType]
        return None
    firsts = [u for u in node.users if u.target is operator.getitem and u.args[1] == 0]
    if len(firsts) != 1 or any(u.users for u in node.users if u not in firsts):
        return None
    one = torch.ones((), dtype=torch.float64)
    g, b, m, v = (one * k if n is None else values[n].double() for n, k in ((gamma, 1), (beta, 0), (mean, 0), (var, 0)))  # pyright: ignore[reportArgumentType]
    scale = g * torch.rsqrt(v + float(node.args[6]))  # pyright: ignore[reportArgumentType]
    return _product(x, firsts[0], scale, b - m * scale, 1)


def _binary(node: Node, values: Mapping[Node, Any]) -> Affine | None:
    kind, (left, right) = _BINARY[node.target], node.args[:2]
    alpha = node.kwargs.get("alpha", node.args[2] if len(node.args) > 2 else 1)
    if kind == "rsub":
        kind, left, right = "sub", right, left
    left_known, right_known = (not isinstance(a, Node) or a in values for a in (left, right))
    if left_known == right_known or (left_known and kind == "div"):
        return None
    x, other = (right, left) if left_known else (left, right)
    rank = len(node.meta["val"].shape)
    constant = values[other] if isinstance(other, Node) else torch.tensor(other)
    axis = _channel_axis(constant, rank)
    if axis is None or constant.is_complex():
        return None
    c = constant.double().reshape(-1) if constant.numel() > 1 else constant.double().reshape(())
    one, alpha = torch.ones((), dtype=torch.float64), float(alpha)  # pyright: ignore[reportArgumentType]
    if kind == "mul":
        return _product(x, node, c, one * 0, axis)
    if kind == "div":
        return _product(x, node, 1 / c, one * 0, axis)
    if kind == "add":
        return _product(x, node, one * alpha if left_known else one, c if left_known else c * alpha, axis)
    return _product(x, node, one * -alpha if left_known else one, c if left_known else -alpha * c, axis)


def _channel_axis(constant: torch.Tensor, rank: int) -> int | None:
    """The only axis of a result of that rank that a constant varies along; -1 for a single number, None for several axes."""
    shape = (1,) * (rank - constant.dim()) + tuple(constant.shape)
    wide = [k for k, n in enumerate(shape) if n != 1]
    if constant.dim() > rank or len(wide) > 1 or 0 in shape:
        return None
    return wide[0] if wide else -1


def _product(x: Any, result: Node, scale: torch.Tensor, shift: torch.Tensor, axis: int) -> Affine | None:
    """The product that `x` (or what `x` is a view of) is, if its channels are the axis `axis` of `result`."""
    views: list[Node] = []
    while isinstance(x, Node) and x.target in (aten.view.default, aten._unsafe_view.default, aten.reshape.default):
        views.append(x)
        x = x.args[0]
    if not isinstance(x, Node) or any(len(n.users) != 1 for n in (x, *views)):
        return None
    val, out = x.meta.get("val"), result.meta.get("val")
    if not isinstance(val, torch.Tensor) or not isinstance(out, torch.Tensor) or val.dtype != out.dtype or not val.is_floating_point():
        return None
    rank = out.dim()
    if x.target is aten.convolution.default:
        weight, bias, transposed = x.args[1], x.args[2], x.args[6]
        if views or transposed or axis not in (1, -1) or out.shape != val.shape:
            return None
        return Affine(x, weight, bias, 0, result, scale, shift, ())  # pyright: ignore[reportArgumentType]
    if x.target is aten.mm.default or (x.target is aten.addmm.default and not x.kwargs):
        if (axis not in (rank - 1, -1)) or not _same_last(val, out) or any(not _same_last(val, v.meta["val"]) for v in views):
            return None
        bias, weight = (None, x.args[1]) if x.target is aten.mm.default else (x.args[0], x.args[2])
        return Affine(x, weight, bias, 1, result, scale, shift, tuple(views))  # pyright: ignore[reportArgumentType]
    return None


def _same_last(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two shapes have the same elements in rows of the same length."""
    return b.dim() >= 1 and a.shape[-1] == b.shape[-1] and type(b.shape[-1]) is int and a.dim() <= b.dim()


def applied(found: Affine, weight: torch.Tensor, bias: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None] | None:
    """The weight and bias of the product that scales and shifts, in the types of the old ones; None where they have no such form."""
    channels, dtype = weight.shape[found.axis], weight.dtype
    if any(v.numel() not in (1, channels) for v in (found.scale, found.shift)):
        return None
    if bias is not None and bias.numel() != channels:
        return None
    shape = [1] * weight.dim()
    shape[found.axis] = -1
    scale, shift = (v.to(weight.device).expand(channels) for v in (found.scale.reshape(-1), found.shift.reshape(-1)))
    new = torch.empty_strided(weight.shape, weight.stride(), dtype=dtype, device=weight.device)
    new.copy_(weight.double() * scale.reshape(shape))
    old = torch.zeros(channels, dtype=torch.float64, device=weight.device) if bias is None else bias.double().reshape(-1)
    total = (old * scale + shift).to(dtype if bias is None else bias.dtype)
    return new, None if bias is None and not bool(total.any()) else total
