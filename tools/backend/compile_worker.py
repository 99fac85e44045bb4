"""Compilations in a process of their own (option `compile_mode` "subprocess"): this one keeps its global lock free and survives a crash.

A graph is imported here, where torch knows its sizes and guards. What goes to the other process is text, the IR and the pipeline; what
comes back is the machine code and the description of the program. One process serves all graphs and ends with this one; where it crashed,
the next graph gets a new one."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import IO, Any

from xdsl.dialects.builtin import ModuleOp

from ...errors import CompileError, CrashError, StepwellError
from ...passes.manager.instrumentation import print_ir
from ...passes.manager.pass_manager import Pipeline, is_foreign
from ...passes.manager.pipelines import default_pipeline, parse_pipeline
from ...targets.host.description import ProgramDescription
from ...targets.target import BUILT_IN
from ..compiled.counters import count, recorded
from ..debug.folder import DebugFolder
from ..options.field import Effect
from ..options.options import Options, with_effect
from .compile_graph import Watch, build, context

log = logging.getLogger("stepwell")

_START = "from stepwell.tools.backend.compile_worker import serve; serve()"


@dataclass(frozen=True)
class Request:
    """A graph to be compiled. settings: options by name that do not change what is made."""

    ir: str
    pipeline: str
    target: str
    device: str
    settings: Mapping[str, Any]
    debug: DebugFolder | None
    threads: int


@dataclass(frozen=True)
class Answer:
    """What became of it: made as by compile_graph.build, or what went wrong and where."""

    made: tuple[ProgramDescription, bytes, str] | None = None
    counts: Mapping[str, int | float] = field(default_factory=dict)
    error: str = ""
    trace: str = ""


class Elsewhere:
    """Takes graphs through a pipeline in the other process, in the place of compile_graph.build; in this one where they cannot leave it."""

    def __init__(self) -> None:
        self.stayed = False
        """Whether something was compiled in this process."""

    def __call__(
        self, module: ModuleOp, device: str, options: Options, debug: DebugFolder | None, pipeline: Pipeline, watch: Watch | None = None
    ) -> tuple[ProgramDescription, bytes, str]:
        """See compile_graph.build. CompileError has the traceback of the other process as a note."""
        if reason := _why_here(pipeline):
            log.info("a graph is compiled in this process: %s", reason)
            self.stayed = True
            return build(module, device, options, debug, pipeline, watch)
        import torch

        settings = {name: getattr(options, name) for name in with_effect(Effect.SHOWN, Effect.QUIET) if name != "debug"}
        text = print_ir(module, debuginfo=True)
        found = _worker().ask(Request(text, str(pipeline), pipeline.name, device, settings, debug, torch.get_num_threads()))
        for name, n in found.counts.items():
            count(name, n)
        if found.made is None:
            error = CompileError(found.error)
            error.add_note(f"in the process that compiled:\n{found.trace}")
            raise error
        return found.made


def _why_here(pipeline: Pipeline) -> str:
    """What of this process a pipeline depends on, "" for nothing."""
    if pipeline.name not in BUILT_IN:
        return f"target '{pipeline.name}' is a user's"
    if any(is_foreign(type(p)) for p in pipeline.passes()):
        return "passes of users are in the pipeline"
    return "" if parse_pipeline(str(pipeline)) == pipeline else "the pipeline has directives for single nests"


class Worker:
    """The other process, for one thread at a time."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.variables = _variables()
        paths = os.pathsep.join(path for path in sys.path if path)
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": paths}
        )
        self._lock = threading.Lock()

    @property
    def is_usable(self) -> bool:
        """Whether it can be asked: it runs, it is this process's own, and the variables that steer stepwell are those of its start."""
        return self.owner == os.getpid() and self.process.poll() is None and self.variables == _variables()

    def ask(self, request: Request) -> Answer:
        """Have a graph compiled. CompileError if the process ends instead of answering."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with self._lock:
            try:
                _send(self.process.stdin, request)
                return _receive(self.process.stdout)
            except (EOFError, BrokenPipeError) as error:
                raise CrashError(f"the process that compiled the graph {_end_of(self.process.wait())}") from error
            except BaseException:  # interrupted: what it answers would be taken for the next answer
                self.process.kill()
                raise

    def end(self) -> None:
        """Let the process end."""
        if self.owner == os.getpid():
            assert self.process.stdin is not None
            self.process.stdin.close()
            self.process.wait()


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("STEPWELL_")}


def _end_of(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


_one: Worker | None = None
_one_lock = threading.Lock()


def start() -> None:
    """Let the other process start, if it does not run: it takes some seconds, while this one traces."""
    _worker()


def _worker() -> Worker:
    global _one
    with _one_lock:
        if _one is None or not _one.is_usable:
            if _one is not None and _one.process.poll() is None:
                _one.end()
            _one = Worker()
        return _one


def _send(file: IO[bytes], what: Any) -> None:
    data = pickle.dumps(what, protocol=5)
    file.write(len(data).to_bytes(8, "little"))
    file.write(data)
    file.flush()


def _receive(file: IO[bytes]) -> Any:
    head = file.read(8)
    size = int.from_bytes(head, "little")
    data = file.read(size) if len(head) == 8 else b""
    if len(head) < 8 or len(data) < size:
        raise EOFError
    return pickle.loads(data)


# ---- the other process


def serve() -> None:
    """Answer requests from standard input until it ends. What is printed meanwhile goes to standard error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the other process's to handle
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            request = _receive(requests)
        except EOFError:
            return
        try:
            _send(answers, answer(request))
        except BrokenPipeError:
            return


def answer(request: Request) -> Answer:
    """Compile a graph."""
    import torch

    from ...targets.cpu.cache_limit import parse_size, set_limit
    from ..ir_parser import IRParser

    options = replace(Options(), **request.settings)
    with recorded() as counts:
        try:
            if options.cache_limit is not None:
                set_limit(parse_size(options.cache_limit))
            if torch.get_num_threads() != request.threads:
                torch.set_num_threads(request.threads)
            module = IRParser(context(), request.ir, "graph").parse_module()
            pipeline = parse_pipeline(request.pipeline, like=default_pipeline(request.target, with_user_passes=False))
            return Answer(build(module, request.device, options, request.debug, pipeline), counts)
        except Exception as error:
            said = str(error) if isinstance(error, StepwellError) else f"{type(error).__name__}: {error}"
            return Answer(None, counts, said, traceback.format_exc())
