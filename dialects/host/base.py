"""Types of the `host` dialect, and what its operations share: typed operands in text, and the size expressions that an operation names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.dialects.builtin import (
    Float64Type,
    IndexType,
    IntegerType,
    NoneAttr,
    StringAttr,
)
from xdsl.ir import Attribute, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.irdl import (
    irdl_attr_definition,
)
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer

from ..expr import Expr
from ..expr.syntax import ExprAttr, parse_expr
from ..nd.base import ExprsAttr
from ..nd.call_args import CallAttr
from ..support.create import QuickOp


@irdl_attr_definition
class TensorType(ParametrizedAttribute, TypeAttribute):
    """A tensor of torch with a known element type: `!host.tensor<f32>`, `!host.tensor<f32, "cuda:0">` when it is not on the CPU,
    `!host.tensor<f32, "any">` where that does not matter; `!host.tensor<none>` when the element type is not ours."""

    name = "host.tensor"
    element_type: Attribute
    device: StringAttr

    @staticmethod
    def get(element_type: Attribute | None = None, device: str = "cpu") -> TensorType:
        """The interned type."""
        key = element_type or NoneAttr(), device
        found = _TENSORS.get(key)
        if found is None:
            found = _TENSORS[key] = TensorType(key[0], StringAttr(device))
        return found

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> list[Attribute]:
        with parser.in_angle_brackets():
            element = NoneAttr() if parser.parse_optional_keyword("none") else parser.parse_type()
            device = parser.parse_str_literal() if parser.parse_optional_punctuation(",") else "cpu"
        return [element, StringAttr(device)]

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            if isinstance(self.element_type, NoneAttr):
                printer.print_string("none")
            else:
                printer.print_attribute(self.element_type)
            if self.device.data != "cpu":
                printer.print_string(f', "{self.device.data}"')


_TENSORS: dict[tuple[Attribute, str], TensorType] = {}


@irdl_attr_definition
class PtrType(ParametrizedAttribute, TypeAttribute):
    """Raw memory of the arena."""

    name = "host.ptr"


@irdl_attr_definition
class ObjectType(ParametrizedAttribute, TypeAttribute):
    """Any other Python object (a generator, a list of tensors of unknown length, an opaque result)."""

    name = "host.object"


ptr = PtrType()
obj = ObjectType()


def is_number(type: Attribute) -> bool:
    """Whether a value of `type` is a Python number: i64/index (int), f64 (float) or i1 (bool)."""
    return isinstance(type, (Float64Type, IndexType)) or (isinstance(type, IntegerType) and type.width.data in (1, 64))


def exprs_text(values: Sequence[Expr]) -> str:
    return f"[{', '.join(map(str, values))}]"


def parse_exprs(parser: Parser) -> ExprsAttr:
    return ExprsAttr.get(
        parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: parse_expr(parser), " in a list of sizes")
    )


def print_typed(printer: Printer, values: Sequence[SSAValue]) -> None:
    def one(value: SSAValue) -> None:
        printer.print_ssa_value(value)
        printer.print_string(" : ")
        printer.print_attribute(value.type)

    printer.print_string("(")
    printer.print_list(values, one)
    printer.print_string(")")


def parse_typed_value(parser: Parser) -> SSAValue:
    unresolved = parser.parse_unresolved_operand()
    parser.parse_punctuation(":", " before the type of a value")
    return parser.resolve_operand(unresolved, parser.parse_type())


def parse_typed(parser: Parser) -> list[SSAValue]:
    return parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: parse_typed_value(parser))


def parse_value_type(parser: Parser, name: Any) -> SSAValue:
    parser.parse_punctuation(":", " before the type")
    return parser.resolve_operand(name, parser.parse_type())


class HostOp(QuickOp):
    """Base of the ops of `host`: which expressions an op names (for the check that every symbol is bound)."""

    def exprs(self) -> list[Expr]:
        """Every size expression that the op evaluates."""
        found: list[Expr] = []
        for value in self.properties.values():
            if isinstance(value, ExprAttr):
                found.append(value.data)
            elif isinstance(value, ExprsAttr):
                found.extend(value.data)
            elif isinstance(value, CallAttr):
                found.extend(leaf for leaf in value.data.leaves() if isinstance(leaf, Expr))
        return found
