"""One graph with the inputs of one call: what it is to give, what a program for it gives, and smaller graphs made of it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes

from ...lowering.fx_to_nd import import_graph
from ..backend.compile_graph import lower_graph
from ..compiled.compiled import CompiledGraph
from ..compiled.counters import uncounted
from ..debug.compile_log import compile_lock
from ..interpret.nd import NdInterpreter, run_imported
from ..options.options import Options
from .exact_graph import ExactGraph
from .judge import Verdict, judge

Program = Callable[[list[Any]], Sequence[Any]]
"""The boxed function of a graph."""


@dataclass(frozen=True)
class RandomState:
    """The state of torch's generators: of the CPU, and of each GPU."""

    cpu: torch.Tensor
    gpus: tuple[torch.Tensor, ...] = ()

    @staticmethod
    def now() -> RandomState:
        gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else ()
        return RandomState(torch.get_rng_state(), tuple(gpus))

    @contextmanager
    def again(self) -> Iterator[None]:
        """In this context random numbers are those of then; afterwards the generators are as before it."""
        with torch.random.fork_rng(devices=range(len(self.gpus))):
            torch.set_rng_state(self.cpu)
            for k, state in enumerate(self.gpus):
                torch.cuda.set_rng_state(state, k)
            yield


@dataclass(frozen=True)
class Wrong:
    """The first wrong value of a call: its name for people, and how wrong it is."""

    name: str
    verdict: Verdict

    def __str__(self) -> str:
        return f"{self.name}: {self.verdict.wrong}"


@dataclass
class GraphCase:
    """A graph, the inputs of a call (never written), and the options that it is compiled with."""

    gm: GraphModule
    inputs: list[Any]
    options: Options
    kind: str
    random: RandomState = field(default_factory=RandomState.now)
    _bounds: tuple[list[Any], dict[int, Any]] | None = None
    _drawn: dict[Node, Any] | None = None

    @property
    def outputs(self) -> list[Any]:
        """What the graph returns: nodes, numbers, None."""
        return list(self.gm.graph.output_node().args[0])  # pyright: ignore[reportArgumentType]

    # ---- what it is to give

    def bounds(self) -> tuple[list[Any], dict[int, Any]]:
        """The bound of each output, and of each input that is written, by its position."""
        if self._bounds is None:
            run = ExactGraph(self.gm, self.inputs, self.drawn())
            copies = {n.args[0]: n for n in self.gm.graph.nodes if n.target is torch.ops.aten.copy_.default}
            nodes = {o for o in self.outputs if isinstance(o, Node)} | set(copies.values())
            found = run.run(nodes)
            results = [_judged(o, found[o]) if isinstance(o, Node) else o for o in self.outputs]
            places = {node: k for k, node in enumerate(n for n in self.gm.graph.nodes if n.op == "placeholder")}
            self._bounds = results, {places[arg]: found[node] for arg, node in copies.items() if arg in places}
        return self._bounds

    def drawn(self) -> dict[Node, Any]:
        """The values of nodes that draw random numbers, as the importer's rules and the reference of `nd.random` define them."""
        if self._drawn is None:
            nodes = [n for n in self.gm.graph.nodes if draws(n)]
            self._drawn = self._draw(nodes) if nodes else {}
        return self._drawn

    def _draw(self, nodes: Sequence[Node]) -> dict[Node, Any]:
        options = self.options
        imported = import_graph(
            self.gm, numerics=options.rounding, fallback_random=options.fallback_random, forced=frozenset(options.fallback)
        )
        run = NdInterpreter(imported.objects)
        with self.random.again():
            run_imported(imported, [on_cpu(v) for v in self.inputs], run)

        def value(item: Any, like: Any) -> Any:
            if isinstance(item, (tuple, list)):
                return [value(i, v) for i, v in zip(item, like, strict=True)]
            found = run.values.get(item) if item is not None else None
            return found.to(like.device) if isinstance(found, torch.Tensor) and isinstance(like, torch.Tensor) else found

        return {node: value(imported.values[node], node.meta.get("val")) for node in nodes}

    # ---- what a program gives

    def call(self, program: Program, cpu: bool = False) -> Wrong | None:
        """Run a program on copies of the inputs; the first thing that is wrong with its results and with what it leaves in the inputs."""
        given = [on_cpu(v) if cpu else copy_of(v) for v in self.inputs]
        with torch.no_grad(), self.random.again():
            results = program(list(given))
        return self.wrong(results, given)

    def wrong(self, results: Sequence[Any], inputs: Sequence[Any]) -> Wrong | None:
        """What is wrong with the results of a call, and with its inputs after it."""
        bounds, updated = self.bounds()
        if len(results) != len(bounds):
            return Wrong("the call", Verdict(wrong=f"it gives {len(results)} results, not {len(bounds)}"))
        for k, (found, bound) in enumerate(zip(results, bounds, strict=True)):
            if (verdict := judge(found, bound)).wrong:
                node = self.outputs[k]
                return Wrong(f"result {k} ({node.name})" if isinstance(node, Node) else f"result {k}", verdict)
        for k, bound in updated.items():
            if (verdict := judge(inputs[k], bound)).wrong:
                return Wrong(f"input {k} after the call", verdict)
        return None

    def lowered(self, **more: Any) -> CompiledGraph:
        """Compile the graph once more, past the caches; `more` are arguments of lower_graph, `options` among them."""
        given = {"options": self.options, "kind": "inference", **more}
        asked = given.pop("options")
        options = replace(asked, cache="objects", debug=None, compile_mode="process", verify=False, print_ir=False, timing=False)
        with compile_lock, _disable_current_modes(), uncounted():
            return lower_graph(self.gm, self.inputs, options, **given)

    def compiled(self, options: Options | None = None) -> Program:
        """A program for the graph."""
        graph = self.lowered(options=options or self.options)
        with compile_lock, _disable_current_modes(), uncounted():
            return graph.runner()

    # ---- smaller graphs

    def truncated(self, wanted: Sequence[Node]) -> GraphCase:
        """The graph as far as the nodes `wanted` need it, which it returns; it updates nothing."""
        needed: set[Node] = set()
        stack = list(wanted)
        while stack:
            node = stack.pop()
            if node not in needed:
                needed.add(node)
                stack.extend(node.all_input_nodes)
        graph, env = Graph(), {}
        for node in self.gm.graph.nodes:
            if node.op == "placeholder" or (node in needed and node.op != "output"):
                env[node] = graph.node_copy(node, env.__getitem__)
        graph.output(tuple(env[n] for n in wanted))
        return replace(self, gm=GraphModule(self.gm, graph), _bounds=None, _drawn=None)

    def alone(self, nodes: Sequence[Node], seen: dict[Node, Any]) -> GraphCase:
        """A graph of the nodes `nodes` alone, on the operand values `seen`; it returns the last of them, or the parts of it."""
        inside = set(nodes)
        graph, env, inputs = Graph(), {}, []
        symbols = [n for n in self.gm.graph.nodes if n.op == "placeholder" and isinstance(n.meta.get("val"), torch.SymInt)]
        operands = [o for n in nodes for o in n.all_input_nodes if o not in inside]
        for operand in dict.fromkeys([*symbols, *operands]):
            if operand.op == "get_attr":
                env[operand] = graph.node_copy(operand, env.__getitem__)
                continue
            env[operand] = graph.placeholder(operand.name)
            env[operand].meta = dict(operand.meta)
            inputs.append(seen[operand])
        for node in nodes:
            env[node] = graph.node_copy(node, env.__getitem__)
        parts = [n for n in nodes if n.target is operator.getitem]
        results = parts or [nodes[-1]]
        graph.output(tuple(env[n] for n in results))
        return replace(self, gm=GraphModule(self.gm, graph), inputs=inputs, _bounds=None, _drawn=None)


