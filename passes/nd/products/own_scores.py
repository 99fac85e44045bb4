"""Scores of attention that others need, too (the backward pass in the same graph): attention gets products of its own for them.

    %s = nd.matmul %q, %k ; %m = max %s ; %o = softmax(%s) v ; %w = f(%s, %m)
    ->  %s = nd.matmul %q, %k ; %m = max %s ; %o = softmax(%s) v ; %t = nd.matmul %q, %k ; %w = f(%t, nd.barrier %m)

Then no score of either is in memory, if the others' are kept on chip, too; else the others' alone are. The maximum and the sum of a row,
and what is computed of them, are attention's. A border keeps nests of the others from those of attention.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.func import ReturnOp
from xdsl.ir import Operation, SSAValue

from ....dialects import nd
from ....dialects.expr import product
from ....dialects.nd.pointwise import PointwiseOp
from ....dialects.nd.types import tensor_type
from .carried_scores import COMPUTED, VIEWS, CarriedScores, softmax_of


def give_own_scores(one: CarriedScores) -> None:
    """Change the function so that nothing else needs the scores and the weights of an attention."""
    softmax = softmax_of(one.weighed.lhs)
    assert softmax is not None and (block := one.weighed.parent) is not None
    of_rows = softmax.of_rows
    shared = _between(one.weighed.lhs)
    own: dict[SSAValue, SSAValue] = {}
    for op in [op for op in block.ops if op in shared]:
        source = op.results[0] if isinstance(op, nd.IotaOp) else op.operands[0]
        view = nd.ReshapeOp.new((source,), source.type)  # with another operand: equal operations would be one
        if isinstance(op, nd.IotaOp):
            block.insert_op_after(view, op)
            own[source] = view.result
            continue
        copied = op.clone(own)
        if isinstance(op, nd.MatmulOp):
            block.insert_op_before(view, op)
            copied.operands = [view.result, *copied.operands[1:]]
        block.insert_op_before(copied, op)
        for old, new in zip(op.results, copied.results, strict=True):
            own[old], new.name_hint = new, old.name_hint
    for op in (one.weighed, *of_rows):
        op.operands = [own.get(v, v) for v in op.operands]
    inside = {*(v.owner for v in own.values()), one.weighed}
    for value in _numbers_of_rows(of_rows):
        outside = [use for use in value.uses if use.operation not in inside and not _is_of_row(use.operation, value)]
        if not outside:
            continue
        views: list[Operation] = []
        source = value
        while isinstance(source.owner, VIEWS):  # a border between nests of the same elements is none that copies
            views.append(source.owner)
            source = source.owner.operands[0]
        border = nd.BarrierOp.new((source,), source.type)
        made, last = border.result, value.owner
        assert isinstance(last, Operation)
        block.insert_op_after(border, last)
        for view in reversed(views):
            copied = view.clone({view.operands[0]: made})
            block.insert_op_after(copied, made.owner)  # pyright: ignore[reportArgumentType]
            made = copied.results[0]
        for use in outside:
            use.operation.operands[use.index] = made


def _between(weights: SSAValue) -> set[Operation]:
    """The products of the scores, and what lies between them and the weights, with what is computed of indices alone for it."""
    numel = product(tensor_type(weights).dims)
    found: set[Operation] = set()
    worklist = [weights]
    while worklist:
        value = worklist.pop()
        op = value.owner
        if op in found:
            continue
        if isinstance(op, COMPUTED) and product(tensor_type(value).dims) is numel:
            found.add(op)
            worklist += () if isinstance(op, nd.MatmulOp) else op.operands
        else:
            found |= _of_indices(value) or set()
    return found


def _of_indices(value: SSAValue) -> set[Operation] | None:
    """The operations that compute a tensor of indices and constants alone, but for the constants; None where there is something else."""
    op = value.owner
    if isinstance(op, nd.FullOp | nd.SizeOp):
        return set()
    if isinstance(op, nd.IotaOp):
        return {op}
    if not isinstance(op, PointwiseOp | nd.ViewOp):
        return None
    parts = [_of_indices(v) for v in op.operands]
    found = set[Operation]().union(*(part for part in parts if part is not None))
    return None if None in parts else {op, *found} if found else set()


def _numbers_of_rows(of_rows: tuple[Operation, ...]) -> Iterator[SSAValue]:
    """What is computed of numbers of rows alone, one for each row."""
    worklist = [op.results[0] for op in of_rows]
    seen = set(worklist)
    while worklist:
        value = worklist.pop()
        yield value
        new = [v for use in value.uses if _is_of_row(use.operation, value) for v in use.operation.results]
        worklist += [v for v in dict.fromkeys(new) if v not in seen]
        seen.update(new)


def _is_of_row(op: Operation, value: SSAValue) -> bool:
    """Whether an operation gives one number for each of a tensor that has one for each row, or returns it."""
    if isinstance(op, ReturnOp):
        return True
    same = isinstance(op, (PointwiseOp, *VIEWS))
    return same and product(tensor_type(op.results[0]).dims) is product(tensor_type(value).dims)
