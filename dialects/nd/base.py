"""What all ops of the `nd` dialect share: list attributes and one assembly format.

Every op reads `nd.name operands {properties} : types`, where the types are one type if operands and result agree and a function type
otherwise. One hand-written format for the family is shorter than a declaration per op and costs nothing at import.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

from xdsl.dialects.builtin import StringAttr, UnitAttr
from xdsl.ir import Attribute, Data, Operation, SSAValue
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer

from ..expr import Expr, as_expr
from ..expr.syntax import ExprAttr, parse_expr
from ..support.create import QuickOp


@irdl_attr_definition
class IntsAttr(Data[tuple[int, ...]]):
    """A short list of integers (dimensions, window sizes): `[0, 2]`."""

    name = "nd.ints"

    @staticmethod
    def get(values: Sequence[int]) -> IntsAttr:
        key = tuple(values)
        found = _INTS.get(key)
        if found is None:
            found = _INTS[key] = IntsAttr(key)
        return found

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[int, ...]:
        with parser.in_angle_brackets():
            return _parse_ints(parser)

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<[{', '.join(map(str, self.data))}]>")


@irdl_attr_definition
class ExprsAttr(Data[tuple[Expr, ...]]):
    """A list of size expressions: `[s0, s0 * 2 + 1]`."""

    name = "nd.exprs"

    @staticmethod
    def get(values: Sequence[Expr | int]) -> ExprsAttr:
        key = tuple(as_expr(v) for v in values)
        found = _EXPRS.get(key)
        if found is None:
            found = _EXPRS[key] = ExprsAttr(key)
        return found

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[Expr, ...]:
        with parser.in_angle_brackets():
            return _parse_exprs(parser)

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<[{', '.join(map(str, self.data))}]>")


_INTS: dict[tuple[int, ...], IntsAttr] = {}
_EXPRS: dict[tuple[Expr, ...], ExprsAttr] = {}


def _parse_ints(parser: AttrParser) -> tuple[int, ...]:
    return tuple(
        parser.parse_comma_separated_list(
            parser.Delimiter.SQUARE, lambda: parser.parse_integer(allow_boolean=False), " in a list of integers"
        )
    )


def _parse_exprs(parser: AttrParser) -> tuple[Expr, ...]:
    return tuple(
        parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: parse_expr(parser), " in a list of sizes")
    )


def _print_value(printer: Printer, value: Attribute) -> None:
    if isinstance(value, (IntsAttr, ExprsAttr)):
        printer.print_string(f"[{', '.join(map(str, value.data))}]")
    elif isinstance(value, ExprAttr):
        printer.print_string(str(value.data))
    elif isinstance(value, StringAttr):
        printer.print_string_literal(value.data)
    else:
        printer.print_attribute(value)


_PARSE_VALUE: dict[str, Callable[[Parser], Attribute]] = {
    "ints": lambda p: IntsAttr.get(_parse_ints(p)),
    "exprs": lambda p: ExprsAttr.get(_parse_exprs(p)),
    "expr": lambda p: ExprAttr.get(parse_expr(p)),
    "str": lambda p: StringAttr(p.parse_str_literal()),
    "attr": lambda p: p.parse_attribute(),
}


class NdOp(QuickOp):
    """Base of the ops of `nd`: the shared assembly format.

    `SYNTAX` says how each property is written: "ints", "exprs", "expr", "str", "attr", or "unit" for a bare name."""

    SYNTAX: ClassVar[dict[str, str]] = {}

    @classmethod
    def new(cls, operands: Sequence[SSAValue], result: Attribute, **properties: Attribute) -> Self:
        """An op with one result, built the fast way (nothing is checked; the verifier does that on request)."""
        return cls.create(operands=operands, result_types=(result,), properties=properties)

    def print(self, printer: Printer) -> None:
        if self.operands:
            printer.print_string(" ")
            printer.print_list(self.operands, printer.print_ssa_value)
        shown = [key for key in self.SYNTAX if key in self.properties]
        if shown:
            printer.print_string(" {")
            printer.print_list(shown, lambda key: self._print_property(printer, key))
            printer.print_string("}")
        rest = dict(self.attributes)
        if rest:
            printer.print_string(" attributes ")
            printer.print_attr_dict(rest)
        printer.print_string(" : ")
        _print_types(printer, self)

    def _print_property(self, printer: Printer, key: str) -> None:
        value = self.properties[key]
        printer.print_string(key)
        if not isinstance(value, UnitAttr):
            printer.print_string(" = ")
            _print_value(printer, value)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        pos = parser.pos
        names = parser.parse_optional_undelimited_comma_separated_list(
            parser.parse_optional_unresolved_operand, parser.parse_unresolved_operand
        )
        properties: dict[str, Attribute] = {}
        if parser.parse_optional_punctuation("{"):
            cls._parse_properties(parser, properties)
        attributes: dict[str, Attribute] = {}
        if parser.parse_optional_keyword("attributes"):
            attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":", f" before the types of {cls.name}")
        operand_types, result_types = _parse_types(parser, len(names or ()))
        operands = parser.resolve_operands(names or (), operand_types, pos)
        return cls.create(operands=operands, result_types=result_types, properties=properties, attributes=attributes)

    @classmethod
    def _parse_properties(cls, parser: Parser, into: dict[str, Attribute]) -> None:
        while True:
            pos = parser.pos
            key = parser.parse_identifier(" of a property")
            kind = cls.SYNTAX.get(key)
            if kind is None:
                known = ", ".join(cls.SYNTAX) or "none"
                parser.raise_error(f"{cls.name} has no property '{key}' (it has: {known})", pos)
            if kind == "unit":
                into[key] = UnitAttr()
            else:
                parser.parse_punctuation("=", f" after {key}")
                into[key] = _PARSE_VALUE[kind](parser)
            if parser.parse_optional_punctuation(",") is None:
                break
        parser.parse_punctuation("}", " after the properties")


def _print_types(printer: Printer, op: Operation) -> None:
    operand_types, result_types = [o.type for o in op.operands], [r.type for r in op.results]
    if len(result_types) == 1 and all(t == result_types[0] for t in operand_types):
        printer.print_attribute(result_types[0])
        return
    printer.print_string("(")
    printer.print_list(operand_types, printer.print_attribute)
    printer.print_string(") -> (" if len(result_types) != 1 else ") -> ")
    printer.print_list(result_types, printer.print_attribute)
    if len(result_types) != 1:
        printer.print_string(")")


def _parse_types(parser: Parser, operands: int) -> tuple[Sequence[Attribute], Sequence[Attribute]]:
    inputs = parser.parse_optional_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
    if inputs is None:
        result = parser.parse_type()
        return [result] * operands, [result]
    parser.parse_punctuation("->", " between operand and result types")
    results = parser.parse_optional_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
    return inputs, [parser.parse_type()] if results is None else results


def prop(op: Operation, name: str) -> Any:
    """The Python value of a list, expression or string property (None when it is absent)."""
    value = op.properties.get(name)
    return None if value is None else value.data  # pyright: ignore[reportAttributeAccessIssue]
