"""Tensors joined along an axis: `tt.reduce` with a function as its region.

In which order that joins depends on the layout that Triton chooses. Where each sum has an order of its own (`stepwell.order = "fixed"`),
neighbours are joined in pairs, then neighbours of these: of two there is one order only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from ...dialects.tt.compute import ReduceOp, ReduceReturnOp, ScanOp, ScanReturnOp
from ...dialects.tt.shape import ExpandDimsOp, ReshapeOp
from ...dialects.tt.types import element_of, int32, shape_of, tensor
from ..nest.builder import PLAIN
from .builder import Builder
from .state import State

Values = list[SSAValue]
Combine = Callable[[State, Values, Values], Values]


def reduce_axis(s: State, values: Values, axis: int, combine: Combine, *, exact: bool = False, halves: bool = False) -> Values:
    """Tensors of one shape joined along an axis; the results have size 1 there (scalars, where it is the only one). exact: see
    reduce_values; halves, too."""
    return [keep_axis(s.b, v, axis) for v in reduce_values(s, values, axis, combine, exact=exact, halves=halves)]


def reduce_values(s: State, values: Values, axis: int, combine: Combine, *, exact: bool = False, halves: bool = False) -> Values:
    """Tensors of one shape joined along an axis, which the results do not have. exact: the result is the same in every order.
    halves: not neighbours are pairs, but elements half of the axis apart, which a thread has of what a unit for products gives."""
    shape = shape_of(values[0].type)
    assert shape is not None
    while s.ordered and not exact and shape[axis] > 2:
        each = (2, shape[axis] // 2) if halves else (shape[axis] // 2, 2)
        pairs = (*shape[:axis], *each, *shape[axis + 1 :])
        values = _reduced(s, [s.b.place(ReshapeOp.make(v, pairs)).results[0] for v in values], axis if halves else axis + 1, combine)
        shape = (*shape[:axis], shape[axis] // 2, *shape[axis + 1 :])
    values = _reduced(s, values, axis, combine)
    rest = shape_of(values[0].type)
    if not s.ordered or exact or rest is None or prod(rest) > 1:
        return values
    # numbers that Triton would keep in the layout that the last pair had, where a thread has all elements that they are broadcast to
    while shape_of(values[0].type) is not None:
        values = _reduced(s, values, 0, combine)
    return [s.b.to_shape(v, rest) for v in values]


def pairwise(cls: type[Operation], properties: Mapping[str, Attribute] = PLAIN) -> Combine:
    """Tensors that are joined element by element, each by itself, by an operation."""
    return lambda s, x, y: [s.b.elementwise(cls, pair, properties) for pair in zip(x, y, strict=True)]


def reduce_all(s: State, value: SSAValue, cls: type[Operation]) -> SSAValue:
    """All elements of a tensor joined by an operation whose result is the same in every order, the last axis of several first."""
    while (shape := shape_of(value.type)) is not None:
        axis = max(range(len(shape)), key=lambda k, shape=shape: (shape[k] > 1, k))
        (value,) = reduce_values(s, [value], axis, pairwise(cls))
    return value


def scan_axis(s: State, values: Values, axis: int, combine: Combine) -> Values:
    """Tensors of one shape, each element of them joined with all that are before it along an axis."""
    return list(s.b.place(ScanOp.make(values, axis, _joining(s, values, combine, ScanReturnOp))).results)


def _reduced(s: State, values: Values, axis: int, combine: Combine) -> Values:
    return list(s.b.place(ReduceOp.make(values, axis, _joining(s, values, combine, ReduceReturnOp))).results)


def _joining(s: State, values: Values, combine: Combine, end: type[Operation]) -> Region:
    """How two elements of each tensor are joined, which `end` gives."""
    block = Block(arg_types=[element_of(v.type) for v in values] * 2)
    s.b.enter_region(block)
    joined = combine(s, list(block.args[: len(values)]), list(block.args[len(values) :]))
    s.b.place(end.create(operands=joined))
    s.b.leave_region()
    return Region(block)


def keep_axis(b: Builder, value: SSAValue, axis: int) -> SSAValue:
    shape = shape_of(value.type)
    if shape is None:
        return value
    result = tensor((*shape[:axis], 1, *shape[axis:]), element_of(value.type))
    return b.pure(ExpandDimsOp, (value,), result, {"axis": int32(axis)})
