"""Torch's operators for attention of rows of unequal length: what scaled dot product attention of jagged tensors is on a GPU
(`_flash_attention_forward`, and `_efficient_attention_forward` for other sizes of heads), and what `torch.nn.attention.varlen` calls.
ragged_attention.py says what they compute; the library keeps the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.fx import Node

from ....dialects.nd.types import FLOATS, LOW_PRECISION
from ....passes.cost.contraction_price import MAX_WEIGHED_ELEMENTS
from ..core.metadata import element_type
from ..core.registry import packet, rule
from .ragged_attention import APART, Documents, Window, backward, ended_documents, forward
from .subgraphs import inline

if TYPE_CHECKING:
    from ..core.importer import Importer

aten = torch.ops.aten

OFFSETS = (("cum_seq_q", "cum_seq_k"), ("cu_seqlens_q", "cu_seqlens_k"), ("cu_seq_q", "cu_seq_k"))
"""Names of the arguments that say where documents begin, in queries and keys."""
OTHER = ("dropout_p", "return_debug_mask", "seqused_k", "alibi_slopes", "block_table", "bias", "seqlen_k", "bias_requires_grad")
"""Arguments that say something else than is said here, where they are given."""
ALIGNED = {1: "begin", 2: "end"}
"""A causal mask of memory-efficient attention -> where a row's place counts from."""


def efficient_forward(
    query: Tensor, key: Tensor, value: Tensor, documents: Documents, scale: float | None, longest: int, wanted: bool
) -> tuple[Tensor, Tensor]:
    """As `forward` with a batch of 1. The logarithms are (documents, heads, 32s of the longest), or (documents, heads, 0) if not wanted."""
    out, sums = forward(query[0], key[0], value[0], documents, scale)
    offsets = documents.query_offsets
    columns = (longest + 31) // 32 * 32 if wanted else 0
    places = offsets[:-1].unsqueeze(1) + torch.arange(columns, device=offsets.device)
    inside = places < offsets[1:].unsqueeze(1)
    rows = sums[:, torch.where(inside, places, 0)]
    return out.unsqueeze(0), torch.where(inside, rows, 0.0).transpose(0, 1)


def efficient_backward(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, sums: Tensor, documents: Documents, scale: float | None
) -> tuple[Tensor, ...]:
    """As `backward` with a batch of 1, from logarithms as `efficient_forward` gives them; the gradient of a bias that is not there."""
    offsets, rows = documents.query_offsets, query.shape[1]
    document = ended_documents(offsets, rows).clamp(max=offsets.shape[0] - 2)
    column = torch.arange(rows, device=offsets.device) - offsets[:-1][document]
    flat = sums[document, :, column.clamp(max=sums.shape[2] - 1)].transpose(0, 1)
    grads = backward(grad_out[0], query[0], key[0], value[0], out[0], flat, documents, scale)
    return *(x.unsqueeze(0) for x in grads), torch.zeros((), device=query.device)


@rule(packet(aten, "_flash_attention_forward"), "torch_attn::_varlen_attn")
def _flash(b: Importer, *_: Any, **__: Any) -> Any:
    given = _given(b.node)
    if not _is_defined(given):
        return NotImplemented
    made = inline(b, forward, [given["query"], given["key"], given["value"], *_documents(given)], APART)
    return *made, *_zeros(b, 2)


@rule(packet(aten, "_flash_attention_backward"), "torch_attn::_varlen_attn_backward")
def _flash_backward(b: Importer, *_: Any, **__: Any) -> Any:
    given = _given(b.node)
    if not _is_defined(given):
        return NotImplemented
    return inline(b, backward, [*_saved(given), *_documents(given)], APART)


@rule(packet(aten, "_efficient_attention_forward"))
def _efficient(b: Importer, *_: Any, **__: Any) -> Any:
    given = _given(b.node)
    if not _is_defined(given):
        return NotImplemented
    longest = given["max_seqlen_q"]
    tensors = [given["query"], given["key"], given["value"]]
    made = inline(b, efficient_forward, [*tensors, *_documents(given), longest, given["compute_log_sumexp"]], APART)
    return *made, *_zeros(b, 2, 4), b.argument(longest), b.argument(given["max_seqlen_k"])


@rule(packet(aten, "_efficient_attention_backward"))
def _efficient_backward(b: Importer, *_: Any, **__: Any) -> Any:
    given = _given(b.node)
    if not _is_defined(given):
        return NotImplemented
    return inline(b, efficient_backward, [*_saved(given), *_documents(given)], APART)


def _given(node: Node) -> dict[str, Any]:
    """The arguments of a call by the names of its operator."""
    target: Any = node.target
    arguments = target._schema.arguments
    found = {a.name: a.default_value for a in arguments if a.has_default_value()}
    return found | {a.name: x for a, x in zip(arguments, node.args, strict=False)} | dict(node.kwargs)


def _is_defined(given: dict[str, Any]) -> bool:
    """Whether a call is attention of documents as it is said here, and for a GPU one whose scores stay on chip."""
    if any(given.get(name) for name in OTHER) or None in _offsets(given):
        return False
    if "custom_mask_type" in given and given["window_size"] is not None:
        return False
    values = [given[name].meta["val"] for name in ("query", "key", "value")]
    kinds = {element_type(x.dtype) for x in values}
    if values[0].device.type == "cpu":
        return kinds <= FLOATS
    return kinds <= LOW_PRECISION & FLOATS and all(isinstance(n := x.shape[-1], int) and n <= MAX_WEIGHED_ELEMENTS for x in values)


def _offsets(given: dict[str, Any]) -> tuple[Any, Any]:
    queries, keys = next(names for names in OFFSETS if names[0] in given)
    return given[queries], given[keys]


def _documents(given: dict[str, Any]) -> list[Any]:
    """Documents, as a tree of nodes, and the scale."""
    return [Documents(*_offsets(given), _window(given)), given["scale"]]


def _window(given: dict[str, Any]) -> Window:
    """What rows see; -1 says that there is no bound."""
    if "custom_mask_type" in given:
        aligned = ALIGNED.get(given["custom_mask_type"])
        return Window() if aligned is None else Window(right=0, aligned=aligned)
    sides = given.get("window_size") or (given.get("window_size_left"), given.get("window_size_right"))
    left, right = (None if n is None or n < 0 else n for n in sides)
    return Window(left, 0 if given["is_causal"] else right)


def _saved(given: dict[str, Any]) -> list[Any]:
    """What backward takes of forward, behind the gradient of the result."""
    grad, sums = (next(given[n] for n in names if n in given) for names in (("grad_out", "grad_out_"), ("logsumexp", "lse")))
    return [grad, given["query"], given["key"], given["value"], given["out"], sums]


def _zeros(b: Importer, begin: int, end: int | None = None) -> list[Any]:
    """Results that nothing is to be read from: the state of random numbers that are not drawn."""
    return [b.full(0, element_type(x.dtype), b.sizes(x.shape)) for x in b.val[begin:end]]
