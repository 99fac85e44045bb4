"""What a compilation says of itself: the graph's number and the options that were changed in the log, an event of torch's trace, torch's
wait counter. Imported for graphs that the cache has, too."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from time import perf_counter

import torch

from ..options.options import Options
from .trace import trace_phase

log = logging.getLogger("stepwell")
compile_lock = threading.RLock()
"""Held by the thread that compiles."""

_numbers = itertools.count()
_said: set[str] = set()


def next_number() -> int:
    """The number of a call of the backend; its forward and backward graphs share it in the log."""
    return next(_numbers)


def once(what: str) -> bool:
    """Whether this is the first time that somebody asks for `what` in this process."""
    new = what not in _said
    _said.add(what)
    return new


@contextmanager
def compilation(kind: str, number: int, options: Options) -> Iterator[None]:
    """The compilation of one graph: two lines in the log (with what the options change), an event of the trace, torch's wait counter."""
    name = {"forward": "FORWARDS", "backward": "BACKWARDS"}.get(kind, kind.upper())
    log.info("compiling %s graph %d%s", name, number, changed(options))
    start = perf_counter()
    with ExitStack() as stack:
        if counter := getattr(torch.monitor, "_WaitCounter", None):  # pyright: ignore[reportAttributeAccessIssue]
            stack.enter_context(counter("pytorch.wait_counter.stepwell_compile").guard())
        try:
            yield
        finally:
            trace_phase(f"{kind} graph {number}", start, perf_counter())
    log.info("done compiling %s graph %d", name, number)


def changed(options: Options) -> str:
    """The options that differ from their defaults, as text that follows a sentence."""
    plain = Options()
    found = [f"{f.name}={v!r}" for f in fields(options) if (v := getattr(options, f.name)) != getattr(plain, f.name)]
    return f" with {', '.join(found)}" if found else ""
