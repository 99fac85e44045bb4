"""The errors of the pass manager: a pass that failed, and a pipeline text that cannot be read."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from ...errors import StepwellError, UserError

if TYPE_CHECKING:
    from xdsl.ir import Operation

    from .locations import SourceLocation


def did_you_mean(name: str, candidates: Iterable[str], *, prefix: str = "") -> str:
    """``"; did you mean 'x'?"`` with the nearest of `candidates` (at most three, about equally near), or nothing.

    `prefix` is put before each name that is shown.
    """
    matcher = SequenceMatcher()
    matcher.set_seq2(name)
    found: list[tuple[float, str]] = []
    for candidate in dict.fromkeys(candidates):
        matcher.set_seq1(candidate)
        if matcher.real_quick_ratio() >= 0.6 and matcher.quick_ratio() >= 0.6 and (near := matcher.ratio()) >= 0.6:
            found.append((near, candidate))
    if not found:
        return ""
    found.sort(key=lambda pair: (-pair[0], pair[1]))
    close = [candidate for near, candidate in found[:3] if near >= found[0][0] - 0.08]
    return "; did you mean " + " or ".join(f"'{prefix}{n}'" for n in close) + "?"


class PassError(StepwellError):
    """A pass failed, or left IR behind that does not verify.

    `pass_name` is the pass (filled in by the pass manager where the pass raised it itself), `op` the operation
    concerned, `location` where it comes from (taken from `op` if not given).  ``str()`` names all of them.
    """

    def __init__(
        self,
        message: str,
        *,
        pass_name: str | None = None,
        op: Operation | None = None,
        location: SourceLocation | None = None,
        after: bool = False,
    ) -> None:
        super().__init__(message)
        self.pass_name = pass_name
        self.op = op
        self.after = after
        """The pass returned, but the IR that it left does not verify."""
        self.foreign = False
        """The pass is a user's (filled in by the pass manager)."""
        if location is None and op is not None:
            from .locations import source_location

            location = source_location(op.location)
        self.location = location

    @property
    def text(self) -> str:
        """The message with the pass and the operation, without the location."""
        operation = f"'{self.op.name}' op: " if self.op is not None else ""
        if self.pass_name is None:
            return f"{operation}{self.message}"
        where = f"after pass '{self.pass_name}': " if self.after else f"pass '{self.pass_name}' failed: "
        return f"{where}{operation}{self.message}"

    def __str__(self) -> str:
        return f"{self.location}: {self.text}" if self.location is not None else self.text


class PipelineError(UserError):
    """A mistake in a pipeline: `text[start:end]` is what is wrong, `message` says why.

    ``str()`` shows the line with a caret.  A pipeline built in Python has no text; then it is the message alone.
    """

    def __init__(self, message: str, text: str = "", start: int = 0, end: int = 0) -> None:
        super().__init__(message)
        self.text = text
        self.start = start
        self.end = max(end, start + 1)

    @property
    def caret(self) -> str:
        """The line of the text that is wrong and a caret line under it."""
        begin = self.text.rfind("\n", 0, self.start) + 1
        stop = self.text.find("\n", self.start)
        line = self.text[begin:] if stop < 0 else self.text[begin:stop]
        length = max(1, min(self.end - self.start, len(line) - (self.start - begin)))
        return f"  {line}\n  {' ' * (self.start - begin)}^{'~' * (length - 1)}"

    @property
    def position(self) -> str:
        """``line:column`` of the mistake, both from 1."""
        begin = self.text.rfind("\n", 0, self.start) + 1
        return f"{self.text.count(chr(10), 0, self.start) + 1}:{self.start - begin + 1}"

    def __str__(self) -> str:
        if not self.text:
            return self.message
        return f"pass-pipeline:{self.position}: {self.message}\n{self.caret}"
