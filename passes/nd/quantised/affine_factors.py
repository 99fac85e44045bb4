"""Factors of products as integers with scales and zero points: `(q - z) * s`, where s and z do not vary along the terms of a sum.

    nd.permute (nd.mul (nd.cast (nd.sub (nd.cast %q), %z)), %s)   ->   integers: permute %q, zero point: permute %z, scale: permute %s

That is how weights and activations of a quantised model are written. All parts have the dimensions of the factor, with size 1 along the
sum for scales and zero points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from xdsl.dialects.builtin import StringAttr, bf16, f16, f32, f64, i8
from xdsl.ir import Attribute, SSAValue

from ....dialects import nd
from ....dialects.expr import ONE
from ....dialects.nd.base import IntsAttr
from ....dialects.nd.pointwise import OPS, CastOp
from ....dialects.nd.types import INTEGERS, TensorType, is_float, tensor_type, ui8
from ..algebra.rewriter import Rewriter

BYTES: frozenset[Attribute] = frozenset((i8, ui8))
NARROW: dict[Attribute, frozenset[Attribute]] = {f32: BYTES | {bf16, f16}, bf16: BYTES, f16: BYTES}
"""Type of a factor -> the types all of whose values it has, exactly."""
WIDE = (INTEGERS - BYTES) | {f64}
"""Types that have the differences of any two bytes, or all that torch makes of them."""


@dataclass(frozen=True)
class AffineFactor:
    """(`core` - `zero`) * the product of `scales`."""

    core: SSAValue
    zero: SSAValue | None = None
    scales: Sequence[SSAValue] = field(default=())

    @property
    def dtype(self) -> Attribute:
        return tensor_type(self.core).element_type

    @property
    def parts(self) -> tuple[SSAValue, ...]:
        return (self.core, *([] if self.zero is None else [self.zero]), *self.scales)


def affine_factor(rw: Rewriter, x: SSAValue, axis: int) -> AffineFactor | None:
    """What a factor is made of that is summed along `axis`; None where it is not made of narrower numbers."""
    t, op = tensor_type(x), x.owner
    if isinstance(op, nd.PermuteOp):
        return _permuted(rw, op, affine_factor(rw, op.input, op.dims.data[axis]))
    if isinstance(op, nd.ReshapeOp):
        return _reshaped(rw, op, axis)
    if isinstance(op, CastOp):
        return _cast(rw, op, axis)
    if isinstance(op, OPS["mul"]) and is_float(t.element_type):
        for whole, scale in (tuple(op.operands), tuple(op.operands)[::-1]):
            inner = affine_factor(rw, whole, axis) if _is_constant_along(scale, whole, axis, t) else None
            if inner is not None:
                return replace(inner, scales=(*inner.scales, _with_rank(rw, scale, t.rank)))
    if isinstance(op, OPS["sub"]):
        whole, zero = op.operands
        inner = affine_factor(rw, whole, axis) if _is_constant_along(zero, whole, axis, t) else None
        if inner is not None and inner.zero is None and not inner.scales:
            return replace(inner, zero=_with_rank(rw, zero, t.rank))
    return None


def _cast(rw: Rewriter, op: CastOp, axis: int) -> AffineFactor | None:
    """Integers as wider integers or floats: the bytes themselves, or what is left when their zero point is taken off. f64, in which torch
    scales some, is rounded to f32 once, with the sums."""
    source, target = (tensor_type(x).element_type for x in (op.input, op.result))
    if source in BYTES or source in NARROW.get(target, ()):
        return AffineFactor(op.input) if target in NARROW or target in WIDE else None
    if source == f64 and target == f32:
        return affine_factor(rw, op.input, axis)
    if source not in INTEGERS or target not in (f32, *WIDE):
        return None
    inner = affine_factor(rw, op.input, axis)
    return inner if inner is not None and not inner.scales else None


def _is_constant_along(part: SSAValue, whole: SSAValue, axis: int, t: TensorType) -> bool:
    """Whether `part`, aligned at the right of `whole`, does not vary along `axis`."""
    if tensor_type(whole).dims != t.dims:
        return False
    dims, at = tensor_type(part).dims, axis - t.rank
    return len(dims) < -at or dims[at] is ONE


def _with_rank(rw: Rewriter, x: SSAValue, rank: int) -> SSAValue:
    t = tensor_type(x)
    return x if t.rank == rank else rw.new(nd.ReshapeOp.new((x,), t.with_dims((*[ONE] * (rank - t.rank), *t.dims))))


def _permuted(rw: Rewriter, op: nd.PermuteOp, inner: AffineFactor | None) -> AffineFactor | None:
    if inner is None:
        return None

    def moved(x: SSAValue) -> SSAValue:
        t = tensor_type(x)
        return rw.new(nd.PermuteOp.new((x,), t.with_dims([t.dims[d] for d in op.dims.data]), dims=op.dims))

    return _mapped(inner, [moved(x) for x in inner.parts])


def _reshaped(rw: Rewriter, op: nd.ReshapeOp, axis: int) -> AffineFactor | None:
    """Of a reshape that leaves the last dimension alone, along which the sum goes: rows counted in another way."""
    before, after = tensor_type(op.input), tensor_type(op.result)
    if axis != after.rank - 1 or not before.rank or before.dims[-1] is not after.dims[-1]:
        return None
    inner = affine_factor(rw, op.input, before.rank - 1)
    if inner is None:
        return None
    values: list[SSAValue] = []
    for k, x in enumerate(inner.parts):
        t = tensor_type(x)
        if k and t.dims != (*before.dims[:-1], ONE) and t.numel is not ONE:
            return None
        dims = after.dims if k == 0 else (*[ONE] * (after.rank - 1), ONE) if t.numel is ONE else (*after.dims[:-1], ONE)
        values.append(rw.new(nd.ReshapeOp.new((x,), t.with_dims(dims))))
    return _mapped(inner, values)


def _mapped(inner: AffineFactor, values: Sequence[SSAValue]) -> AffineFactor:
    count = 1 if inner.zero is None else 2
    return AffineFactor(values[0], None if inner.zero is None else values[1], tuple(values[count:]))


def summed_along(rw: Rewriter, x: SSAValue, axis: int) -> SSAValue:
    """The sums of integers along an axis, which keeps size 1, in the type of `x`."""
    t = tensor_type(x)
    dims = [*t.dims[:axis], *t.dims[axis + 1 :]]
    total = rw.new(nd.ReduceOp.new((x,), t.with_dims(dims), kind=StringAttr("sum"), dims=IntsAttr.get([axis])))
    return rw.new(nd.ReshapeOp.new((total,), t.with_dims([*t.dims[:axis], ONE, *t.dims[axis + 1 :]])))
