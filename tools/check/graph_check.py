"""Compiled graphs that look at their own results, and where a wrong one comes from."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes

from ..compiled.compiled import is_empty
from ..debug.compile_log import log
from ..options.options import Options
from .graph_case import GraphCase, RandomState, Wrong, copy_of
from .node_errors import NodeError, SeenValues, error_rows, first_wrong, line_of, operator_of
from .pass_search import PassFault, case_without, find_pass
from .report import Report, WrongResult

_numbers = itertools.count(1)

Seen = Callable[[GraphCase, "Wrong | None", str, str], None]
"""Is told of each call that was looked at: the graph with its inputs, what is wrong, the name of the graph, why it was not judged."""


def checked(
    gm: GraphModule, kind: str, program: Callable[[list[Any]], Sequence[Any]], options: Options, calls: int, seen: Seen
) -> Callable[[list[Any]], Sequence[Any]]:
    """`program`, the boxed function of a graph, whose first `calls` calls are looked at; later ones cost a call in Python."""
    if is_empty(gm):
        return program
    name = f"{kind} graph {next(_numbers)}"
    graph: list[GraphModule] = [gm]
    left = calls

    def call(args: list[Any]) -> Sequence[Any]:
        nonlocal left
        if left <= 0:
            return program(args)
        left -= 1
        found = graph[0]
        if not left:
            graph.clear()  # and with it what the compiler remembers of the graph
        case, given = _case(found, args, options, kind), list(args)
        results = program(args)
        with _disable_current_modes(), torch.no_grad():
            try:
                wrong = case.wrong(results, given)
            except Exception as error:  # of a kernel that float64 has not, for want of memory, ...
                seen(case, None, name, f"The {name} was not judged: {_first_line(error)}.")
                return results
            seen(case, wrong, name, "")
        return results

    call._boxed_call = True  # pyright: ignore[reportFunctionMemberAccess]
    return call


def _case(gm: GraphModule, args: Sequence[Any], options: Options, kind: str) -> GraphCase:
    with _disable_current_modes(), torch.no_grad():
        return GraphCase(gm, [copy_of(v) for v in args], options, kind, RandomState.now())


def raise_if_wrong(case: GraphCase, wrong: Wrong | None, name: str, failure: str) -> None:
    """What the option `check` does: raises WrongResult with a report."""
    if failure:
        log.warning("option 'check': %s", failure)
    if wrong is not None:
        raise WrongResult(diagnose(case, wrong, name))


def diagnose(case: GraphCase, wrong: Wrong, name: str) -> Report:
    """Where a wrong result of a graph comes from: the node, then the pass."""
    report = Report(False, str(wrong), graph=name, ulp=wrong.verdict.wrong_ulp)
    errors, seen = node_errors(case, report)
    guilty = next((e for e in errors if e.verdict.wrong), None)
    cases: list[GraphCase] = []
    if guilty is not None and seen is not None:
        _name(report, guilty.node, guilty.verdict.wrong_ulp)
        cases.append(case.alone(_call_of(guilty.node), seen.values))
        cases.append(case.truncated([guilty.node]))
    else:
        node, shorter = _first_wrong(case, report)
        if node is not None:
            again = shorter.call(shorter.compiled())
            _name(report, node, again.verdict.wrong_ulp if again else report.ulp)
            cases.append(shorter)
    fault = PassFault()
    for one in [*cases, case]:
        if (found := _pass_of(one)) is not None:
            fault = fault if fault.pass_name else found
        if fault.pass_name:
            break
    report.pass_name, report.how = fault.pass_name, fault.how
    if not fault.pass_name or not report.operation:
        _by_fallback(case, report)
    return report


def name_operation(report: Report, guilty: NodeError, seen: SeenValues) -> None:
    """Say in the report of a program whose results are right that an operation is wrong where its own value is asked for."""
    node = guilty.node
    report.ok, report.wrong = False, f"the value of {node.name}, where it is returned: {guilty.verdict.wrong}"
    _name(report, node, guilty.verdict.wrong_ulp)
    fault = _pass_of(seen.case.alone(_call_of(node), seen.values)) or _pass_of(seen.case.truncated([node])) or PassFault()
    report.pass_name, report.how = fault.pass_name, fault.how


def node_errors(case: GraphCase, report: Report) -> tuple[list[NodeError], SeenValues | None]:
    """The own error of each node, whose table goes into the report."""
    try:
        seen = SeenValues(case)
        errors = list(seen.errors())
    except Exception as error:
        report.notes.append(f"Operations were not looked at one by one: {_first_line(error)}")
        return [], None
    report.table = error_rows(errors)
    return errors, seen


def _first_wrong(case: GraphCase, report: Report) -> tuple[Node | None, GraphCase]:
    try:
        return first_wrong(case)
    except Exception as error:
        report.notes.append(f"Parts of the graph cannot be compiled by themselves: {_first_line(error)}")
        return None, case


def _pass_of(case: GraphCase) -> PassFault | None:
    """The pass that makes a graph wrong; None where it is right."""
    try:
        if case.call(case.compiled()) is None:
            return None
        return find_pass(case)
    except Exception as error:
        return PassFault("", "", _first_line(error))


def _by_fallback(case: GraphCase, report: Report) -> None:
    """The operator that has to run through ATen for right results."""
    nodes = [n for n in case.gm.graph.nodes if n.op == "call_function" and isinstance(n.target, torch._ops.OpOverload)]
    names = list(dict.fromkeys(str(n.target) for n in nodes))
    operator = case_without(case, "fallback", names)
    if not operator:
        return
    report.notes.append(f"Right where ATen runs {operator}: options={{'fallback': ['{operator}']}}.")
    if not report.operation:
        _name(report, next(n for n in nodes if str(n.target) == operator), report.ulp)


def _name(report: Report, node: Node, ulp: float) -> None:
    report.operation, report.node, report.line, report.ulp = operator_of(node), node.name, line_of(node), ulp


def _call_of(node: Node) -> list[Node]:
    """A node, with the call that it is a part of the result of."""
    import operator

    return [node.args[0], node] if node.target is operator.getitem and isinstance(node.args[0], Node) else [node]


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
