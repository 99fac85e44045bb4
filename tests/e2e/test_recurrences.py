"""Training of recurrences with small outputs: each step computes a gate, a score or a norm of one element, and later steps need it.
Equal steps look like entries of a list, but none of them can be computed before the one in front of it.

Seeds by hand: `python tests/e2e/test_recurrences.py FIRST COUNT`."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stepwell


class Scale(nn.Module):
    """One output feature and a bias, step after step."""

    def __init__(self, width: int = 8):
        super().__init__()
        self.gate = nn.Linear(width, 1)

    def forward(self, x):
        for _ in range(6):
            x = x * torch.tanh(self.gate(x))
        return x


class Attend(nn.Module):
    """A decoder that attends to a memory in each step."""

    def __init__(self, width: int = 8):
        super().__init__()
        self.score, self.cell = nn.Linear(width, 1), nn.Linear(2 * width, width)

    def forward(self, memory):
        state, outs = memory.mean(1), []
        for _ in range(5):
            a = torch.softmax(self.score(torch.tanh(memory + state[:, None])), 1)
            state = torch.tanh(self.cell(torch.cat([state, (a * memory).sum(1)], -1)))
            outs.append(state)
        return torch.stack(outs, 1)


class GraphAttention(nn.Module):
    """Layers that score the edges of a graph."""

    def __init__(self, width: int = 8, layers: int = 5):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.source = nn.ModuleList(nn.Linear(width, 1) for _ in range(layers))
        self.target = nn.ModuleList(nn.Linear(width, 1) for _ in range(layers))

    def forward(self, x):
        for layer, source, target in zip(self.layers, self.source, self.target, strict=True):
            h = layer(x)
            weights = torch.softmax(F.leaky_relu(source(h) + target(h).transpose(-1, -2)), -1)
            x = F.elu(weights @ h) + x
        return x


class GatedMemory(nn.Module):
    """A memory with a gate of width 1."""

    def __init__(self, width: int = 8):
        super().__init__()
        self.gate, self.write, self.forget = nn.Linear(width, 1), nn.Linear(width, width), nn.Parameter(torch.zeros(1))

    def forward(self, x):
        memory = torch.zeros_like(x[:, 0])
        for _ in range(6):
            g = torch.sigmoid(self.gate(memory + x[:, 0]))
            memory = g * torch.tanh(self.write(x[:, 0])) + (1 - g) * memory * torch.sigmoid(self.forget)
        return memory


class Norms(nn.Module):
    """Scalars of the whole tensor, each computed from what the one before it scaled."""

    def __init__(self, width: int = 8):
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(width) for _ in range(6))

    def forward(self, x):
        scale = x.mean()
        for w in self.weights:
            scale = torch.tanh((w * scale).sum()) + 0.1
        return x * scale


def train(model: nn.Module, x: torch.Tensor, **how: object) -> list[torch.Tensor]:
    """The result and the gradients of the input and of the parameters."""
    run = torch.compile(model, backend="stepwell", **how) if how else model
    x = x.clone().requires_grad_()
    y = run(x)
    wanted = torch.autograd.grad((y * torch.linspace(0.5, 1.5, y.numel()).view_as(y)).sum(), [x, *model.parameters()], allow_unused=True)
    return [y.detach(), *[g for g in wanted if g is not None]]


def check(model: nn.Module, *inputs: torch.Tensor, dynamic: bool = False) -> None:
    for x in inputs:
        got, want = train(model, x, dynamic=dynamic), train(model, x)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5 + 2e-5 * float(b.abs().max()))


MODELS = [Scale, Attend, GraphAttention, GatedMemory, Norms]


@pytest.mark.parametrize(("model", "dynamic"), [*[(model, False) for model in MODELS], (Scale, True), (Attend, True), (Norms, True)])
def test_steps_that_need_each_other(fresh, model, dynamic):
    shapes = [(2, 8), (3, 8)] if model is Scale else [(2, 5, 8), (3, 4, 8)]
    check(model(), *[torch.randn(shape) for shape in shapes[: 2 if dynamic else 1]], dynamic=dynamic)
    assert stepwell.counters["graphs"] == 2


class RandomSteps(nn.Module):
    """Steps drawn at random; the state is a tensor or a scalar, and what is small is given out too."""

    def __init__(self, draw: random.Random, width: int = 4):
        super().__init__()
        self.steps = [draw.choice(["gate", "norm", "shared", "vector", "mean", "scalar"]) for _ in range(draw.randint(1, 3))]
        self.repeats = draw.randint(4, 6)
        self.small_results = draw.random() < 0.5
        self.gates = nn.ModuleList(nn.Linear(width, 1) for _ in range(self.repeats))
        self.shared = nn.Linear(width, 1)
        self.vectors = nn.ParameterList(torch.randn(width + k % 2) for k in range(self.repeats))
        self.scalars = nn.ParameterList(torch.randn(1) for _ in range(self.repeats))

    def forward(self, x):
        small, scale = [], x.mean()
        for k in range(self.repeats):
            for step in self.steps:
                if step == "gate":
                    x = x * torch.sigmoid(self.gates[k](x))
                elif step == "shared":
                    x = x + torch.tanh(self.shared(x))
                elif step == "norm":
                    x = x / (1 + x.pow(2).sum().sqrt())
                elif step == "vector":
                    scale = torch.tanh((self.vectors[k] * scale).sum()) + 0.5
                elif step == "scalar":
                    scale = torch.sin(self.scalars[k] * scale).squeeze() + 1
                else:
                    x, scale = x * scale, torch.tanh(x.mean())
            small.append(scale)
        return torch.cat([x.flatten(), torch.stack(small)]) if self.small_results else x * scale


@pytest.mark.parametrize("seed", range(2))
def test_random_steps(fresh, seed):
    print("seed", seed)
    draw = random.Random(seed)
    torch.manual_seed(seed)
    model = RandomSteps(draw)
    check(model, torch.randn(draw.choice([1, 2, 3]), 4), dynamic=draw.random() < 0.5)


if __name__ == "__main__":
    import sys

    for number in range(int(sys.argv[1]), int(sys.argv[1]) + int(sys.argv[2])):
        torch._dynamo.reset()
        try:
            test_random_steps(None, number)
        except Exception as error:
            print("FAILED", str(error)[:300])
