"""A level as data: its text, and its operations with their lines, values, types, users and origins."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from xdsl.dialects.builtin import ModuleOp, StringAttr, SymbolRefAttr
from xdsl.ir import Operation

from .printed import Printed, printed
from .tables import Origins


def level_of(name: str, module: ModuleOp, origins: Origins, *, without: Collection[Operation] = ()) -> tuple[dict[str, Any], Printed]:
    """The level of a module, and its text with what it was printed from; `without` are operations of its body that are left out."""
    text = printed(module, without=without)
    data = {
        "name": name,
        "language": "mlir",
        "text": origins.tables.texts.place(text.text),
        "operations": _operations(text, origins),
    }
    return data, text


def _operations(text: Printed, origins: Origins) -> list[dict[str, Any]]:
    ids = {op: k for k, op in enumerate(text.spans)}
    return [_operation(op, ids, text, origins) for op in text.spans]


def _operation(op: Operation, ids: dict[Operation, int], text: Printed, origins: Origins) -> dict[str, Any]:
    origins.tables.describe(op)
    around = op.parent_op()
    first, last = text.spans[op]
    data: dict[str, Any] = {"op": op.name, "line": first}
    optional: dict[str, Any] = {
        "end": last if last != first else None,
        "in": ids.get(around) if around is not None else None,
        "results": [f"%{text.names[r]}" for r in op.results if r in text.names],
        "types": [origins.tables.type(r.type) for r in op.results],
        "users": sorted({ids[use.operation] for r in op.results for use in r.uses if use.operation in ids}),
        "symbol": _symbol(op),
        "calls": _called(op),
        "at": _places(op, origins),
    }
    data.update((key, value) for key, value in optional.items() if value not in (None, [], ""))
    return data


def _places(op: Operation, origins: Origins) -> list[int]:
    """Where an operation comes from, and what it holds; of a function or program nothing."""
    if not op.regions:
        return origins.of(op.location)
    if op.name in ("func.func", "host.program"):
        return []
    return list(dict.fromkeys(k for inner in op.walk() for k in origins.of(inner.location)))


def _symbol(op: Operation) -> str:
    name = op.properties.get("sym_name")
    return name.data if isinstance(name, StringAttr) else ""


def _called(op: Operation) -> str:
    name = op.properties.get("kernel") or op.properties.get("callee")
    return name.string_value() if isinstance(name, SymbolRefAttr) else ""
