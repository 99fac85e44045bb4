"""The smallest FX graph that still fails: fewer nodes, results and inputs, smaller tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree

from ..opt.inputs import with_own_memory
from .search import ReduceError, Search

Fails = Callable[[GraphModule, Sequence[Any]], bool]
SMALL_SIZES = (1, 2, 3)
CHECKED_RUNS = 4
"""Runs with other roundings that show whether a candidate differs (check/rounding.py)."""


class GraphDraft:
    """A graph that is not changed any more, and its inputs."""

    def __init__(self, graph: GraphModule, inputs: Sequence[Any]) -> None:
        self.graph = graph
        self.inputs = list(inputs)

    @cached_property
    def nodes(self) -> list[Node]:
        return list(self.graph.graph.nodes)

    @cached_property
    def values(self) -> dict[str, Any]:
        """What each node is on the inputs.  Raises what the graph raises."""
        recorder = _Recorder(self.graph)
        with torch.no_grad():
            recorder.run(*map(with_own_memory, self.inputs))
        return recorder.values

    @cached_property
    def text(self) -> str:
        kinds = [(tuple(i.shape), i.stride(), str(i.dtype)) if isinstance(i, torch.Tensor) else repr(i) for i in self.inputs]
        return f"{self.graph.graph.python_code('self').src}\n{kinds}"

    @cached_property
    def weight(self) -> tuple[int, int, int, int, int]:
        """Operators, inputs, elements of inputs, letters, the sum of all digits."""
        calls = sum(n.op not in ("placeholder", "output", "get_attr") for n in self.nodes)
        elements = sum(i.numel() for i in self.inputs if isinstance(i, torch.Tensor))
        return calls, len(self.inputs), elements, len(self.text), sum(map(int, filter(str.isdecimal, self.text)))

    def copy(self) -> tuple[Graph, list[Node]]:
        """A graph that may be changed, and its nodes in the order of `nodes`."""
        graph, mapped = Graph(), {}
        for node in self.nodes:
            mapped[node] = graph.node_copy(node, lambda n: mapped[n])
        return graph, list(mapped.values())

    def finished(self, graph: Graph, inputs: Sequence[Any]) -> GraphDraft | None:
        """A draft of a changed graph without what nothing needs; None where eager does not run it."""
        try:
            graph.lint()
            made = GraphDraft(GraphModule(self.graph, graph), inputs)
            _ = made.values
        except Exception:  # whatever an operator refuses
            return None
        return made


class _Recorder(Interpreter):
    """Runs a graph and keeps a copy of what each node gives."""

    def __init__(self, graph: GraphModule) -> None:
        super().__init__(graph)
        self.values: dict[str, Any] = {}

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        self.values[n.name] = with_own_memory(value)
        return value


def _erase(node: Node) -> None:
    """Take out a node without users, then what only it used, but for inputs."""
    before = list(node.all_input_nodes)
    node.graph.erase_node(node)
    for one in before:
        if not one._erased and not one.users and one.op != "placeholder":
            _erase(one)


class _NodeEdits:
    """Edits of nodes, from the last to the first; a place is the number of a node."""

    name = ""
    chunks = True

    def places(self, best: GraphDraft) -> Sequence[int]:
        calls = [k for k, node in enumerate(best.nodes) if node.op not in ("placeholder", "output")]
        return [k for k in reversed(calls) if self.fits(best, best.nodes[k])]

    def apply(self, best: GraphDraft, chosen: Sequence[int]) -> GraphDraft | None:
        graph, nodes = best.copy()
        inputs = list(best.inputs)
        for k in chosen:
            if nodes[k].graph is graph and not nodes[k]._erased:
                self.edit(best, best.nodes[k], nodes[k], inputs)
        return best.finished(graph, inputs)

    def fits(self, best: GraphDraft, node: Node) -> bool:
        return True

    def edit(self, best: GraphDraft, old: Node, node: Node, inputs: list[Any]) -> None:
        raise NotImplementedError


class Unused(_NodeEdits):
    """Nodes that nothing uses, updates among them."""

    name = "nodes without uses"

    def fits(self, best: GraphDraft, node: Node) -> bool:
        return not node.users

    def edit(self, best: GraphDraft, old: Node, node: Node, inputs: list[Any]) -> None:
        if not node.users:
            _erase(node)


class ByInputs(_NodeEdits):
    """Values become inputs."""

    name = "values to inputs"

    def fits(self, best: GraphDraft, node: Node) -> bool:
        return bool(node.users) and isinstance(best.values[node.name], torch.Tensor)

    def edit(self, best: GraphDraft, old: Node, node: Node, inputs: list[Any]) -> None:
        if not node.users:
            return
        graph = node.graph
        places = [n for n in graph.nodes if n.op == "placeholder"]
        with graph.inserting_before(next(iter(graph.nodes))) if not places else graph.inserting_after(places[-1]):
            new = graph.placeholder(f"given_{node.name}")
        value = best.values[old.name]
        differentiable = value.is_floating_point() and any(isinstance(i, torch.Tensor) and i.requires_grad for i in best.inputs)
        inputs.append(with_own_memory(value).requires_grad_(differentiable))
        node.replace_all_uses_with(new)
        _erase(node)


class ByOperands(_NodeEdits):
    """Values become an operand of the same type and size."""

    name = "values to operands"

    def fits(self, best: GraphDraft, node: Node) -> bool:
        return bool(node.users) and self._other(best, node) is not None

    def _other(self, best: GraphDraft, node: Node) -> int | None:
        value = best.values[node.name]
        for k, one in enumerate(node.all_input_nodes):
            other = best.values[one.name]
            if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor):
                if (value.shape, value.dtype) == (other.shape, other.dtype):
                    return k
        return None

    def edit(self, best: GraphDraft, old: Node, node: Node, inputs: list[Any]) -> None:
        k = self._other(best, old)
        if k is not None and node.users and k < len(node.all_input_nodes):
            node.replace_all_uses_with(node.all_input_nodes[k])
            _erase(node)


class Keywords(_NodeEdits):
    """Keyword arguments."""

    name = "keyword arguments"

    def fits(self, best: GraphDraft, node: Node) -> bool:
        return bool(node.kwargs)

    def edit(self, best: GraphDraft, old: Node, node: Node, inputs: list[Any]) -> None:
        node.kwargs = dict(list(node.kwargs.items())[:-1])


class Results:
    """Results of the graph."""

    name, chunks = "results", True

    def places(self, best: GraphDraft) -> Sequence[int]:
        return range(len(_results(best.nodes[-1])) - 1, -1, -1)

    def apply(self, best: GraphDraft, chosen: Sequence[int]) -> GraphDraft | None:
        graph, nodes = best.copy()
        kept = [r for k, r in enumerate(_results(nodes[-1])) if k not in set(chosen)]
        if not kept:
            return None
        dropped = nodes[-1].all_input_nodes
        nodes[-1].args = (tuple(kept),)
        for node in dropped:
            if not node._erased and not node.users and node.op != "placeholder":
                _erase(node)
        return best.finished(graph, best.inputs)


def _results(output: Node) -> list[Any]:
    return pytree.tree_leaves(output.args[0])


class Inputs:
    """Inputs that nothing uses."""

    name, chunks = "inputs", True

    def places(self, best: GraphDraft) -> Sequence[int]:
        given = [n for n in best.nodes if n.op == "placeholder"]
        return [k for k in range(len(given) - 1, -1, -1) if not given[k].users]

    def apply(self, best: GraphDraft, chosen: Sequence[int]) -> GraphDraft | None:
        graph, nodes = best.copy()
        given = [n for n in nodes if n.op == "placeholder"]
        for k in chosen:
            graph.erase_node(given[k])
        return best.finished(graph, [v for k, v in enumerate(best.inputs) if k not in set(chosen)])


class Sizes:
    """A size of inputs becomes 1, 2, 3 or a half, wherever it occurs, and in the arguments of operators."""

    name, chunks = "sizes", False

    def places(self, best: GraphDraft) -> Sequence[tuple[int, int, bool]]:
        sizes = {n for i in best.inputs if isinstance(i, torch.Tensor) for n in i.shape}
        return [
            (n, new, args) for n in sorted(sizes, reverse=True) for new in (*SMALL_SIZES, n // 2) if 0 < new < n for args in (True, False)
        ]

    def apply(self, best: GraphDraft, chosen: Sequence[tuple[int, int, bool]]) -> GraphDraft | None:
        ((old, new, args),) = chosen
        graph, nodes = best.copy()

        def smaller(number: int) -> int:
            return new if number is not True and number == old else number

        for node in nodes if args else ():
            if node.op not in ("placeholder", "output"):
                node.args, node.kwargs = (pytree.tree_map_only(int, smaller, part) for part in (node.args, node.kwargs))
        return best.finished(graph, [_narrowed(value, old, new) for value in best.inputs])


def _narrowed(value: Any, old: int, new: int) -> Any:
    """A tensor with the first `new` of each `old` elements, its dimensions in memory in the same order."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or old not in value.shape:
        return value
    part = value.detach()
    for d, n in enumerate(value.shape):
        if n == old:
            part = part.narrow(d, 0, new)
    return part.clone().requires_grad_(value.requires_grad)


