"""What can be done with a text: put a name right, lower it to a later level, run a RUN line of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from threading import Lock
from typing import Any, NamedTuple

from xdsl.dialects.func import FuncOp

from ...dialects.machine import named_machine
from ...passes.manager.pipelines import LEVELS, TARGETS
from ...passes.manager.resume import level_of
from ..opt.run_lines import run_lines
from ..worker_pool import DIED, Pool
from .analysis import Analysis, Message
from .errors import LanguageServerError
from .recorder import Place

RUN_SECONDS = 60.0
"""How long passes or a RUN line may take."""


_MEANT = re.compile(r"'([^']+)'[^']*; did you mean (.*)\?")


class Fix(NamedTuple):
    """A name to put in the place of one that a message says there is not."""

    message: Message
    name: str


def fixes(found: Analysis, place: Place) -> list[Fix]:
    """The names that messages about a place hold likely, where the wrong one stands as the message has it."""
    made: list[Fix] = []
    for message in found.messages:
        match = _MEANT.search(message.text)
        near = message.place.start <= place.end and place.start <= message.place.end
        if match is not None and near and found.text[message.place.start : message.place.end] == match[1]:
            made += [Fix(message, name) for name in re.findall(r"'([^']+)'", match[2])]
    return made


class Lowering(NamedTuple):
    """The way to a level by a target's pipeline."""

    title: str
    target: str
    level: str


def lowerings(found: Analysis) -> list[Lowering]:
    """The levels that a text can be lowered to, the next one of each target first; of the machine that it names, where it names one.
    None where the text is no single module without mistakes."""
    modules = [part.module for part in found.parts]
    module = modules[0] if len(modules) == 1 and not found.messages else None
    if module is None or not any(isinstance(op, FuncOp) for op in module.ops):
        return []
    depth, machine = LEVELS[level_of(module)], named_machine(module)
    targets = {target: stages for target, stages in TARGETS.items() if machine is None or target == machine.kind}
    ways = [Lowering("", target, stage) for target, stages in targets.items() for stage in stages if LEVELS.get(stage, 0) > depth]
    return [way._replace(title=_title(way, first=k == 0 or ways[k - 1].target != way.target)) for k, way in enumerate(ways)]


def _title(way: Lowering, first: bool) -> str:
    return f"Run to the next level: {way.level} ({way.target})" if first else f"Lower to {way.level} ({way.target})"


class Runner:
    """Lowers and runs texts in a process of its own, one at a time."""

    def __init__(self) -> None:
        self._pool = Pool(1, f"{__package__}.worker", RUN_SECONDS)
        self._busy = Lock()

    def close(self) -> None:
        """End the process."""
        self._pool.close()

    def lower(self, text: str, file: str, target: str, level: str) -> str:
        """The text at a level. Raises LanguageServerError with what opt-tool says where it fails."""
        if level not in TARGETS.get(target, {}):
            raise LanguageServerError(f"there is no level '{level}' of a target '{target}'")
        return self._ask({"text": text, "file": file, "pipeline": f"stepwell-{target}{{to={level}}}"})

    def run_line(self, text: str, file: str, line: int) -> str:
        """What the RUN line that begins on a line (from 1) writes. Raises LanguageServerError where it fails, or there is none."""
        command = dict(run_lines(text)).get(line)
        if command is None:
            raise LanguageServerError(f"there is no RUN line on line {line}")
        return self._ask({"text": text, "file": file, "command": command})

    def _ask(self, request: Mapping[str, Any]) -> str:
        with self._busy:
            worker = self._pool.workers[0]
            worker.begin(dict(request), self._pool.seconds)
            ((_, answer),) = self._pool.wait()
        if (error := answer.get("error") or answer.get(DIED)) is not None:
            raise LanguageServerError(error)
        return answer["text"]
