"""The base of the operations of `tt`, and how they are read and written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from xdsl.dialects.builtin import DenseArrayBase, FunctionType, IntegerAttr, IntegerType
from xdsl.ir import Attribute, ParametrizedAttribute, SSAValue
from xdsl.irdl import IRDLOperation
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer

from ..support.create import QuickOp
from .types import check_sizes


class TTOp(QuickOp):
    """An operation on tensors whose sizes Triton limits; `check` verifies what is its own."""

    def verify_(self) -> None:
        for index, operand in enumerate(self.operands):
            check_sizes(operand.type, f"operand {index}")
        for index, result in enumerate(self.results):
            check_sizes(result.type, f"result {index}")
        self.check()

    def check(self) -> None:
        """VerifyException where the rules of this operation are broken."""


def operand(parser: Parser) -> UnresolvedOperand:
    """Parse one operand."""
    return parser.parse_unresolved_operand()


def operand_list(parser: Parser) -> list[UnresolvedOperand]:
    """Parse `[%a, %b]`."""
    return parser.parse_comma_separated_list(Parser.Delimiter.SQUARE, parser.parse_unresolved_operand)


def resolve(parser: Parser, operands: Sequence[UnresolvedOperand], types: Sequence[Attribute]) -> list[SSAValue]:
    """The values of operands; an error where there are more or fewer of them than types."""
    if len(operands) != len(types):
        parser.raise_error(f"{len(operands)} operands but {len(types)} types")
    return [parser.resolve_operand(o, t) for o, t in zip(operands, types, strict=True)]


def function_type(parser: Parser) -> FunctionType:
    """Parse `: (a, b) -> c`."""
    parser.parse_punctuation(":")
    position = parser.pos
    type = parser.parse_type()
    if not isinstance(type, FunctionType):
        parser.raise_error("expected a function type", position, parser.pos)
    return type


def attributes(parser: Parser, inherent: Sequence[str]) -> tuple[dict[str, Attribute], dict[str, Attribute]]:
    """Parse a dictionary; (the properties among its entries, the rest)."""
    entries = dict(parser.parse_optional_attr_dict())
    return {k: entries.pop(k) for k in list(entries) if k in inherent}, entries


def print_attributes(
    printer: Printer, op: IRDLOperation, inherent: Sequence[str] = (), defaults: dict[str, Attribute] | None = None
) -> None:
    """Print a dictionary of the properties `inherent` (not those with their default) and of the attributes of `op`."""
    shown = {k: op.properties[k] for k in inherent if k in op.properties}
    for name, value in (defaults or {}).items():
        if shown.get(name) == value:
            del shown[name]
    printer.print_op_attributes(shown | op.attributes)


def print_types(printer: Printer, types: Sequence[Attribute]) -> None:
    """Print ` : a, b`."""
    printer.print_string(" : ")
    printer.print_list(types, printer.print_attribute)


def print_functional(printer: Printer, op: IRDLOperation) -> None:
    """Print ` : (a, b) -> c` of all operands and results."""
    printer.print_string(" : ")
    printer.print_function_type(op.operand_types, op.result_types)


def print_values(printer: Printer, values: Sequence[SSAValue]) -> None:
    """Print `%a, %b`."""
    printer.print_list(values, printer.print_ssa_value)


def parse_bare(parser: Parser, cls: type[ParametrizedAttribute]) -> Attribute:
    """Parse a type of this class that may be written without its name, as Triton writes `<f32>` for `!tt.ptr<f32>`."""
    if parser._current_token.text != "<":
        return parser.parse_type()
    return cls.new(cls.parse_parameters(parser))


def number(attr: Attribute | None) -> int:
    """The value of an integer attribute."""
    assert isinstance(attr, IntegerAttr)
    return attr.value.data


def integers(attr: DenseArrayBase) -> list[int]:
    """The entries of an array of integers."""
    return [int(value) for value in cast(DenseArrayBase[IntegerType], attr).get_values()]
