"""Runs the `// RUN:` lines of tests/**/*.mlir inside of the pytest process, as lit would run them in a shell.

Known commands: opt-tool, filecheck (FileCheck), not, cat.  Known syntax: `|`, `2>&1`, `> file`, `2> file`, `< file`,
`&&`, a backslash at the end of a line, and the substitutions %s (the file), %S (its folder), %t (a fresh path) and %%
(a percent sign).
"""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import os
import re
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

# under importlib mode pytest adds no folder to the path: `from support import lower`
sys.path.insert(0, str(Path(__file__).parent))
# tests take parts of the compiler apart: each runs all of it, but for those of the cache
os.environ.setdefault("STEPWELL_CACHE", "objects")
# what fails inside of stepwell is to be seen
os.environ.setdefault("STEPWELL_ON_FAILURE", "raise")


@dataclass
class Outcome:
    """What one command left."""

    code: int
    out: str
    err: str


def _in_process(main, arguments: list[str], stdin: str) -> Outcome:
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


def _opt_tool(arguments: list[str]) -> int:
    from stepwell.tools.opt.main import main

    return main(arguments)


def _filecheck(arguments: list[str]) -> int:
    from filecheck.matcher import Matcher
    from filecheck.options import parse_argv_options

    return Matcher.from_opts(parse_argv_options(["filecheck", *arguments])).run()


def _cat(arguments: list[str]) -> int:
    for path in arguments or ["-"]:
        sys.stdout.write(sys.stdin.read() if path == "-" else Path(path).read_text())
    return 0


_COMMANDS = {"opt-tool": _opt_tool, "filecheck": _filecheck, "FileCheck": _filecheck, "cat": _cat}


@pytest.fixture
def opt_tool():
    """`opt_tool(*arguments, stdin="")` runs opt-tool in this process and returns code, out and err."""

    def call(*arguments: str, stdin: str = "") -> Outcome:
        return _in_process(_opt_tool, [str(a) for a in arguments], stdin)

    return call


class RunLineError(Exception):
    """A RUN line that failed."""


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


def run_command(command: str, substitutions: dict[str, str]) -> None:
    """Run one RUN line; RunLineError with the output if the last command of it does not return 0."""
    expanded = re.sub(r"%([sSt%])", lambda m: substitutions[m[1]], command)
    words = shlex.split(expanded)
    for part in _split(words, "&&"):
        outcome = Outcome(0, "", "")
        said = ""
        for stage in _split(part, "|"):
            outcome = _stage(stage, outcome.out, expanded)
            said += outcome.err
        if outcome.code:
            raise RunLineError(f"exit code {outcome.code}: {expanded}\n{said}{outcome.out}")


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
            out_file = next(rest)
        elif word == "2>":
            err_file = next(rest)
        elif word == "<":
            stdin = Path(next(rest)).read_text()
        else:
            arguments.append(word)
    negate = arguments[:1] == ["not"]
    name, *arguments = arguments[int(negate) :]
    if name not in _COMMANDS:
        raise RunLineError(f"'{name}' is no command that the tests know ({', '.join(_COMMANDS)}, not): {command}")
    outcome = _in_process(_COMMANDS[name], arguments, stdin)
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


def pytest_collect_file(file_path: Path, parent: pytest.Collector):
    if file_path.suffix == ".mlir" and run_lines(file_path.read_text(encoding="utf-8", errors="replace")):
        return MlirFile.from_parent(parent, path=file_path)
    return None


class MlirFile(pytest.File):
    """A .mlir file; each of its RUN lines is a test."""

    def collect(self):
        for number, command in run_lines(self.path.read_text(encoding="utf-8")):
            yield RunLine.from_parent(self, name=f"line {number}", command=command)


class RunLine(pytest.Item):
    """One RUN line."""

    def __init__(self, *, command: str, **kwargs):
        super().__init__(**kwargs)
        self.command = command

    def runtest(self) -> None:
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            substitutions = {"s": str(self.path), "S": str(self.path.parent), "t": f"{folder}/t", "%": "%"}
            run_command(self.command, substitutions)

    def repr_failure(self, excinfo, style=None):
        if isinstance(excinfo.value, RunLineError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self):
        return self.path, None, f"{self.path.name}: {self.command}"


def _values(item: pytest.Function) -> set[tuple[object, ...]]:
    """What a test has of each list of parameters: those of one mark go together, those of a fixture are by themselves."""
    params = item.callspec.params
    marks = [mark.args[0] for mark in item.iter_markers("parametrize")]
    together = [tuple(map(str.strip, names.split(","))) if isinstance(names, str) else tuple(names) for names in marks]
    alone = [(name,) for name in params if not any(name in names for names in together)]
    return {(names, *(id(params[name]) for name in names)) for names in (*together, *alone)}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]):
    """Of tests that are `spread`, combinations of parameters all of whose values others have are long."""
    crossed: dict[object, dict[pytest.Item, set[tuple[object, ...]]]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("spread"):
            crossed.setdefault((item.parent, item.originalname), {})[item] = _values(item)
    for values in crossed.values():
        left = set().union(*values.values())
        while left:
            chosen = max(values, key=lambda item: len(values[item] & left))
            left -= values.pop(chosen)
        for item in values:
            item.add_marker("long")


def _leave_trace_off() -> None:
    """Pytest listens to every logger that keeps its records to itself: torch's trace, graphs and the IR of every stage, would be written
    for each compilation. One that nobody listens to is off, as in a user's process."""
    if "TORCH_TRACE" not in os.environ:
        log = logging.getLogger("torch.__trace")
        log.propagate = True
        log.handlers.clear()


def pytest_collection_finish(session: pytest.Session):
    """What lives as long as the process, torch's modules and the collected tests, is passed over when garbage is collected; that is
    seldom, since modules of the IR are cycles of many small objects."""
    _leave_trace_off()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)


def pytest_runtest_logstart(nodeid: str, location: tuple[str, int | None, str]):
    """The test before may have loaded torch, or set its logs."""
    _leave_trace_off()


@pytest.fixture
def no_gpu(monkeypatch):
    """For tests that pretend to have devices: torch finds no GPU, where there is one, too, and takes tensors without memory for what they
    say that they are."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: False)


@pytest.fixture
def own_passes():
    """What a test registers is gone behind it, and nothing compiled before or in it is found again."""
    import torch

    from stepwell.passes.manager import user

    torch._dynamo.reset()
    with user.isolated():
        yield
    torch._dynamo.reset()
