"""Python objects that programs call, by what a package keeps of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy
import torch

from ...dialects.expr import to_python
from ...lowering.control_flow import Body, Cond, Map, Scan, WhileLoop
from ...lowering.fx_to_nd.core.scalars import Assertion, Evaluator
from ...lowering.sympy_bridge import UnsupportedExpr, from_sympy
from ...targets.package.errors import PackageError
from ...targets.package.programs import OBJECTS, BodyRecord, ObjectRecord

_NUMBERS: dict[type, tuple[str, ...]] = {
    Body: (), Cond: (), WhileLoop: ("carried", "stacked"), Scan: ("carried", "sequences"), Map: ("sequences",),
}  # fmt: skip
"""The numbers of each kind of control flow."""


def object_record(point: str, one: Any, body: Callable[[Body], BodyRecord]) -> ObjectRecord:
    """What is kept of an object that entry point `point` calls; `body` adds the program of a subgraph. PackageError for one that has no
    name."""
    if type(one) in _NUMBERS:
        bodies = [one] if isinstance(one, Body) else [value for value in vars(one).values() if isinstance(value, Body)]
        numbers = tuple(int(getattr(one, name)) for name in _NUMBERS[type(one)])
        return ObjectRecord("control", type(one).__name__, bodies=tuple(map(body, bodies)), numbers=numbers)
    if isinstance(one, torch._ops.OpOverload):
        return ObjectRecord("operator", str(one))
    if isinstance(one, Assertion):
        formula, symbols = ("", ()) if one.test is bool else _formula(point, one.test)
        return ObjectRecord("assertion", one.message, formula, symbols)
    if isinstance(one, Evaluator) and one.kind != "float":
        return ObjectRecord("formula", one.kind, *_formula(point, one))
    name = next((name for name, known in OBJECTS.items() if known is one), None)
    if name is None:
        raise PackageError(f"entry point '{point}' calls a {type(one).__name__} of Python, which no file can hold")
    return ObjectRecord("function", name)


def _formula(point: str, one: Any) -> tuple[str, tuple[str, ...]]:
    """The text of a comparison or a size, and its symbols in the order of their values."""
    expr = getattr(one, "expr", None)
    try:
        if isinstance(expr, sympy.core.relational.Relational):
            text = f"{to_python(from_sympy(expr.lhs))} {expr.rel_op} {to_python(from_sympy(expr.rhs))}"  # pyright: ignore[reportAttributeAccessIssue]
        elif isinstance(expr, sympy.Basic):
            text = to_python(from_sympy(expr))
        else:
            raise UnsupportedExpr(sympy.nan, "it is no formula")
    except UnsupportedExpr as error:
        raise PackageError(f"entry point '{point}' computes '{expr}' of numbers, which no file can hold: {error}") from None
    return text, tuple(sorted(symbol.name for symbol in expr.free_symbols))  # pyright: ignore[reportAttributeAccessIssue]
