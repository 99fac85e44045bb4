"""The `// RUN:` lines of a file of IR, which run inside of one process as lit would run them in a shell.

Known commands: opt-tool, filecheck (FileCheck), not, cat.  Known syntax: `|`, `2>&1`, `> file`, `2> file`, `< file`,
`&&`, a backslash at the end of a line, and the substitutions %s (the file), %S (its folder), %t (a fresh path) and %%
(a percent sign).
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ...errors import StepwellError


@dataclass
class Outcome:
    """What one command left."""

    code: int
    out: str
    err: str


class RunLineError(StepwellError):
    """A RUN line that failed."""


def in_process(main: Callable[[list[str]], int], arguments: list[str], stdin: str) -> Outcome:
    """What `main` returns and writes."""
    out, err = io.StringIO(), io.StringIO()
    old = sys.stdin
    sys.stdin = io.StringIO(stdin)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = main(arguments)
            except SystemExit as stop:
                code = stop.code if isinstance(stop.code, int) else int(bool(stop.code))
    finally:
        sys.stdin = old
    return Outcome(code or 0, out.getvalue(), err.getvalue())


def opt_tool(arguments: list[str]) -> int:
    """opt-tool, which is loaded then."""
    from .main import main

    return main(arguments)


def _filecheck(arguments: list[str]) -> int:
    try:
        from filecheck.matcher import Matcher
        from filecheck.options import parse_argv_options
    except ImportError as error:
        raise RunLineError("filecheck is not installed: pip install 'stepwell[lsp]'") from error
    return Matcher.from_opts(parse_argv_options(["filecheck", *arguments])).run()


def _cat(arguments: list[str]) -> int:
    for path in arguments or ["-"]:
        sys.stdout.write(sys.stdin.read() if path == "-" else Path(path).read_text())
    return 0


_COMMANDS = {"opt-tool": opt_tool, "filecheck": _filecheck, "FileCheck": _filecheck, "cat": _cat}


def run_lines(text: str) -> list[tuple[int, str]]:
    """The commands of the `// RUN:` comments, with the lines that they begin on."""
    out: list[tuple[int, str]] = []
    pending = ""
    first = 0
    for number, line in enumerate(text.split("\n"), 1):
        match = re.match(r"\s*//\s*RUN:\s?(.*)$", line)
        if match is None:
            continue
        part = match[1].rstrip()
        first = first if pending else number
        pending += part.removesuffix("\\")
        if not part.endswith("\\"):
            out.append((first, pending.strip()))
            pending = ""
    return out


def run_command(command: str, substitutions: dict[str, str]) -> str:
    """Run one RUN line, and return what its last commands write to both outputs. Raises RunLineError with the output if one of them does
    not return 0, and for what is no command here."""
    expanded = re.sub(r"%([sSt%])", lambda m: substitutions[m[1]], command)
    words, written = shlex.split(expanded), ""
    for part in _split(words, "&&"):
        outcome = Outcome(0, "", "")
        said = ""
        for stage in _split(part, "|"):
            outcome = _stage(stage, outcome.out, expanded)
            said += outcome.err
        if outcome.code:
            raise RunLineError(f"exit code {outcome.code}: {expanded}\n{said}{outcome.out}")
        written += said + outcome.out
    return written


def _split(words: Iterable[str], mark: str) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for word in words:
        if word == mark:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _stage(words: list[str], stdin: str, command: str) -> Outcome:
    arguments: list[str] = []
    merge, out_file, err_file = False, "", ""
    rest = iter(words)
    for word in rest:
        if word == "2>&1":
            merge = True
        elif word == ">":
            out_file = next(rest, "")
        elif word == "2>":
            err_file = next(rest, "")
        elif word == "<":
            stdin = Path(next(rest, "")).read_text()
        else:
            arguments.append(word)
    negate = arguments[:1] == ["not"]
    name, *arguments = arguments[int(negate) :] or [""]
    if name not in _COMMANDS:
        raise RunLineError(f"'{name}' is no command of a RUN line ({', '.join(_COMMANDS)}, not): {command}")
    outcome = in_process(_COMMANDS[name], arguments, stdin)
    if merge:
        outcome = Outcome(outcome.code, outcome.err + outcome.out, "")
    if out_file:
        Path(out_file).write_text(outcome.out)
        outcome.out = ""
    if err_file:
        Path(err_file).write_text(outcome.err)
        outcome.err = ""
    if negate:
        outcome.code = 0 if outcome.code else 1
    elif name == "opt-tool" and outcome.code:
        raise RunLineError(f"exit code {outcome.code}: {command}\n{outcome.err}{outcome.out}")
    return outcome
