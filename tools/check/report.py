"""What a check found, as an object and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...errors import StepwellError
from .node_errors import ErrorRow

SHOWN = 12
"""Rows of the table that the text has."""


@dataclass
class Report:
    """The result of `stepwell.check`. Texts are "" and numbers 0 for what was not found, or where all is right.

    ok: whether all results are right. wrong: what is wrong, the first of it; graph: which graph it is in ("forward graph 1").
    operation: the operator of the first node whose error its operands do not explain; node: that node; line: its line in the user's
    program ("file.py:12"); ulp: its error in units of the last place.
    pass_name: the pass in which the error arose; "import" for the rule of the operator, "emit" for what is made of the last level;
    how: how that was found.
    table: own errors by operation, the largest first. notes: what could not be looked at, and why."""

    ok: bool = True
    wrong: str = ""
    operation: str = ""
    node: str = ""
    line: str = ""
    ulp: float = 0.0
    pass_name: str = ""
    how: str = ""
    graph: str = ""
    table: list[ErrorRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = ["The results are right."] if self.ok else [f"Wrong: {self.wrong}{f', in the {self.graph}' if self.graph else ''}."]
        if self.operation:
            where = f" at {self.line}" if self.line else ""
            size = f", by {number(self.ulp)} ulp" if self.ulp else ""
            lines.append(f"First operation with an error that its operands do not explain: {self.operation} ({self.node}{where}){size}.")
        if self.pass_name:
            names = {"import": "The rule of the operator is wrong", "emit": "The code that is made of the last level is wrong"}
            lines.append(f"{names.get(self.pass_name, f'It arises in the pass {self.pass_name!r}')}: {self.how}.")
        elif self.how:
            lines.append(f"The pass was not found: {self.how}.")
        lines += self.notes
        if self.table:
            lines += ["", *table_text(self.table)]
        return "\n".join(lines)


class WrongResult(StepwellError):
    """A result of a compiled graph is wrong (option `check`); `report` says where that comes from."""

    def __init__(self, report: Report):
        super().__init__(str(report))
        self.report = report


def table_text(rows: Sequence[ErrorRow]) -> list[str]:
    """The table of errors by operation, in columns."""
    head = ("operation", "nodes", "ulp", "relative", "torch's ulp", "worst node")
    body = []
    for row in rows[:SHOWN]:
        worst = f"{row.node} at {row.line}" if row.line else row.node
        body.append((row.operation, str(row.nodes), number(row.ulp), number(row.relative), number(row.eager_ulp), worst))
    widths = [max(len(line[k]) for line in (head, *body)) for k in range(len(head))]
    lines = [_columns(line, widths) for line in (head, *body)]
    if len(rows) > SHOWN:
        lines.append(f"and {len(rows) - SHOWN} operations with smaller errors")
    return lines


def _columns(line: Sequence[str], widths: Sequence[int]) -> str:
    first, *middle, last = line
    numbers = [text.rjust(width) for text, width in zip(middle, widths[1:-1], strict=True)]
    return "  ".join([first.ljust(widths[0]), *numbers, last]).rstrip()


def number(value: float) -> str:
    """A number with three digits."""
    return f"{value:.3g}"
