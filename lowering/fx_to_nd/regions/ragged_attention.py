"""Attention of rows of unequal length that lie one behind the other (documents, jagged tensors), forward and backward, as operators
on whole tensors. The keys that a row sees are a range of numbers, so that loops over keys begin and end where a document does:

    seen[i, j] = first[i] <= j & j <= last[i]

For gradients of keys the same is said of the rows that see a key. Offsets say where documents begin: document n is
[offsets[n], offsets[n + 1]). ragged_operators.py has the operators of torch that this defines.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

aten = torch.ops.aten

APART = (aten.minimum.default, aten.maximum.default)
"""What makes the first and the last number of a range: computed once, not where it is read."""


class Window(NamedTuple):
    """How far a row sees before and behind its own place, None: to the end of the document. aligned: whether its place counts from the
    "begin" or from the "end" of the keys."""

    left: int | None = None
    right: int | None = None
    aligned: str = "end"


class Documents(NamedTuple):
    """Where documents begin, in queries and keys (documents + 1 numbers each), and what their rows see."""

    query_offsets: Tensor
    key_offsets: Tensor
    window: Window = Window()

    def keys_of(self, rows: int) -> tuple[Tensor, Tensor]:
        """(rows,) each: the numbers of the first and the last key that a row sees."""
        return _range(self.query_offsets, self.key_offsets, rows, self.window.left, self.window.right, self.window.aligned)

    def rows_of(self, keys: int) -> tuple[Tensor, Tensor]:
        """(keys,) each: the numbers of the first and the last row that see a key."""
        return _range(self.key_offsets, self.query_offsets, keys, self.window.right, self.window.left, self.window.aligned)


def forward(query: Tensor, key: Tensor, value: Tensor, documents: Documents, scale: float | None) -> tuple[Tensor, Tensor]:
    """query (rows, heads, columns), key and value (keys, heads that divide those, columns) -> (rows, heads, columns), and (heads, rows) the
    logarithm of the sum of exponentials. A row that sees nothing is 0, and infinity."""
    q, k, v = (_heads(x, query) for x in (query, key, value))
    first, last = documents.keys_of(query.shape[0])
    keys = _numbers(key, first)
    seen = (first.unsqueeze(-1) <= keys) & (keys <= last.unsqueeze(-1))
    shown = torch.where(seen, _scores(q, k, scale), -math.inf)
    hidden = torch.all(shown == -math.inf, dim=-1)
    sums = torch.where(hidden, math.inf, shown.logsumexp(-1))
    weights = aten._safe_softmax(shown, -1)
    return (weights.to(query.dtype) @ v).transpose(0, 1), sums.to(torch.float32)


def backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    sums: Tensor,
    documents: Documents,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of queries, keys and values; sizes as in `forward`."""
    q, k, v, grad, given = (_heads(x, query) for x in (query, key, value, grad_out, out))
    wide = _wide(query)
    first, last = documents.keys_of(query.shape[0])
    above, below = documents.rows_of(key.shape[0])
    keys, rows = _numbers(key, first), _numbers(query, above).unsqueeze(-1)
    shares = torch.sum(given.to(wide) * grad.to(wide), -1, keepdim=True)

    def weights(seen: Tensor) -> tuple[Tensor, Tensor]:
        """The weights, and the gradients of the scores."""
        weight = torch.where(seen, torch.exp(_scores(q, k, scale) - sums.unsqueeze(-1)), 0.0)
        inner = weight * (grad.to(wide) @ v.to(wide).transpose(-2, -1) - shares)
        return weight.to(query.dtype), torch.where(seen, inner * _scale(q, scale), 0.0).to(query.dtype)

    _, of_rows = weights((first.unsqueeze(-1) <= keys) & (keys <= last.unsqueeze(-1)))
    weight, of_keys = weights((above <= rows) & (rows <= below))
    grad_key, grad_value = of_keys.transpose(-2, -1) @ q, weight.transpose(-2, -1) @ grad
    return (of_rows @ k).transpose(0, 1), _shared(grad_key, key), _shared(grad_value, value)


def _scores(q: Tensor, k: Tensor, scale: float | None) -> Tensor:
    return (q.to(_wide(q)) @ k.to(_wide(q)).transpose(-2, -1)) * _scale(q, scale)


def _scale(q: Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(q.shape[-1]) if scale is None else scale


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _heads(x: Tensor, query: Tensor) -> Tensor:
    """(heads of the queries, rows, columns)"""
    return torch.repeat_interleave(x.transpose(0, 1), query.shape[1] // x.shape[1], dim=0)


def _shared(x: Tensor, key: Tensor) -> Tensor:
    """(keys, heads of the keys, columns): the sums over the heads that share them."""
    return torch.sum(x.view(key.shape[1], x.shape[0] // key.shape[1], *x.shape[1:]), 1).transpose(0, 1)


def _numbers(x: Tensor, like: Tensor) -> Tensor:
    return torch.arange(x.shape[0], dtype=like.dtype, device=x.device)


def _range(own: Tensor, other: Tensor, rows: int, left: int | None, right: int | None, aligned: str) -> tuple[Tensor, Tensor]:
    """(rows,) each: the first and the last number of what rows see, by the offsets of the rows and of what they see. Rows behind the last
    document see nothing."""
    numbers = torch.arange(rows, dtype=own.dtype, device=own.device)
    ended = ended_documents(own, rows)
    document = ended.clamp(max=own.shape[0] - 2)
    begin, end = other[:-1][document], other[1:][document]
    edge, own_edge = (begin, own[:-1]) if aligned == "begin" else (end, own[1:])
    place = numbers + (edge - own_edge[document])
    first = torch.maximum(begin, torch.zeros_like(begin) if left is None else place - left)
    end = torch.where(ended == document, end, 0)
    return first, torch.minimum(end - 1, end - 1 if right is None else place + right)


def ended_documents(offsets: Tensor, rows: int) -> Tensor:
    """(rows,): how many documents end at a row or before it. That is the number of its own, or of all where it is behind the last one."""
    numbers = torch.arange(rows, dtype=offsets.dtype, device=offsets.device)
    return torch.sum(offsets[1:].unsqueeze(1) <= numbers, 0)
