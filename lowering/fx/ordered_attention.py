"""Attention as products and a softmax, where each sum has an order of its own (`options={"batch_invariant": True}`).

    scaled_dot_product_attention(q, k, v)     ->     (softmax(q.float() @ k.float().T * scale).to(v.dtype).float() @ v.float()).to(v.dtype)

The library's sums depend on how many queries there are, and torch's own products and softmax multiply factors of float32, which are scaled
before. Here both products have factors of 16 bits, exact in float32, which units for products take as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from .pre_grad.attention_masks import ATTENTION

HALVES = torch.bfloat16, torch.float16


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor | None:
    """What `scaled_dot_product_attention` gives, ``[..., queries, size]``; None where its factors are no 16-bit numbers of one type, and
    for what eager refuses."""
    if query.dtype not in HALVES or not query.dtype == key.dtype == value.dtype or (attn_mask is not None and is_causal):
        return None
    if enable_gqa:
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
    products = _NarrowGradient.apply(query.float() @ key.float().transpose(-2, -1), query.dtype)
    scores = products * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        rows, terms = (torch.arange(x.shape[-2], device=query.device) for x in (query, key))
        attn_mask = terms <= rows[:, None]
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        scores = torch.where(attn_mask, scores, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask.float()
    weights = torch.ops.aten._safe_softmax(scores, -1)
    if dropout_p:
        weights = torch.dropout(weights, dropout_p, True)
    return (weights.to(value.dtype).float() @ value.float()).to(value.dtype)


class _NarrowGradient(torch.autograd.Function):
    """Scores as they are, whose gradient has 16 bits: it is a factor of products again. So has that of the library's attention."""

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
        ctx.kind = kind
        return scores.view_as(scores)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gradient,) = gradients
        return gradient.to(ctx.kind).to(gradient.dtype), None


class _Attention(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = attention(*args, **(kwargs or {})) if func is ATTENTION else None
        return func(*args, **(kwargs or {})) if made is None else made


@contextmanager
def spelled_attention() -> Iterator[None]:
    """Attention of what is traced within is products and a softmax."""
    with sdpa_kernel(SDPBackend.MATH), _Attention():
        yield
