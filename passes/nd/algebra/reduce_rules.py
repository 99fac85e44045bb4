"""Reductions in the shape in which their operand is computed, so that the planner sees that they go over the same rows.

A linear layer's bias gradient is the sum over the rows of a gradient that was viewed as a matrix: `sum(reshape(x, [b * t, n]), 0)` is
`sum(x, [0, 1])`, which runs in the nest that computes x. The sum over a concatenation is the concatenation of the sums.
Whether all elements are -inf is whether the maximum is, which a softmax of them has anyway.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import SSAValue

from ....dialects import nd
from ....dialects.expr import ONE, ZERO, Expr, exact_quotient
from ....dialects.nd.base import IntsAttr
from ....dialects.nd.pointwise import CmpOp, PointwiseOp
from ....dialects.nd.types import is_float, tensor_type
from .rewriter import Rewriter

EXTREME_OF_ALL = {
    ("all", "eq", -math.inf): "max", ("any", "ne", -math.inf): "max", ("all", "eq", math.inf): "min", ("any", "ne", math.inf): "min",
}  # fmt: skip
"""A reduction of comparisons with a number -> the reduction that compares as they do. NaN is an extreme, and equal to nothing."""


def reduce_before_reshape(rw: Rewriter, op: nd.ReduceOp) -> SSAValue | None:
    """A reduction over a dimension that a reshape joined from several, over those; of what is concatenated, over any."""
    view = op.input.owner
    if not isinstance(view, nd.ReshapeOp) or not _computed(view.input) or not _only_rows(view):
        return None
    source = tensor_type(view.input)
    groups = _groups(source.dims, tensor_type(view.result).dims)
    if groups is None:
        return None
    dims = [k for k, s in enumerate(source.dims) if s is ONE]
    joined = isinstance(_viewed(view.result).owner, nd.CatOp)
    for mine, theirs in groups:
        reduced = {d in op.dims.data for d in theirs}
        if len(reduced) == 2:
            return None
        if reduced == {True}:
            dims += mine
            joined = joined or len(mine) > len(theirs)
    if not joined:
        return None
    return rw.new(nd.ReshapeOp.new((_reduced(rw, op, view.input, dims),), op.result.type))


def reduce_before_permute(rw: Rewriter, op: nd.ReduceOp) -> SSAValue | None:
    """A reduction of permuted dimensions, where those that it keeps stay in order."""
    view = op.input.owner
    if not isinstance(view, nd.PermuteOp) or not _computed(view.input) or not _only_rows(view):
        return None
    order = view.dims.data
    kept = [order[d] for d in range(len(order)) if d not in op.dims.data]
    if kept != sorted(kept):
        return None
    return _reduced(rw, op, view.input, [order[d] for d in op.dims.data])


def reduce_before_cat(rw: Rewriter, op: nd.ReduceOp) -> SSAValue | None:
    """A reduction of a concatenation along a dimension that it keeps: the parts are reduced where they are computed."""
    cat = op.input.owner
    if not isinstance(cat, nd.CatOp):
        return None
    (axis,) = cat.dim.data
    if axis in op.dims.data or not all(_computed(x) for x in cat.operands):
        return None
    place = axis - sum(d < axis for d in op.dims.data)
    parts = [_reduced(rw, op, x, op.dims.data) for x in cat.operands]
    return rw.new(nd.CatOp.new(parts, op.result.type, dim=IntsAttr.get([place])))


def compare_extreme(rw: Rewriter, op: nd.ReduceOp) -> SSAValue | None:
    """Whether all elements are -inf, as a comparison of their maximum; the same of inf and the minimum, and of any that is not."""
    compared = op.input.owner
    if not isinstance(compared, CmpOp):
        return None
    for x, other in (compared.operands, reversed(compared.operands)):
        limit = other.owner.value.value.data if isinstance(other.owner, nd.FullOp) else None
        kind = EXTREME_OF_ALL.get((op.kind.data, compared.predicate.data, limit))  # pyright: ignore[reportArgumentType]
        t = tensor_type(x)
        if kind is None or not is_float(t.element_type) or t.dims != tensor_type(op.input).dims:
            continue
        kept = tensor_type(op.result).with_dtype(t.element_type)
        extreme = rw.new(nd.ReduceOp.new((x,), kept, kind=StringAttr(kind), dims=op.dims))
        same = rw.new(nd.FullOp.new((), kept, value=other.owner.value))  # pyright: ignore[reportAttributeAccessIssue]
        return rw.new(CmpOp.new((extreme, same), op.result.type, predicate=compared.predicate))
    return None


def _reduced(rw: Rewriter, op: nd.ReduceOp, x: SSAValue, dims: Iterable[int]) -> SSAValue:
    """`op` of another tensor over other dimensions."""
    gone = sorted(dims)
    t = tensor_type(x)
    kept = [s for k, s in enumerate(t.dims) if k not in gone]
    result = t.with_dims(kept).with_dtype(tensor_type(op.result).element_type)
    return rw.new(nd.ReduceOp.new((x,), result, kind=op.kind, dims=IntsAttr.get(gone)))


def _computed(x: SSAValue) -> bool:
    """Whether what a tensor views is made by nests: a reduction of anything else has no nest to run in."""
    return isinstance(_viewed(x).owner, (PointwiseOp, nd.CatOp))


def _viewed(x: SSAValue) -> SSAValue:
    """The tensor that is reshaped and permuted to `x`."""
    while isinstance(x.owner, (nd.ReshapeOp, nd.PermuteOp)):
        x = x.owner.input
    return x


def _only_rows(view: nd.ViewOp) -> bool:
    """Whether no nest computes something of the same size from the view: the reduction would have to go through that one's loops."""
    return not any(isinstance(use.operation, (PointwiseOp, nd.CatOp)) for use in view.result.uses)


def _groups(a: Sequence[Expr], b: Sequence[Expr]) -> list[tuple[list[int], list[int]]] | None:
    """The dimensions of two shapes of the same elements in groups of equal size, as short as possible; those of size 1 are in none."""
    groups: list[tuple[list[int], list[int]]] = []
    left = [k for k, s in enumerate(a) if s is not ONE]
    right = [k for k, s in enumerate(b) if s is not ONE]
    if any(s is ZERO for s in (*a, *b)):
        return None
    while left and right:
        mine, theirs = [left.pop(0)], [right.pop(0)]
        x, y = a[mine[0]], b[theirs[0]]
        while x is not y:
            if left and exact_quotient(y, x) is not None:
                mine.append(left.pop(0))
                x = x * a[mine[-1]]
            elif right and exact_quotient(x, y) is not None:
                theirs.append(right.pop(0))
                y = y * b[theirs[-1]]
            else:
                return None
        groups.append((mine, theirs))
    return None if left or right else groups
