"""What is wrong with a text that was edited, and at which of its lines."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import ModuleOp

from ....passes.manager.errors import PassError
from ....passes.manager.locations import source_location
from ....passes.manager.verify import InvalidIR, verify_ir
from ...ir_parser import IRSyntaxError, parse_file


def parsed(text: str, file: str) -> ModuleOp:
    """The module of a text, verified. Raises IRSyntaxError and InvalidIR."""
    from ...backend.compile_graph import context

    module, _ = parse_file(text, file, context())
    verify_ir(module)
    return module


def message_of(error: Exception) -> dict[str, Any]:
    """`line` and `column` (from 1, or 0 where it says none) and `message` of what was raised about a text."""
    if isinstance(error, IRSyntaxError):
        return {"line": error.line, "column": error.column, "message": error.message}
    place = error.location if isinstance(error, PassError) else source_location(error.op.location) if isinstance(error, InvalidIR) else None
    line, column = (place.line, place.column) if place is not None else (0, 0)
    known = error.message if isinstance(error, InvalidIR) else str(error) or type(error).__name__
    return {"line": line, "column": column, "message": known}
