"""Products whose sums have an order of their own (`stepwell.order = "fixed"`): each is computed as one of several rows and columns.

    %p = nd.matmul %x, %w : [1, 768] x [768, 3072]     ->     %q = nd.matmul (nd.pad %x to 2 rows), %w ; %p = nd.slice %q

A nest of one row has no loop over rows: it would be sums of a vector's terms, in their order, while units for products compute several.
A block of rows takes as long with one of them as with all.
"""

from __future__ import annotations

from xdsl.dialects.builtin import FloatAttr
from xdsl.ir import SSAValue

from ....dialects import nd
from ....dialects.expr import ONE, as_expr
from ....dialects.nd.base import ExprsAttr
from ....dialects.nd.types import TensorType, tensor_type
from ..algebra.rewriter import Rewriter
from .carried_scores import exact_factors, without_cast
from .product_terms import EXACT, as_terms


def ordered_product(rw: Rewriter, op: nd.MatmulOp, bias: SSAValue | None) -> SSAValue:
    """A product, and its bias, as multiplications and a sum that a unit for products makes."""
    t = tensor_type(op.result)
    casts = exact_factors(op)
    lhs, rhs = (op.lhs, op.rhs) if casts is None else (without_cast(rw, op.lhs, casts[0]), without_cast(rw, op.rhs, casts[1]))
    rows, columns = t.dims[-2:]
    wide = t.with_dims((*t.dims[:-2], *(as_expr(2) if n is ONE else n for n in (rows, columns))))
    pair = padded(rw, lhs, -2), padded(rw, rhs, -1)
    made = as_terms(rw, nd.MatmulOp.new(pair, wide, **op.properties), rounded=True, bias=bias, pairs=[pair], sums=EXACT)
    if wide == t:
        return made
    return first_row(rw, made, t)


def first_row(rw: Rewriter, x: SSAValue, t: TensorType) -> SSAValue:
    """The first row, or column, of what has two in place of one."""
    return rw.new(nd.SliceOp.new((x,), t, starts=ExprsAttr.get([0] * t.rank), steps=ExprsAttr.get([1] * t.rank)))


def padded(rw: Rewriter, x: SSAValue, d: int) -> SSAValue:
    """A factor with two rows, or columns, where it has one; the other one is zeros."""
    t = tensor_type(x)
    if t.dims[d] is not ONE:
        return x
    more = [0] * t.rank
    more[d] = 1
    wide = t.with_dims(tuple(n + k for n, k in zip(t.dims, more, strict=True)))
    zero = rw.new(nd.FullOp.new((), t.with_dims(()), value=FloatAttr(0.0, t.element_type)))  # pyright: ignore
    return rw.new(nd.PadOp.new((x, zero), wide, low=ExprsAttr.get([0] * t.rank), high=ExprsAttr.get(more)))
