"""Operations of `arith` on tensors that xDSL has for scalars only: `select` with a mask, comparisons, and casts of integers.

They have the names and the text of upstream MLIR. `arith_dialect` is xDSL's dialect with these in it: what is read as
one of them on scalars becomes xDSL's operation, so that there is one class for each operation on scalars.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr, TensorType, i1, i64
from xdsl.ir import Attribute, Dialect, Operation, SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, prop_def, result_def, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from ..support.create import QuickOp
from .types import bits_of, check_float, check_int, check_same, check_shape, like


class _TensorOp(QuickOp):
    """An operation on tensors that stands beside one of xDSL on scalars."""

    SCALAR: ClassVar[type[IRDLOperation]]
    """xDSL's operation of the same name."""

    @classmethod
    def create(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls,
        *,
        operands: Sequence[Any] = (),
        result_types: Sequence[Attribute] = (),
        properties: Mapping[str, Attribute] = {},
        attributes: Mapping[str, Attribute] = {},
        **rest: Any,
    ) -> Any:
        """As Operation.create; xDSL's operation if the result is a scalar."""
        if any(isinstance(t, TensorType) for t in result_types):
            return super().create(
                operands=operands, result_types=result_types, properties=properties, attributes=attributes, **rest
            )
        return cls.SCALAR.create(
            operands=operands, result_types=result_types, properties=properties, attributes=attributes, **rest
        )


@irdl_op_definition
class SelectOp(_TensorOp):
    """For each element `lhs` where the mask is set, else `rhs`; an i1 for the mask chooses all of a tensor.

    %r = arith.select %mask, %a, %b : tensor<64xi1>, tensor<64xf32>
    """

    name = "arith.select"
    SCALAR: ClassVar = arith.SelectOp
    cond = operand_def()
    lhs = operand_def()
    rhs = operand_def()
    result = result_def()
    traits = traits_def(Pure())

    def verify_(self) -> None:
        check_same(self.lhs.type, self.result.type, "the first value")
        check_same(self.rhs.type, self.result.type, "the second value")
        if self.cond.type != i1:
            check_same(self.cond.type, like(self.result.type, i1), "the condition")

    @classmethod
    def parse(cls, parser: Parser) -> Any:
        names = parser.parse_comma_separated_list(Parser.Delimiter.NONE, parser.parse_unresolved_operand)
        if len(names) != 3:
            parser.raise_error(f"arith.select has three operands, got {len(names)}")
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        types = [i1, parser.parse_type()]
        if parser.parse_optional_punctuation(","):
            types = [types[1], parser.parse_type()]
        operands = [parser.resolve_operand(n, t) for n, t in zip(names, (*types, types[1]), strict=True)]
        return cls.create(operands=operands, result_types=types[1:], attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_ssa_value)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        types = [self.result.type] if self.cond.type == i1 else [self.cond.type, self.result.type]
        printer.print_list(types, printer.print_attribute)


class _CastOp(_TensorOp):
    input = operand_def()
    result = result_def()
    traits = traits_def(Pure())

    def verify_(self) -> None:
        check_shape(self.result.type, self.input.type, "the result")
        self.check(self.input.type, self.result.type)

    def check(self, source: Attribute, result: Attribute) -> None:
        """VerifyException if elements of `source` are not cast to those of `result` by this operation."""
        raise NotImplementedError

    @classmethod
    def parse(cls, parser: Parser) -> Any:
        name = parser.parse_unresolved_operand()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        source = parser.parse_type()
        parser.parse_keyword("to")
        types = [parser.parse_type()]
        return cls.create(operands=[parser.resolve_operand(name, source)], result_types=types, attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.input)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.input.type)
        printer.print_string(" to ")
        printer.print_attribute(self.result.type)


class _FloatToIntOp(_CastOp):
    def check(self, source: Attribute, result: Attribute) -> None:
        check_float(source, "the operand")
        check_int(result, "the result")


class _IntToFloatOp(_CastOp):
    def check(self, source: Attribute, result: Attribute) -> None:
        check_int(source, "the operand")
        check_float(result, "the result")


class _ExtendOp(_CastOp):
    def check(self, source: Attribute, result: Attribute) -> None:
        check_int(source, "the operand")
        check_int(result, "the result")
        if bits_of(source) >= bits_of(result):
            raise VerifyException(f"the result must be wider than the operand, got {source} to {result}")


@irdl_op_definition
class FPToSIOp(_FloatToIntOp):
    """To signed integers, towards zero."""

    name = "arith.fptosi"
    SCALAR: ClassVar = arith.FPToSIOp


@irdl_op_definition
class FPToUIOp(_FloatToIntOp):
    """To unsigned integers, towards zero."""

    name = "arith.fptoui"
    SCALAR: ClassVar = arith.FPToUIOp


@irdl_op_definition
class SIToFPOp(_IntToFloatOp):
    """From signed integers, to the nearest."""

    name = "arith.sitofp"
    SCALAR: ClassVar = arith.SIToFPOp


@irdl_op_definition
class UIToFPOp(_IntToFloatOp):
    """From unsigned integers, to the nearest."""

    name = "arith.uitofp"
    SCALAR: ClassVar = arith.UIToFPOp


