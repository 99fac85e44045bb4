"""Text syntax of index expressions and maps, and the attributes that hold them.

    expr    ::= product ((`+` | `-`) product)*
    product ::= unary ((`*` | `floordiv` | `ceildiv` | `mod`) unary)*
    unary   ::= `-` unary | integer | name | `(` expr `)` | (`min` | `max`) `(` expr (`,` expr)* `)`
    map     ::= `(` (name (`,` name)*)? `)` `->` `(` (expr (`,` expr)*)? `)`

The grammar of MLIR's affine expressions, with min and max and without its restriction to constant divisors. A name
`d0`, `d1`, ... is a dimension, any other one a size symbol; inside a map the listed names are its dimensions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from xdsl.ir import Data
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser, Parser, UnresolvedOperand
from xdsl.printer import Printer

from .core import Dim, Expr, ExprLike, as_expr, const, dim, maximum, minimum, sym
from .division import ceildiv, floordiv, mod
from .maps import IndexMap
from .views import format_with, str_name

Atom: TypeAlias = Callable[[], "Expr | None"]
"""Parses an atom that only some contexts have (an SSA name), or returns None without consuming anything."""

Names: TypeAlias = Callable[[str], "Expr | None"]
"""The meaning of a name, or None when it has none."""

_DIM_NAME = re.compile(r"d([0-9]+)\Z")
_SUM_OPS: dict[str, Callable[[Expr, Expr], Expr]] = {"+": lambda a, b: a + b, "-": lambda a, b: a - b}
_PRODUCT_OPS: dict[str, Callable[[Expr, Expr], Expr]] = {
    "*": lambda a, b: a * b,
    "floordiv": floordiv,
    "ceildiv": ceildiv,
    "mod": mod,
}
_CALLS: dict[str, Callable[..., Expr]] = {"min": minimum, "max": maximum}


class _ExprParser:
    """Recursive descent over the tokens of an xDSL parser; `atom` and `names` give the leaves of the context."""

    def __init__(self, parser: AttrParser, names: Names, atom: Atom | None = None):
        self.parser = parser
        self.names = names
        self.atom = atom

    def sum(self) -> Expr:
        result = self.product()
        while (op := self._operator(_SUM_OPS)) is not None:
            result = op(result, self.product())
        return result

    def product(self) -> Expr:
        result = self.unary()
        while True:
            start = self.parser._current_token.span.start
            op = self._operator(_PRODUCT_OPS)
            if op is None:
                return result
            rhs = self.unary()
            try:
                result = op(result, rhs)
            except ZeroDivisionError:
                self.parser.raise_error("division by zero in an index expression", start, self.parser.pos)

    def _operator(self, table: Mapping[str, Callable[[Expr, Expr], Expr]]) -> Callable[[Expr, Expr], Expr] | None:
        text = self.parser._current_token.text
        op = table.get(text)
        if op is not None:
            self.parser._consume_token()
        return op

    def unary(self) -> Expr:
        parser = self.parser
        if parser.parse_optional_punctuation("-") is not None:
            return -self.unary()
        if parser.parse_optional_punctuation("(") is not None:
            result = self.sum()
            parser.parse_punctuation(")", " to close the parenthesis of an index expression")
            return result
        value = parser.parse_optional_integer(allow_boolean=False, allow_negative=False)
        if value is not None:
            return const(value)
        if self.atom is not None and (found := self.atom()) is not None:
            return found
        span = parser._current_token.span
        name = parser.parse_optional_identifier()
        if name is None:
            parser.raise_error(f"expected an index expression, found `{span.text}`", span)
        if name in _CALLS:
            args = parser.parse_comma_separated_list(parser.Delimiter.PAREN, self.sum, f" in the arguments of {name}")
            if not args:
                parser.raise_error(f"`{name}` needs at least one argument", span)
            return _CALLS[name](*args)
        found = self.names(name)
        if found is None:
            parser.raise_error(f"`{name}` is not a dimension or size symbol here", span)
        return found


def _symbol(name: str) -> Expr | None:
    try:
        return sym(name)
    except ValueError:
        return None


def _free_name(name: str) -> Expr | None:
    match = _DIM_NAME.match(name)
    return dim(int(match[1])) if match else _symbol(name)


def parse_expr(parser: AttrParser) -> Expr:
    """Parses an index expression whose names are dimensions (`d0`) and size symbols (any other identifier)."""
    return _ExprParser(parser, _free_name).sum()


def parse_expr_with_names(parser: Parser, resolve: Callable[[UnresolvedOperand], Expr]) -> Expr:
    """Parses an index expression over SSA names; `resolve` gives the expression that stands for an operand.

    Identifiers are size symbols. Positional dimensions (`d0`) are an error: here they have no names of their own.
    """

    def atom() -> Expr | None:
        operand = parser.parse_optional_unresolved_operand()
        return None if operand is None else resolve(operand)

    return _ExprParser(parser, _symbol, atom).sum()


def format_expr(e: ExprLike, dim_names: Sequence[str]) -> str:
    """The text of `e` with `d_i` written as `dim_names[i]`. IndexError when there is no such name."""

    def name(x: Expr) -> str:
        if not isinstance(x, Dim):
            return str_name(x)
        if x.index >= len(dim_names):
            raise IndexError(f"`{e}` uses {x}, but only {len(dim_names)} dimensions are named")
        return dim_names[x.index]

    return format_with(as_expr(e), name)


def parse_index_map(parser: AttrParser) -> IndexMap:
    """Parses a map such as `(d0, d1) -> (d1, d0 + 4)`; the dimensions may have any names."""
    dims: dict[str, Expr] = {}

    def dim_name() -> None:
        span = parser._current_token.span
        name = parser.parse_identifier(" naming a dimension of an index map")
        if name in dims:
            parser.raise_error(f"the dimension `{name}` is listed twice", span)
        dims[name] = dim(len(dims))

    parser.parse_comma_separated_list(parser.Delimiter.PAREN, dim_name, " in the dimensions of an index map")
    parser.parse_punctuation("->", " after the dimensions of an index map")
    body = _ExprParser(parser, lambda name: dims.get(name) or _symbol(name))
    results = parser.parse_comma_separated_list(parser.Delimiter.PAREN, body.sum, " in the results of an index map")
    return IndexMap(len(dims), results)


@irdl_attr_definition
class ExprAttr(Data[Expr]):
    """An index expression: `#nd.expr<s0 * 2>`. Interned, so equal attributes are the same object."""

    name = "nd.expr"
    _interned: ClassVar[dict[Expr, ExprAttr]] = {}

    def __new__(cls, data: Expr) -> ExprAttr:
        found = cls._interned.get(data)
        return cls._interned.setdefault(data, super().__new__(cls)) if found is None else found

    @classmethod
    def new(cls, params: Any) -> ExprAttr:
        return cls.get(params)

    @classmethod
    def get(cls, attr: ExprLike | Data[Expr]) -> ExprAttr:
        """The attribute of an expression or int."""
        found = cls._interned.get(attr)  # pyright: ignore[reportArgumentType, reportCallIssue]
        if found is not None:
            return found
        return attr if isinstance(attr, ExprAttr) else cls(as_expr(attr))  # pyright: ignore[reportArgumentType]

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __reduce__(self):
        return ExprAttr, (self.data,)

    def __copy__(self) -> ExprAttr:
        return self

    def __deepcopy__(self, memo: Any) -> ExprAttr:
        return self

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Expr:
        with parser.in_angle_brackets():
            return parse_expr(parser)

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{self.data}>")


@irdl_attr_definition
class IndexMapAttr(Data[IndexMap]):
    """An index map: `#nd.map<(d0, d1) -> (d1, d0 + 4)>`. Interned, so equal attributes are the same object."""

    name = "nd.map"
    _interned: ClassVar[dict[IndexMap, IndexMapAttr]] = {}

    def __new__(cls, data: IndexMap) -> IndexMapAttr:
        found = cls._interned.get(data)
        return cls._interned.setdefault(data, super().__new__(cls)) if found is None else found

    @classmethod
    def new(cls, params: Any) -> IndexMapAttr:
        return cls.get(params)

    @classmethod
    def get(cls, attr: IndexMap | Data[IndexMap]) -> IndexMapAttr:
        """The attribute of a map."""
        found = cls._interned.get(attr)  # pyright: ignore[reportArgumentType, reportCallIssue]
        if found is not None:
            return found
        return attr if isinstance(attr, IndexMapAttr) else cls(attr)  # pyright: ignore[reportArgumentType]

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __reduce__(self):
        return IndexMapAttr, (self.data,)

    def __copy__(self) -> IndexMapAttr:
        return self

    def __deepcopy__(self, memo: Any) -> IndexMapAttr:
        return self

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> IndexMap:
        with parser.in_angle_brackets():
            return parse_index_map(parser)

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{self.data}>")
