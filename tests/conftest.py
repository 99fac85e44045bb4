"""Runs the `// RUN:` lines of tests/**/*.mlir inside of the pytest process (tools/opt/run_lines.py)."""

from __future__ import annotations

import gc
import logging
import os
import sys
from pathlib import Path

import pytest

from stepwell.tools.opt import run_lines as runner
from stepwell.tools.opt.run_lines import Outcome, RunLineError, run_command, run_lines

# under importlib mode pytest adds no folder to the path: `from support import lower`
sys.path.insert(0, str(Path(__file__).parent))
# tests take parts of the compiler apart: each runs all of it, but for those of the cache
os.environ.setdefault("STEPWELL_CACHE", "objects")
# what fails inside of stepwell is to be seen
os.environ.setdefault("STEPWELL_ON_FAILURE", "raise")


@pytest.fixture
def opt_tool():
    """`opt_tool(*arguments, stdin="")` runs opt-tool in this process and returns code, out and err."""

    def call(*arguments: str, stdin: str = "") -> Outcome:
        return runner.in_process(runner.opt_tool, [str(a) for a in arguments], stdin)

    return call


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
    """Of tests that are `spread`, combinations of parameters all of whose values others have are long, and `crossed`."""
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
            item.add_marker("crossed")


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
