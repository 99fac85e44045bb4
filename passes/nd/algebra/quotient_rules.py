"""Operations on a tensor that is parted by a quotient of sizes, as operations on the tensor.

    %p = nd.reshape %x : s0 x 8 -> (s0 floordiv 16) x 16 x 8 ; %q = nd.add %p, %mask ; %y = nd.reshape %q : s0 x 8
    ->  %y = nd.add %x, (nd.reshape (nd.expand %mask)) : s0 x 8

That 16 divides s0 no expression says: what has the sizes of parts would be told from what has the tensor's, though it has as many elements.
"""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from ....dialects import nd
from ....dialects.nd.pointwise import PointwiseOp
from ....dialects.nd.types import tensor_type
from .rewriter import Rewriter


def without_parts(rw: Rewriter, op: Operation) -> SSAValue | None:
    """What a reshape gives of operations on parts of a tensor with its sizes, computed of that tensor."""
    assert isinstance(op, nd.ReshapeOp)
    parts, whole = tensor_type(op.input).dims, tensor_type(op.result).dims
    if not any(n.has_div for n in parts) or any(n.has_div for n in whole):
        return None
    region: list[PointwiseOp] = []
    values: dict[SSAValue, SSAValue] = {}
    worklist: list[SSAValue] = [op.input]
    while worklist:
        value = worklist.pop()
        owner = value.owner
        if isinstance(owner, nd.ReshapeOp) and tensor_type(owner.input).dims == whole:
            values[value] = owner.input
        elif isinstance(owner, PointwiseOp) and tensor_type(value).dims == parts and len(list(value.uses)) == 1:
            region.append(owner)
            worklist += owner.operands
    if not region or not values:
        return None
    for one in reversed(region):  # a tree: operands come first
        for operand in one.operands:
            if operand not in values:
                values[operand] = _whole(rw, operand, op)
        made = one.clone(dict(values))
        made.results[0]._type = tensor_type(one.results[0]).with_dims(whole)  # pyright: ignore[reportAttributeAccessIssue]
        values[one.results[0]] = rw.new(made)
        made.location = one.location
    return values[op.input]


def _whole(rw: Rewriter, value: SSAValue, op: nd.ReshapeOp) -> SSAValue:
    """A tensor that broadcasts with parts, as one that broadcasts with the whole."""
    t = tensor_type(value)
    if not t.dims:
        return value
    wide = t.with_dims(tensor_type(op.input).dims)
    expanded = value if t.dims == wide.dims else rw.new(nd.ExpandOp.new((value,), wide))
    return rw.new(nd.ReshapeOp.new((expanded,), t.with_dims(tensor_type(op.result).dims)))
