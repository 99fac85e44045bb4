"""Matrix products as multiplications and sums over their terms."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import FloatAttr, StringAttr, UnitAttr
from xdsl.ir import Attribute, Block, Operation, SSAValue

from ....dialects import nd
from ....dialects.expr import ONE
from ....dialects.nd.base import IntsAttr
from ....dialects.nd.pointwise import CONTRACT, OPS, CastOp, SelectOp
from ....dialects.nd.types import TensorType, compute_type, tensor_type
from ..algebra.rewriter import Rewriter

EXACT = UnitAttr()
"""Sums of terms are those of f32."""


def as_terms(
    rw: Rewriter,
    op: nd.MatmulOp,
    rounded: bool = False,
    bias: SSAValue | None = None,
    pairs: Sequence[tuple[SSAValue, SSAValue]] = (),
    sums: Attribute = EXACT,
) -> SSAValue:
    """A product as multiplications and a sum over them, in f32 for 16-bit numbers, to which a bias is added before it is rounded;
    `rounded`: of operands that are rounded to their type even where what computes them stands in the same nest, and whose products may be
    added up by a unit for matrix products. `pairs`: the factors, if they are others, of products that add up to this one; `sums`: how such
    a unit may round sums (CONTRACT)."""
    how = sums if rounded else None
    made, *others = [sum_of_terms(rw, lhs, rhs, tensor_type(op.result), how) for lhs, rhs in pairs or [(op.lhs, op.rhs)]]
    wide = tensor_type(made)
    for other in others:
        made = rw.new(OPS["add"].new((made, other), wide))
    made = with_bias(rw, made, bias)
    return made if wide == tensor_type(op.result) else rw.new(CastOp.new((made,), op.result.type))


def with_bias(rw: Rewriter, made: SSAValue, bias: SSAValue | None) -> SSAValue:
    """A product and a bias, if there is one, in the type of the product."""
    if bias is None:
        return made
    wide, b = tensor_type(made), tensor_type(bias)
    if b.element_type != wide.element_type:
        bias = rw.new(CastOp.new((bias,), TensorType.get(b.dims, wide.element_type, b.device.data)))
    return rw.new(OPS["add"].new((made, bias), wide))


def sum_of_terms(
    rw: Rewriter, lhs: SSAValue, rhs: SSAValue, t: TensorType, sums: Attribute | None, within: SSAValue | None = None
) -> SSAValue:
    """A product, of type `t`, not yet rounded to it. `sums`: how a unit for matrix products may round them; None where none may make them.
    `within`: the terms that count, for each element of the result."""
    a, b = tensor_type(lhs), tensor_type(rhs)
    *batch, rows, columns = t.dims
    depth, wide = a.dims[-1], compute_type(t.element_type)
    order = [*range(len(batch)), len(batch) + 1, len(batch)]
    if sums is not None:
        lhs, rhs = rounded_operand(rw, lhs), rounded_operand(rw, rhs)
    left = rw.new(nd.ReshapeOp.new((lhs,), a.with_dims((*batch, rows, ONE, depth))))
    right = rw.new(nd.PermuteOp.new((rhs,), b.with_dims((*batch, columns, depth)), dims=IntsAttr.get(order)))
    right = rw.new(nd.ReshapeOp.new((right,), b.with_dims((*batch, ONE, columns, depth))))
    left, right = (
        x if tensor_type(x).element_type == wide else rw.new(CastOp.new((x,), TensorType.get(tensor_type(x).dims, wide, t.device.data)))
        for x in (left, right)
    )
    times = OPS["mul"].new((left, right), TensorType.get((*t.dims, depth), wide, t.device.data))
    if sums is not None:
        times.attributes[CONTRACT] = sums
    terms = rw.new(times)
    if within is not None:
        zero = rw.new(nd.FullOp.new((), TensorType.get((), wide, t.device.data), value=FloatAttr(0.0, wide)))  # pyright: ignore
        terms = rw.new(SelectOp.new((within, terms, zero), tensor_type(terms)))
    total = TensorType.get(t.dims, wide, t.device.data)
    return rw.new(nd.ReduceOp.new((terms,), total, kind=StringAttr("sum"), dims=IntsAttr.get([t.rank])))


def rounded_operand(rw: Rewriter, x: SSAValue) -> SSAValue:
    """A tensor of 16-bit numbers, by way of f32 where something else than a cast computes it: a cast rounds wherever it stands. What else
    reads the tensor, or one that it is a view of, reads the rounded one, so that no nest stores both."""
    source = place = x
    while isinstance(source.owner, nd.ViewOp | nd.IndexOp):
        source = source.owner.operands[0]
        place = source if len(list(source.uses)) > 1 else place
    t = tensor_type(place)
    wide = t.with_dtype(compute_type(t.element_type))
    if isinstance(source.owner, Block | nd.ExternOp | CastOp) or wide == t:
        return x
    widened = CastOp.new((place,), wide)
    made = CastOp.new((widened.results[0],), t)
    place.replace_uses_with_if(made.results[0], lambda use: use.operation is not widened)
    assert isinstance(place.owner, Operation)
    rw.insert_behind(place.owner, widened, made)
    return made.results[0] if place is x else x