class Layouts:
    """Inputs become dense, and their elements multiples of 1/4."""

    name, chunks = "elements", True

    def places(self, best: GraphDraft) -> Sequence[int]:
        return [k for k, value in enumerate(best.inputs) if isinstance(value, torch.Tensor)]

    def apply(self, best: GraphDraft, chosen: Sequence[int]) -> GraphDraft | None:
        inputs = list(best.inputs)
        for k in chosen:
            value = inputs[k].detach()
            if value.is_floating_point():
                value = (value * 4).round() / 4
            inputs[k] = value.clone(memory_format=torch.contiguous_format).requires_grad_(inputs[k].requires_grad)
        graph, _ = best.copy()
        return best.finished(graph, inputs)


def reduce_graph(
    gm: GraphModule, inputs: Sequence[Any], fails: Fails, *, seconds: float | None = None, progress: Callable[[str], None] | None = None
) -> tuple[GraphModule, list[Any]]:
    """The smallest graph found, with its inputs, that `fails` says True of; `gm` and `inputs` themselves are not changed.

    `fails` is given inputs of its own.  What it raises counts as False, but for the first call: then it goes to the caller.  Every
    candidate runs in eager.  Raises ReduceError where the graph does not fail.
    """
    if not fails(gm, [with_own_memory(value) for value in inputs]):
        raise ReduceError("there is nothing to reduce: the graph does not fail")
    first = GraphDraft(*_with_lifted_constants(gm, inputs))
    if not _holds(fails, first):  # what hangs on constants that are no inputs
        first = GraphDraft(gm, inputs)
    edits: list[Any] = [Results(), Unused(), ByInputs(), ByOperands(), Inputs(), Keywords(), Sizes(), Layouts()]
    search = Search(
        first, edits, lambda drafts: [_holds(fails, d) for d in drafts], lambda d: d.weight, _key, seconds=seconds, progress=progress
    )
    found = search.run()
    return found.graph, found.inputs


