"""What Dynamo left to eager while `explain` ran: breaks of a graph, and functions that it gave up, each with place, reason and hints.

Dynamo keeps both for its own reports: `graph_break_reasons`, and the metrics of its compilations.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .model import Eager, Place

_JUMP = "generic_jump"
"""How Dynamo's list names a branch on the value of a tensor."""


@contextmanager
def watched(found: list[Eager]) -> Iterator[None]:
    """Add to `found` what Dynamo leaves to eager inside of the block."""
    from torch._dynamo import utils

    breaks: list[Any] = utils.graph_break_reasons
    known, before = len(breaks), {id(m) for m in utils.get_compilation_metrics()}
    try:
        yield
    finally:
        parts = [*_given_up(m for m in utils.get_compilation_metrics() if id(m) not in before), *map(_break, breaks[known:])]
        places: set[tuple[str, Place]] = set()
        for part in parts:
            if (part.why, part.place) not in places:
                places.add((part.why, part.place))
                found.append(part)


def _given_up(metrics: Iterator[Any]) -> Iterator[Eager]:
    for metric in metrics:
        if metric.fail_type is None or metric.fail_reason is None:
            continue
        place = Place(metric.fail_user_frame_filename or "", metric.fail_user_frame_lineno or 0)
        inside = _is_torch(metric.co_filename or "")
        yield _eager(metric.fail_reason, _users([place]), "the whole call" if inside else f"all of '{metric.co_name}'")


def _break(reason: Any) -> Eager:
    frames = [Place(f.filename, f.lineno or 0) for f in reversed(reason.user_stack)]
    return _eager(reason.reason, _users(frames), "the line")


def _users(places: Sequence[Place]) -> Place:
    """The innermost place that is the user's; none where all are torch's."""
    return next((p for p in places if p.line and not _is_torch(p.file)), Place())


def _is_torch(file: str) -> bool:
    import torch

    return file.startswith(os.path.dirname(torch.__file__) + os.sep)


def _eager(text: str, place: Place, what: str) -> Eager:
    """Dynamo's text of a reason, taken apart."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    title = lines[0] if lines else "no reason is given"
    if title.startswith(_JUMP):
        title = "a branch on the value of a tensor, which is not known while tracing"
    why = next((line.partition(": ")[2] for line in lines if line.startswith("Explanation: ")), "")
    hints = tuple(line.partition(": ")[2] for line in lines if line.startswith("Hint: ") and "report an issue" not in line)
    return Eager(place, what, f"{title}: {why}" if why else title, hints)
