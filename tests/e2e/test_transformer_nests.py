"""Transformer stacks, forward and backward: how many nests the planner leaves for each layer, and values against eager in f64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepwell.dialects import loop
from stepwell.passes.manager.pass_manager import Pass

WIDTH = 64
COUNTS: list[int] = []
"""The nests of each graph that was compiled."""


@dataclass(frozen=True)
class CountNests(Pass):
    """Count the nests that are left after planning."""

    name = "count-nests"

    def apply(self, ctx, op):
        COUNTS.append(sum(isinstance(o, loop.NestOp) for o in op.walk()))


class Block(nn.Module):
    """A pre-norm decoder block with one projection for q, k and v, as in GPT-2."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = [y.view(b, t, 4, d // 4).transpose(1, 2) for y in self.qkv(self.norm1(x)).split(d, dim=2)]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.out(y)
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class SplitBlock(nn.Module):
    """A post-norm encoder block with three projections, as in BERT."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = [nn.Linear(WIDTH, WIDTH) for _ in range(4)]
        self.up, self.down = nn.Linear(WIDTH, 128), nn.Linear(128, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = [f(x).view(b, t, 4, d // 4).transpose(1, 2) for f in (self.q, self.k, self.v)]
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = self.norm1(x + self.out(y))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


def encoder(layers: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 128, 0.0, "gelu", batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def decoder(layers: int) -> nn.Module:
    return nn.Sequential(*(Block() for _ in range(layers)))


def split(layers: int) -> nn.Module:
    return nn.Sequential(*(SplitBlock() for _ in range(layers)))


def nests(make: Callable[[int], nn.Module], layers: int, dynamic: bool = False) -> list[int]:
    """Nests of the forward and of the backward graph of a training step, whose gradients are checked."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = make(layers).train()
    wide = copy.deepcopy(model).double()
    x, g = torch.randn(2, 32, WIDTH), torch.randn(2, 32, WIDTH)
    COUNTS.clear()
    compiled = torch.compile(model, backend="stepwell", dynamic=dynamic, options={"passes": {"loop": [CountNests]}})
    compiled(x).backward(g)
    wide(x.double()).backward(g.double())
    for (name, p), q in zip(model.named_parameters(), wide.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None
        scale = max(1.0, q.grad.abs().max().item())
        torch.testing.assert_close(p.grad.double(), q.grad, rtol=1e-4, atol=1e-4 * scale, msg=lambda m, name=name: f"{name}: {m}")
    return list(COUNTS)


@pytest.mark.parametrize("layers", [pytest.param(1, marks=pytest.mark.long), 2])
def test_an_encoder(layers: int):
    """Forward: residual and norm; activation; residual and norm (the bias of q, k and v is its product's epilogue). Backward the same, each
    with the gradient of the bias before it, and that of q, k and v."""
    assert nests(encoder, layers) == [3 * layers, 4 * layers]


@pytest.mark.parametrize("layers", [pytest.param(1, marks=pytest.mark.long), 2])
def test_a_decoder(layers: int):
    """Residual and norm are one nest across layers: the first norm stands alone, as does the last bias gradient. The bias of q, k and v,
    and the last sum, are epilogues of their products."""
    assert nests(decoder, layers) == [3 * layers, 4 * layers + 1]


@pytest.mark.parametrize("layers", [pytest.param(1, marks=pytest.mark.long), 2])
def test_separate_projections(layers: int):
    """The gradients of the biases of q, k and v are sums of what attention, which is a library's, returns: nests of their own."""
    assert nests(split, layers) == [3 * layers, 6 * layers]


@pytest.mark.parametrize("make", [decoder, pytest.param(encoder, marks=pytest.mark.long), pytest.param(split, marks=pytest.mark.long)])
def test_sizes_that_vary(make: Callable[[int], nn.Module]):
    nests(make, 1, dynamic=True)
