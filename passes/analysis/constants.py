"""Values that are constants."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, FloatAttr, IntegerAttr
from xdsl.ir import SSAValue


def constant_of(value: SSAValue) -> float | None:
    """The number that a value is, or that all elements of it are, if it is a constant."""
    attr = value.owner.value if isinstance(value.owner, arith.ConstantOp) else None
    if isinstance(attr, DenseIntOrFPElementsAttr) and attr.is_splat():
        number = attr.get_values()[0]
        return number if isinstance(number, float) else None
    return attr.value.data if isinstance(attr, FloatAttr) else None


def integer_of(value: SSAValue) -> int | None:
    """The same of an integer."""
    attr = value.owner.value if isinstance(value.owner, arith.ConstantOp) else None
    if isinstance(attr, DenseIntOrFPElementsAttr) and attr.is_splat():
        number = attr.get_values()[0]
        return number if isinstance(number, int) else None
    return attr.value.data if isinstance(attr, IntegerAttr) else None
