"""What a target's builder gives to the lowering of indices and bodies.

A value is one number, or one for each lane of a vector or element of a tile. Operations of several operands repeat what there is one of,
where their docstring says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from xdsl.dialects import arith
from xdsl.ir import Attribute, Operation, SSAValue

NO_FLAGS: dict[str, Attribute] = {"fastmath": arith.FastMathFlagsAttr("none")}
NO_OVERFLOW_FLAGS: dict[str, Attribute] = {"overflowFlags": arith.IntegerOverflowAttr("none")}
PLAIN: dict[str, Attribute] = {}


class IntegerBuilder(Protocol):
    """Arithmetic on integers of one type and shape."""

    def int(self, value: int, element: Attribute, /) -> SSAValue:
        """A constant."""
        ...

    def add(self, a: SSAValue, b: SSAValue, /) -> SSAValue: ...
    def sub(self, a: SSAValue, b: SSAValue, /) -> SSAValue: ...
    def mul(self, a: SSAValue, b: SSAValue, /) -> SSAValue: ...
    def min(self, a: SSAValue, b: SSAValue, /) -> SSAValue: ...
    def max(self, a: SSAValue, b: SSAValue, /) -> SSAValue: ...
    def quotient(self, a: SSAValue, b: SSAValue, /) -> SSAValue:
        """a // b, neither of which is negative."""
        ...

    def remainder(self, a: SSAValue, b: SSAValue, /) -> SSAValue:
        """a % b, neither of which is negative."""
        ...

    def floor_quotient(self, a: SSAValue, b: SSAValue, /) -> SSAValue:
        """The quotient towards minus infinity."""
        ...

    def floor_remainder(self, a: SSAValue, b: SSAValue, /) -> SSAValue:
        """What the quotient towards minus infinity leaves: its sign is that of b."""
        ...


class ValueBuilder(IntegerBuilder, Protocol):
    """Operations of bodies."""

    def place(self, op: Operation, /) -> Operation:
        """Append an operation, which may have effects."""
        ...

    def constant(self, value: float, element: Attribute, /) -> SSAValue:
        """A number of a type of elements."""
        ...

    def together(self, *values: SSAValue) -> Sequence[SSAValue]:
        """Values in the smallest shape that all of them can have."""
        ...

    def elementwise(
        self, cls: type[Any], operands: Sequence[SSAValue], properties: Mapping[str, Attribute] = ..., element: Attribute | None = ..., /
    ) -> SSAValue:
        """A pure operation of one result, of `element` (None: as the operands), on operands brought together."""
        ...

    def cmpi(self, predicate: str, a: SSAValue, b: SSAValue, /) -> SSAValue:
        """A comparison of integers brought together."""
        ...

    def cmpf(self, predicate: str, a: SSAValue, b: SSAValue, /) -> SSAValue:
        """A comparison of floats brought together."""
        ...

    def invert(self, a: SSAValue, /) -> SSAValue:
        """The opposite of a condition."""
        ...

    def select(self, condition: SSAValue, a: SSAValue, b: SSAValue, /) -> SSAValue:
        """One of two values, in the shape of the condition."""
        ...

    def convert(self, cls: type[Operation], value: SSAValue, element: Attribute, /) -> SSAValue:
        """The cast of `arith` to elements of another type; the value itself where it has that type."""
        ...

    def resize(self, value: SSAValue, element: Attribute, /) -> SSAValue:
        """Signed integers in another width."""
        ...
