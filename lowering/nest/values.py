"""What the values of a nest's body have become while a kernel is made of it.

Index values are kept as expressions (`exprs` of the analysis) until somebody wants the number, and conditions that the ranges decide are
Python bools: a test of padding costs nothing where it always holds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from xdsl.dialects.builtin import i1
from xdsl.ir import Attribute, SSAValue

from ...dialects import loop
from ...dialects.expr import Expr, free_dims, prove_ge0
from ...passes.analysis.nest_access import NestAccess
from .builder import ValueBuilder

Condition = SSAValue | bool
"""A condition of a body, or what it is known to be."""


class NestValues(ABC):
    """Values of the body by those of the kernel; `fixed` are dimensions that are an expression for now (unrolled loops)."""

    b: ValueBuilder

    def __init__(self, info: NestAccess):
        self.info = info
        self.values: dict[SSAValue, Condition] = {}
        self.fixed: dict[Expr, Expr] = {}

    # ---- what a target does in its own way

    @abstractmethod
    def scalar_type(self, t: Attribute, /) -> Attribute:
        """The type that the kernel has for a scalar of the body."""

    @abstractmethod
    def integer(self, e: Expr, element: Attribute, /) -> SSAValue:
        """The value of an expression, in an integer type."""

    @abstractmethod
    def below_zero(self, e: Expr, /) -> SSAValue:
        """The condition e < 0, which the ranges do not decide."""

    @abstractmethod
    def equals_zero(self, e: Expr, /) -> SSAValue:
        """The condition e == 0, which the ranges do not decide."""

    @abstractmethod
    def define(self, result: SSAValue, value: SSAValue, /) -> None:
        """An index that was computed or loaded, an i64: a dimension of its own in the expressions that use it."""

    @abstractmethod
    def check_bound(self, op: loop.BoundOp, fine: SSAValue, given: SSAValue, size: SSAValue, /) -> None:
        """Report an index out of bounds where `fine` does not hold: `given` of a dimension of `size`."""

    # ---- values

    def get(self, value: SSAValue) -> SSAValue:
        """What a value of the body has become."""
        found = self.values.get(value)
        if found is None:
            return self.integer(self.expr(value), self.scalar_type(value.type))
        if found is True or found is False:
            return self.b.int(int(found), i1)
        return found

    def found(self, value: SSAValue) -> Condition:
        """The same, a condition that is known as a bool."""
        found = self.values.get(value)
        return self.get(value) if found is None else found

    def known(self, value: SSAValue) -> bool | None:
        """The constant that a condition is known to be."""
        found = self.values.get(value)
        return found if found is True or found is False else None

    def condition(self, mask: SSAValue | None) -> Condition | None:
        """Where an access with this mask is made: False nowhere, None everywhere."""
        if mask is None:
            return None
        known = self.known(mask)
        return self.get(mask) if known is None else None if known else False

    def is_index(self, value: SSAValue) -> bool:
        """Whether a value is still an index expression."""
        return value not in self.values and value in self.info.exprs

    def expr(self, value: SSAValue) -> Expr:
        """An index value as an expression."""
        return self.fix(self.info.exprs[value])

    def fix(self, e: Expr) -> Expr:
        """An expression with the dimensions of unrolled loops replaced."""
        return e.subs(self.fixed) if self.fixed and not free_dims(e).isdisjoint(self.fixed) else e

    # ---- conditions

    def negative(self, e: Expr) -> Condition:
        """The condition e < 0: a bool where it is known."""
        if prove_ge0(e, self.info.ranges):
            return False
        if prove_ge0(-e - 1, self.info.ranges):
            return True
        return self.below_zero(e)

    def is_zero(self, e: Expr) -> Condition:
        """The condition e == 0: a bool where it is known."""
        if e.value is not None:
            return e.value == 0
        if prove_ge0(e - 1, self.info.ranges) or prove_ge0(-e - 1, self.info.ranges):
            return False
        return self.equals_zero(e)

    def invert(self, condition: Condition) -> Condition:
        """The opposite condition."""
        return not condition if condition is True or condition is False else self.b.invert(condition)
