"""Keys and values that heads share, or batches: a tensor without what is only repeated.

    %a = nd.reshape %k : B x 2 x 1 x N x D ; %b = nd.expand %a : B x 2 x 4 x N x D ; %c = nd.reshape %b : B x 8 x N x D    ->    %k
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from ...dialects import nd
from ...dialects.expr import ONE
from ...dialects.nd.types import tensor_type


def without_repeats(x: SSAValue) -> SSAValue | None:
    """The tensor that another one, [batches, heads, rows, columns], has several times; None where it is none. Views are put beside it."""
    op, t = x.owner, tensor_type(x)
    if isinstance(op, nd.ExpandOp) and t.rank == tensor_type(op.input).rank == 4:
        before = tensor_type(op.input).dims
        return op.input if before[-2:] == t.dims[-2:] and before[1] in (t.dims[1], ONE) else None
    if not isinstance(op, nd.ReshapeOp) or t.rank != 4:
        return None
    inner = op.input
    expand = inner.owner
    if not isinstance(expand, nd.ExpandOp) or tensor_type(inner).rank != 5:
        return None
    before, after = tensor_type(expand.input), tensor_type(inner)
    repeats = before.rank == 5 and before.dims[2] is ONE and before.dims[1] is after.dims[1] and before.dims[3:] == after.dims[3:]
    whole = after.dims[3:] == t.dims[2:] and after.dims[0] is t.dims[0]
    if not repeats or not whole or after.dims[2].value is None or before.dims[0] not in (after.dims[0], ONE):
        return None
    dims = (before.dims[0], before.dims[1], *before.dims[3:])
    source = expand.input.owner
    if isinstance(source, nd.ReshapeOp) and tensor_type(source.input).dims == dims:
        return source.input
    made = nd.ReshapeOp.new((expand.input,), before.with_dims(dims))
    assert expand.parent is not None
    expand.parent.insert_op_before(made, expand)
    return made.result
