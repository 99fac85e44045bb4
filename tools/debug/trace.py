"""TORCH_TRACE=folder: graphs, the IR of every stage and the generated code as artefacts of torch's structured trace (see tlparse)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from time import perf_counter

_log = logging.getLogger("torch.__trace")


def trace(name: str, text: Callable[[], str]) -> None:
    """Add an artefact `stepwell_<name>`; `text` is called only where somebody listens."""
    if not _log.handlers:
        return
    from torch._logging._internal import trace_structured

    trace_structured("artifact", metadata_fn=lambda: {"name": f"stepwell_{name}", "encoding": "string"}, payload_fn=text)


def trace_phase(name: str, start: float, end: float) -> None:
    """Add a phase of a compilation (seconds of perf_counter) to the events that tlparse shows as a Chrome trace."""
    if not _log.handlers:
        return
    from torch._logging._internal import trace_structured

    began = time.time() - (perf_counter() - start)
    times = {"ph": "X", "ts": began * 1e6, "dur": (end - start) * 1e6}
    event = {"name": f"stepwell {name}", **times, "cat": "stepwell", "pid": 0, "tid": 0, "args": {}}
    trace_structured("chromium_event", payload_fn=lambda: event, expect_trace_id=False)
