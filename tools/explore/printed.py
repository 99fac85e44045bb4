"""The text of a module, and which lines of it each operation has."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from io import StringIO

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.printer import Printer


@dataclass
class Printed:
    """A text (a newline at its end), the first and last line of each operation (from 1), and the names of values."""

    text: str
    spans: dict[Operation, tuple[int, int]]
    names: dict[SSAValue, str] = field(default_factory=dict)


def printed(module: ModuleOp, *, without: Collection[Operation] = ()) -> Printed:
    """A module as opt-tool prints it; operations of its body in `without` are left out with their lines."""
    out = StringIO()
    printer = _Tracker(out)
    printer.print_op(module)
    del printer.spans[module]
    text, spans = out.getvalue() + "\n", printer.spans
    if without:
        text, spans = _cut(text, spans, [spans[op] for op in module.body.block.ops if op in without])
    return Printed(text, spans, printer._ssa_values)


def stable_lines(module: ModuleOp, names: dict[SSAValue, str]) -> tuple[list[str], dict[Operation, int]]:
    """The lines of a module's text with names of values that later texts repeat, whatever is put in or taken out between: what lines are
    told apart by. And the line (from 1) on which each operation begins. `names` is what was named so far, and grows."""
    out = StringIO()
    printer = _Stable(out, names)
    printer.print_op(module)
    return out.getvalue().splitlines(), printer.lines


class _Tracker(Printer):
    """Notes the lines of each operation."""

    def __init__(self, stream: StringIO) -> None:
        super().__init__(stream=stream)
        self.spans: dict[Operation, tuple[int, int]] = {}

    def print_op(self, op: Operation) -> None:
        first = self._current_line
        self.spans[op] = (first + 1, first + 1)  # before those inside: in the order of the text
        super().print_op(op)
        self.spans[op] = (first + 1, self._current_line + 1)


class _Stable(Printer):
    """Gives a value the name that it has had before."""

    def __init__(self, stream: StringIO, names: dict[SSAValue, str]) -> None:
        super().__init__(stream=stream)
        self._known = names
        self.lines: dict[Operation, int] = {}

    def print_op(self, op: Operation) -> None:
        self.lines[op] = self._current_line + 1
        super().print_op(op)

    def print_ssa_value(self, value: SSAValue) -> str:
        name = self._known.get(value)
        if name is None:
            name = self._known[value] = f"{value.name_hint or ''}.{len(self._known)}"
        self.print_string(f"%{name}")
        return name


def _cut(
    text: str, spans: dict[Operation, tuple[int, int]], gone: list[tuple[int, int]]
) -> tuple[str, dict[Operation, tuple[int, int]]]:
    """A text without ranges of lines, and the spans of the operations that are left."""
    lines = text.splitlines(keepends=True)
    number: list[int] = []  # line from 1 -> its new number, 0: gone
    dropped = {k for first, last in gone for k in range(first, last + 1)}
    kept = 0
    for k in range(1, len(lines) + 1):
        kept += k not in dropped
        number.append(0 if k in dropped else kept)
    left = {op: (number[first - 1], number[last - 1]) for op, (first, last) in spans.items() if number[first - 1]}
    return "".join(line for k, line in enumerate(lines, 1) if k not in dropped), left
