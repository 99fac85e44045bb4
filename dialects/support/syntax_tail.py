"""How text of many operations ends: `{attributes} : type`."""

from __future__ import annotations

from xdsl.ir import Attribute, Operation
from xdsl.parser import Parser
from xdsl.printer import Printer


def print_tail(printer: Printer, op: Operation, type: Attribute) -> None:
    """The attributes of an operation, where it has any, and a type."""
    printer.print_op_attributes(op.attributes)
    printer.print_string(" : ")
    printer.print_attribute(type)


def parse_tail(parser: Parser) -> tuple[dict[str, Attribute], Attribute]:
    """The attributes and the type of an operation whose operands and properties are read."""
    attributes = parser.parse_optional_attr_dict()
    parser.parse_punctuation(":")
    return attributes, parser.parse_type()