@irdl_op_definition
class ExtSIOp(_ExtendOp):
    """Wider integers, the sign repeated."""

    name = "arith.extsi"
    SCALAR: ClassVar = arith.ExtSIOp


@irdl_op_definition
class ExtUIOp(_ExtendOp):
    """Wider integers, zeros above."""

    name = "arith.extui"
    SCALAR: ClassVar = arith.ExtUIOp


@irdl_op_definition
class TruncIOp(_CastOp):
    """Narrower integers, the low bits."""

    name = "arith.trunci"
    SCALAR: ClassVar = arith.TruncIOp

    def check(self, source: Attribute, result: Attribute) -> None:
        check_int(source, "the operand")
        check_int(result, "the result")
        if bits_of(source) <= bits_of(result):
            raise VerifyException(f"the result must be narrower than the operand, got {source} to {result}")


@cache
def _predicate(number: int) -> IntegerAttr:
    return IntegerAttr(number, i64)


class _CompareOp(_TensorOp):
    PREDICATES: ClassVar[list[str]]
    predicate = prop_def(IntegerAttr)
    lhs = operand_def()
    rhs = operand_def()
    result = result_def()
    traits = traits_def(Pure())

    @property
    def kind(self) -> str:
        """The predicate's keyword."""
        return self.PREDICATES[self.predicate.value.data]

    @classmethod
    def make(cls, predicate: str, lhs: SSAValue, rhs: SSAValue) -> Any:
        """Compare tensors, or scalars (with xDSL's operation); `predicate` is a keyword."""
        properties = {"predicate": _predicate(cls.PREDICATES.index(predicate))}
        return cls.create(operands=(lhs, rhs), result_types=(like(lhs.type, i1),), properties=properties)

    def verify_(self) -> None:
        check_same(self.rhs.type, self.lhs.type, "the second operand")
        check_same(self.result.type, like(self.lhs.type, i1), "the result")
        if not 0 <= self.predicate.value.data < len(self.PREDICATES):
            raise VerifyException(f"there is no predicate {self.predicate.value.data}")
        self.check()

    def check(self) -> None:
        """VerifyException if the elements of the operands are not compared by this operation."""
        raise NotImplementedError

    @classmethod
    def parse(cls, parser: Parser) -> Any:
        position = parser.pos
        word = parser.parse_identifier("a predicate")
        if word not in cls.PREDICATES:
            parser.raise_error(f"there is no predicate '{word}' (choose from {', '.join(cls.PREDICATES)})", position)
        properties: dict[str, Attribute] = {"predicate": IntegerAttr(cls.PREDICATES.index(word), i64)}
        parser.parse_punctuation(",")
        names = [parser.parse_unresolved_operand()]
        parser.parse_punctuation(",")
        names.append(parser.parse_unresolved_operand())
        if parser.parse_optional_keyword("fastmath"):
            properties["fastmath"] = arith.FastMathFlagsAttr(arith.FastMathFlagsAttr.parse_parameter(parser))
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type = parser.parse_type()
        operands = [parser.resolve_operand(n, type) for n in names]
        result = [like(type, i1)]
        return cls.create(operands=operands, result_types=result, properties=properties, attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {self.kind}, ")
        printer.print_list(self.operands, printer.print_ssa_value)
        flags = self.properties.get("fastmath")
        if isinstance(flags, arith.FastMathFlagsAttr) and flags != _NO_FLAGS:
            printer.print_string(" fastmath")
            flags.print_parameter(printer)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.lhs.type)


_NO_FLAGS = arith.FastMathFlagsAttr("none")


@irdl_op_definition
class CmpIOp(_CompareOp):
    """Which elements compare so as integers: `%m = arith.cmpi slt, %a, %b : tensor<64xi32>`."""

    name = "arith.cmpi"
    SCALAR: ClassVar = arith.CmpiOp
    PREDICATES: ClassVar = arith.CMPI_COMPARISON_OPERATIONS

    def check(self) -> None:
        check_int(self.lhs.type, "the operands")


@irdl_op_definition
class CmpFOp(_CompareOp):
    """Which elements compare so as floating point numbers: `%m = arith.cmpf olt, %a, %b : tensor<64xf32>`."""

    name = "arith.cmpf"
    SCALAR: ClassVar = arith.CmpfOp
    PREDICATES: ClassVar = arith.CMPF_COMPARISON_OPERATIONS
    fastmath = prop_def(arith.FastMathFlagsAttr, default_value=_NO_FLAGS)

    def check(self) -> None:
        check_float(self.lhs.type, "the operands")


TENSOR_OPS: dict[str, type[_TensorOp]] = {
    op.name: op
    for op in (SelectOp, CmpIOp, CmpFOp, FPToSIOp, FPToUIOp, SIToFPOp, UIToFPOp, ExtSIOp, ExtUIOp, TruncIOp)
}
"""The operations of this file by name."""


def arith_dialect() -> Dialect:
    """xDSL's `arith`, where the operations of this file stand for those on scalars only."""
    ops: list[type[Operation]] = [TENSOR_OPS.get(op.name, op) for op in arith.Arith.operations]
    return Dialect("arith", ops, list(arith.Arith.attributes), arith.Arith._interfaces)