def draws(node: Node) -> bool:
    """Whether a node draws random numbers."""
    tags = getattr(node.target, "tags", ())
    if torch.Tag.nondeterministic_seeded not in tags:
        return False
    return "scaled_dot_product" not in str(node.target)


def _judged(node: Node, bound: Any) -> Any:
    """The bound of an output; None for what nobody defines: the state of random numbers that a call of attention gives."""
    value, source = node.meta.get("val"), node.all_input_nodes[:1]
    inexact = not isinstance(value, torch.Tensor) or value.is_floating_point() or value.is_complex()
    return None if not inexact and source and "scaled_dot_product" in str(source[0].target) else bound


def copy_of(value: Any) -> Any:
    """A tensor of its own with the same sizes and strides, whatever these are."""
    if not isinstance(value, torch.Tensor) or type(value) is not torch.Tensor and type(value) is not torch.nn.Parameter:
        return value
    value = value.detach()
    if value.layout != torch.strided or value.is_conj() or value.is_neg() or not value.numel():
        return value.clone()
    reach = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    return value.as_strided((reach,), (1,)).clone().as_strided(value.shape, value.stride())


def on_cpu(value: Any) -> Any:
    """A copy in the memory of the CPU with the same strides."""
    if not isinstance(value, torch.Tensor) or value.device.type == "cpu":
        return copy_of(value)
    value = value.detach()
    if value.layout != torch.strided or not value.numel():
        return value.cpu()
    reach = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    return value.as_strided((reach,), (1,)).cpu().as_strided(value.shape, value.stride())
