"""Softmax and the normalisations, forward and backward, computed in f32 for f16 and bf16."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from xdsl.dialects.builtin import bf16, f32
from xdsl.ir import Attribute, SSAValue

from ....dialects.expr import ONE, Expr, as_expr, product
from ....dialects.nd.types import LOW_PRECISION
from ..core.importer import Importer
from ..core.metadata import element_type
from ..core.registry import packet, rule

aten = torch.ops.aten


# ---- softmax


def _axis(b: Importer, x: SSAValue, dim: int) -> list[int]:
    return [dim % b.rank(x)] if b.rank(x) else []


@rule(aten._softmax)
def _softmax(b: Importer, x: SSAValue, dim: int, half_to_float: bool) -> SSAValue:
    x, axis = b.widen(x), _axis(b, x, dim)
    e = b.op("exp", b.sub(x, b.reduce("max", x, axis, True)))
    return b.mul(e, b.op("reciprocal", b.reduce("sum", e, axis, True)))


@rule(aten._log_softmax)
def _log_softmax(b: Importer, x: SSAValue, dim: int, half_to_float: bool) -> SSAValue:
    x, axis = b.widen(x), _axis(b, x, dim)
    shifted = b.sub(x, b.reduce("max", x, axis, True))
    return b.sub(shifted, b.op("log", b.reduce("sum", b.op("exp", shifted), axis, True)))


@rule(aten._softmax_backward_data)
def _softmax_backward(b: Importer, grad: SSAValue, y: SSAValue, dim: int, dtype: torch.dtype) -> SSAValue:
    grad, y, axis = b.widen(grad), b.widen(y), _axis(b, y, dim)
    product_ = b.mul(grad, y)
    return b.sub(product_, b.mul(y, b.reduce("sum", product_, axis, True)))


@rule(aten._log_softmax_backward_data)
def _log_softmax_backward(b: Importer, grad: SSAValue, y: SSAValue, dim: int, dtype: torch.dtype) -> SSAValue:
    grad, y, axis = b.widen(grad), b.widen(y), _axis(b, y, dim)
    return b.sub(grad, b.mul(b.op("exp", y), b.reduce("sum", grad, axis, True)))


# ---- layer and rms norm: over the last dimensions


def _scaled(b: Importer, x: SSAValue, weight: SSAValue | None, bias: SSAValue | None) -> SSAValue:
    if weight is not None:
        x = b.mul(x, b.cast(weight, b.dtype(x)))
    return x if bias is None else b.add(x, b.cast(bias, b.dtype(x)))


def _inverse_deviation(b: Importer, var: SSAValue, eps: Any) -> SSAValue:
    return b.op("rsqrt", b.add(var, b.scalar(eps, b.dtype(var))))


def _statistic_dtype(b: Importer, position: int) -> Attribute:
    return element_type(b.val[position].dtype)


@rule(aten.native_layer_norm)
def _layer_norm(b: Importer, x: SSAValue, shape: Any, weight: Any, bias: Any, eps: Any) -> Any:
    wide = b.widen(x)
    over = list(range(b.rank(x) - len(shape), b.rank(x)))
    var, mean = b.var_mean(wide, over, 0.0, True)
    rstd = _inverse_deviation(b, var, eps)
    y = _scaled(b, b.mul(b.sub(wide, mean), rstd), weight, bias)
    return y, b.cast(mean, _statistic_dtype(b, 1)), b.cast(rstd, _statistic_dtype(b, 2))


@rule(aten.native_layer_norm_backward)
def _layer_norm_backward(
    b: Importer,
    grad: SSAValue,
    x: SSAValue,
    shape: Any,
    mean: SSAValue,
    rstd: SSAValue,
    weight: Any,
    bias: Any,
    wanted: Sequence[bool],
) -> Any:
    grad, x = b.widen(grad), b.widen(x)
    mean, rstd = b.cast(mean, b.dtype(x)), b.cast(rstd, b.dtype(x))
    inner = b.rank(x) - len(shape)
    over, rows = list(range(inner, b.rank(x))), list(range(inner))
    normal = b.mul(b.sub(x, mean), rstd)
    grad_x = grad_weight = grad_bias = None
    if wanted[0]:
        scaled = _scaled(b, grad, weight, None)
        centred = b.sub(scaled, b.mean(scaled, over, True))
        along = b.mul(normal, b.mean(b.mul(scaled, normal), over, True))
        grad_x = b.mul(b.sub(centred, along), rstd)
    if wanted[1]:
        grad_weight = b.reduce("sum", b.mul(grad, normal), rows)
    if wanted[2]:
        grad_bias = b.reduce("sum", grad, rows)
    return grad_x, grad_weight, grad_bias


@rule(packet(aten, "_fused_rms_norm"))
def _rms_norm(b: Importer, x: SSAValue, shape: Any, weight: Any = None, eps: Any = None) -> Any:
    wide = b.widen(x)
    over = list(range(b.rank(x) - len(shape), b.rank(x)))
    if eps is None:
        eps = torch.finfo(b.node.args[0].meta["val"].dtype).eps  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
    rstd = _inverse_deviation(b, b.mean(b.mul(wide, wide), over, True), eps)
    return _scaled(b, b.mul(wide, rstd), weight, None), b.cast(rstd, _statistic_dtype(b, 1))


@rule(packet(aten, "_fused_rms_norm_backward"))
def _rms_norm_backward(
    b: Importer, grad: SSAValue, x: SSAValue, shape: Any, rstd: SSAValue, weight: Any, wanted: Sequence[bool]
) -> Any:
    grad, x = b.widen(grad), b.widen(x)
    rstd = b.cast(rstd, b.dtype(x))
    inner = b.rank(x) - len(shape)
    over = list(range(inner, b.rank(x)))
    normal = b.mul(x, rstd)
    grad_x = grad_weight = None
    if wanted[0]:
        scaled = _scaled(b, grad, weight, None)
        grad_x = b.mul(b.sub(scaled, b.mul(normal, b.mean(b.mul(scaled, normal), over, True))), rstd)
    if wanted[1] and weight is not None:
        grad_weight = b.reduce("sum", b.mul(grad, normal), list(range(inner)))
    return grad_x, grad_weight


# ---- group norm: over the channels of a group and all positions


def _groups(b: Importer, x: SSAValue, n: Expr, c: Expr, hxw: Expr, groups: int) -> SSAValue:
    return b.reshape(x, (n, as_expr(groups), c // groups, hxw))


def _per_channel(b: Importer, values: SSAValue, c: Expr, groups: int) -> SSAValue:
    """[C] as [1, groups, C / groups, 1]"""
    return b.reshape(values, (ONE, as_expr(groups), c // groups, ONE))


@rule(aten.native_group_norm)
def _group_norm(
    b: Importer, x: SSAValue, weight: Any, bias: Any, n: Any, c: Any, hxw: Any, groups: int, eps: Any
) -> Any:
    n, c, hxw = as_expr(n), as_expr(c), as_expr(hxw)
    wide = _groups(b, b.widen(x), n, c, hxw, groups)
    var, mean = b.var_mean(wide, [2, 3], 0.0, True)
    rstd = _inverse_deviation(b, var, eps)
    parameters = [None if p is None else _per_channel(b, p, c, groups) for p in (weight, bias)]
    y = _scaled(b, b.mul(b.sub(wide, mean), rstd), *parameters)
    sizes = (n, as_expr(groups))
    flat_mean, flat_rstd = (b.cast(b.reshape(v, sizes), _statistic_dtype(b, 1)) for v in (mean, rstd))
    return b.reshape(y, b.dims(x)), flat_mean, flat_rstd


@rule(aten.native_group_norm_backward)
def _group_norm_backward(
    b: Importer,
    grad: SSAValue,
    x: SSAValue,
    mean: SSAValue,
    rstd: SSAValue,
    weight: Any,
    n: Any,
    c: Any,
    hxw: Any,
    groups: int,
    wanted: Sequence[bool],
) -> Any:
    n, c, hxw = as_expr(n), as_expr(c), as_expr(hxw)
    grad, wide = (_groups(b, b.widen(t), n, c, hxw, groups) for t in (grad, x))
    dtype = b.dtype(wide)
    mean, rstd = (b.reshape(b.cast(t, dtype), (n, as_expr(groups), ONE, ONE)) for t in (mean, rstd))
    normal = b.mul(b.sub(wide, mean), rstd)
    grad_x = grad_weight = grad_bias = None
    if wanted[0]:
        scaled = _scaled(b, grad, None if weight is None else _per_channel(b, weight, c, groups), None)
        centred = b.sub(scaled, b.mean(scaled, [2, 3], True))
        along = b.mul(normal, b.mean(b.mul(scaled, normal), [2, 3], True))
        grad_x = b.reshape(b.mul(b.sub(centred, along), rstd), b.dims(x))
    if wanted[1]:
        grad_weight = b.reshape(b.reduce("sum", b.mul(grad, normal), [0, 3]), (c,))
    if wanted[2]:
        grad_bias = b.reshape(b.reduce("sum", grad, [0, 3]), (c,))
    return grad_x, grad_weight, grad_bias


# ---- batch norm: over everything but the channels


def _channels(b: Importer, values: SSAValue, rank: int, dtype: Attribute) -> SSAValue:
    """[C] as [1, C, 1, ...]"""
    return b.cast(b.reshape(values, (ONE, *b.dims(values), *((ONE,) * (rank - 2)))), dtype)


def _other_dims(b: Importer, x: SSAValue) -> list[int]:
    return [d for d in range(b.rank(x)) if d != 1]


def _normalised(b: Importer, x: SSAValue, mean: SSAValue, rstd: SSAValue, weight: Any, bias: Any) -> SSAValue:
    """(x - mean) * rstd * weight + bias with per-channel operands."""
    rank, dtype = b.rank(x), b.dtype(x)
    y = b.mul(b.sub(x, _channels(b, mean, rank, dtype)), _channels(b, rstd, rank, dtype))
    parameters = [None if p is None else _channels(b, p, rank, dtype) for p in (weight, bias)]
    return _scaled(b, y, *parameters)


def _batch_statistics(
    b: Importer, wide: SSAValue, eps: Any, low: Attribute | None
) -> tuple[SSAValue, SSAValue, SSAValue]:
    """Variance and mean of each channel, and its inverse deviation as values are normalised by it."""
    var, mean = b.var_mean(wide, _other_dims(b, wide), 0.0, False)
    scale = var
    if low is not None and low == bf16:
        n = _count(b, wide)
        scale = _round(b, b.div(_round(b, b.mul(var, b.size(n, b.dtype(var))), low), _low_size(b, n, low)), low)
    return var, mean, _rounded(b, _inverse_deviation(b, scale, eps), low)


def _rounded_statistics(b: Importer, *parameters: Any) -> Attribute | None:
    """The type that torch's kernel for the CPU rounds statistics to where its `parameters` (weights, running statistics) have it too (of
    bf16 every step on the way to them; on GPUs none). Beside wider ones, as under autocast, the kernel rounds none, whatever its fake
    kernel says of the statistics that it returns. Values are normalised by the statistics that backward gets: their errors are the same in
    every place of a channel, so that they are most of what a network's gradients are off, and any others than torch's put the gradients
    elsewhere."""
    dtype = _statistic_dtype(b, 1)
    narrow = dtype in LOW_PRECISION and all(p is None or b.dtype(p) == dtype for p in parameters)
    return dtype if b.device == "cpu" and narrow else None


def _rounded(b: Importer, statistic: SSAValue, low: Attribute | None) -> SSAValue:
    return statistic if low is None else _round(b, statistic, low)


def _round(b: Importer, value: SSAValue, low: Attribute) -> SSAValue:
    return b.cast(b.cast(value, low), b.dtype(value))


def _low_size(b: Importer, n: Expr, low: Attribute) -> SSAValue:
    """A size as a number of `low` widened again."""
    return _round(b, b.size(n, f32), low)


def _count(b: Importer, wide: SSAValue) -> Expr:
    """Elements of a channel."""
    return product(b.dims(wide)[d] for d in _other_dims(b, wide))


def _running(
    b: Importer, wide: SSAValue, old: SSAValue, new: SSAValue, momentum: Any, unbiased: bool, low: Attribute | None
) -> SSAValue:
    """momentum * new + (1 - momentum) * old; a variance is made unbiased first."""
    dtype, n = b.dtype(new), _count(b, wide)
    if low is not None and low == bf16:
        if unbiased:
            total = _round(b, b.mul(new, b.size(n, dtype)), low)
            new = b.div(total, _low_size(b, n - 1, low))
        new = _round(b, new, low)
        given = _round(b, b.scalar(momentum, dtype), low)
        added = b.mul(new, given)
        kept = b.mul(b.cast(old, dtype), _round(b, b.sub(1.0, given), low))
        return b.cast(b.add(added if unbiased else _round(b, added, low), _round(b, kept, low)), b.dtype(old))
    if unbiased:
        if n.is_const:
            new = b.mul(new, int(n) / max(1, int(n) - 1))
        else:
            new = b.mul(new, b.div(b.size(n, dtype), b.size(n - 1, dtype)))
    kept = b.mul(b.cast(old, dtype), b.scalar(1.0 - momentum, dtype))
    return b.cast(b.add(b.mul(new, b.scalar(momentum, dtype)), kept), b.dtype(old))


@rule(packet(aten, "_native_batch_norm_legit_functional"))
def _batch_norm_functional(
    b: Importer,
    x: SSAValue,
    weight: Any,
    bias: Any,
    running_mean: SSAValue,
    running_var: SSAValue,
    training: bool,
    momentum: Any,
    eps: Any,
) -> Any:
    if not training:
        y, mean, rstd = _batch_norm_inference(b, x, weight, bias, running_mean, running_var, momentum, eps)
        return y, mean, rstd, running_mean, running_var
    wide, low = b.widen(x), _rounded_statistics(b, weight, bias, running_mean, running_var)
    var, mean, rstd = _batch_statistics(b, wide, eps, low)
    y = _normalised(b, wide, _rounded(b, mean, low), rstd, weight, bias)
    new_mean = _running(b, wide, running_mean, mean, momentum, False, low)
    new_var = _running(b, wide, running_var, var, momentum, True, low)
    return y, b.cast(mean, _statistic_dtype(b, 1)), b.cast(rstd, _statistic_dtype(b, 2)), new_mean, new_var


@rule(packet(aten, "_native_batch_norm_legit_no_training"))
def _batch_norm_inference(
    b: Importer,
    x: SSAValue,
    weight: Any,
    bias: Any,
    running_mean: SSAValue,
    running_var: SSAValue,
    momentum: Any,
    eps: Any,
) -> Any:
    wide = b.widen(x)
    mean, rstd = b.cast(running_mean, b.dtype(wide)), _inverse_deviation(b, b.cast(running_var, b.dtype(wide)), eps)
    y = _normalised(b, wide, mean, rstd, weight, bias)
    saved = b.sizes(b.val[1].shape)
    if saved != b.dims(mean):  # torch's kernel for the CPU gives back two tensors without elements, that for GPUs the statistics
        return y, *(b.full(0, _statistic_dtype(b, k), saved) for k in (1, 2))
    return y, b.cast(mean, _statistic_dtype(b, 1)), b.cast(rstd, _statistic_dtype(b, 2))


@rule(packet(getattr(aten, "_native_batch_norm_legit", None), "no_stats"))
def _batch_norm_no_statistics(
    b: Importer, x: SSAValue, weight: Any, bias: Any, training: bool, momentum: Any, eps: Any
) -> Any:
    wide, low = b.widen(x), _rounded_statistics(b, weight, bias)
    _, mean, rstd = _batch_statistics(b, wide, eps, low)
    y = _normalised(b, wide, _rounded(b, mean, low), rstd, weight, bias)
    return y, b.cast(mean, _statistic_dtype(b, 1)), b.cast(rstd, _statistic_dtype(b, 2))


@rule(aten.native_batch_norm_backward)
def _batch_norm_backward(
    b: Importer,
    grad: SSAValue,
    x: SSAValue,
    weight: Any,
    running_mean: Any,
    running_var: Any,
    save_mean: Any,
    save_rstd: Any,
    train: bool,
    eps: Any,
    wanted: Sequence[bool],
) -> Any:
    grad, wide = b.widen(grad), b.widen(x)
    dtype, rank, over = b.dtype(wide), b.rank(wide), _other_dims(b, wide)
    if train:
        mean, rstd = b.cast(save_mean, dtype), b.cast(save_rstd, dtype)
    else:
        mean, rstd = b.cast(running_mean, dtype), _inverse_deviation(b, b.cast(running_var, dtype), eps)
    rstd_c = _channels(b, rstd, rank, dtype)
    normal = b.mul(b.sub(wide, _channels(b, mean, rank, dtype)), rstd_c)
    grad_bias = b.reduce("sum", grad, over)
    grad_weight = b.reduce("sum", b.mul(grad, normal), over)
    scale = rstd_c if weight is None else b.mul(rstd_c, _channels(b, weight, rank, dtype))
    grad_x = None
    if wanted[0] and train:
        count = b.scalar(product(b.dims(wide)[d] for d in over), dtype)
        centre = _channels(b, b.div(grad_bias, count), rank, dtype)
        along = b.mul(normal, _channels(b, b.div(grad_weight, count), rank, dtype))
        grad_x = b.mul(b.sub(b.sub(grad, centre), along), scale)
    elif wanted[0]:
        grad_x = b.mul(grad, scale)
    return grad_x, grad_weight if wanted[1] else None, grad_bias if wanted[2] else None
