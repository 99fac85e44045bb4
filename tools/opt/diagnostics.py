"""What opt-tool says about a file, and ``--verify-diagnostics``: comparing it with the comments in the file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "remark", "note"]


@dataclass(frozen=True)
class Diagnostic:
    """One message about `file`; line 0: about no line of it; column 0: about the whole line."""

    severity: Severity
    message: str
    file: str = ""
    line: int = 0
    column: int = 0

    def render(self, source: str | None = None) -> str:
        """``file:line:column: error: message``, then the line of `source` (the text of the file) and a caret."""
        place = ""
        if self.file:
            place = self.file + (f":{self.line}" if self.line else "") + (f":{self.column}" if self.column else "")
            place += ": "
        head = f"{place}{self.severity}: {self.message}"
        lines = source.split("\n") if source is not None and self.line else []
        if not 0 < self.line <= len(lines) or not lines[self.line - 1].strip():
            return head
        line = lines[self.line - 1].rstrip("\r")
        if len(line) > 400:
            return head
        blank = re.sub(r"[^\t]", " ", line[: self.column - 1]) if self.column else ""
        return f"{head}\n{line}\n{blank}^" if self.column else f"{head}\n{line}"


@dataclass
class Expectation:
    """``expected-error @+1 {{text}}`` of line `line`: a diagnostic of that severity on line `target` (0: any)."""

    severity: str
    text: str
    is_regex: bool
    line: int
    target: int
    met: bool = False

    def matches(self, diagnostic: Diagnostic, file: str) -> bool:
        """True for a diagnostic of the severity, on the line of `file`, with the text in its message."""
        if diagnostic.severity != self.severity:
            return False
        if self.target and (diagnostic.line != self.target or diagnostic.file != file):
            return False
        if self.is_regex:
            return re.search(_regex(self.text), diagnostic.message) is not None
        return self.text in diagnostic.message


_HEAD = r"expected-(error|warning|remark|note)(-re)?[ \t]*(@(?:[+-]\d+|above|below|unknown|\d+))?[ \t]*"
_IS_REGEX = re.compile(r"expected-[a-z]+-re")
_EXPECTED = re.compile(_HEAD + r"\{\{((?:[^}\n]|\}(?!\}))*\}?)\}\}")
_EXPECTED_RE = re.compile(_HEAD + r"\{\{(.*)\}\}")  # one a line, since {{ }} also stands inside of it


def _regex(text: str) -> str:
    """The text of an ``expected-error-re``: literal but for what stands in ``{{...}}`` inside of it."""
    parts = re.split(r"\{\{(.*?)\}\}", text)
    return "".join(f"(?:{part})" if i % 2 else re.escape(part) for i, part in enumerate(parts))


def expectations(text: str) -> list[Expectation]:
    """The expectations in the comments of `text`; lines count from 1."""
    out: list[Expectation] = []
    lines = text.split("\n")
    last_code = 0  # for @above and @below: lines that hold expectations only do not count
    waiting: list[Expectation] = []
    for number, line in enumerate(lines, 1):
        comment = line.find("//")
        found = (
            list((_EXPECTED_RE if _IS_REGEX.search(line) else _EXPECTED).finditer(line, comment))
            if comment >= 0
            else []
        )
        if not found or line[:comment].strip():
            for one in waiting:
                one.target = number
            waiting.clear()
        for match in found:
            severity, regex, where, content = match.groups()
            one = Expectation(severity, content, regex is not None, number, number)
            match where[1:] if where else "":
                case "":
                    pass
                case "above":
                    one.target = last_code
                case "below":
                    waiting.append(one)
                case "unknown":
                    one.target = 0
                case offset if offset[0] in "+-":
                    one.target = number + int(offset)
                case absolute:
                    one.target = int(absolute)
            out.append(one)
        if not found or line[:comment].strip():
            last_code = number
    return out


def check(file: str, expected: Iterable[Expectation], produced: Iterable[Diagnostic]) -> list[Diagnostic]:
    """What does not fit: diagnostics that nobody expected, and expectations that were not met."""
    expected = list(expected)
    wrong: list[Diagnostic] = []
    for diagnostic in produced:
        fits = [e for e in expected if not e.met and e.matches(diagnostic, file)]
        if fits:
            fits[0].met = True
        elif not any(e.matches(diagnostic, file) for e in expected):
            wrong.append(
                Diagnostic(
                    "error",
                    f"unexpected {diagnostic.severity}: {diagnostic.message}",
                    diagnostic.file or file,
                    diagnostic.line,
                    diagnostic.column,
                )
            )
    for one in expected:
        if not one.met:
            wrong.append(
                Diagnostic(
                    "error", f'expected {one.severity} "{one.text}" was not produced', file, one.target or one.line
                )
            )
    return wrong