def _key(draft: GraphDraft) -> int:
    sums = [float(i.detach().double().nan_to_num().sum()) for i in draft.inputs if isinstance(i, torch.Tensor) and not i.is_complex()]
    return hash((draft.text, *sums))


def _holds(fails: Fails, draft: GraphDraft) -> bool:
    try:
        return bool(fails(draft.graph, [with_own_memory(value) for value in draft.inputs]))
    except Exception:  # a candidate that cannot even be tried
        return False


def _with_lifted_constants(gm: GraphModule, inputs: Sequence[Any]) -> tuple[GraphModule, list[Any]]:
    """The graph with tensors that it holds as inputs."""
    graph, nodes = GraphDraft(gm, inputs).copy()
    given = list(inputs)
    for node in nodes:
        value = operator.attrgetter(str(node.target))(gm) if node.op == "get_attr" else None
        if isinstance(value, torch.Tensor):
            places = [n for n in graph.nodes if n.op == "placeholder"]
            with graph.inserting_before(next(iter(graph.nodes))) if not places else graph.inserting_after(places[-1]):
                new = graph.placeholder(f"held_{node.name}")
            node.replace_all_uses_with(new)
            graph.erase_node(node)
            given.append(value.detach().clone().requires_grad_(value.requires_grad))
    return GraphModule(gm, graph), given


