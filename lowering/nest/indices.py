"""Index expressions as operations on integers.

    (%i * 12 + s0) floordiv 4    ->    %q = divui (addi (muli %i, 12), %s0), 4

A target says what it knows of an expression at once (indices, sizes, what was computed before), and in which order the terms of a sum
are added; how sums, products, quotients, remainders, minima and maxima are made of their parts is written here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import reduce

from xdsl.ir import Attribute, SSAValue

from ...dialects.expr import Add, Expr, FloorDiv, Max, Min, Mod, Mul, prove_ge0
from ...dialects.expr.ranges import RangeEnv
from .builder import IntegerBuilder


class Indices(ABC):
    """Numbers of one integer type, `element`, for expressions over dimensions and symbols of which `ranges` knows something."""

    def __init__(self, builder: IntegerBuilder, ranges: RangeEnv, element: Attribute):
        self.b = builder
        self.ranges = ranges
        self.element = element

    @abstractmethod
    def number(self, e: Expr) -> SSAValue:
        """The value of an expression: what the target knows of it, or what `combined` makes of its parts."""

    def literal(self, value: int) -> SSAValue:
        """A constant."""
        return self.b.int(value, self.element)

    def terms(self, e: Add) -> Iterable[tuple[SSAValue, int]]:
        """What a sum is made of, with coefficients, in the order of adding."""
        yield from ((self.number(term), coefficient) for term, coefficient in e.terms)
        if e.constant:
            yield self.literal(e.constant), 1

    def factors(self, e: Mul) -> Iterable[SSAValue]:
        """The factors of a product, in the order of multiplying."""
        return [self.number(factor) for factor in e.factors]

    def combined(self, e: Expr) -> SSAValue:
        """A sum, product, quotient, remainder, minimum or maximum of numbers."""
        b = self.b
        if isinstance(e, Add):
            return self._sum(e)
        if isinstance(e, Mul):
            return reduce(b.mul, self.factors(e))
        if isinstance(e, (FloorDiv, Mod)):
            return self._divided(e)
        assert isinstance(e, (Min, Max)), e
        return reduce(b.min if isinstance(e, Min) else b.max, map(self.number, e.args))

    def _sum(self, e: Add) -> SSAValue:
        b = self.b
        total: SSAValue | None = None
        for value, coefficient in self.terms(e):
            if coefficient == -1 and total is not None:
                total = b.sub(total, value)
                continue
            if coefficient != 1:
                value = b.mul(value, self.literal(coefficient))
            total = value if total is None else b.add(total, value)
        assert total is not None
        return total

    def _divided(self, e: FloorDiv | Mod) -> SSAValue:
        b = self.b
        x, y = self.number(e.lhs), self.number(e.rhs)
        if prove_ge0(e.lhs, self.ranges) and prove_ge0(e.rhs - 1, self.ranges):
            return b.quotient(x, y) if isinstance(e, FloorDiv) else b.remainder(x, y)
        return b.floor_quotient(x, y) if isinstance(e, FloorDiv) else b.floor_remainder(x, y)
