"""TORCH_TRACE=folder: graphs, the IR of every stage and the generated code as artefacts of torch's structured trace (see tlparse)."""

from __future__ import annotations

import logging
from collections.abc import Callable

_log = logging.getLogger("torch.__trace")


def trace(name: str, text: Callable[[], str]) -> None:
    """Add an artefact `stepwell_<name>`; `text` is called only where somebody listens."""
    if not _log.handlers:
        return
    from torch._logging._internal import trace_structured

    trace_structured("artifact", metadata_fn=lambda: {"name": f"stepwell_{name}", "encoding": "string"}, payload_fn=text)
