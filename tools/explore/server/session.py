"""What the server knows of the program that it shows, and does with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from ....errors import StepwellError
from ...worker_pool import DIED, Pool
from ..compare import compare
from ..errors import ExploreError
from ..main import Exploration, explore_text
from .messages import message_of, parsed

RUN_SECONDS = 120.0
"""How long an edited program may take, compiling included."""
RERUN_OPTIONS = ("disable_passes", "no_fuse", "fuse", "tile", "loop_order")
"""The options that the page may set."""


class Session:
    """One program: as it was compiled first, and what becomes of it with other options or another text.

    `again(options, measure)` compiles it once more."""

    def __init__(self, first: Exploration, again: Callable[[Mapping[str, Any], bool], Exploration]) -> None:
        self.first = first
        self._again = again
        self._pool = Pool(1, f"{__package__}.worker", RUN_SECONDS)
        self._busy = threading.Lock()
        self._latest = first.data
        """The document of the latest rerun."""

    def close(self) -> None:
        """End what still runs."""
        self._pool.close()

    def rerun(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Compile with other options: the `comparison` with the first document, and the new `document` where it is asked for. Raises
        ExploreError for other options than RERUN_OPTIONS, and what compiling raises."""
        options = given.get("options", {})
        if not isinstance(options, dict) or (unknown := [name for name in options if name not in RERUN_OPTIONS]):
            raise ExploreError(f"only {', '.join(RERUN_OPTIONS)} can be set, got {options if not isinstance(options, dict) else unknown}")
        with self._busy:
            found = self._again({**self.first.data["call"]["options"], **options}, bool(given.get("measure")))
            self._latest = found.data
            comparison = {"comparison": compare(self.first.data, found.data)}
            return {**comparison, "document": found.data} if given.get("document", True) else comparison

    def results(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Whether the results of a graph are the first document's, by the latest `rerun`, with both times: `run`, see worker.py; None where
        the graphs are others. It may take long where kernels are interpreted. Raises ExploreError for a graph that there is not."""
        graph = given.get("graph")
        with self._busy:
            before, after = self.first.data, self._latest
            if not isinstance(graph, int) or not 0 <= graph < len(after["graphs"]):
                raise ExploreError(f"there is no graph {graph!r}")
            if [one["title"] for one in before["graphs"]] != [one["title"] for one in after["graphs"]]:
                return {"run": None}
            return {"run": self._ask(_last_function(after, graph), _last_function(before, graph), f"graph_{graph + 1}")}

    def check(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What is wrong with the text of a level: `errors`, none where it can be run."""
        text = self._whole(given)
        try:
            parsed(text, given["level"])
        except StepwellError as error:
            return {"errors": [message_of(error)]}
        return {"errors": []}

    def run(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Run the text of a level beside what it was, see worker.py; `command` does so outside."""
        with self._busy:
            base = text_of(self.first.data, given["graph"], given["level"])
            found = self._ask(self._whole(given), base, given["level"])
        name = f"edited_{given['level']}.mlir"
        return {**found, "file": name, "text": self._whole(given), "command": f"opt-tool {name} --run"}

    def lower(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The document of the text of a level nd, loop or mem, from there down. Raises what compiling raises."""
        with self._busy:
            found = explore_text(given["text"], f"edited_{given['level']}.mlir", measure=bool(given.get("measure")))
            return {"document": found.data}

    def _whole(self, given: Mapping[str, Any]) -> str:
        text, level = given.get("text"), _level(self.first.data, given.get("graph"), given.get("level"))
        if not isinstance(text, str):
            raise ExploreError("a request has the 'text' of a level")
        return with_kernels(self.first.data, given["graph"], level, text)

    def _ask(self, text: str, base: str, file: str) -> dict[str, Any]:
        """The answer of the worker, or an error that says why there is none."""
        worker = self._pool.workers[0]
        worker.begin({"text": text, "base": base, "file": file}, self._pool.seconds)
        ((_, answer),) = self._pool.wait()
        return answer if DIED not in answer else {"errors": [{"line": 0, "column": 0, "message": answer[DIED]}]}


def _level(data: Mapping[str, Any], graph: Any, level: Any) -> dict[str, Any]:
    """A level of a document that is a module. Raises ExploreError where there is none."""
    if not isinstance(graph, int) or not 0 <= graph < len(data["graphs"]):
        raise ExploreError(f"there is no graph {graph!r}")
    found = next((one for one in data["graphs"][graph]["levels"] if one["name"] == level and one["language"] == "mlir"), None)
    if found is None:
        raise ExploreError(f"there is no level {level!r} that can be run")
    return found


def _last_function(data: Mapping[str, Any], graph: int) -> str:
    """The text of the level above the program, whose function says which arguments a call may spoil."""
    levels = [one["name"] for one in data["graphs"][graph]["levels"] if one["language"] == "mlir"]
    return text_of(data, graph, levels[levels.index("host") - 1])


def text_of(data: Mapping[str, Any], graph: int, level: str) -> str:
    """The whole text of a level, kernels included."""
    found = _level(data, graph, level)
    return with_kernels(data, graph, found, data["texts"][found["text"]])


def with_kernels(data: Mapping[str, Any], graph: int, level: Mapping[str, Any], text: str) -> str:
    """The text of a level with the kernels that it leaves out."""
    if "kernels" not in level:
        return text
    source = _level(data, graph, level["kernels"])
    lines = data["texts"][source["text"]].splitlines(keepends=True)
    tops = [op for op in source["operations"] if "in" not in op and op["op"] != "func.func"]
    kernels = "".join("".join(lines[op["line"] - 1 : op.get("end", op["line"])]) for op in tops)
    body, brace, _ = text.rpartition("}")
    return f"{body}{kernels}{brace}\n"
