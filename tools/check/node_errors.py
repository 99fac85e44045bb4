"""The error of each operation of a graph that its operands do not explain.

The graph is compiled so that it returns the value of every node. Each node is then run in float64 on the operands that compiled code saw,
rounded as they are: what its value differs from that by is its own error, and errors made before it do not count.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from ...lowering.fx_to_nd.core.importer import user_place
from .exact_graph import EAGER, RUNS, ExactGraph, bound_of, is_undefined, widened_runs
from .graph_case import GraphCase, copy_of, draws
from .judge import Verdict, judge

MAX_STEPS = 24
"""Graphs that are compiled at most in the search for the first wrong node."""


_NUMBERS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True)
class NodeError:
    """The own error of a node."""

    node: Node
    verdict: Verdict

    @property
    def operator(self) -> str:
        """The operator of a node; that of the call that it is a result of."""
        return operator_of(self.node)


@dataclass(frozen=True)
class ErrorRow:
    """A row of the table: an operation, how many nodes have it, the largest own error among them in units of the last place and relative
    to the largest element, the error that torch's kernels have on the same operands, and the node that is worst, with its line."""

    operation: str
    nodes: int
    ulp: float
    relative: float
    eager_ulp: float
    node: str
    line: str


def operator_of(node: Node) -> str:
    """The operator of a node as text; that of the call that it is a result of."""
    if node.target is operator.getitem and isinstance(node.args[0], Node):
        return operator_of(node.args[0])
    return str(node.target)


def line_of(node: Node) -> str:
    """The line of the user's program that a node comes from: "file.py:12", or ""."""
    for one in (node, *node.all_input_nodes[:1]):
        place = user_place(one.meta.get("stack_trace"))
        if hasattr(place, "filename"):
            return f"{place.filename.data}:{place.line.data}"
    return ""


def error_rows(errors: Sequence[NodeError]) -> list[ErrorRow]:
    """The table of own errors by operation, the largest first."""
    groups: dict[str, list[NodeError]] = {}
    for error in errors:
        groups.setdefault(error.operator, []).append(error)
    rows = []
    for name, group in groups.items():
        worst = max(group, key=lambda e: (bool(e.verdict.wrong), e.verdict.ulp))
        ulp, relative, eager = (max(getattr(e.verdict, key) for e in group) for key in ("ulp", "relative", "eager_ulp"))
        rows.append(ErrorRow(name, len(group), ulp, relative, eager, worst.node.name, line_of(worst.node)))
    return sorted(rows, key=lambda row: -row.ulp)


class SeenValues:
    """The values of all nodes of a graph as compiled code computes them, each kept in memory of its own."""

    def __init__(self, case: GraphCase):
        self.case = case
        self.nodes = [n for n in case.gm.graph.nodes if _is_tensor(n) and n.op == "call_function" and not _writes(n)]
        self.values: dict[Node, Any] = {}
        whole = case.truncated(self.nodes)
        given = [copy_of(v) for v in case.inputs]
        with torch.no_grad(), case.random.again():
            results = whole.compiled()(list(given))
        self.values.update(zip(self.nodes, results, strict=True))
        self.exact = ExactGraph(case.gm, case.inputs)
        places = iter(case.inputs)
        for node in case.gm.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = next(places)
            elif node.op == "get_attr":
                self.values[node] = self.exact.value(node)[EAGER]
            elif node.op == "call_function" and isinstance(node.meta.get("val"), _NUMBERS):
                self.values[node] = self._number(node)

    def _number(self, node: Node) -> Any:
        args, kwargs = map_arg((node.args, dict(node.kwargs)), self.values.__getitem__)
        return node.target(*args, **kwargs)  # pyright: ignore[reportCallIssue]

    def errors(self) -> Iterator[NodeError]:
        """The own error of each node, in the order of the graph. What draws random numbers, memory that is not
        written, and parts of a result that nobody reads have none."""
        for node in self.case.gm.graph.nodes:
            if node.op != "call_function" or draws(node) or _writes(node) or node.target is operator.getitem or is_undefined(node):
                continue
            parts = [u for u in node.users if u.target is operator.getitem and _is_tensor(u)] if _is_tuple(node) else []
            parts = [u for u in parts if self.values[u] is not None]
            if not parts and (not _is_tensor(node) or self.values[node] is None):
                continue
            if any(_is_tensor(n) and self.values[n] is None for n in node.all_input_nodes):
                continue  # a token, which only orders effects
            if any(isinstance(n.meta.get("val"), (list, tuple)) for n in node.all_input_nodes):
                continue
            bound = bound_of(self.exact.apply(node, [self._runs(n) for n in node.all_input_nodes]))
            for part in parts:
                if "scaled_dot_product" in str(node.target) and not part.meta["val"].is_floating_point():
                    continue
                yield NodeError(part, judge(self.values[part], bound[part.args[1]]))  # pyright: ignore[reportArgumentType]
            if not parts:
                yield NodeError(node, judge(self.values[node], bound))

    def _runs(self, node: Node) -> list[Any]:
        """An operand as it was seen; one of 16 bits may not have been rounded where it was used."""
        value = self.values[node]
        if not isinstance(value, torch.Tensor):
            return [value] * RUNS
        runs = widened_runs(value)
        if node.op != "placeholder" and value.dtype in (torch.float16, torch.bfloat16) and self.case.options.rounding != "eager":
            runs[2:] = [self.exact._rounded(v, value, 1.0) for v in runs[2:]]
        return runs


def first_wrong(case: GraphCase) -> tuple[Node | None, GraphCase]:
    """The first node of a wrong graph that is wrong where the graph ends with it, and that graph: what is found by halves where each node
    by itself is right. (None, case) where no graph that ends earlier is wrong."""
    nodes = [n for n in case.gm.graph.nodes if n.op == "call_function" and _is_tensor(n) and not _writes(n)]
    low, high, found = 0, len(nodes), None
    smallest = case
    for _ in range(MAX_STEPS):
        if low >= high:
            break
        middle = (low + high) // 2
        shorter = case.truncated([n for n in _ends(nodes[: middle + 1])])
        if shorter.call(shorter.compiled()) is None:
            low = middle + 1
        else:
            high, found, smallest = middle, nodes[middle], shorter
    return found, smallest


def _ends(nodes: Sequence[Node]) -> list[Node]:
    """Those that no other of `nodes` reads."""
    inside = set(nodes)
    return [n for n in nodes if not any(u in inside for u in n.users)]


def _is_tensor(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.layout == torch.strided and type(value.device.type) is str


def _is_tuple(node: Node) -> bool:
    return isinstance(node.meta.get("val"), (tuple, list))


def _writes(node: Node) -> bool:
    return node.target is torch.ops.aten.copy_.default
