"""Gradients of slices: a slice written into zeros is padding, and sums of paddings that do not meet are concatenations.

The backward pass of `x[0]`, `x[1]`, `x[2]` (a projection to queries, keys and values in one) writes each gradient into zeros of the whole
size and adds the three. As a concatenation it is one nest that stores every element once.
"""

from __future__ import annotations

import math

from xdsl.dialects.builtin import FloatAttr, IntegerAttr
from xdsl.ir import Operation, SSAValue

from ....dialects import nd
from ....dialects.expr import ONE, ZERO, Expr
from ....dialects.nd.base import ExprsAttr, IntsAttr
from ....dialects.nd.pointwise import OPS
from ....dialects.nd.types import is_float, tensor_type
from .rewriter import Rewriter

Add = OPS["add"]


def scatter_into_constant(rw: Rewriter, op: nd.SliceScatterOp) -> SSAValue | None:
    """A slice (without steps) written into a constant is the slice with padding around it."""
    full = op.base.owner
    if not isinstance(full, nd.FullOp) or any(s is not ONE for s in op.steps.data):
        return None
    t, source = tensor_type(op.result), tensor_type(op.source)
    highs = [whole - low - size for whole, low, size in zip(t.dims, op.starts.data, source.dims, strict=True)]
    if all(e is ZERO for e in (*op.starts.data, *highs)):
        return op.source
    value = rw.new(nd.FullOp.new((), t.with_dims(()), value=full.value))
    return rw.new(nd.PadOp.new((op.source, value), t, low=op.starts, high=ExprsAttr.get(highs)))


def sum_of_pads(rw: Rewriter, op: Operation) -> SSAValue | None:
    """Two tensors padded with zeros to parts of one axis that are next to each other: one behind the other, padded together."""
    a, b = (x.owner for x in op.operands)
    if not isinstance(a, nd.PadOp) or not isinstance(b, nd.PadOp) or a.result.type != b.result.type or a.result.type != op.results[0].type:
        return None
    t = tensor_type(a.result)
    axis = _axis(a)
    if axis is None or axis != _axis(b):
        return None
    if _end(b, axis) is a.low.data[axis]:
        a, b = b, a
    if _end(a, axis) is not b.low.data[axis]:
        return None
    pieces = [*_pieces(rw, a.input, axis), *_pieces(rw, b.input, axis)]
    size = tensor_type(a.input).dims[axis] + tensor_type(b.input).dims[axis]
    dims = tuple([size if k == axis else d for k, d in enumerate(tensor_type(a.input).dims)])
    joined = rw.new(nd.CatOp.new(pieces, t.with_dims(dims), dim=IntsAttr.get([axis])))
    if dims == t.dims:
        return joined
    return rw.new(nd.PadOp.new((joined, a.value), t, low=a.low, high=b.high))


def _axis(op: nd.PadOp) -> int | None:
    """The one axis on which a tensor is padded with zeros and not cut; None for others."""
    value = op.value.owner
    if not isinstance(value, nd.FullOp) or not _is_zero(value.value):
        return None
    low, high = op.low.data, op.high.data
    axes = [k for k, (before, after) in enumerate(zip(low, high, strict=True)) if before is not ZERO or after is not ZERO]
    if len(axes) != 1 or not all(e.value is not None and e.value >= 0 for e in (low[axes[0]], high[axes[0]])):
        return None
    return axes[0]


def _end(op: nd.PadOp, axis: int) -> Expr:
    return op.low.data[axis] + tensor_type(op.input).dims[axis]


def _is_zero(value: object) -> bool:
    if isinstance(value, FloatAttr):
        return value.value.data == 0 and math.copysign(1.0, value.value.data) > 0
    return isinstance(value, IntegerAttr) and value.value.data == 0


def _pieces(rw: Rewriter, x: SSAValue, axis: int) -> list[SSAValue]:
    """`x` plus the zeros of the other summand; the pieces of a sum that was joined before. (A sum with 0.0 turns -0.0 into 0.0.)"""
    cat = x.owner
    if isinstance(cat, nd.CatOp) and cat.dim.data == (axis,) and all(map(_has_zero_added, cat.operands)):
        return list(cat.operands)
    t = tensor_type(x)
    if not is_float(t.element_type) or _has_zero_added(x):
        return [x]
    zero = rw.new(nd.FullOp.new((), t, value=FloatAttr(0.0, t.element_type)))  # pyright: ignore[reportArgumentType, reportCallIssue]
    return [rw.new(Add.new((x, zero), t))]


def _has_zero_added(x: SSAValue) -> bool:
    if not is_float(tensor_type(x).element_type):
        return True
    op = x.owner
    return isinstance(op, Add) and any(isinstance(o.owner, nd.FullOp) and _is_zero(o.owner.value) for o in op.operands)