@dataclass(frozen=True)
class Reduced:
    """A reduced graph: `str()` is a Python program that shows the failure."""

    graph: GraphModule
    inputs: list[Any]
    failure: str
    grad: bool = False

    @property
    def program(self) -> str:
        """The graph as a Python function `program`."""
        return program_text(self.graph)

    def __str__(self) -> str:
        from ..fuzz.case import Case, inputs_text

        case = Case("reduced", 0, self.program, inputs_text(self.inputs), grad=self.grad)
        return case.source(self.failure)


def program_text(gm: GraphModule) -> str:
    """The code of a graph as a function `program`, behind the imports that it needs."""
    code = gm.graph.python_code("self")
    lines = []
    for name, value in code.globals.items():
        if name == "torch" or name not in code.src:
            continue
        module, path = getattr(value, "__module__", ""), getattr(value, "__qualname__", "")
        known = {"device": "from torch import device", "inf": "from math import inf", "nan": "from math import nan"}
        if name in known:
            lines.append(known[name])
        elif module and path and "<" not in path:
            lines.append(f"from {module} import {path.split('.')[0]}" + (f" as {name}" if path != name else ""))
    source = code.src.strip().replace("def forward(self, ", "def program(").replace("def forward(self)", "def program()")
    return "\n".join([*lines, "", "", source] if lines else [source])


def reduce(
    fn: Callable[..., Any], *args: Any, fails: Fails | None = None, options: dict[str, Any] | None = None, seconds: float | None = None
) -> Reduced:
    """The smallest part of a function, module or FX graph that fails on `args`, as a graph with inputs.

    By default a graph fails where compiling it raises, or where its results, updates or gradients differ from eager's by more than
    rounding explains; the failure stays the same one.  `options` are those of torch.compile.  With `fails`, that decides: it is given a
    graph and its inputs.  Of the graphs that Dynamo makes of a function the first that fails is reduced.  Raises ReduceError where
    none does.
    """
    graphs = [(fn, list(args))] if isinstance(fn, GraphModule) else list(captured(fn, args))
    for gm, inputs in graphs:
        grad = any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs)
        found = _failure(gm, [with_own_memory(value) for value in inputs], grad, options) if fails is None else ""
        if fails is None and not found:
            continue
        decide = fails or _same_failure(failure_kind(found), grad, options)
        if not decide(gm, [with_own_memory(value) for value in inputs]):
            continue
        return Reduced(*reduce_graph(gm, inputs, decide, seconds=seconds), failure=found, grad=grad)
    raise ReduceError("there is nothing to reduce: " + ("no graph of the function fails" if graphs else "Dynamo makes no graph of it"))


def _same_failure(kind: str, grad: bool, options: dict[str, Any] | None) -> Fails:
    return lambda gm, inputs: failure_kind(_failure(gm, inputs, grad, options)) == kind


def captured(fn: Callable[..., Any], args: Sequence[Any]) -> Iterator[tuple[GraphModule, list[Any]]]:
    """The graphs that Dynamo makes of a call, each with the inputs of its first call."""
    found: list[tuple[GraphModule, list[Any]]] = []

    def backend(gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        seen = False

        def call(*given: Any) -> Any:
            nonlocal seen
            if not seen:
                found.append((gm, [with_own_memory(value) for value in given]))
            seen = True
            return gm(*given)

        return call

    torch._dynamo.reset()
    try:
        torch.compile(fn, backend=backend, dynamic=False)(*[with_own_memory(a) for a in args])
    finally:
        torch._dynamo.reset()
    return iter(found)


def _failure(gm: GraphModule, inputs: Sequence[Any], grad: bool, options: dict[str, Any] | None) -> str:
    """How a graph fails; "" where it is right, or eager itself does not run it."""
    from ..fuzz.case import Case
    from ..fuzz.check import Skipped, WrongProgram, check

    class Loaded(Case):
        def load(self) -> Any:
            return gm, lambda which: [with_own_memory(value) for value in inputs]

    try:
        check(Loaded("reduce", 0, "", "", grad=grad), options=options, runs=CHECKED_RUNS)
    except WrongProgram as wrong:
        return str(wrong)
    except Skipped:
        pass
    return ""


def failure_kind(failure: str) -> str:
    """What two failures have in common that are the same one."""
    from .opt import failure_of

    if not failure:
        return ""
    if failure.startswith(("result", "input", "gradient")):
        return "differs"
    found = failure_of([failure])
    return found.kind if found else ""
