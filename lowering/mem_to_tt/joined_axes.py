"""Tensors joined along an axis: `tt.reduce` with a function as its region."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.ir import Block, Region, SSAValue

from ...dialects.tt.compute import ReduceOp, ReduceReturnOp
from ...dialects.tt.shape import ExpandDimsOp
from ...dialects.tt.types import element_of, int32, shape_of, tensor
from .builder import Builder
from .state import State

Values = list[SSAValue]
Combine = Callable[[State, Values, Values], Values]


def reduce_axis(s: State, values: Values, axis: int, combine: Combine) -> Values:
    """Tensors of one shape joined along an axis; the results have size 1 there (scalars, where it is the only one)."""
    return [keep_axis(s.b, v, axis) for v in reduce_values(s, values, axis, combine)]


def reduce_values(s: State, values: Values, axis: int, combine: Combine) -> Values:
    """Tensors of one shape joined along an axis, which the results do not have."""
    b = s.b
    elements = [element_of(v.type) for v in values]
    block = Block(arg_types=elements * 2)
    b.enter_region(block)
    joined = combine(s, list(block.args[: len(values)]), list(block.args[len(values) :]))
    b.place(ReduceReturnOp.create(operands=joined))
    b.leave_region()
    return list(b.place(ReduceOp.make(values, axis, Region(block))).results)


def keep_axis(b: Builder, value: SSAValue, axis: int) -> SSAValue:
    shape = shape_of(value.type)
    if shape is None:
        return value
    result = tensor((*shape[:axis], 1, *shape[axis:]), element_of(value.type))
    return b.pure(ExpandDimsOp, (value,), result, {"axis": int32(axis)})
