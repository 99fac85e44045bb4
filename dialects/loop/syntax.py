"""Pieces of the assembly format that the ops of `loop` share: lists of loops, accesses with index expressions, attributes."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO

from xdsl.dialects.builtin import IndexType
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import IRDLOperation
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer

from ..expr import Expr, IndexMap, dim
from ..expr.syntax import format_expr, parse_expr, parse_expr_with_names

INDEX = IndexType()

def value_names(printer: Printer, values: Sequence[SSAValue]) -> list[str]:
    """The names that `printer` gives to values, as text."""
    names: list[str] = []
    for value in values:
        stream, printer.stream = printer.stream, StringIO()
        printer.print_ssa_value(value)
        names.append(printer.stream.getvalue())  # pyright: ignore[reportAttributeAccessIssue]
        printer.stream = stream
    return names


def print_indices(printer: Printer, m: IndexMap, indices: Sequence[SSAValue]) -> None:
    names = value_names(printer, indices)
    printer.print_string("[" + ", ".join(format_expr(e, names) for e in m.results) + "]")


class IndexOperands:
    """Collects the SSA operands of index expressions while they are parsed: each distinct name is one dimension."""

    def __init__(self) -> None:
        self.found: list[UnresolvedOperand] = []
        self.names: dict[str, int] = {}

    def resolve(self, operand: UnresolvedOperand) -> Expr:
        key = f"{operand.operand_name}#{operand.index}"
        if key not in self.names:
            self.names[key] = len(self.found)
            self.found.append(operand)
        return dim(self.names[key])

    def values(self, parser: Parser) -> list[SSAValue]:
        return [parser.resolve_operand(o, INDEX) for o in self.found]


def parse_indices(parser: Parser) -> tuple[IndexMap, list[SSAValue]]:
    operands = IndexOperands()
    results = parser.parse_comma_separated_list(
        parser.Delimiter.SQUARE, lambda: parse_expr_with_names(parser, operands.resolve), " in an access"
    )
    return IndexMap(len(operands.found), tuple(results)), operands.values(parser)


def print_loops(printer: Printer, sizes: Sequence[Expr], args: Sequence[SSAValue]) -> None:
    names = value_names(printer, args)
    printer.print_string("(" + ", ".join(f"{n} = {s}" for n, s in zip(names, sizes, strict=False)) + ")")


def parse_loops(parser: Parser) -> tuple[list[Parser.UnresolvedArgument], list[Expr]]:
    def one() -> tuple[Parser.UnresolvedArgument, Expr]:
        arg = parser.parse_argument(expect_type=False)
        parser.parse_punctuation("=", " between a loop index and its size")
        return arg, parse_expr(parser)

    loops = parser.parse_comma_separated_list(parser.Delimiter.PAREN, one, " in a list of loops")
    return [a for a, _ in loops], [s for _, s in loops]


def print_attrs(printer: Printer, op: Operation, hidden: Sequence[str]) -> None:
    shown = {k: v for k, v in op.properties.items() if k not in hidden}
    shown.update(op.attributes)
    if shown:
        printer.print_string(" attributes ")
        printer.print_attr_dict(shown)


def parse_attrs(parser: Parser, op: type[IRDLOperation], properties: dict[str, Attribute]) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {}
    if parser.parse_optional_keyword("attributes"):
        declared = set(op.get_irdl_definition().properties)
        for key, value in parser.parse_optional_attr_dict().items():
            (properties if key in declared else attributes)[key] = value
    return attributes


def print_types(printer: Printer, types: Sequence[Attribute]) -> None:
    printer.print_list(types, printer.print_attribute)


def print_outs(printer: Printer, args: Sequence[SSAValue], values: Sequence[SSAValue]) -> None:
    """`outs(%o = %init : T, ...)`."""
    printer.print_string("outs(")
    pairs = zip(value_names(printer, args), value_names(printer, values), values, strict=True)
    for k, (arg, value, v) in enumerate(pairs):
        printer.print_string(f"{', ' if k else ''}{arg} = {value} : ")
        printer.print_attribute(v.type)
    printer.print_string(")")


def parse_outs(parser: Parser) -> list[tuple[Parser.UnresolvedArgument, SSAValue]]:
    """The list after the keyword `outs`."""

    def one() -> tuple[Parser.UnresolvedArgument, SSAValue]:
        arg = parser.parse_argument(expect_type=False)
        parser.parse_punctuation("=", " between an out and its initial value")
        value = parser.parse_unresolved_operand()
        parser.parse_punctuation(":", " before the type of an out")
        return arg, parser.resolve_operand(value, parser.parse_type())

    return parser.parse_comma_separated_list(parser.Delimiter.PAREN, one, " in outs")
