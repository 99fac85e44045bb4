"""What is known of size symbols: ranges and hints, from `nd.symbols`."""

from __future__ import annotations

from xdsl.dialects.builtin import DictionaryAttr, ModuleOp
from xdsl.ir import Operation

from ...dialects.expr import Expr, sym
from ...dialects.expr.ranges import Range, RangeEnv
from ...dialects.nd.types import RangeAttr

DEFAULT_SIZE = 64
"""Elements along a dimension of which no size is known."""


def symbol_hints(module: ModuleOp) -> dict[str, int]:
    """Typical values of the size symbols."""
    table = module.attributes.get("nd.symbols")
    if not isinstance(table, DictionaryAttr):
        return {}
    return {name: value.bounds[2] for name, value in table.data.items() if isinstance(value, RangeAttr)}


def symbol_facts(module: Operation | None) -> tuple[RangeEnv, dict[Expr, int]]:
    """Ranges and typical values of the size symbols of a module (attribute nd.symbols)."""
    table = module.attributes.get("nd.symbols") if module is not None else None
    ranges: dict[Expr, Range] = {}
    hints: dict[Expr, int] = {}
    if isinstance(table, DictionaryAttr):
        for name, value in table.data.items():
            if isinstance(value, RangeAttr):
                low, high, hint = value.bounds
                ranges[sym(name)] = Range(low, high)
                hints[sym(name)] = max(1, hint)
    return RangeEnv(ranges), hints
