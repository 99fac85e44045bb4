"""What the server knows of a text: its words, operations and values, and what is wrong with it."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation

from ...dialects import load_dialects
from ...errors import StepwellError
from ...passes.manager.verify import InvalidIR, verify_ir
from ..ir_parser import IRSyntaxError, parse_file
from ..opt.diagnostics import Diagnostic, Expectation, expectations
from ..opt.run_lines import run_lines
from .recorder import Binding, Entry, Place, RecordingParser
from .words import Word, word_at, words_of

_SPLIT = re.compile(r"^// -----[ \t]*$", re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*")
_NOT_NEWLINE = re.compile(r"[^\n]")


@dataclass(frozen=True)
class Message:
    """What is wrong at a place of the text; one that a comment of the file expects is no error."""

    place: Place
    text: str
    severity: Literal["error", "information"] = "error"


@dataclass
class Part:
    """A module of the text, which has several where `// -----` parts them. `module` is None where it cannot be read."""

    place: Place
    entries: list[Entry] = field(default_factory=list)
    bindings: list[Binding] = field(default_factory=list)
    module: ModuleOp | None = None


@dataclass
class Analysis:
    """A text, and all that is asked about it."""

    text: str
    words: list[Word]
    parts: list[Part] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._starts = [0, *(m.end() for m in re.finditer("\n", self.text))]

    def line_and_column(self, offset: int) -> tuple[int, int]:
        """Line and column, both from 0, in characters."""
        line = bisect_right(self._starts, offset) - 1
        return line, offset - self._starts[line]

    def offset(self, line: int, column: int) -> int:
        """The place of a line and column, both from 0; the nearest one where there is none."""
        line = min(max(line, 0), len(self._starts) - 1)
        return min(self._starts[line] + max(column, 0), self.end_of_line(line))

    def end_of_line(self, line: int) -> int:
        """The place behind the last character of a line."""
        return self._starts[line + 1] - 1 if line + 1 < len(self._starts) else len(self.text)

    def line(self, offset: int) -> str:
        """The line around a place."""
        line = self.line_and_column(offset)[0]
        return self.text[self._starts[line] : self.end_of_line(line)]

    def word(self, offset: int) -> Word | None:
        """The word at a place."""
        return word_at(self.words, offset)

    def part(self, offset: int) -> Part | None:
        """The module around a place."""
        return next((part for part in self.parts if part.place.start <= offset <= part.place.end), None)

    def entry(self, offset: int) -> Entry | None:
        """The innermost operation around a place."""
        found, part = None, self.part(offset)
        inner = part.entries if part is not None else []
        while (entry := next((e for e in inner if e.start <= offset <= e.end), None)) is not None:
            found, inner = entry, entry.inner
        return found

    def entries(self) -> Iterator[Entry]:
        """All operations, those around others first."""
        for part in self.parts:
            for entry in part.entries:
                yield from entry.walk()

    def binding(self, offset: int) -> Binding | None:
        """The name of values that is defined or used at a place."""
        part = self.part(offset)
        for bound in part.bindings if part is not None else ():
            if any(place.start <= offset <= place.end for place in (bound.defined, *bound.uses)):
                return bound
        return None


def symbol_of(op: Operation | None) -> str | None:
    """The symbol that an operation defines, without its sign."""
    name = (op.properties.get("sym_name") or op.attributes.get("sym_name")) if op is not None else None
    return name.data if isinstance(name, StringAttr) else None


def analyse(text: str, file: str) -> Analysis:
    """Read and verify a text; whatever is wrong with it is a message."""
    text = text.replace("\r\n", " \n")
    found = Analysis(text, words_of(text))
    expected = expectations(text)
    unregistered = any("--allow-unregistered-dialect" in command for _, command in run_lines(text))
    for place in _places(text):
        part = Part(place)
        found.parts.append(part)
        if _COMMENT.sub("", text[place.start : place.end]).strip():
            for place, message in _read(found, part, file, unregistered):
                found.messages.append(Message(place, message, _severity(found, place, message, file, expected)))
    return found


def _places(text: str) -> list[Place]:
    marks = [*_SPLIT.finditer(text)]
    starts, ends = [0, *(m.end() for m in marks)], [*(m.start() for m in marks), len(text)]
    return [Place(start, end) for start, end in zip(starts, ends, strict=True)]


def _read(found: Analysis, part: Part, file: str, unregistered: bool) -> list[tuple[Place, str]]:
    """Fill in a part. Places stay those of the whole text: what stands before the part is blank for the parser."""
    start, end = part.place
    text = _NOT_NEWLINE.sub(" ", found.text[:start]) + found.text[start:end]
    parsers: list[RecordingParser] = []

    def make(ctx: Context, text: str, name: str) -> RecordingParser:
        parsers.append(RecordingParser(ctx, text, name))
        return parsers[0]

    try:
        part.module, _ = parse_file(text, file, load_dialects(Context(allow_unregistered=unregistered)), make=make)
    except IRSyntaxError as error:
        offset = found.offset(error.line - 1, error.column - 1)
        word = found.word(offset)
        return [(Place(offset, word.end if word is not None and word.end > offset else offset + 1), error.message)]
    finally:
        if parsers:
            part.entries, part.bindings = parsers[0].entries, parsers[0].bindings
    return _verify(part, part.module)


def _verify(part: Part, module: ModuleOp) -> list[tuple[Place, str]]:
    """What the verifier says: the first mistake of each operation of the module, or else of the module itself."""
    if (first := _mistake(module)) is None:
        return []
    mistakes = [one for op in module.ops if (one := _mistake(op)) is not None] or [first]
    names = {entry.op: entry.name for top in part.entries for entry in top.walk()}
    top = part.entries[0].name
    return [(names.get(op, top) if op is not None else top, message) for op, message in mistakes]


def _mistake(op: Operation) -> tuple[Operation | None, str] | None:
    try:
        verify_ir(op)
    except InvalidIR as error:
        return error.op, error.message
    except (StepwellError, RecursionError) as error:
        return None, str(error)
    return None


def _severity(
    found: Analysis, place: Place, message: str, file: str, expected: list[Expectation]
) -> Literal["error", "information"]:
    said = Diagnostic("error", message, file, found.line_and_column(place.start)[0] + 1)
    return "information" if any(one.matches(said, file) for one in expected) else "error"
