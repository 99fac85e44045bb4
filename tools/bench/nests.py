"""Nests and what stays apart: `stepwell bench nests [--kernels-file FILE] [--models-file FILE] [--only NAMES]`.

Without files: the kernels that a person expects to be one nest (`KERNELS`). For each graph (of models the training graphs) the nests with
their operators and bytes, then every two nests that share data or follow each other, with the planner's reason for not making them one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from ...passes.cost.machine.cpu import SERVER, Cpu
from ..explain.main import explain
from ..explain.model import Graph, Step
from .tables import load_table, select

Case = Callable[[], tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]


def _rows(*more: int) -> list[torch.Tensor]:
    return [torch.randn(64, 256), *(torch.randn(n) for n in more)]


def _gradients(function: Callable[..., torch.Tensor], *args: torch.Tensor) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return function, tuple(a.requires_grad_() if a.is_floating_point() else a for a in args)


def _rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def _add_norm(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    s = x + y
    return F.layer_norm(s, (256,), w, b), s


def _embedded(tokens: torch.Tensor, table: torch.Tensor, places: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(table[tokens] + places, (256,), w, b)


def _adam() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    lists = [[torch.randn(n % 7 + 1, 32) for n in range(100)] for _ in range(3)] + [[torch.rand(n % 7 + 1, 32) for n in range(100)]]

    lists_of: Any = torch  # the functions of lists are not among its declared names

    def step(p: list[torch.Tensor], g: list[torch.Tensor], m: list[torch.Tensor], v: list[torch.Tensor]) -> None:
        lists_of._foreach_lerp_(m, g, 0.1)
        lists_of._foreach_mul_(v, 0.99)
        lists_of._foreach_addcmul_(v, g, g, 0.01)
        lists_of._foreach_addcdiv_(p, m, lists_of._foreach_add(lists_of._foreach_sqrt(v), 1e-8), -1e-3)

    return step, tuple(lists)


KERNELS: dict[str, Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    "softmax": lambda: (lambda x: torch.softmax(x, -1), tuple(_rows())),
    "log_softmax": lambda: (lambda x: torch.log_softmax(x, -1), tuple(_rows())),
    "layer_norm": lambda: (lambda x, w, b: F.layer_norm(x, (256,), w, b), tuple(_rows(256, 256))),
    "rms_norm": lambda: (lambda x, w: F.rms_norm(x, (256,), w), tuple(_rows(256))),
    "group_norm": lambda: (lambda x, w, b: F.group_norm(x, 8, w, b), (torch.randn(4, 32, 14, 14), torch.randn(32), torch.randn(32))),
    "cross_entropy": lambda: (lambda x, t: F.cross_entropy(x, t), (*_rows(), torch.randint(256, (64,)))),
    "add_norm_two_outputs": lambda: (_add_norm, (*_rows(), *_rows(256, 256))),
    "rotary": lambda: (_rotary, (torch.randn(2, 4, 16, 64), torch.randn(16, 64), torch.randn(16, 64))),
    "swiglu": lambda: (lambda a, b: F.silu(a) * b, (*_rows(), *_rows())),
    "dropout_residual": lambda: (lambda x, y: x + F.dropout(y, 0.1), (*_rows(), *_rows())),
    "embedding_norm": lambda: (
        _embedded, (torch.randint(90, (2, 64)), torch.randn(90, 256), *_rows(256, 256)),
    ),
    "norm_backward": lambda: _gradients(lambda x, w, b: F.layer_norm(x, (256,), w, b), *_rows(256, 256)),
    "rms_norm_backward": lambda: _gradients(lambda x, w: F.rms_norm(x, (256,), w), *_rows(256)),
    "adam_100": _adam,
    "batch_norm_training": lambda: (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True), (torch.randn(8, 16, 14, 14), torch.randn(16), torch.randn(16)),
    ),
}  # fmt: skip
"""What issues and papers call one kernel: name -> function and arguments; gradients where they require some."""


def nests(kernels_file: str | None, models_file: str | None, only: Sequence[str], machine: Cpu = SERVER) -> dict[str, Any]:
    """Print the list; {case: [{"graph", "nests", "contractions", "calls", "apart": [[first, second, reason, bytes]]}]}."""
    found: dict[str, Any] = {}
    for name, build in _cases(kernels_file, models_file, only).items():
        torch._dynamo.reset()
        torch.manual_seed(0)
        function, args, kwargs = build()
        graphs = explain(function, *args, quiet=True, machine=machine, **kwargs).graphs
        found[name] = [_graph(graph) for graph in graphs]
        for graph, row in zip(graphs, found[name], strict=True):
            _show(name, graph, row)
    return found


def _cases(kernels_file: str | None, models_file: str | None, only: Sequence[str]) -> dict[str, Case]:
    cases: dict[str, Case] = {}
    if kernels_file:
        from .model_check import cases_of_file

        cases.update({name: lambda build=build: (*build(), {}) for name, build in cases_of_file(kernels_file).items()})
    if models_file:
        for name, model in load_table(models_file, "MODELS").items():
            cases[name] = lambda model=model: _training(*model("tiny"))
    if not cases:
        cases = {name: lambda build=build: (*build(), {}) for name, build in KERNELS.items()}
    return {name: cases[name] for name in select(cases, only)}


def _training(net: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    return net.train(), tuple(args), kwargs


def _graph(graph: Graph) -> dict[str, Any]:
    kinds = [step.kind for step in graph.steps]
    return {
        "graph": graph.title,
        "nests": sum(kind not in ("contraction", "call") for kind in kinds),
        "contractions": kinds.count("contraction"),
        "calls": kinds.count("call"),
        "apart": [*_sharing(graph), *_following(graph)],
    }


def _sharing(graph: Graph) -> list[list[Any]]:
    """Nests of the plan that share data: each two once, with the reason that would save most."""
    best: dict[tuple[str, str], list[Any]] = {}
    for pair in graph.pairs:
        key = (pair.first.split(".")[0], pair.second.split(".")[0])
        if not pair.fused and (key not in best or best[key][3] < pair.bytes):
            best[key] = [*key, pair.reason, pair.bytes]
    return list(best.values())


def _following(graph: Graph) -> list[list[Any]]:
    """Nests one behind the other that share nothing."""
    found: list[list[Any]] = []
    for one, two in zip(graph.steps, graph.steps[1:], strict=False):
        if one.kind == two.kind == "nest" and not _names(one) & _names(two):
            found.append([one.label, two.label, "they share nothing", 0])
    return found


def _names(step: Step) -> set[str]:
    return {use.name for use in (*step.reads, *step.writes)}


def _show(name: str, graph: Graph, row: dict[str, Any]) -> None:
    print(f"{name}, {row['graph']}: {row['nests']} nests, {row['contractions']} contractions, {row['calls']} calls", flush=True)
    for step in graph.steps:
        if step.kind not in ("contraction", "call"):
            print(f"  {step.number:4} {step.label[:32]:32} {step.bytes:>10} B  {', '.join(step.operators[:8])}")
    for first, second, reason, size in row["apart"]:
        print(f"       {first} | {second}: {reason}" + (f" ({size} B)" if size else ""))
