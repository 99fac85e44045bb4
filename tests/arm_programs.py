"""Small programs that are compiled for 64-bit Arm and run there: (function, arguments) by name, a part of the compiler each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

G = torch.Generator().manual_seed(37)


class Function(nn.Module):
    """A module of a program."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


def _randn(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, generator=G)


def _bytes(low: int, high: int, *sizes: int, dtype: torch.dtype = torch.int8) -> torch.Tensor:
    return torch.randint(low, high, sizes, generator=G, dtype=dtype)


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _biased(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) * 0.25 + bias, -1) @ v


X, Y, ROW, PLACES = _randn(37, 53), _randn(37, 53), _randn(53), torch.tensor([3, 0, 36, 3])
WHOLE = torch.arange(37 * 53).reshape(37, 53) - 700
S8, T8, U8 = _bytes(-128, 128, 33, 70), _bytes(-128, 128, 70, 29), _bytes(0, 256, 33, 70, dtype=torch.uint8)
HEADS = tuple(_randn(2, 3, 40, 24) for _ in range(3))
IMAGE, FILTERS = _randn(2, 12, 19, 17), _randn(16, 12, 3, 3)

PROGRAMS = {
    "pointwise": (lambda x, y: torch.tanh(x) * y + torch.exp(-x.abs()) + torch.rsqrt(y.abs() + 1), (X, Y)),
    "functions": (lambda x: torch.erf(x) + torch.log1p(x.abs()) + torch.sin(x) + torch.lgamma(x.abs() + 1), (X,)),
    "power": (lambda x, y: x.abs() ** y + torch.atan2(x, y) + torch.hypot(x, y) + x.fmod(y), (X, Y)),
    "special": (lambda x: torch.special.i0e(x) + torch.digamma(x.abs() + 0.5) + torch.special.ndtri(x.sigmoid()), (X,)),
    "f64": (lambda x: torch.sigmoid(x) * x.sqrt() + x.log() + torch.erf(x), (X.double().abs(),)),
    "bf16": (lambda x: F.gelu(x) * 3, (X.bfloat16(),)),
    "f16": (lambda x: F.silu(x) + 1, (X.half(),)),
    "integers": (lambda x: (x // 7 + x % 5 - (x >> 2) + (x << 1), (x.to(torch.int8) * 3).sum(0), x.to(torch.int16) // 3), (WHOLE,)),
    "divisions": (lambda x, y: (x // y, x % y, torch.div(x, y, rounding_mode="trunc")), (WHOLE, WHOLE % 11 + 1)),
    "masks": (lambda x, y: (torch.where(x > 0, x, -y).masked_fill(y > 1, 2), (x > y).any(1), (x < y).sum(0)), (X, Y)),
    "casts": (lambda x: (x.to(torch.int32), x.double(), x.bfloat16(), x.half(), x > 1, (x * 9).to(torch.int8)), (X,)),
    "reductions": (lambda x: (x.sum(1), x.sum(0), x.amax(), x.amin(0), x.argmax(1), x.argmin(), *torch.var_mean(x, 1)), (X,)),
    "norms": (lambda x, w: (F.layer_norm(x, (53,), w, w), F.rms_norm(x, (53,), w), F.group_norm(x[None].mT, 1)), (X, ROW)),
    "softmax": (lambda x: (torch.softmax(x, -1), torch.log_softmax(x, 0), torch.logsumexp(x, 1)), (X,)),
    "scans": (lambda x: (x.cumsum(1), x.cumprod(0), x.cummax(0)[0], torch.logcumsumexp(x, 1)), (X,)),
    "layouts": (lambda x, y: (x.t().contiguous() * 2, torch.cat([x, y.flip(1)], 1), F.pad(x, (1, 2, 3, 4)), x.roll(3, 1)), (X, Y)),
    "gather": (lambda x, i: (x[i] + x.index_select(0, i), x.gather(0, i[:, None].expand(4, 53)), F.embedding(i, x)), (X, PLACES)),
    "scatter": (lambda x, i: (torch.zeros_like(x).index_add(0, i, x[:4]), x.index_fill(0, i, 7.0)), (X, PLACES)),
    "pooling": (lambda x: (F.max_pool2d(x, 3, 2), F.avg_pool2d(x, 2), F.interpolate(x, scale_factor=2, mode="bilinear")), (IMAGE,)),
    "loss": (lambda x, i: F.cross_entropy(x[:4], i), (X, PLACES)),
    "product": (lambda x, y: (x @ y.mT, x.mT @ y, F.linear(x[:2], y), x[0] @ y.mT), (X, Y)),
    "product_f64": (lambda x, y: x @ y.mT, (X.double(), Y.double())),
    "product_bf16": (lambda x, y: (x @ y.mT, x.mT @ y, F.linear(x[:2], y)), (X.bfloat16(), Y.bfloat16())),
    "product_f16": (lambda x, y: (x @ y.mT, F.linear(x[:2], y)), (X.half(), Y.half())),
    "product_s8": (lambda x, y: (torch.ops.aten._int_mm(x, y), torch.ops.aten._int_mm(x[:18], y.mT.contiguous().mT)), (S8, T8)),
    "product_u8": (lambda x, y: x.int() @ y.int(), (U8, T8)),
    "large_product": (lambda x, y: F.relu(x @ y.mT), (_randn(70, 300), _randn(130, 300))),
    "batched": (lambda x, y: torch.bmm(x, y.mT), (_randn(3, 20, 33), _randn(3, 17, 33))),
    "convolution": (lambda x, w: F.relu(F.conv2d(x, w, stride=2, padding=1)), (IMAGE, FILTERS)),
    "depthwise": (lambda x, w: F.conv2d(x, w, padding=1, groups=12), (IMAGE, _randn(12, 1, 3, 3))),
    "transposed": (lambda x, w: F.conv_transpose2d(x, w, stride=2), (IMAGE, _randn(12, 5, 3, 3))),
    "sequence": (lambda x, w: F.conv1d(x, w, dilation=2), (_randn(2, 6, 40), _randn(8, 6, 3))),
    "attention": (_attention, HEADS),
    "attention_bf16": (_attention, tuple(x.bfloat16() for x in HEADS)),
    "weighed": (_biased, (*HEADS, _randn(40, 40))),
}  # fmt: skip
"""Functions of tensors that give a tensor or a tuple of them."""
