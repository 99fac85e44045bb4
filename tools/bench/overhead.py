"""What a call costs the host: `stepwell bench overhead --threads 1`, microseconds of processor time a call.

The graphs are so small that their arithmetic is nothing. A call goes through Dynamo (context, guards), AOTAutograd's wrapper (in training
its autograd function too) and the compiled graphs. Dynamo alone is measured with a backend that returns tensors made before, the
graphs by themselves with the arguments that they got; the wrapper is what is left of the whole."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch.fx import GraphModule

from ..backend.torch_backend import GraphCompilers, compile_with
from ..options.options import make_options
from .tables import select

BATCH = 20
"""Calls in a row of a sample."""


@dataclass(frozen=True)
class Case:
    """A function of tensors, the arguments of calls that take turns (of more than one size where sizes are dynamic), whether a backward
    pass follows each call, and whether sizes are dynamic."""

    call: Callable[..., Any]
    inputs: tuple[tuple[torch.Tensor, ...], ...]
    train: bool = False
    dynamic: bool = False


def _products(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    for w in weights:
        x = torch.relu(x @ w)
    return x


def _perceptron() -> Case:
    net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    return Case(net, ((torch.randn(4, 16),),), train=True)


def _twice(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [t * 2 for t in tensors]


CASES: dict[str, Callable[[], Case]] = {
    "1 operator": lambda: Case(lambda x: x + 1, ((torch.randn(8, 8),),)),
    "1 operator, dynamic sizes": lambda: Case(lambda x: x + 1, ((torch.randn(8, 8),), (torch.randn(9, 8),)), dynamic=True),
    "20 operators": lambda: Case(_products, ((torch.randn(8, 16), *(torch.randn(16, 16) for _ in range(10))),)),
    "100 inputs and outputs": lambda: Case(_twice, (tuple(torch.randn(8) for _ in range(100)),)),
    "training step": _perceptron,
}
"""Name -> what makes the case."""


class _Recorded:
    """A compiled graph that remembers the arguments of its last call."""

    _boxed_call = True

    def __init__(self, graph: Callable[[list[Any]], Any]):
        self.graph = graph
        self._boxed_call = True  # torch's wrappers copy the instance's dictionary
        self.args: list[Any] = []

    def __call__(self, args: list[Any]) -> Any:
        self.args = list(args)
        return self.graph(args)

    def again(self) -> Any:
        return self.graph(list(self.args))


class _Recording(GraphCompilers):
    """The compilers of a backend, with their graphs at hand."""

    def __init__(self) -> None:
        super().__init__(make_options(None, None))
        self.graphs: list[_Recorded] = []

    def _compile(self, gm: GraphModule, example_inputs: Sequence[Any], kind: str) -> Callable[..., Any]:
        self.graphs.append(_Recorded(super()._compile(gm, example_inputs, kind)))
        return self.graphs[-1]


def _step(case: Case, call: Callable[..., Any]) -> Callable[[], Any]:
    """One call with each of the inputs."""
    if not case.train:
        def infer() -> None:
            with torch.no_grad():
                for inputs in case.inputs:
                    call(*inputs)

        return infer

    def learn() -> None:
        for inputs in case.inputs:
            assert isinstance(case.call, nn.Module)
            case.call.zero_grad(set_to_none=True)
            call(*inputs).sum().backward()

    return learn


def _compiled(case: Case, backend: Any) -> Callable[[], Any]:
    step = _step(case, torch.compile(case.call, backend=backend, dynamic=case.dynamic))
    step()
    return step


def _graphs_alone(case: Case) -> Callable[[], Any]:
    """The calls of the compiled graphs, without torch around them."""
    recording = _Recording()
    step = _compiled(case, lambda gm, inputs: compile_with(recording, gm, inputs))
    step()
    graphs, times = list(recording.graphs), len(case.inputs)
    for graph in graphs:
        graph.again()

    def run() -> None:
        with torch.no_grad():
            for _ in range(times):
                for graph in graphs:
                    graph.again()

    return run


def _no_backend(case: Case) -> Callable[[], Any]:
    """Dynamo with nothing behind it: the compiled function returns what the eager one did."""
    given = case.call(*case.inputs[0])
    fixed = (given,) if isinstance(given, torch.Tensor) else tuple(given)

    def backend(gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return lambda *args: fixed

    return _step(Case(case.call, case.inputs), torch.compile(case.call, backend=backend, dynamic=case.dynamic))


def sample(step: Callable[[], Any], calls: int) -> float:
    """Microseconds of processor time a call, over `BATCH` steps of `calls` calls."""
    start = time.process_time_ns()
    for _ in range(BATCH):
        step()
    return (time.process_time_ns() - start) / (1000 * BATCH * calls)


def measure(case: Case, backends: Sequence[str], rounds: int) -> dict[str, float]:
    """Microseconds a call by backend, and of "dynamo", "wrapper" and "graphs": the 10th percentile of `rounds` samples, in turn."""
    steps: dict[str, Callable[[], Any]] = {}
    for name in ("dynamo", "graphs", *backends):
        torch._dynamo.reset()  # what was compiled stays as it is: each has a function of its own
        made = {"dynamo": _no_backend, "graphs": _graphs_alone, "eager": lambda case: _step(case, case.call)}.get(name)
        steps[name] = made(case) if made else _compiled(case, name)
    samples: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        sample(step, 1)
    for _ in range(rounds):
        for name, step in steps.items():
            samples[name].append(sample(step, len(case.inputs)))
    found = {name: statistics.quantiles(times, n=10, method="inclusive")[0] for name, times in samples.items()}
    found["wrapper"] = found["stepwell"] - found["dynamo"] - found["graphs"]
    return found


def overhead(only: Sequence[str], backends: Sequence[str], rounds: int) -> dict[str, Any]:
    """Measure the cases whose names contain one of `only` (all without) and print the table."""
    columns = ("dynamo", "wrapper", "graphs", *(b for b in backends))
    rows: dict[str, Any] = {}
    print(f"{'us a call':28}" + "".join(f"{c:>10}" for c in columns))
    for name in select(CASES, only):
        torch.manual_seed(0)
        rows[name] = measure(CASES[name](), backends, rounds)
        print(f"{name:28}" + "".join(f"{rows[name][c]:10.1f}" for c in columns), flush=True)
    return {"overhead": rows}
