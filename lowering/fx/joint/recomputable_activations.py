"""Activations and their gradients as arithmetics that torch's partitioner may repeat: the numbers of `fx_to_nd/activations.py`.

Some gradients ask a value only which side of a threshold it is on. Written as a choice by a comparison, the truth values can be kept
in its stead: one byte for each element.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from ..fx_graphs import Writer, value_of

aten = torch.ops.aten
Formula = Callable[..., "Node | None"]
"""The writer and the operator's arguments -> what it gives; None where that is not said here."""


def _hardswish(w: Writer, x: Node) -> Node:
    wide = w.wide(x)
    clamped = w(aten.clamp.default, w(aten.add.Tensor, wide, 3), 0, 6)
    return w.like(w(aten.div.Tensor, w(aten.mul.Tensor, wide, clamped), 6), x)


def _hardswish_backward(w: Writer, grad: Node, x: Node) -> Node:
    wide, x = w.wide(grad), w.wide(x)
    middle = w(aten.mul.Tensor, wide, w(aten.add.Tensor, w(aten.div.Tensor, x, 3), 0.5))
    inner = w(aten.where.self, w(aten.lt.Scalar, x, 3), middle, wide)
    return w.like(w(aten.where.ScalarSelf, w(aten.le.Scalar, x, -3), 0.0, inner), grad)


def _prelu(w: Writer, x: Node, weight: Node) -> Node:
    return w(aten.where.self, w(aten.gt.Scalar, x, 0), x, w(aten.mul.Tensor, x, weight))


def _glu(w: Writer, x: Node, dim: int = -1) -> Node | None:
    size = value_of(x).shape[dim]
    if not isinstance(size, int):
        return None
    value, gate = (w(aten.slice.Tensor, x, dim, start, start + size // 2) for start in (0, size // 2))
    return w.like(w(aten.mul.Tensor, w.wide(value), w(aten.sigmoid.default, w.wide(gate))), x)


def _factor(w: Writer, a: Any, b: Any) -> Any:
    """The product of two numbers, which may be numbers of the run."""
    return w(operator.mul, a, b) if isinstance(a, Node) or isinstance(b, Node) else a * b


def _elu_backward(w: Writer, grad: Node, alpha: Any, scale: Any, input_scale: Any, is_result: bool, y: Node) -> Node:
    wide, y = w.wide(grad), w.wide(y)
    negative = _factor(w, alpha, scale)
    if is_result:
        slope = w(aten.mul.Tensor, w(aten.add.Tensor, y, negative), input_scale)
    else:
        slope = w(aten.mul.Tensor, w(aten.exp.default, w(aten.mul.Tensor, y, input_scale)), _factor(w, negative, input_scale))
    below, above = w(aten.mul.Tensor, wide, slope), w(aten.mul.Tensor, wide, scale)
    return w.like(w(aten.where.self, w(aten.le.Scalar, y, 0), below, above), grad)


def _threshold_backward(w: Writer, grad: Node, x: Node, threshold: Any) -> Node:
    return w(aten.where.ScalarSelf, w(aten.le.Scalar, x, threshold), 0, grad)


def _leaky_relu_backward(w: Writer, grad: Node, x: Node, slope: Any, from_result: bool) -> Node:
    del from_result  # the sign of the result is that of the input
    wide = w.wide(grad)
    return w.like(w(aten.where.self, w(aten.gt.Scalar, x, 0), wide, w(aten.mul.Tensor, wide, slope)), grad)


def _hardtanh_backward(w: Writer, grad: Node, x: Node, low: Any, high: Any) -> Node:
    outside = w(aten.bitwise_or.Tensor, w(aten.le.Scalar, x, low), w(aten.ge.Scalar, x, high))
    return w(aten.where.ScalarSelf, outside, 0, grad)


def _hardsigmoid_backward(w: Writer, grad: Node, x: Node) -> Node:
    inside = w(aten.bitwise_and.Tensor, w(aten.gt.Scalar, x, -3), w(aten.lt.Scalar, x, 3))
    return w.like(w(aten.where.ScalarOther, inside, w(aten.mul.Tensor, w.wide(grad), 1 / 6), 0), grad)


BY_SIDE: dict[Any, Formula] = {
    aten.threshold_backward.default: _threshold_backward,
    aten.leaky_relu_backward.default: _leaky_relu_backward,
    aten.hardtanh_backward.default: _hardtanh_backward,
    aten.hardsigmoid_backward.default: _hardsigmoid_backward,
}
"""Gradients that ask which side of a threshold their second argument is on."""

ACTIVATIONS: dict[Any, Formula] = {
    aten.hardswish.default: _hardswish,
    aten.hardswish_backward.default: _hardswish_backward,
    aten._prelu_kernel.default: _prelu,
    aten.glu.default: _glu,
    aten.elu_backward.default: _elu_backward,
    **BY_SIDE,
}
