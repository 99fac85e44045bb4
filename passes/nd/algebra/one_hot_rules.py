"""Sums over values of which at most one is not zero: no loop is needed.

`sum(select(iota == t, v, 0), d)` with t and v the same along d is v where t is an index of d, else 0: the sum over the classes of a loss'
gradient, which the gradient of log_softmax asks for.
"""

from __future__ import annotations

from xdsl.dialects.builtin import FloatAttr, IntegerAttr, StringAttr, i1
from xdsl.ir import SSAValue

from ....dialects import nd
from ....dialects.expr import ONE, Expr
from ....dialects.expr.syntax import ExprAttr
from ....dialects.nd.pointwise import OPS, CmpOp, SelectOp
from ....dialects.nd.types import TensorType, is_float, tensor_type
from .rewriter import Rewriter

And, Add = OPS["and"], OPS["add"]


def sum_of_one_hot(rw: Rewriter, op: nd.ReduceOp) -> SSAValue | None:
    """See the module's docstring."""
    chosen = op.input.owner
    if op.kind.data != "sum" or len(op.dims.data) != 1 or not isinstance(chosen, SelectOp) or not is_zero(chosen.on_false):
        return None
    t, wanted = tensor_type(op.input), tensor_type(op.result)
    (axis,) = op.dims.data
    if t.element_type != wanted.element_type or not is_float(t.element_type):
        return None
    from_end = t.rank - axis
    conditions = chosen.condition.owner.operands if isinstance(chosen.condition.owner, And) else (chosen.condition,)
    found = [(c, place) for c in conditions if (place := _place(c, from_end, t.dims[axis])) is not None]
    if len(found) != 1:
        return None
    place = found[0][1]
    others = [c for c in conditions if c is not found[0][0]]
    parts = [_without(x, from_end) for x in (place, chosen.on_true, *others)]
    if any(p is None for p in parts) or parts[0] != wanted.dims:
        return None
    index, value, *masks = (_reshaped(rw, x, from_end) for x in (place, chosen.on_true, *others))
    kind = tensor_type(index).element_type
    low = nd.FullOp.new((), TensorType.get((), kind), value=IntegerAttr(0, kind))  # pyright: ignore[reportArgumentType, reportCallIssue]
    high = nd.SizeOp.new((), TensorType.get((), kind), value=ExprAttr.get(t.dims[axis]))
    flags = wanted.with_dtype(i1)
    valid = rw.new(CmpOp.new((index, rw.new(low)), flags, predicate=StringAttr("ge")))
    below = rw.new(CmpOp.new((index, rw.new(high)), flags, predicate=StringAttr("lt")))
    for mask in (below, *masks):
        valid = rw.new(And.new((valid, mask), flags))
    zero = rw.new(nd.FullOp.new((), wanted.with_dims(()), value=FloatAttr(0.0, wanted.element_type)))  # pyright: ignore[reportArgumentType, reportCallIssue]
    # adding zero makes 0.0 of -0.0, as a sum does
    added = rw.new(Add.new((value, zero), tensor_type(value)))
    return rw.new(SelectOp.new((valid, added, zero), wanted))


def _place(condition: SSAValue, from_end: int, size: Expr) -> SSAValue | None:
    """What the index along a dimension of `size` is compared with."""
    op = condition.owner
    if not isinstance(op, CmpOp) or op.predicate.data != "eq":
        return None
    for x, y in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        iota, dims = x.owner, tensor_type(x).dims
        if isinstance(iota, nd.IotaOp) and len(dims) - iota.dim.data[0] == from_end and dims[iota.dim.data[0]] is size:
            return y
    return None


def _without(x: SSAValue, from_end: int) -> tuple[object, ...] | None:
    """The sizes of a broadcasting operand without a dimension; None where it changes along that."""
    dims = tensor_type(x).dims
    axis = len(dims) - from_end
    if axis < 0:
        return dims
    return (*dims[:axis], *dims[axis + 1 :]) if dims[axis] is ONE else None


def _reshaped(rw: Rewriter, x: SSAValue, from_end: int) -> SSAValue:
    dims = tensor_type(x).dims
    axis = len(dims) - from_end
    if axis < 0:
        return x
    return rw.new(nd.ReshapeOp.new((x,), tensor_type(x).with_dims((*dims[:axis], *dims[axis + 1 :]))))


def is_zero(x: SSAValue) -> bool:
    op = x.owner
    return isinstance(op, nd.FullOp) and op.value.value.data == 0
