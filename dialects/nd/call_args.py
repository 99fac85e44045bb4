"""The argument template of a call of a library operator: `#nd.call<"aten.add.Tensor", [arg(0), 2.5], {alpha = 1}>`.

A template mirrors the operator's Python arguments. Leaves: `arg(k)` is operand k of the op that carries the template, `size(e)` an
integer size expression, numbers, `true`, `false`, `none`, strings, `inf`/`nan` as `float("inf")`, lists, and torch's enumerations as
`dtype("float32")`, `device("cpu")`, `layout("strided")`, `memory_format("channels_last")`. `object(k)` is entry k of the module's
table of Python objects (a subgraph, a generator).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Data, Operation
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from ..expr.syntax import parse_expr
from ..support.call_template import Arg, Call, Enum, Obj, format_leaf
from ..support.schedule_check import choice_problem

KERNEL_CALL = "tt.launch"
"""The target of a call that launches a kernel of the module (a user's `tt.func`): `["name", [grid...], arguments...]`, the arguments in the
order of a host.launch: memory, sizes, numbers."""

UNDEFINED = "undefined"
"""Attribute of such a call: the operands that it overwrites and whose elements have no meaning before (they come from `torch.empty`)."""


_ENUMS = ("dtype", "device", "layout", "memory_format")


def parse_leaf(parser: AttrParser) -> Any:
    """One template value."""
    if (items := parser.parse_optional_comma_separated_list(parser.Delimiter.SQUARE, lambda: parse_leaf(parser))) is not None:
        return tuple(items)
    if (text := parser.parse_optional_str_literal()) is not None:
        return text
    if (number := parser.parse_optional_integer(allow_boolean=False)) is not None:
        return number
    pos = parser.pos
    word = parser.parse_identifier(" (a call argument)")
    if word in ("none", "true", "false"):
        return {"none": None, "true": True, "false": False}[word]
    with parser.in_parens():
        if word == "arg":
            return Arg(parser.parse_integer(allow_boolean=False, allow_negative=False))
        if word == "object":
            return Obj(parser.parse_integer(allow_boolean=False, allow_negative=False))
        if word == "size":
            return parse_expr(parser)
        if word in _ENUMS:
            return Enum(word, parser.parse_str_literal())
        if word in ("float", "complex"):
            return (float if word == "float" else complex)(parser.parse_str_literal())
    parser.raise_error(f"unknown call argument '{word}'; known: arg, size, object, none, true, false, float, {', '.join(_ENUMS)}", pos)


@irdl_attr_definition
class CallAttr(Data[Call]):
    """A call template as an attribute."""

    name = "nd.call"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Call:
        with parser.in_angle_brackets():
            target = parser.parse_str_literal()
            parser.parse_punctuation(",")
            args = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: parse_leaf(parser))
            kwargs: list[tuple[str, Any]] = []
            if parser.parse_optional_punctuation(","):
                kwargs = parser.parse_comma_separated_list(parser.Delimiter.BRACES, lambda: cls._parse_keyword(parser))
        return Call(target, tuple(args), tuple(kwargs))

    @staticmethod
    def _parse_keyword(parser: AttrParser) -> tuple[str, Any]:
        name = parser.parse_identifier(" (a keyword argument)")
        parser.parse_punctuation("=")
        return name, parse_leaf(parser)

    def print_parameter(self, printer: Printer) -> None:
        call = self.data
        text = f'<"{call.target}", {format_leaf(call.args)}'
        if call.kwargs:
            text += ", {" + ", ".join(f"{k} = {format_leaf(v)}" for k, v in call.kwargs) + "}"
        printer.print_string(text + ">")


def check_call(op: Operation, call: Call, named: Mapping[str, Sequence[int]], schedule: StringAttr | None) -> None:
    """VerifyException where a call, or a property that names operands, names one that the operation has not, or its schedule is none."""
    count = len(op.operands)
    for leaf in call.leaves():
        if isinstance(leaf, Arg) and leaf.index >= count:
            raise VerifyException(f"{op.name}: the call names arg({leaf.index}), there are {count} operands")
    for name, places in named.items():
        for k in places:
            if not 0 <= k < count:
                raise VerifyException(f"{op.name}: {name} operand {k}, there are {count} operands")
    if problem := choice_problem(schedule, ("generated", "library")):
        raise VerifyException(f"{op.name}: {problem}")
