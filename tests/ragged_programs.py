"""Attention of documents that lie one behind the other, for tests on several devices, and what it is in doubles."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

aten = torch.ops.aten

QUERIES, KEYS = (50, 3, 90, 17), (40, 20, 60, 0)
"""Rows of each document; the last one has no keys."""
WIDTH = 16


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def offsets(lengths: tuple[int, ...]) -> Tensor:
    """Where documents begin, and where the last one ends."""
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def exact(
    q: Tensor, k: Tensor, v: Tensor, queries: Tensor, keys: Tensor, left: int | None = None, right: int | None = None, aligned: str = "end"
) -> Tensor:
    """Document after document, in doubles; a row that sees nothing is 0."""
    found = []
    for n in range(len(queries) - 1):
        a, b, c = (x[at[n] : at[n + 1]].double().transpose(0, 1) for x, at in ((q, queries), (k, keys), (v, keys)))
        b, c = (x.repeat_interleave(len(a) // len(b), 0) for x in (b, c))
        place = torch.arange(a.shape[1])[:, None] + (b.shape[1] - a.shape[1] if aligned == "end" else 0)
        key = torch.arange(b.shape[1])
        seen = torch.ones(a.shape[1], b.shape[1], dtype=torch.bool)
        seen &= True if right is None else key <= place + right
        seen &= True if left is None else key >= place - left
        weights = aten._safe_softmax(torch.where(seen, a @ b.mT / math.sqrt(q.shape[-1]), -math.inf), -1)
        found.append((weights @ c).transpose(0, 1))
    return torch.cat(found)


@dataclass(frozen=True)
class Program:
    """Attention by an operator of torch, and its arguments in doubles: how far rows see."""

    function: Callable[..., Tensor]
    left: int | None = None
    right: int | None = None
    aligned: str = "end"
    groups: int = 4
    width: int = WIDTH

    def inputs(self) -> tuple[Tensor, ...]:
        """Queries of four heads, keys, values, offsets; some rows are behind the last document."""
        rows, keys = sum(QUERIES) + 5, sum(KEYS) + 3
        tensors = numbers(rows, 4, WIDTH), numbers(keys, self.groups, WIDTH, seed=1), numbers(keys, self.groups, self.width, seed=2)
        return *tensors, offsets(QUERIES), offsets(KEYS)

    def exact(self, *inputs: Tensor) -> Tensor:
        """In doubles; 0 behind the last document."""
        found = exact(*inputs, self.left, self.right, self.aligned)  # pyright: ignore[reportArgumentType]
        return F.pad(found, (0, 0, 0, 0, 0, len(inputs[0]) - len(found)))


def _varlen(*window: int) -> Callable[..., Tensor]:
    settings = {"enable_gqa": True} if torch.__version__ >= (2, 12) else {}  # torch 2.11 has shared keys unasked
    return lambda q, k, v, a, b: varlen_attn(q, k, v, a, b, 90, 60, window_size=window, **settings)  # pyright: ignore[reportReturnType]


def _efficient(kind: int) -> Callable[..., Tensor]:
    return lambda q, k, v, a, b: aten._efficient_attention_forward(q[None], k[None], v[None], None, a, b, 90, 60, 0.0, kind, True)[0][0]


PROGRAMS = {
    "plain": Program(_varlen(-1, -1)),
    "causal, shared keys": Program(_varlen(-1, 0), right=0, groups=2),
    "window": Program(_varlen(20, 5), left=20, right=5),
    "efficient, wider values": Program(_efficient(0), width=24),
    "efficient, causal from the first": Program(_efficient(1), right=0, aligned="begin"),
    "efficient, causal to the last": Program(_efficient(2), right=0),
}


def layer(x: Tensor, joint: Tensor, last: Tensor) -> Tensor:
    """Attention of a jagged tensor (documents, rows, 2 * WIDTH) between two projections, as a model has it."""
    heads = (t.unflatten(-1, (2, WIDTH)).transpose(1, 2) for t in F.linear(x, joint).chunk(3, -1))
    return F.linear(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(-2), last)


def layer_exact(x: Tensor, joint: Tensor, last: Tensor) -> Tensor:
    """(rows of all documents, 2 * WIDTH), in doubles."""
    found = []
    for one in x.unbind():
        heads = [t.unflatten(-1, (2, WIDTH)).transpose(0, 1) for t in F.linear(one.double(), joint.double()).chunk(3, -1)]
        found.append(F.linear(F.scaled_dot_product_attention(*heads).transpose(0, 1).flatten(-2), last.double()))
    return torch.cat(found)


def jagged(*lengths: int, dtype: torch.dtype) -> Tensor:
    """Documents of so many rows."""
    rows = [numbers(n, 2 * WIDTH, seed=n).to(dtype) for n in lengths]
    return torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)


def projections(dtype: torch.dtype) -> list[Tensor]:
    """Weights of `layer`."""
    return [(numbers(n, 2 * WIDTH, seed=n) / 6).to(dtype).requires_grad_() for n in (6 * WIDTH, 2 * WIDTH)]


def error(got: Tensor, want: Tensor) -> float:
    """The relative error."""
    return float((got.detach().double() - want.detach().double()).norm() / want.detach().double().norm().clamp(min=1e-9))


def errors_of(program: Program, compiled: Callable[..., Tensor], dtype: torch.dtype) -> list[float]:
    """The relative errors of a program's value and gradients."""
    q, k, v, *others = program.inputs()
    leaves = [x.to(dtype).requires_grad_() for x in (q, k, v)]
    got, want = compiled(*leaves, *others), program.exact(*leaves, *others)
    seed = numbers(*want.shape, seed=7).to(dtype)
    seed[sum(QUERIES) :] = 0
    found = torch.autograd.grad(got, leaves, seed)
    wanted = torch.autograd.grad(want, leaves, seed.double())
    return [error(a, b) for a, b in zip((got, *found), (want, *wanted), strict=True)]


def errors_of_layer(compiled: Callable[..., Tensor], lengths: tuple[int, ...], dtype: torch.dtype) -> list[float]:
    """The same of the layer of jagged tensors."""
    x, weights = jagged(*lengths, dtype=dtype), projections(dtype)
    got, want = compiled(x, *weights), layer_exact(x, *weights)
    seed = numbers(*want.shape, seed=7).to(dtype)
    found = torch.autograd.grad(got.values(), [x, *weights], seed)
    wanted = torch.autograd.grad(want, [x, *weights], seed.double())
    found, wanted = ([y.values() if y.is_nested else y for y in some] for some in (found, wanted))
    return [error(a, b) for a, b in zip((got.values(), *found), (want, *wanted), strict=True)]
