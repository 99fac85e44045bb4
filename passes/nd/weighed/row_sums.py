"""Sums of weights over rows and terms, and at places of a table, as sums of each row, which calls of weighed rows make, and what adds these
up.

    %s = nd.reduce %w {sum, dims = [1, 2]}                       ->  nd.reduce (nd.reduce %w {sum, dims = [2]}) {sum, dims = [1]}
    %t = nd.index_put %zeros, (nd.permute %w), %places {add}     ->  nd.permute (nd.reduce (nd.scatter %zeros, %places, %w) {sum, rows})

So are the gradients of slopes and of tables of biases (ALiBi, T5). A sum over batches in front of one is part of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import FloatAttr, StringAttr, f32
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from ....dialects import nd
from ....dialects.expr import ONE, Expr, product
from ....dialects.nd.base import IntsAttr
from ....dialects.nd.pointwise import OPS, CastOp
from ....dialects.nd.types import TensorType, is_float, tensor_type
from ....dialects.support.replace import erase_op
from ...cost.library_cost import size
from ..attention_masks import is_number
from ..products.carried_scores import COMPUTED
from .inserter import Inserter

Dims = tuple[Expr, ...]


def sum_rows(func: FuncOp, fewest: int, hints: Mapping[str, int]) -> None:
    """Rewrite the sums of a function's weights that two products or more give scores for, at least `fewest` of a head."""
    for op in list(func.body.block.ops):
        if not isinstance(op, nd.ReduceOp | nd.IndexPutOp):
            continue
        found = _reduced(op) if isinstance(op, nd.ReduceOp) else _placed(op, hints)
        if found is None or not _are_many(found[0], fewest, hints) or _comes_back(op, found[0]):
            continue
        new, t = Inserter(op), tensor_type(op.result)
        weights, other = found
        value = _wide(new, weights)
        value = _sum(new, value, other) if isinstance(op, nd.ReduceOp) else _table(new, value, op)
        if tensor_type(value).dims != t.dims:
            value = new(nd.ReshapeOp.new((value,), tensor_type(value).with_dims(t.dims)))
        if tensor_type(value) != t:
            value = new(CastOp.new((value,), t))
        value.name_hint = op.result.name_hint
        op.result.replace_all_uses_with(value)
        erase_op(op)


def _reduced(op: nd.ReduceOp) -> tuple[SSAValue, SSAValue | None] | None:
    """The weights of which an operation is the sum over rows, terms and batches, and what batches of them are multiplied by before."""
    t = tensor_type(op.input)
    summed, kept = set(op.dims.data), t.rank - 3
    if op.kind.data != "sum" or kept < 0 or summed | {d for d in range(kept) if t.dims[d] is ONE} != {*range(t.rank)} - {kept}:
        return None
    found = _unsummed(op.input)
    if isinstance(op.input.owner, OPS["mul"]):
        for one, other in (op.input.owner.operands, op.input.owner.operands[::-1]):
            weights, dims = _unsummed(one), tensor_type(other).dims
            if weights is not one and _matrices(weights) == t.dims[kept:] and product(dims[:-3]) is ONE:
                return weights, other
    return (found, None) if _matrices(found) == t.dims[kept:] else None


def _placed(op: nd.IndexPutOp, hints: Mapping[str, int]) -> tuple[SSAValue, None] | None:
    """The weights that an operation adds to rows of zeros, fewer than there are terms, each to the row of its place among heads."""
    base, permute = tensor_type(op.base), _before_casts(op.values).owner
    if op.mode.data != "add" or op.wrap is not None or list(op.dims.data) != [0] or base.rank != 2 or not is_number(op.base, 0.0):
        return None
    if not isinstance(permute, nd.PermuteOp) or list(permute.dims.data) != [1, 2, 0]:
        return None
    dims = tensor_type(permute.input).dims
    weights = _unsummed(permute.input)
    same = _matrices(weights) == dims and tensor_type(op.indices[0]).dims == dims[1:] and base.dims[1] is dims[0]
    return (weights, None) if same and size(base.dims[0], hints) < size(dims[2], hints) else None


def _before_casts(value: SSAValue) -> SSAValue:
    while isinstance(value.owner, CastOp) and is_float(tensor_type(value.owner.input).element_type):
        value = value.owner.input
    return value


def _unsummed(value: SSAValue) -> SSAValue:
    """The tensor of which a value is the sum over batches, in front of casts and views of the same heads, rows and terms."""
    while True:
        op = value.owner
        is_sum = isinstance(op, nd.ReduceOp) and op.kind.data == "sum" and max(op.dims.data) < tensor_type(op.input).rank - 3
        keeps = isinstance(op, nd.ReshapeOp) and _matrices(op.input) == _matrices(value)
        is_cast = isinstance(op, CastOp) and is_float(tensor_type(op.input).element_type)
        if not (is_sum or keeps or is_cast) or _matrices(op.operands[0]) != _matrices(value):  # pyright: ignore[reportAttributeAccessIssue]
            return value
        value = op.operands[0]  # pyright: ignore[reportAttributeAccessIssue]


