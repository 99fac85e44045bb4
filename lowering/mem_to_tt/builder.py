"""Building `tt` code: blocks that are open, equal pure operations once, constants, shapes.

A value is a scalar, the same for all elements of the tile, or a tensor with one dimension for each axis of the tile, of
the axis' size where it varies along it and of size 1 where it does not. What is combined is broadcast first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xdsl.dialects import arith
from xdsl.dialects.builtin import UNKNOWN_LOC, DenseIntOrFPElementsAttr, FloatAttr, IntegerAttr, IntegerType, LocationAttr, i1, i8, i32
from xdsl.ir import Attribute, Block, Operation, SSAValue

from ...dialects.nd.types import is_float
from ...dialects.support.float8 import FLOAT8, encode
from ...dialects.tt import arith as tt_arith
from ...dialects.tt import shape as tt_shape
from ...dialects.tt.compute import BitcastOp
from ...dialects.tt.types import element_of, like, shape_of, tensor
from ..nest.builder import NO_OVERFLOW_FLAGS, PLAIN

CASTS: dict[type[Operation], type[Operation]] = {
    arith.SIToFPOp: tt_arith.SIToFPOp,
    arith.UIToFPOp: tt_arith.UIToFPOp,
    arith.FPToSIOp: tt_arith.FPToSIOp,
    arith.FPToUIOp: tt_arith.FPToUIOp,
    arith.ExtSIOp: tt_arith.ExtSIOp,
    arith.ExtUIOp: tt_arith.ExtUIOp,
    arith.TruncIOp: tt_arith.TruncIOp,
    arith.BitcastOp: BitcastOp,
}
"""Casts that `tt` has in its own way; the others are those of `arith`."""


class Builder:
    """Appends to the innermost open block. What is equal to something in an open block is not made again. `location` is the place of what
    is built now."""

    def __init__(self, entry: Block):
        self.blocks: list[tuple[Block, dict[Any, SSAValue]]] = [(entry, {})]
        self._outside: list[list[tuple[Block, dict[Any, SSAValue]]]] = []
        self.location: LocationAttr = UNKNOWN_LOC

    def open(self, block: Block) -> None:
        """Append to `block`, inside of what is open, until `close`."""
        self.blocks.append((block, {}))

    def close(self) -> Block:
        return self.blocks.pop()[0]

    def enter_region(self, block: Block) -> None:
        """Append to `block`, which uses nothing from outside, until `leave_region`."""
        self._outside.append(self.blocks)
        self.blocks = [(block, {})]

    def leave_region(self) -> None:
        self.blocks = self._outside.pop()

    def place(self, op: Operation) -> Operation:
        """Append an operation."""
        op.location = self.location
        self.blocks[-1][0].add_op(op)
        return op

    def find(self, key: Any) -> SSAValue | None:
        """What was remembered under `key` in an open block."""
        for _, memo in reversed(self.blocks):
            found = memo.get(key)
            if found is not None:
                return found
        return None

    def remember(self, key: Any, value: SSAValue) -> None:
        self.blocks[-1][1][key] = value

    def pure(
        self, cls: type[Any], operands: Sequence[SSAValue], result: Attribute, properties: Mapping[str, Attribute] = PLAIN
    ) -> SSAValue:
        """The result of a pure operation of one result."""
        key = (cls, *operands, result, *properties.values())
        found = self.find(key)
        if found is None:
            op = cls.create(operands=tuple(operands), result_types=(result,), properties=properties)
            found = self.place(op).results[0]
            self.remember(key, found)
        return found

    # ---- constants and shapes

    def constant(self, value: float, element: Attribute, shape: tuple[int, ...] | None = None) -> SSAValue:
        """A number of type `element`, or a tensor of it."""
        if element in FLOAT8:
            return self.cast(BitcastOp, self.constant(encode(value, element), i8, shape), element)
        number: float | int
        if is_float(element):
            number = float(value)
        else:
            assert isinstance(element, IntegerType)
            number = _wrapped(int(value), element.width.data)
        key = (arith.ConstantOp, repr(number), element, shape)
        found = self.find(key)
        if found is not None:
            return found
        attr: Attribute = FloatAttr(number, element) if isinstance(number, float) else IntegerAttr(number, element)  # pyright: ignore
        result = element
        if shape is not None:
            result = tensor(shape, element)
            attr = DenseIntOrFPElementsAttr.from_list(result, [attr.value.data])  # pyright: ignore
        op = arith.ConstantOp.create(result_types=(result,), properties={"value": attr})
        # constants go to the front: they serve every block
        entry, memo = self.blocks[0]
        first = entry.first_op
        if first is None:
            entry.add_op(op)
        else:
            entry.insert_op_before(op, first)
        memo[key] = op.results[0]
        return op.results[0]

    def int(self, value: int, element: Attribute = i32) -> SSAValue:
        return self.constant(value, element)

    def splat(self, value: SSAValue, shape: tuple[int, ...]) -> SSAValue:
        """A scalar in every element of a tensor."""
        owner = value.owner
        if isinstance(owner, arith.ConstantOp) and isinstance(owner.value, (FloatAttr, IntegerAttr)):
            return self.constant(owner.value.value.data, value.type, shape)
        return self.pure(tt_shape.SplatOp, (value,), tensor(shape, value.type))

    def to_shape(self, value: SSAValue, shape: tuple[int, ...] | None) -> SSAValue:
        """A value in this shape, repeated along what it does not vary along."""
        have = shape_of(value.type)
        if have == shape or shape is None:
            return value
        if have is None:
            return self.splat(value, shape)
        return self.pure(tt_shape.BroadcastOp, (value,), tensor(shape, element_of(value.type)))

    def together(self, *values: SSAValue) -> list[SSAValue]:
        """Values in the smallest shape that all of them can have."""
        shape = joined(*(shape_of(v.type) for v in values))
        return [self.to_shape(v, shape) for v in values]

    # ---- arithmetic

    def elementwise(
        self,
        cls: type[Any],
        operands: Sequence[SSAValue],
        properties: Mapping[str, Attribute] = PLAIN,
        element: Attribute | None = None,
    ) -> SSAValue:
        """An operation on elements of one type that gives elements of `element`, or of that type."""
        values = self.together(*operands)
        return self.pure(cls, values, values[0].type if element is None else like(values[0].type, element), properties)

    def add(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """The sum of integers."""
        if is_zero(a):
            return b
        if is_zero(b):
            return a
        return self.elementwise(arith.AddiOp, (a, b), NO_OVERFLOW_FLAGS)

    def mul(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """The product of integers."""
        return self.elementwise(arith.MuliOp, (a, b), NO_OVERFLOW_FLAGS)

    def sub(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """The difference of integers."""
        return self.elementwise(arith.SubiOp, (a, b), NO_OVERFLOW_FLAGS)

    def min(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """The smaller one of signed integers."""
        return self.elementwise(arith.MinSIOp, (a, b))

    def max(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """The larger one of signed integers."""
        return self.elementwise(arith.MaxSIOp, (a, b))

    def quotient(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """a // b, neither of which is negative."""
        return self.elementwise(arith.DivSIOp, (a, b))

    def remainder(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """a % b, neither of which is negative."""
        return self.elementwise(arith.RemSIOp, (a, b))

    def floor_quotient(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """The quotient towards minus infinity."""
        quotient, _, is_above = self._truncated(a, b)
        return self.select(is_above, self.sub(quotient, self.constant(1, element_of(a.type))), quotient)

    def floor_remainder(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """What the quotient towards minus infinity leaves."""
        _, rest, is_above = self._truncated(a, b)
        return self.select(is_above, self.add(rest, b), rest)

    def _truncated(self, a: SSAValue, b: SSAValue) -> tuple[SSAValue, SSAValue, SSAValue]:
        """The quotient towards zero, what it leaves, and where it is above the one towards minus infinity."""
        quotient, rest = self.quotient(a, b), self.remainder(a, b)
        zero = self.constant(0, element_of(a.type))
        signs = self.cmpi("slt", self.elementwise(arith.XOrIOp, (rest, b)), zero)
        return quotient, rest, self.elementwise(arith.AndIOp, (signs, self.cmpi("ne", rest, zero)))

    def cmpi(self, predicate: str, a: SSAValue, b: SSAValue) -> SSAValue:
        return self._compare(tt_arith.CmpIOp, predicate, a, b)

    def cmpf(self, predicate: str, a: SSAValue, b: SSAValue) -> SSAValue:
        return self._compare(tt_arith.CmpFOp, predicate, a, b)

    def _compare(self, cls: type[Any], predicate: str, a: SSAValue, b: SSAValue) -> SSAValue:
        a, b = self.together(a, b)
        key = (cls, predicate, a, b)
        found = self.find(key)
        if found is None:
            found = self.place(cls.make(predicate, a, b)).results[0]
            self.remember(key, found)
        return found

    def both(self, a: SSAValue | None, b: SSAValue | None) -> SSAValue | None:
        """The conjunction of two conditions; None is true."""
        if a is None or b is None or a is b:
            return b if a is None else a
        return self.elementwise(arith.AndIOp, (a, b))

    def invert(self, a: SSAValue) -> SSAValue:
        """The opposite of a condition."""
        return self.elementwise(arith.XOrIOp, (a, self.constant(1, i1)))

    def select(self, condition: SSAValue, a: SSAValue, b: SSAValue) -> SSAValue:
        condition, a, b = self.together(condition, a, b)
        return self.pure(tt_arith.SelectOp, (condition, a, b), a.type)

    def cast(self, cls: type[Any], value: SSAValue, element: Attribute) -> SSAValue:
        """A cast to elements of another type."""
        return self.pure(cls, (value,), like(value.type, element))

    def convert(self, cls: type[Operation], value: SSAValue, element: Attribute) -> SSAValue:
        """The cast of `arith` to elements of another type; the value itself where it has that type."""
        return value if element_of(value.type) == element else self.cast(CASTS.get(cls, cls), value, element)

    def resize(self, value: SSAValue, element: Attribute) -> SSAValue:
        """Signed integers in another width."""
        have = element_of(value.type)
        assert isinstance(have, IntegerType) and isinstance(element, IntegerType)
        if have == element:
            return value
        owner = value.owner
        if isinstance(owner, arith.ConstantOp) and isinstance(owner.value, IntegerAttr):
            return self.constant(owner.value.value.data, element)
        wider = element.width.data > have.width.data
        return self.cast(tt_arith.ExtSIOp if wider else tt_arith.TruncIOp, value, element)


def _wrapped(value: int, width: int) -> int:
    """The signed number with the low bits of `value`, as attributes want it (a bool as 0 or 1)."""
    value &= (1 << width) - 1
    return value - (1 << width) if width > 1 and value >> (width - 1) else value


def is_zero(value: SSAValue) -> bool:
    """Whether a value is the integer constant 0."""
    owner = value.owner
    return isinstance(owner, arith.ConstantOp) and isinstance(owner.value, IntegerAttr) and owner.value.value.data == 0


def joined(*shapes: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """The smallest shape that values of all these shapes can be repeated to."""
    known = [s for s in shapes if s is not None]
    return tuple(map(max, *known)) if len(known) > 1 else known[0] if known else None
