"""Worker processes with a time limit for each answer; one that crashes or hangs is replaced.

A request and an answer are dictionaries, one line of JSON each.  What a worker prints otherwise goes to its standard error.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

DIED = "died"
"""Key of an answer that says why there is none: the process ended, or its time was over."""

LIFE = 150
"""Requests that a worker serves before a fresh one takes its place: torch keeps what it compiled."""
START_SECONDS = 60.0
"""More time for the first answer, which imports torch."""


@dataclass
class Worker:
    """One process, and the request that it works at."""

    module: str
    process: subprocess.Popen[bytes] | None = None
    request: dict[str, Any] | None = None
    deadline: float = 0.0
    served: int = 0
    log: Any = None
    buffer: bytes = b""

    def begin(self, request: dict[str, Any], seconds: float) -> None:
        if self.process is None or self.served >= LIFE:
            self.stop()
            self.log = tempfile.TemporaryFile()
            self.process = subprocess.Popen(
                [sys.executable, "-m", self.module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, start_new_session=True
            )
            self.served, self.buffer = 0, b""
            seconds += START_SECONDS
        assert self.process.stdin is not None
        self.request, self.deadline = request, monotonic() + seconds
        self.served += 1
        with suppress(BrokenPipeError):  # read as a crash
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()

    def stop(self) -> None:
        """End the process, with those that it started."""
        if self.process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.log):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        self.process = None

    def answer(self) -> dict[str, Any] | None:
        """What the process has to say: its answer, that it died, or that its time is over; None if nothing yet."""
        assert self.process is not None and self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        self.buffer += data
        if b"\n" in self.buffer:
            line, self.buffer = self.buffer.split(b"\n", 1)
            return json.loads(line)
        if data:
            return None
        self.process.wait()
        why = f"the process ended with {_ending(self.process.returncode)}\n{self.last_words()}"
        return {DIED: why}

    def last_words(self) -> str:
        self.log.seek(0)
        return self.log.read().decode(errors="replace")[-1500:]


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """What the program of a worker does: answer requests until there are no more."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        out.write(json.dumps(answer(json.loads(line))) + "\n")
        out.flush()


def _ending(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


@dataclass
class Pool:
    """Workers that answer requests side by side."""

    jobs: int
    module: str
    """The module that a worker runs as its program; serve() is what it calls."""
    seconds: float = 60.0
    workers: list[Worker] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.workers = [Worker(self.module) for _ in range(self.jobs)]

    @property
    def idle(self) -> Worker | None:
        """A worker without a request."""
        return next((w for w in self.workers if w.request is None), None)

    @property
    def busy(self) -> list[Worker]:
        return [w for w in self.workers if w.request is not None]

    def wait(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Wait for at least one answer: (request, answer)."""
        found: list[tuple[dict[str, Any], dict[str, Any]]] = []
        while not found and self.busy:
            with selectors.DefaultSelector() as selector:
                for worker in self.busy:
                    assert worker.process is not None and worker.process.stdout is not None
                    selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
                ready = [key.data for key, _ in selector.select(max(0.0, min(w.deadline for w in self.busy) - monotonic()))]
            for worker in self.busy:
                answer = worker.answer() if worker in ready else None
                if answer is None and monotonic() > worker.deadline:
                    answer = {DIED: f"no answer in {self.seconds:.0f} seconds"}
                if answer is not None:
                    assert worker.request is not None
                    found.append((worker.request, answer))
                    worker.request = None
                    if DIED in answer:
                        worker.stop()
        return found

    def close(self) -> None:
        for worker in self.workers:
            worker.stop()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
