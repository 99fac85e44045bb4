"""The process that runs what was edited: a mistake in it may end the process, and not the server."""

from __future__ import annotations

from statistics import median
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from ....errors import StepwellError
from ....passes.cost.machine import Gpu, machine_of
from ...worker_pool import serve
from .messages import message_of, parsed

SECONDS = 0.2
"""How long the two programs are repeated together, at least ROUNDS times each."""
ROUNDS = 5


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Run `text` and `base` (the program as it was) on the same random inputs: `errors` of the text, or `results`, what differs in each
    of them ("" for nothing), and `us` and `base_us`, medians of calls in turn, where kernels do not run in the interpreter."""
    from ....dialects.host import ProgramOp
    from ...backend.compile_graph import context
    from ...opt.inputs import entry_function
    from ...opt.verify_results import ResultVerifier, difference

    try:
        module = parsed(request["text"], request["file"])
    except StepwellError as error:
        return {"errors": [message_of(error)]}
    base = parsed(request["base"], request["file"])
    try:
        verifier = ResultVerifier.of(base, context(), None, None, request.get("seed", 0), None)
        if isinstance(entry_function(base, None), ProgramOp):  # it may spoil arguments, and does not say which
            verifier.kept = set()
        found = verifier.results(module, interpret=False)
        wanted = verifier.results(base, interpret=False)
    except Exception as error:  # the edited program's, whatever it is
        return {"errors": [message_of(error)]}
    if found.keys() != wanted.keys():
        return {"errors": [{"line": 0, "column": 0, "message": f"it has {len(found)} results, the program had {len(wanted)}"}]}
    results = [{"name": name, "difference": difference(wanted[name], value, None) or ""} for name, value in found.items()]
    return {"results": results, **_times(module, base)}


def _times(module: ModuleOp, base: ModuleOp) -> dict[str, float]:
    from ...backend.compile_graph import context
    from ...opt.run_ir import run_module

    if isinstance(machine_of(module), Gpu):
        return {}
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
