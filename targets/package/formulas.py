"""Sizes and comparisons of a package's programs, read from their texts. Only programs that have some come here."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from ...dialects.expr import Expr, as_expr, floordiv, maximum, minimum, mod, sym
from .errors import PackageError
from .programs import size_value


def size_of(text: str) -> Expr:
    """The size expression that a text means. ValueError or SyntaxError."""
    return _size(ast.parse(text, mode="eval").body)


_OPERATORS: dict[type[ast.operator], Callable[[Expr, Expr], Expr]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: floordiv,
    ast.Mod: mod,
}


def _size(node: ast.AST) -> Expr:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return as_expr(node.value)
    if isinstance(node, ast.Name):
        return sym(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _size(node.operand) * -1
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_size(node.left), _size(node.right))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max") and not node.keywords:
        return (minimum if node.func.id == "min" else maximum)(*map(_size, node.args))
    raise ValueError(f"{ast.unparse(node)} is no size")


class Formula:
    """A size, or a comparison of two, as a function of the values of its symbols. PackageError for a text that is neither."""

    def __init__(self, text: str, symbols: tuple[str, ...]):
        self._symbols = symbols
        try:
            node = ast.parse(text, mode="eval").body
            compares = isinstance(node, ast.Compare) and len(node.ops) == 1
            parts = [node.left, node.comparators[0]] if isinstance(node, ast.Compare) and compares else [node]
            self._sizes = [_size(part) for part in parts]
            self._compare = _COMPARISONS[type(node.ops[0])] if isinstance(node, ast.Compare) else None
        except (KeyError, SyntaxError, ValueError):
            raise PackageError(f"'{text}' is no formula of sizes") from None

    def __call__(self, *values: Any) -> Any:
        known = dict(zip(self._symbols, map(int, values), strict=True))
        numbers = [size_value(size, known) for size in self._sizes]
        return numbers[0] if self._compare is None else self._compare(*numbers)


_COMPARISONS: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class Assertion:
    """Raises RuntimeError with a message where a test of the arguments is false."""

    def __init__(self, test: Callable[..., Any], message: str):
        self._test = test
        self._message = message

    def __call__(self, *values: Any) -> None:
        if not self._test(*values):
            raise RuntimeError(self._message)
