"""Which pass makes a graph wrong: the IR behind every pass is kept, and run on the inputs of the call.

The levels nd, loop, mem and tt run in their reference interpreters, kernels of the CPU and host programs as machine code. Results are
judged against the float64 evaluation of the graph, so that it is halves that are looked at: some five runs. Where interpreters cannot tell,
the graph is compiled without one half of the passes after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from ...errors import StepwellError
from ...passes.manager.instrumentation import Instrumentation, print_ir
from ...passes.manager.pass_manager import Pipeline, run
from ...passes.manager.pipelines import LOWERINGS
from ..backend.compile_graph import context
from ..compiled.compiled import CompiledGraph
from ..debug.folder import DebugFolder
from ..opt.run_ir import run_module
from ..opt.verify_results import SOON, scalar_operations
from ..options.options import Options
from .emitted_functions import wrong_function
from .graph_case import GraphCase, Wrong, on_cpu
from .narrowing import narrowed

IMPORT = "import"
"""The place of a "pass" that reads the FX graph: rules of operators (lowering/fx_to_nd)."""

EMIT = "emit"
"""What comes after the last pass: text for LLVM or Triton, and their compilers."""


@dataclass(frozen=True)
class PassFault:
    """pass_name: the pass that makes results wrong, IMPORT, EMIT, or "" where it was not found. wrong: what is wrong after it. how: how
    that was found out, a sentence."""

    pass_name: str = ""
    wrong: str = ""
    how: str = ""


@dataclass
class Levels:
    """Keeps the IR behind the import and behind each pass that changes it: what `make` of lower_graph can be."""

    levels: list[tuple[str, ModuleOp]] = field(default_factory=list)
    failure: str = ""
    """What a pass raised; the passes behind it did not run."""
    passes: list[str] = field(default_factory=list)
    text: str = ""

    def __call__(
        self, module: ModuleOp, device: str, options: Options, debug: DebugFolder | None, pipeline: Pipeline, watch: Any = None
    ) -> Any:
        self.levels, self.failure, self.passes = [], "", [p.name for p in pipeline.passes()]
        self._keep(IMPORT, module)
        try:
            run(pipeline, module, context(), Instrumentation(after_pass=lambda p, op: self._keep_pass(p, op)))
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
        return None, b"", ""

    def _keep_pass(self, p: ModulePass, module: ModuleOp) -> None:
        self._keep(p.name, module)

    def _keep(self, name: str, module: ModuleOp) -> None:
        text = print_ir(module, generic=True)
        if text != self.text:
            self.levels.append((name, module.clone()))
            self.text = text


def find_pass(case: GraphCase) -> PassFault:
    """The pass that makes a wrong graph wrong."""
    kept = Levels()
    graph = case.lowered(make=kept)
    found = _by_interpreters(case, kept, graph)
    if found.pass_name:
        return found
    left_out = case_without(case, "disable_passes", [p for p in dict.fromkeys(kept.passes) if p not in LOWERINGS])
    if left_out:
        return PassFault(left_out, found.wrong, f"right where it is left out: options={{'disable_passes': ['{left_out}']}}")
    return found


def case_without(case: GraphCase, option: str, names: Sequence[str]) -> str:
    """The last of the shortest beginning of `names` that makes the graph right as an option; "" if all of them do not."""

    def is_right(chosen: list[str]) -> bool:
        given = [*dict.fromkeys([*getattr(case.options, option), *chosen])]
        try:
            return case.call(case.compiled(replace(case.options, **{option: given}))) is None
        except Exception:
            return False

    return narrowed(names, is_right)


def _by_interpreters(case: GraphCase, kept: Levels, graph: CompiledGraph) -> PassFault:
    """The first level that is wrong behind one that is right, found by halves among those that can be run."""
    known: dict[int, Wrong | str | None] = {}

    def at(k: int) -> Wrong | str | None:
        """What is wrong at a level: None for nothing, a text where it cannot be run."""
        if k not in known:
            known[k] = _run_level(case, kept.levels[k][1], graph)
        return known[k]

    def runnable(k: int, low: int, high: int) -> int | None:
        """The level nearest to `k` between two others that can be run."""
        between = sorted(range(low + 1, high), key=lambda j: abs(j - k))
        return next((j for j in between if not isinstance(at(j), str)), None)

    if isinstance(first := at(0), Wrong):
        return PassFault(IMPORT, str(first), "the imported graph, run by the interpreter, is wrong: a rule of lowering/fx_to_nd")
    last = next((k for k in reversed(range(len(kept.levels))) if isinstance(at(k), Wrong)), None) if kept.levels else None
    if last is None:
        if kept.failure:
            return PassFault("", "", f"a pass fails: {kept.failure}")
        if all(value is None for value in known.values()):
            return PassFault(EMIT, "", "each level is right, in the interpreters and as machine code of this processor")
        return PassFault("", "", _unknown(known))
    low, high = 0, last
    while (middle := runnable((low + high) // 2, low, high)) is not None:
        if at(middle) is None:
            low = middle
        else:
            high = middle
    if high - low > 1:
        return PassFault("", str(at(high)), f"between '{kept.levels[low][0]}' and '{kept.levels[high][0]}'; {_unknown(known)}")
    name, wrong = kept.levels[high][0], str(at(high))
    if name == "mem-to-cpu" and (function := wrong_function(kept.levels[high][1])):
        return PassFault(EMIT, wrong, f"the code for {function}")
    how = "the level before it is right, the one behind it is not"
    if name == "mem-to-cpu":
        how += "; the level cpu runs as machine code, so that it may also be what targets/cpu makes of it"
    return PassFault(name, wrong, how)


def _unknown(known: dict[int, Wrong | str | None]) -> str:
    """Why levels could not be run."""
    reasons = dict.fromkeys(value for value in known.values() if isinstance(value, str))
    return "levels that could not be run: " + "; ".join(reasons)


def _run_level(case: GraphCase, module: ModuleOp, graph: CompiledGraph) -> Wrong | str | None:
    """What is wrong with the results of a module on the inputs of the case; a text where it cannot be run."""
    if scalar_operations(module) > SOON:
        return "the interpreters would take long"
    given = [on_cpu(v) for v in case.inputs]
    arguments = [*(given[k] for k in graph.inputs), *(on_cpu(v) for v in graph.constants)]
    try:
        with torch.no_grad(), case.random.again():
            results = run_module(module.clone(), context(), arguments, objects=graph.objects, interpret=True)
    except StepwellError as error:
        return str(error).strip().splitlines()[0]
    except Exception as error:
        from .judge import Verdict

        return Wrong("the call", Verdict(wrong=f"it raises {type(error).__name__}: {error}"))
    bounds, _ = case.bounds()
    found = [results[o.value] if o.kind == "result" else bound for o, bound in zip(graph.outputs, bounds, strict=True)]
    return case.wrong(found, given)