def _matrices(value: SSAValue) -> Dims:
    """The last dimensions: heads, rows and terms."""
    dims = tensor_type(value).dims
    return (*(ONE for _ in range(3 - len(dims))), *dims[-3:])


def _are_many(weights: SSAValue, fewest: int, hints: Mapping[str, int]) -> bool:
    """Whether weights are computed of several products, element by element, and a head has so many."""
    t, scores = tensor_type(weights), 0
    if t.rank < 3 or not is_float(t.element_type) or size(t.dims[-2], hints) * size(t.dims[-1], hints) < fewest:
        return False
    numel, worklist, seen = product(t.dims), [weights], {weights}
    while worklist:
        op = worklist.pop().owner
        scores += isinstance(op, nd.MatmulOp)
        if isinstance(op, COMPUTED) and not isinstance(op, nd.MatmulOp):
            new = [v for v in dict.fromkeys(op.operands) if v not in seen and product(tensor_type(v).dims) is numel]
            seen.update(new)
            worklist += new
    return scores > 1


def _comes_back(op: nd.ReduceOp | nd.IndexPutOp, weights: SSAValue) -> bool:
    """Whether what is computed of a sum may be one of the weights for each of them: a call would need its own result."""
    numel = product(tensor_type(weights).dims)
    worklist: list[SSAValue] = [op.result]
    seen = set(worklist)
    while worklist:
        new = [r for use in worklist.pop().uses for r in use.operation.results if isinstance(r.type, TensorType) and r not in seen]
        if any(product(tensor_type(r).dims) is numel for r in new):
            return True
        seen.update(new)
        worklist += new
    return False


def _wide(new: Inserter, value: SSAValue) -> SSAValue:
    t = tensor_type(value)
    return value if t.element_type == f32 else new(CastOp.new((value,), TensorType.get(t.dims, f32, t.device.data)))


def _sum(new: Inserter, weights: SSAValue, factor: SSAValue | None) -> SSAValue:
    """The sums of all heads of weights, times a factor that batches share."""
    t = tensor_type(weights)
    if factor is not None:
        own = _wide(new, factor)
        given = tensor_type(own)
        own = new(nd.ReshapeOp.new((own,), given.with_dims(given.dims[-3:]))) if given.rank > 3 else own
        weights = new(OPS["mul"].create(operands=[weights, own], result_types=[t]))
    return _added_up(new, _added_up(new, weights, *range(t.rank - 1)), t.rank - 3)


def multiply_by_ones(op: nd.ReduceOp) -> None:
    """Make a product by a column of ones of a sum over the last dimension: then it is one of those that weigh rows."""
    new, t = Inserter(op), tensor_type(op.result)
    weights = _wide(new, op.input)
    wide = tensor_type(weights)
    ones = new(nd.FullOp.new((), wide.with_dims((*wide.dims[:-2], wide.dims[-1], ONE)), value=FloatAttr(1.0, f32)))
    value = new(nd.MatmulOp.new((weights, ones), wide.with_dims((*wide.dims[:-1], ONE))))
    value = new(nd.ReshapeOp.new((value,), wide.with_dims(t.dims)))
    if tensor_type(value) != t:
        value = new(CastOp.new((value,), t))
    value.name_hint = op.result.name_hint
    op.result.replace_all_uses_with(value)
    erase_op(op)


def _table(new: Inserter, weights: SSAValue, op: nd.IndexPutOp) -> SSAValue:
    """The sums of all heads of weights at each place: [places, heads]."""
    t, count = tensor_type(weights), tensor_type(op.base).dims[0]
    places = tensor_type(op.indices[0])
    wide = t.with_dims((*t.dims[:-1], count))
    zeros = new(nd.FullOp.new((), wide, value=FloatAttr(0.0, f32)))
    index = new(nd.ExpandOp.new((op.indices[0],), places.with_dims(t.dims)))
    properties = {"dim": IntsAttr.get((t.rank - 1,)), "mode": StringAttr("add")}
    rows = new(nd.ScatterOp.create(operands=[zeros, index, weights], result_types=[wide], properties=properties, attributes=op.attributes))
    heads = _added_up(new, rows, t.rank - 3, t.rank - 1)
    return new(nd.PermuteOp.new((heads,), tensor_type(heads).with_dims((count, t.dims[-3])), dims=IntsAttr.get((1, 0))))


def _added_up(new: Inserter, value: SSAValue, *kept: int) -> SSAValue:
    """The sum over all dimensions but `kept`."""
    t = tensor_type(value)
    dims = [d for d in range(t.rank) if d not in kept]
    result = t.with_dims([t.dims[d] for d in kept])
    return new(nd.ReduceOp.new((value,), result, kind=StringAttr("sum"), dims=IntsAttr.get(dims)))
