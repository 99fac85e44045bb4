"""Arguments of kernels and programs, as text."""

from __future__ import annotations

from xdsl.parser import Parser


def parse_argument(parser: Parser) -> Parser.Argument:
    """`%name: type`, with the location that is printed behind it under --mlir-print-debuginfo."""
    argument = parser.parse_argument()
    argument.location = parser.parse_optional_location()
    return argument
