"""Sums of products of integers less their zero points, and what scales them: how products and convolutions of bytes are written."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import FloatAttr, IntegerAttr, UnitAttr, f32, i32
from xdsl.ir import Attribute, SSAValue

from ....dialects import nd
from ....dialects.nd.pointwise import OPS, CastOp, broadcast_dims
from ....dialects.nd.types import INTEGERS, TensorType, is_float, tensor_type
from ...analysis.accesses.windows import WINDOWS
from ..algebra.rewriter import Rewriter
from .affine_factors import AffineFactor, summed_along


def integer_sums(rw: Rewriter, a: AffineFactor, b: AffineFactor, t: TensorType, windows: bool = False) -> SSAValue:
    """The sum of (a - its zero point) * (b - its zero point), as i32, or f32 where a zero point is no integer. `windows`: `a` is a view
    that the product reads (passes/analysis/accesses/windows.py).

    sum (a - y) (b - z) = sum a b - y * sum b - z * sum (a - y)"""
    last, wide = t.rank - 1, t.with_dtype(i32)
    times = nd.MatmulOp.new((a.core, b.core), wide)
    if windows:
        times.attributes[WINDOWS] = UnitAttr()
    total = rw.new(times)
    zeros = [z if z is None else _whole(rw, z) for z in (a.zero, b.zero)]
    kind = f32 if any(z is not None and tensor_type(z).element_type == f32 for z in zeros) else i32
    y, z = (x if x is None else as_type(rw, x, kind) for x in zeros)
    total = as_type(rw, total, kind)
    if y is not None:
        total = pointwise(rw, "sub", total, pointwise(rw, "mul", y, summed_along(rw, as_type(rw, b.core, kind), last - 1)))
    if z is not None:
        left = as_type(rw, a.core, kind)
        left = left if y is None else pointwise(rw, "sub", left, y)
        total = pointwise(rw, "sub", total, pointwise(rw, "mul", z, summed_along(rw, left, last)))
    return total


def scaled(rw: Rewriter, total: SSAValue, scales: Sequence[SSAValue], t: TensorType) -> SSAValue:
    """Sums times scales, in f32, rounded once to the type of the product."""
    if scales or tensor_type(total).element_type in INTEGERS:
        total = as_type(rw, total, f32)
    for scale in scales:
        total = pointwise(rw, "mul", total, as_type(rw, scale, f32))
    return as_type(rw, total, t.element_type)


def _whole(rw: Rewriter, zero: SSAValue) -> SSAValue:
    """A zero point as an integer, where it is known to be one."""
    op = zero
    while isinstance(op.owner, nd.ViewOp):
        op = op.owner.input
    if not is_float(tensor_type(zero).element_type):
        return as_type(rw, zero, i32)
    value = op.owner.value if isinstance(op.owner, nd.FullOp) else None
    if not isinstance(value, FloatAttr) or value.value.data != int(value.value.data):
        return as_type(rw, zero, f32)
    t = tensor_type(zero).with_dtype(i32)
    return rw.new(nd.FullOp.new((), t, value=IntegerAttr(int(value.value.data), i32)))


def as_type(rw: Rewriter, x: SSAValue, dtype: Attribute) -> SSAValue:
    t = tensor_type(x)
    return x if t.element_type == dtype else rw.new(CastOp.new((x,), t.with_dtype(dtype)))


def pointwise(rw: Rewriter, name: str, a: SSAValue, b: SSAValue) -> SSAValue:
    t = tensor_type(a)
    dims = broadcast_dims(t.dims, tensor_type(b).dims)
    assert dims is not None
    return rw.new(OPS[name].new((a, b), t.with_dims(dims)))
