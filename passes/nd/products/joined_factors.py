"""Factors of generated products that are concatenations: nothing of them is stored.

    %x @ (nd.cat %a, %b)  along the terms     ->   %x[: a's size] @ %a + %x[a's size :] @ %b: joined inputs; 4-bit weights, two in a byte
    (nd.cat %a, %b) @ %w  along other sizes   ->   (nd.select (iota < a's size), (nd.pad %a), (nd.pad %b)) @ %w: joined rows

A concatenation is a nest for each part, which stores it. Sums of parts need no selection, and the sum is rounded once. A selection is one
expression, which the product's nest can compute as it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from xdsl.dialects.builtin import FloatAttr, IntegerAttr, StringAttr, i1, i64
from xdsl.ir import Operation, SSAValue

from ....dialects import nd
from ....dialects.expr import ONE, ZERO, Expr, product
from ....dialects.expr.syntax import ExprAttr
from ....dialects.nd.base import ExprsAttr, IntsAttr
from ....dialects.nd.pointwise import CmpOp, PointwiseOp, SelectOp
from ....dialects.nd.types import TensorType, is_float, tensor_type
from ..algebra.rewriter import Rewriter
from ..nd_sink_cat import MAX_JOINED_TENSORS, joined_dims, reshaped


def joined_factor(value: SSAValue) -> nd.CatOp | None:
    """The concatenation that a factor of a product is, in whatever shape, if nothing else needs it."""
    while isinstance(value.owner, nd.ViewOp | PointwiseOp) and _has_one_use(value):
        wide = [v for v in value.owner.operands if tensor_type(v).numel is tensor_type(value).numel]
        if len(wide) != 1:
            return None
        (value,) = wide
    op = value.owner
    return op if isinstance(op, nd.CatOp) and _has_one_use(value) and len(op.operands) <= MAX_JOINED_TENSORS else None


def terms_by_part(rw: Rewriter, op: nd.MatmulOp) -> list[tuple[SSAValue, SSAValue]]:
    """The pairs of factors whose products add up to this one; just its own where neither is a concatenation of terms."""
    for k, (factor, other) in enumerate(((op.lhs, op.rhs), (op.rhs, op.lhs))):
        joined = _along_terms(factor, lhs=k == 0)
        if joined is not None:
            pairs = joined.pairs(rw, other)
            return [(b, a) if k else (a, b) for a, b in pairs]
    return [(op.lhs, op.rhs)]


@dataclass(frozen=True)
class _Terms:
    """A concatenation whose axis is one of those that a factor's terms run through.

    `groups`: the sizes that each dimension of the factor, before it is permuted by `permuted`, runs through. `axis`: which of all of these
    is concatenated. `group`: in which of these groups it is. `lhs`: whether the factor is the left one."""

    cat: nd.CatOp
    groups: list[tuple[Expr, ...]]
    axis: int
    group: int
    permuted: list[int]
    lhs: bool

    def pairs(self, rw: Rewriter, other: SSAValue) -> Iterator[tuple[SSAValue, SSAValue]]:
        """Each part as a factor, and the part of the other factor that its terms meet."""
        (place,) = self.cat.dim.data
        first = sum(len(group) for group in self.groups[: self.group])
        start = ZERO
        for part in self.cat.operands:
            size = tensor_type(part).dims[place]
            if size is ZERO:
                continue
            dims = [size if k == self.axis else n for k, n in enumerate(n for group in self.groups for n in group)]
            merged = [product(group) for group in self.groups]
            merged[self.group] = product(dims[first : first + len(self.groups[self.group])])
            own = reshaped(rw, part, merged)
            if self.permuted != sorted(self.permuted):
                turned = tensor_type(own).with_dims([merged[k] for k in self.permuted])
                own = rw.new(nd.PermuteOp.new((own,), turned, dims=IntsAttr.get(self.permuted)))
            yield own, self._met(rw, other, first, start, size)
            start = start + size

    def _met(self, rw: Rewriter, other: SSAValue, first: int, start: Expr, size: Expr) -> SSAValue:
        """The terms of the other factor that meet those of a part."""
        t, group = tensor_type(other), self.groups[self.group]
        at = t.rank - (2 if self.lhs else 1)
        fine = reshaped(rw, other, [*t.dims[:at], *group, *t.dims[at + 1 :]])
        axis, wide = at + self.axis - first, tensor_type(fine)
        starts = [start if k == axis else ZERO for k in range(wide.rank)]
        dims = [size if k == axis else n for k, n in enumerate(wide.dims)]
        part = rw.new(nd.SliceOp.new((fine,), wide.with_dims(dims), starts=ExprsAttr.get(starts), steps=ExprsAttr.get([ONE] * wide.rank)))
        return reshaped(rw, part, [*t.dims[:at], product(dims[at : at + len(group)]), *t.dims[at + 1 :]])


def _along_terms(factor: SSAValue, lhs: bool) -> _Terms | None:
    """A factor that is a concatenation of terms, in another shape or order."""
    cat = joined_factor(factor)
    permuted, value = list(range(tensor_type(factor).rank)), factor
    while isinstance(value.owner, nd.PermuteOp):
        order = value.owner.dims.data
        permuted, value = [order[k] for k in permuted], value.owner.input
    dims = tensor_type(value).dims
    while isinstance(value.owner, nd.ReshapeOp):
        value = value.owner.input
    if cat is None or value is not cat.result:
        return None
    found = joined_dims(tensor_type(value).dims, dims, cat.dim.data[0])
    if found is None:
        return None
    groups, axis = found
    ends = list(accumulate(len(group) for group in groups))
    group = next(k for k, end in enumerate(ends) if axis < end)
    is_of_terms = permuted.index(group) == len(dims) - (1 if lhs else 2)
    return _Terms(cat, groups, axis, group, permuted, lhs) if is_of_terms else None


def as_selection(rw: Rewriter, op: nd.CatOp) -> SSAValue:
    """A concatenation as a choice between its parts, element by element."""
    t, (axis,) = tensor_type(op.result), op.dim.data
    sizes = [tensor_type(part).dims[axis] for part in op.operands]
    along = TensorType.get([t.dims[axis]] + [ONE] * (t.rank - axis - 1), i64, t.device.data)
    place = rw.new(nd.IotaOp.new((), along, dim=IntsAttr.get([0])))
    starts = [ZERO, *accumulate(sizes)][: len(sizes)]
    *parts, chosen = [_padded(rw, part, axis, start, t) for part, start in zip(op.operands, starts, strict=True)]
    for part, end in zip(reversed(parts), reversed(starts[1:]), strict=True):
        size = rw.new(nd.SizeOp.new((), along.with_dims(()), value=ExprAttr.get(end)))
        before = rw.new(CmpOp.new((place, size), along.with_dtype(i1), predicate=StringAttr("lt")))
        chosen = rw.new(SelectOp.new((before, part, chosen), t))
    return chosen


def _padded(rw: Rewriter, part: SSAValue, axis: int, start: Expr, t: TensorType) -> SSAValue:
    """A part at its place in the whole."""
    own = tensor_type(part)
    low: list[Expr] = [ZERO] * own.rank
    high = list(low)
    low[axis], high[axis] = start, t.dims[axis] - start - own.dims[axis]
    kind = own.element_type
    value = FloatAttr(0.0, kind) if is_float(kind) else IntegerAttr(0, kind)  # pyright: ignore[reportArgumentType, reportCallIssue]
    zero = rw.new(nd.FullOp.new((), own.with_dims(()), value=value))
    return rw.new(nd.PadOp.new((part, zero), t, low=ExprsAttr.get(low), high=ExprsAttr.get(high)))


def _has_one_use(value: SSAValue) -> bool:
    return len({use.operation for use in value.uses}) == 1


def selected_factors(ops: Iterable[nd.MatmulOp]) -> set[Operation]:
    """The concatenations, along other sizes than that of the terms, that factors of products are."""
    found: set[Operation] = set()
    for op in ops:
        cats = [joined_factor(op.lhs), joined_factor(op.rhs)]
        if not any(_along_terms(v, k == 0) for k, v in enumerate((op.lhs, op.rhs))):
            found.update(cat for cat in cats if cat is not None)
    return found
