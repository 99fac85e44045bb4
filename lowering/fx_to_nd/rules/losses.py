"""Losses whose kernels torch does not decompose well: negative log likelihood, squared error."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import torch
from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue

from ....dialects.expr import ONE, ZERO, product
from ..core.importer import Importer
from ..core.registry import rule

aten = torch.ops.aten


class Reduction(IntEnum):
    """at::Reduction."""

    NONE = 0
    MEAN = 1
    SUM = 2


def _class_axis(b: Importer, x: SSAValue) -> int:
    return 0 if b.rank(x) == 1 else 1


def _targets(b: Importer, x: SSAValue, target: SSAValue, ignore: int) -> tuple[SSAValue, SSAValue]:
    """Targets as an index of one class along the class axis (0 where ignored), and where they count."""
    axis, dims = _class_axis(b, x), b.dims(target)
    target = b.cast(target, i64)
    counted = b.cmp("ne", target, ignore)
    safe = b.select(counted, target, b.full(0, i64))
    at = (*dims[:axis], ONE, *dims[axis:])
    return b.reshape(safe, at), b.reshape(counted, at)


def _class_weight(b: Importer, x: SSAValue, weight: SSAValue | None, index: SSAValue, counted: SSAValue) -> SSAValue:
    """The weight of each target's class, 0 where ignored."""
    dtype = b.dtype(x)
    if weight is None:
        return b.cast(counted, dtype)
    return b.select(counted, b.cast(b.index(weight, [0], [index], wrap=False), dtype), 0.0)


@rule(aten.nll_loss_forward, aten.nll_loss2d_forward)
def _nll_loss(b: Importer, x: SSAValue, target: SSAValue, weight: Any, reduction: int, ignore: int) -> Any:
    wide, axis = b.widen(x), _class_axis(b, x)
    if b.dims(x)[axis] is ZERO:
        return NotImplemented  # no target is right that is not ignored: the library says what eager says
    index, counted = _targets(b, x, target, ignore)
    scale = _class_weight(b, wide, weight, index, counted)
    picked = b.gather(wide, axis, index)
    loss = b.select(counted, b.op("neg", b.mul(picked, scale)), 0.0)
    everything = list(range(b.rank(loss)))
    if reduction == Reduction.NONE:
        return b.reshape(loss, b.dims(target)), b.full(0, b.dtype(wide))
    total, weights = b.reduce("sum", loss, everything), b.reduce("sum", scale, everything)
    return (b.div(total, weights) if reduction == Reduction.MEAN else total), weights


@rule(aten.nll_loss_backward, aten.nll_loss2d_backward)
def _nll_loss_backward(
    b: Importer,
    grad: SSAValue,
    x: SSAValue,
    target: SSAValue,
    weight: Any,
    reduction: int,
    ignore: int,
    total: SSAValue,
) -> SSAValue:
    wide, axis = b.widen(x), _class_axis(b, x)
    if b.dims(x)[axis] is ZERO:
        return x
    grad = b.cast(grad, b.dtype(wide))
    index, counted = _targets(b, x, target, ignore)
    scale = _class_weight(b, wide, weight, index, counted)
    if reduction == Reduction.MEAN:
        grad = b.div(grad, b.cast(total, b.dtype(wide)))
    elif reduction == Reduction.NONE:
        grad = b.reshape(grad, b.dims(index))
    value = b.op("neg", b.mul(grad, scale))
    # a class gets the value when it is the target: no scatter, so that this fuses
    classes = b.iota(b.dims(x), axis, i64)
    return b.select(b.op("and", b.cmp("eq", classes, index), counted), value, 0.0)


def _reduced(b: Importer, loss: SSAValue, reduction: int) -> SSAValue:
    everything = list(range(b.rank(loss)))
    if reduction == Reduction.NONE:
        return loss
    return b.mean(loss, everything) if reduction == Reduction.MEAN else b.reduce("sum", loss, everything)


@rule(aten.mse_loss)
def _mse_loss(b: Importer, x: SSAValue, target: SSAValue, reduction: int = Reduction.MEAN) -> SSAValue:
    x, target = b.cast(x, b.out_dtype), b.cast(target, b.out_dtype)
    difference = b.sub(x, target) if b.eager_numerics else b.sub(b.widen(x), b.widen(target))
    return _reduced(b, b.mul(difference, difference), reduction)


@rule(aten.mse_loss_backward)
def _mse_loss_backward(b: Importer, grad: SSAValue, x: SSAValue, target: SSAValue, reduction: int) -> SSAValue:
    wide = b.widen(x)
    difference = b.sub(wide, b.cast(target, b.dtype(wide)))
    scale = b.full(2.0, b.dtype(wide))
    if reduction == Reduction.MEAN:
        scale = b.div(scale, product(b.dims(wide)))
    return b.mul(b.mul(difference, scale), b.cast(grad, b.dtype(wide)))
