"""Equal layers planned once: the same nests as with each layer planned by itself, and the same values."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from support import import_function
from torch import nn
from xdsl.context import Context
from xdsl.dialects.func import CallOp
from xdsl.parser import Parser

import stepwell
from stepwell.dialects import load_dialects
from stepwell.passes.manager.pass_manager import Pass, run
from stepwell.passes.manager.pipelines import default_pipeline, parse_pipeline
from stepwell.tools.compiled.counters import counters, reset_counters
from stepwell.tools.interpret.loop import run_loop
from stepwell.tools.interpret.nd import run_nd

CTX = load_dialects(Context())
FILE = Path(__file__).parent / "loop-outline.mlir"


CALLS: list[int] = []
"""The calls in each graph that was compiled."""


@dataclass(frozen=True)
class CountCalls(Pass):
    """Count the calls of layers."""

    name = "count-calls"

    def apply(self, ctx, op):
        CALLS.append(sum(isinstance(o, CallOp) for o in op.walk()))


class Block(nn.Module):
    def __init__(self, width: int, dropout: float):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.norm(x)))))


class Stack(nn.Module):
    def __init__(self, layers: int, width: int = 16, dropout: float = 0.0):
        super().__init__()
        self.layers = nn.ModuleList(Block(width, dropout) for _ in range(layers))
        self.last = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


def without_outlining() -> str:
    pipeline = default_pipeline("cpu")
    pipeline.remove("loop-outline")
    return str(pipeline)


def step(net: nn.Module, x: torch.Tensor, dynamic: bool | None = None, **options: object) -> tuple[list[torch.Tensor], tuple[int, ...]]:
    """Result and gradients of a compiled step; launches and bytes."""
    torch._dynamo.reset()
    reset_counters()
    net = copy.deepcopy(net)
    compiled = torch.compile(net, backend="stepwell", dynamic=dynamic, options={"cache": "off", **options})
    x = x.clone().requires_grad_()
    torch.manual_seed(3)
    y = compiled(x)
    y.square().sum().backward()
    gradients = [p.grad for p in net.parameters()]
    return [y, x.grad, *gradients], tuple(counters[n] for n in ("launches", "kernels", "bytes_read", "bytes_written"))


LAYERS = [(8, 0.5, None), pytest.param(1, 0.0, None, marks=pytest.mark.long), pytest.param(8, 0.0, True, marks=pytest.mark.long)]


@pytest.mark.parametrize(("rows", "dropout", "dynamic"), LAYERS)
def test_layers_planned_once_are_the_layers_planned_one_by_one(rows, dropout, dynamic):
    torch.manual_seed(0)
    net, x = Stack(5, dropout=dropout), torch.randn(3, rows, 16)
    CALLS.clear()
    once, work = step(net, x, dynamic, passes={"loop": [(CountCalls(), "after:loop-outline")]})
    assert max(CALLS) >= 4
    each, expected = step(net, x, dynamic, pipeline=without_outlining())
    assert (work[0], *work[2:]) == (expected[0], *expected[2:])
    assert work[1] <= expected[1]  # layers share kernels: their seeds come from outside, and epilogues have one name
    for a, b in zip(once, each, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_values_of_a_stack_are_those_of_eager():
    torch.manual_seed(0)
    net, x = Stack(4), torch.randn(2, 7, 16, dtype=torch.float64)
    net = net.double()
    (y, dx, *_), _ = step(net, x)
    x.requires_grad_()
    expected = net(x)
    expected.square().sum().backward()
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(dx, x.grad)


def test_each_level_between_runs():
    module = Parser(CTX, FILE.read_text()).parse_module()
    torch.manual_seed(0)
    inputs = [torch.randn(8, 8) for _ in range(5)]
    expected = run_nd(module, [i.clone() for i in inputs])
    for text, interpreter in (
        ("loop-outline{smallest=3}", run_nd), ("nd-to-loop", run_loop), ("loop-fuse", run_loop), ("loop-inline", run_loop),
    ):  # fmt: skip
        run(parse_pipeline(text), module, CTX)
        found = interpreter(module, [i.clone() for i in inputs])
        torch.testing.assert_close(found, expected)


def test_a_directive_for_one_layer_is_granted():
    net, x = Stack(4), torch.randn(2, 7, 16)
    _, work = step(net, x)
    _, directed = step(net, x, no_fuse=["add_2"])
    assert directed[0] > work[0]


def test_explain_tells_of_every_layer():
    text = stepwell.explain(Stack(4).eval(), torch.randn(2, 7, 16)).full()
    assert all(name in text for name in ("gelu", "gelu_1", "gelu_2", "gelu_3"))


def test_several_layers_are_one_part_where_one_is_too_small_for_a_function():
    def step(x, w):
        for _ in range(20):
            x = torch.tanh((x - x.mean(1, keepdim=True)) @ w) @ w
        return x

    x, w = torch.randn(8, 8), torch.randn(8, 8)
    module = import_function(step, x, w).module
    run(parse_pipeline("builtin.module(nd-canonicalize,loop-outline)"), module, CTX)
    module.verify()
    assert sum(isinstance(op, CallOp) for op in module.walk()) >= 4
    torch.testing.assert_close(run_nd(module, [x, w])[0], step(x, w))
