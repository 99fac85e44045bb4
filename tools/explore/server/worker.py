"""The process that runs what was edited: a mistake in it may end the process, and not the server."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from statistics import median
from typing import TYPE_CHECKING, Any

from xdsl.dialects.builtin import ModuleOp

from ....errors import StepwellError
from ....passes.cost.machine import Gpu, machine_of
from ...worker_pool import serve
from ..errors import ExploreError
from .messages import message_of, parsed

if TYPE_CHECKING:
    from ...opt.verify_results import ResultVerifier

SECONDS = 0.2
"""How long the two programs are repeated together, at least ROUNDS times each."""
ROUNDS = 5
BASES = 4
"""Programs as they were whose results are kept: one is edited, or compiled again, several times."""


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Run `text` and `base` (the program as it was) on the same random inputs: `errors` of the text, or `results`, what differs in each
    of them ("" for nothing), and `us` and `base_us`, medians of calls in turn, where kernels do not run in the interpreter."""
    from ...opt.verify_results import difference

    text, file = request["text"], request["file"]
    try:
        module = parsed(text, file)
    except StepwellError as error:
        return {"errors": [message_of(error)]}
    try:
        base = _base(request["base"], file, request.get("seed", 0))
        module = _runnable(module)
        interpreted = isinstance(machine_of(module), Gpu)
        found = base.results if interpreted and text == request["base"] else base.verifier.results(module, interpret=False)
    except Exception as error:  # the edited program's, whatever it is
        return {"errors": [message_of(error)]}
    if found.keys() != base.results.keys():
        return {"errors": [{"line": 0, "column": 0, "message": f"it has {len(found)} results, the program had {len(base.results)}"}]}
    results = [{"name": name, "difference": difference(base.results[name], value, None) or ""} for name, value in found.items()]
    return {"results": results, **({} if interpreted else _times(module, base.module))}


@dataclass
class Base:
    """A program as it was, with its inputs (those of `verifier`) and results."""

    module: ModuleOp
    verifier: ResultVerifier
    results: dict[str, Any]


@lru_cache(BASES)
def _base(text: str, file: str, seed: int) -> Base:
    """Its kernels are run once, and not at each question: on a GPU that need not be there they are interpreted, program by program."""
    from ....dialects.host import ProgramOp
    from ...backend.compile_graph import context
    from ...opt.inputs import entry_function
    from ...opt.run import inputs_of, kept_arguments
    from ...opt.verify_results import ResultVerifier

    module = _runnable(parsed(text, file))
    program = isinstance(entry_function(module, None), ProgramOp)  # it may spoil arguments, and does not say which
    kept = set() if program else kept_arguments(module, None)
    verifier = ResultVerifier(context(), inputs_of(module, None, None, seed), None, seed, None, kept)
    return Base(module, verifier, verifier.results(module, interpret=False))


def _runnable(module: ModuleOp) -> ModuleOp:
    """A module for a GPU at the level tt, where its launches are interpreted on tensors of the CPU, whatever device it is for; others as
    they are. Raises ExploreError for the program of a GPU, whose memory is there alone."""
    from ....dialects.host import program_of
    from ....passes.manager.pass_manager import run
    from ....passes.manager.pipelines import default_pipeline, stage_names
    from ....targets.host.gpu.emit import program_device
    from ...backend.compile_graph import context
    from ...opt.run_ir import level_of

    if not isinstance(machine_of(module), Gpu):
        return module
    levels, level = stage_names("gpu"), level_of(module)
    if level == "host" and program_device(program_of(module)) != "cpu":
        raise ExploreError("the program of a GPU runs on it alone: edit the level tt, or one above")
    if level in ("nd", "loop", "mem"):
        first = 0 if level == "nd" else levels.index(level) + 1
        run(default_pipeline("gpu", stages=levels[first : levels.index("tt") + 1]), module, context())
    return module


def _times(module: ModuleOp, base: ModuleOp) -> dict[str, float]:
    from ...backend.compile_graph import context
    from ...opt.run_ir import run_module

    times: dict[str, list[float]] = {"us": [], "base_us": []}
    first: list[float] = []
    run_module(base, context(), None, repeat=1, seconds=first)
    rounds = max(ROUNDS, int(SECONDS / 4 / max(first[0], 1e-6)))
    for _ in range(2):  # each of them behind the other
        run_module(base, context(), None, repeat=rounds, seconds=times["base_us"])
        run_module(module, context(), None, repeat=rounds, seconds=times["us"])
    return {name: median(seconds) * 1e6 for name, seconds in times.items()}


if __name__ == "__main__":
    serve(answer)
