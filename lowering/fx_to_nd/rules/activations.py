"""Activation functions and their gradients, computed in f32 for f16 and bf16 as torch's kernels do."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Kind
from xdsl.ir import SSAValue

from ..core.importer import Importer
from ..core.promotion import promote
from ..core.registry import rule
from .pointwise import scaled

aten = torch.ops.aten

_SQRT_HALF = math.sqrt(0.5)
_TANH_SCALE = math.sqrt(2.0 / math.pi)
_TANH_CUBE = 0.044715
_INV_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)


@rule(aten.gelu)
def _gelu(b: Importer, x: SSAValue, *, approximate: str = "none") -> SSAValue:
    x = b.widen(x)
    if approximate == "tanh":
        return b.mul(b.mul(x, 0.5), b.add(b.op("tanh", _tanh_argument(b, x)), 1.0))
    return b.mul(b.mul(x, 0.5), b.add(b.op("erf", b.mul(x, _SQRT_HALF)), 1.0))


def _tanh_argument(b: Importer, x: SSAValue) -> SSAValue:
    cube = b.mul(b.mul(x, x), x)
    return b.mul(b.add(x, b.mul(cube, _TANH_CUBE)), _TANH_SCALE)


@rule(aten.gelu_backward)
def _gelu_backward(b: Importer, grad: SSAValue, x: SSAValue, *, approximate: str = "none") -> SSAValue:
    grad, x = b.widen(grad), b.widen(x)
    if approximate == "tanh":
        t = b.op("tanh", _tanh_argument(b, x))
        left = b.mul(b.add(t, 1.0), 0.5)
        inner = b.mul(b.add(b.mul(b.mul(x, x), 3.0 * _TANH_CUBE), 1.0), _TANH_SCALE)
        right = b.mul(b.mul(b.mul(x, 0.5), b.sub(b.full(1.0, b.dtype(x)), b.mul(t, t))), inner)
        return b.mul(grad, b.add(left, right))
    cdf = b.mul(b.add(b.op("erf", b.mul(x, _SQRT_HALF)), 1.0), 0.5)
    pdf = b.mul(b.op("exp", b.mul(b.mul(x, x), -0.5)), _INV_SQRT_2PI)
    return b.mul(grad, b.add(cdf, b.mul(x, pdf)))


@rule(aten.silu)
def _silu(b: Importer, x: SSAValue) -> SSAValue:
    x = b.widen(x)
    return b.mul(x, b.op("sigmoid", x))


@rule(aten.silu_backward)
def _silu_backward(b: Importer, grad: SSAValue, x: SSAValue) -> SSAValue:
    grad, x = b.widen(grad), b.widen(x)
    s = b.op("sigmoid", x)
    slope = b.mul(s, b.add(b.mul(x, b.sub(b.full(1.0, b.dtype(x)), s)), 1.0))
    return b.mul(grad, slope)


@rule(aten.sigmoid_backward)
def _sigmoid_backward(b: Importer, grad: SSAValue, y: SSAValue) -> SSAValue:
    grad, y = b.widen(grad), b.widen(y)
    return b.mul(grad, b.mul(y, b.sub(b.full(1.0, b.dtype(y)), y)))


@rule(aten.tanh_backward)
def _tanh_backward(b: Importer, grad: SSAValue, y: SSAValue) -> SSAValue:
    grad, y = b.widen(grad), b.widen(y)
    return b.mul(grad, b.sub(b.full(1.0, b.dtype(y)), b.mul(y, y)))


@rule(aten.threshold)
def _threshold(b: Importer, x: SSAValue, threshold: Any, value: Any) -> SSAValue:
    return b.select(b.cmp("le", x, threshold), value, x)


@rule(aten.threshold_backward)
def _threshold_backward(b: Importer, grad: SSAValue, x: SSAValue, threshold: Any) -> SSAValue:
    return b.select(b.cmp("le", x, threshold), b.full(0, b.dtype(grad)), grad)


@rule(aten.leaky_relu)
def _leaky_relu(b: Importer, x: SSAValue, slope: Any = 0.01) -> SSAValue:
    wide = b.widen(x)
    return b.select(b.cmp("gt", wide, 0.0), wide, b.mul(wide, slope))


@rule(aten.leaky_relu_backward)
def _leaky_relu_backward(b: Importer, grad: SSAValue, x: SSAValue, slope: Any, from_result: bool) -> SSAValue:
    del from_result  # the sign of the result is that of the input
    grad = b.widen(grad)
    return b.select(b.cmp("gt", x, 0.0), grad, b.mul(grad, slope))


@rule(aten.hardtanh)
def _hardtanh(b: Importer, x: SSAValue, low: Any = -1, high: Any = 1) -> SSAValue:
    return b.op("minimum", b.op("maximum", x, low), high)


@rule(aten.hardtanh_backward)
def _hardtanh_backward(b: Importer, grad: SSAValue, x: SSAValue, low: Any, high: Any) -> SSAValue:
    outside = b.op("or", b.cmp("le", x, low), b.cmp("ge", x, high))
    return b.select(outside, b.full(0, b.dtype(grad)), grad)


def _relu6_shifted(b: Importer, x: SSAValue) -> SSAValue:
    return b.op("minimum", b.op("maximum", b.add(x, 3.0), 0.0), 6.0)


@rule(aten.hardsigmoid)
def _hardsigmoid(b: Importer, x: SSAValue) -> SSAValue:
    return b.div(_relu6_shifted(b, b.widen(x)), 6.0)


@rule(aten.hardsigmoid_backward)
def _hardsigmoid_backward(b: Importer, grad: SSAValue, x: SSAValue) -> SSAValue:
    inside = b.op("and", b.cmp("gt", x, -3.0), b.cmp("lt", x, 3.0))
    grad = b.widen(grad)
    return b.select(inside, b.mul(grad, 1.0 / 6.0), 0.0)


@rule(aten.hardswish)
def _hardswish(b: Importer, x: SSAValue) -> SSAValue:
    x = b.widen(x)
    return b.div(b.mul(x, _relu6_shifted(b, x)), 6.0)


@rule(aten.hardswish_backward)
def _hardswish_backward(b: Importer, grad: SSAValue, x: SSAValue) -> SSAValue:
    grad, x = b.widen(grad), b.widen(x)
    middle = b.mul(grad, b.add(b.div(x, 3.0), 0.5))
    return b.select(b.cmp("le", x, -3.0), 0.0, b.select(b.cmp("lt", x, 3.0), middle, grad))


@rule(aten.elu)
def _elu(b: Importer, x: SSAValue, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> SSAValue:
    x = b.widen(x)
    negative = b.mul(b.op("expm1", b.mul(x, input_scale)), scaled(b, alpha, scale, b.dtype(x)))
    return b.select(b.cmp("gt", x, 0.0), b.mul(x, scale), negative)


@rule(aten.elu_backward)
def _elu_backward(
    b: Importer, grad: SSAValue, alpha: Any, scale: Any, input_scale: Any, is_result: bool, y: SSAValue
) -> SSAValue:
    grad, y = b.widen(grad), b.widen(y)
    dtype = b.dtype(y)
    negative = scaled(b, alpha, scale, dtype)
    if is_result:
        slope = b.mul(b.add(y, negative), input_scale)
    else:
        slope = b.mul(b.op("exp", b.mul(y, input_scale)), scaled(b, negative, input_scale, dtype))
    return b.select(b.cmp("le", y, 0.0), b.mul(grad, slope), b.mul(grad, scale))


@rule(aten.softplus)
def _softplus(b: Importer, x: SSAValue, beta: Any = 1, threshold: Any = 20) -> SSAValue:
    x = b.widen(x)
    scaled = b.mul(x, beta)
    return b.select(b.cmp("gt", scaled, threshold), x, b.div(b.op("log1p", b.op("exp", scaled)), beta))


@rule(aten.logit)
def _logit(b: Importer, x: SSAValue, eps: float | None = None) -> SSAValue:
    (x,), _ = promote(b, (x,), Kind.INT_TO_FLOAT)
    if not b.eager_numerics:  # torch's own kernel rounds every step
        x = b.widen(x)
    if eps is not None:
        x = b.op("minimum", b.op("maximum", x, eps), 1.0 - eps)
    return b.op("log", b.div(x, b.sub(b.full(1.0, b.dtype(x)), x)))


@rule(aten.mish)
def _mish(b: Importer, x: SSAValue) -> SSAValue:
    x = b.widen(x)
    return b.mul(x, b.op("tanh", b.op("log1p", b.op("exp", x))))


@rule(aten._prelu_kernel)
def _prelu(b: Importer, x: SSAValue, weight: SSAValue) -> SSAValue:
    return b.select(b.cmp("gt", x, 0), x, b.mul(x, weight))


@rule(aten.glu)
def _glu(b: Importer, x: SSAValue, dim: int = -1) -> SSAValue:
    dims = b.dims(x)
    dim %= len(dims)
    half = dims[dim] // 2
    gate = b.slice_dim(x, dim, half, half)
    return b.mul(b.widen(b.slice_dim(x, dim, 0, half)), b.op("sigmoid", b.widen(gate)))
