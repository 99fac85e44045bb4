"""`stepwell.check`: a function compiled and called once, each of its graphs judged against float64, the whole against eager."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import GraphModule

from ..backend.torch_backend import GraphCompilers, compile_with
from ..opt.verify_results import TOLERANCE
from ..options.options import make_options
from .exact_graph import chooses
from .find_fault import Trial, find_fault
from .graph_case import GraphCase, Wrong, draws
from .graph_check import checked, diagnose, name_operation, node_errors
from .node_errors import ErrorRow
from .report import Report


def check(fn: Callable[..., Any], *args: Any, options: Mapping[str, Any] | None = None, tolerance: float | None = None) -> Report:
    """Call `fn(*args)` in eager and compiled, and judge results, gradients and updates of arguments; see docs/howto/checking.md.

    fn: a function or module; args: its arguments, which are not changed. options: those of torch.compile. tolerance: by how much the whole
    may differ from eager, relative to the largest element of a tensor (default by type). Raises what `fn` raises in eager."""
    watch = Watched()
    made = replace(make_options(None, options), check=0, compile_mode="process", on_failure="raise")
    trial = Trial(fn, args, dict(options or {}), tolerance)

    def backend(gm: torch.nn.Module, inputs: Sequence[Any]) -> Callable[..., Any]:
        return compile_with(CheckedCompilers(made, watch), gm, inputs)

    torch._dynamo.reset()
    failure, differs = "", ""
    try:
        found = trial.values(torch.compile(fn, backend=backend))
    except Exception as error:
        failure = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
    else:
        differs = trial.difference(found)
        if differs and tolerance is None and watch.tolerance:
            trial.tolerance = tolerance = watch.tolerance
            differs = trial.difference(found)
    finally:
        torch._dynamo.reset()
    if watch.wrong:
        return _with_table(diagnose(*watch.wrong[0]), watch)
    if failure:
        return _from_bisection(fn, args, options, tolerance, f"the compiled function fails: {failure}", watch)
    report = Report()
    if differs and watch.draws and not made.fallback_random:
        report.notes.append("The whole was not compared with eager, which draws other random numbers; options={'fallback_random': True}.")
    elif differs and watch.chooses:
        report.notes.append(f"The whole differs from eager, where equal elements may have been taken for each other: {differs}.")
    elif differs:
        return _from_bisection(fn, args, options, tolerance, differs, watch)
    report.notes += watch.notes
    return _with_table(report, watch)


class Watched:
    """The first call of each graph of a function."""

    def __init__(self) -> None:
        self.cases: list[GraphCase] = []
        self.wrong: list[tuple[GraphCase, Wrong, str]] = []
        self.notes: list[str] = []
        self.draws = self.chooses = False
        self.tolerance = 0.0
        """What rounding to the narrowest type of a graph explains in the whole, 0 where all have 32 bits or more."""

    def __call__(self, case: GraphCase, wrong: Wrong | None, name: str, failure: str) -> None:
        if failure:
            self.notes.append(failure)
            return
        self.cases.append(case)
        self.draws = self.draws or any(map(draws, case.gm.graph.nodes))
        self.chooses = self.chooses or any(map(chooses, case.gm.graph.nodes))
        values = [n.meta.get("val") for n in case.gm.graph.nodes]
        narrow = {v.dtype for v in values if isinstance(v, torch.Tensor)} & {torch.float16, torch.bfloat16}
        self.tolerance = max(self.tolerance, *(TOLERANCE[dtype] for dtype in narrow), 0.0)
        if wrong is not None:
            self.wrong.append((case, wrong, name))


class CheckedCompilers(GraphCompilers):
    """The compilers of one call of the backend, whose graphs are looked at."""

    def __init__(self, options: Any, watch: Watched):
        super().__init__(options)
        self.caches = False
        self.watched = watch

    def _compile(self, gm: GraphModule, example_inputs: Sequence[Any], kind: str) -> Callable[..., Any]:
        return checked(gm, kind, super()._compile(gm, example_inputs, kind), self.options, 1, self.watched)


def _with_table(report: Report, watch: Watched) -> Report:
    """The report with the errors by operation of all graphs."""
    rows: dict[str, ErrorRow] = {row.operation: row for row in report.table}
    for case in watch.cases:
        if watch.wrong and case is watch.wrong[0][0]:
            continue
        part = Report()
        errors, seen = node_errors(case, part)
        report.notes += part.notes
        guilty = next((e for e in errors if e.verdict.wrong), None)
        if report.ok and guilty is not None and seen is not None:
            name_operation(report, guilty, seen)
        for row in part.table:
            rows[row.operation] = _joined(rows[row.operation], row) if row.operation in rows else row
    report.table = sorted(rows.values(), key=lambda row: -row.ulp)
    return report


def _joined(a: ErrorRow, b: ErrorRow) -> ErrorRow:
    worst = a if a.ulp >= b.ulp else b
    largest = {key: max(getattr(a, key), getattr(b, key)) for key in ("ulp", "relative", "eager_ulp")}
    return replace(worst, nodes=a.nodes + b.nodes, **largest)


def _from_bisection(
    fn: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any] | None, tolerance: float | None, wrong: str, watch: Watched
) -> Report:
    """The second means: what has to be left to ATen, or left out, for right results."""
    report = Report(False, wrong, notes=list(watch.notes))
    given = {key: value for key, value in (options or {}).items() if key != "check"}
    fault = find_fault(fn, *args, options=given, tolerance=tolerance)
    if fault.operator:
        report.operation = fault.operator
        report.node, _, report.line = (fault.nodes[0] if fault.nodes else "").partition(" at ")
        report.notes.append(f"Right where ATen runs {fault.operator}: options={{'fallback': ['{fault.operator}']}}.")
    if fault.left_out:
        report.pass_name = fault.left_out
        report.how = f"right where it is left out: options={{'disable_passes': ['{fault.left_out}']}}"
    elif not fault.operator:
        report.notes.append("Each graph is right by itself: what goes wrong is before them, in Dynamo's graph or in AOTAutograd's.")
    return _with_table(report, watch)
