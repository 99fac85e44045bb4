"""FlexAttention, forward and backward, as operators on whole tensors: the functions of scores and masks stand between two products, so that
they go where the scores are computed.

A block mask is its lists and its function: what a list does not name is hidden, blocks of the list of full ones are seen whole, and in the
others the function decides. A list is read as what it says of a block, whether it is in there:

    seen[i, j] = full[i // rows, j // keys] | listed[i // rows, j // keys] & mask(i, j)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Node

from .subgraphs import inline

if TYPE_CHECKING:
    from ..core.importer import Importer


TABLES = (torch.ops.aten.any.dim,)
"""What makes tables of blocks: where masks are computed, these are read, so that all readers see what is the same for a block."""


class BlockLists(NamedTuple):
    """What a BlockMask says of keys: for each block of rows how many blocks of keys there are, and which (batch, head, block, place); the
    same for full blocks. Its lists of rows for each block of keys say nothing more."""

    kv_num_blocks: Tensor
    kv_indices: Tensor
    full_kv_num_blocks: Tensor | None
    full_kv_indices: Tensor | None
    row_block: int
    key_block: int
    mask_mod: Callable[..., Tensor]

    @staticmethod
    def of(given: Sequence[Any]) -> BlockLists:
        """From the operator's argument, of any version of torch."""
        return BlockLists(*given[2:6], *given[-3:])  # pyright: ignore[reportCallIssue]

    @property
    def lists_all(self) -> bool:
        """Whether it stands for no mask: blocks longer than any sequence."""
        from torch.nn.attention.flex_attention import _LARGE_SPARSE_BLOCK_SIZE

        return self.row_block == self.key_block == _LARGE_SPARSE_BLOCK_SIZE


class _Scores(NamedTuple):
    """Products of queries and keys times the scale, what the function of scores makes of them, and which are seen."""

    plain: Tensor
    changed: Tensor
    shown: Tensor
    """What is hidden is -inf."""
    seen: Tensor


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor],
    block_mask: Sequence[Any],
    scale: float,
    kernel_options: dict[str, Any],
    score_buffers: tuple[Any, ...] = (),
    mask_buffers: tuple[Any, ...] = (),
) -> tuple[Tensor, Tensor, Tensor]:
    """(batch, heads, rows, columns) of the result, and for each row the logarithm of the sum and the highest score, to the base of 2. A row
    that sees nothing is 0, -inf, -inf."""
    key, value = (_of_queries(x, query) for x in (key, value))
    scores = _scores(query, key, score_mod, block_mask, scale, score_buffers, mask_buffers)
    sums = scores.shown.logsumexp(-1)
    hidden = torch.all(scores.shown == -math.inf, dim=-1)
    sums = torch.where(hidden, -math.inf, sums)
    weights = torch.ops.aten._safe_softmax(scores.shown, -1)
    return weights.to(query.dtype) @ value.to(query.dtype), sums / math.log(2), scores.shown.amax(-1) / math.log(2)


def attention_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    grad_out: Tensor | None,
    grad_logsumexp: Tensor | None,
    score_mod: Callable[..., Tensor],
    joint_graph: Callable[..., Any],
    block_mask: Sequence[Any],
    scale: float,
    kernel_options: dict[str, Any],
    score_buffers: tuple[Any, ...] = (),
    mask_buffers: tuple[Any, ...] = (),
) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor | None, ...]]:
    """Gradients of queries, keys and values, and of each tensor of floats that the function of scores captures."""
    keys, values = (_of_queries(x, query) for x in (key, value))
    scores = _scores(query, keys, score_mod, block_mask, scale, score_buffers, mask_buffers)
    grad_out = torch.zeros_like(out) if grad_out is None else grad_out
    wide = scores.plain.dtype

    sums = logsumexp * math.log(2)
    hidden = sums == -math.inf  # of the same shape: a nest then knows that one is computed of the other
    weights = torch.where(hidden.unsqueeze(-1), 0.0, torch.exp(scores.shown - sums.unsqueeze(-1)))
    grad_value = weights.to(query.dtype).transpose(-2, -1) @ grad_out
    shares = torch.sum(out.to(wide) * grad_out.to(wide), -1, keepdim=True)
    inner = grad_out.to(wide) @ values.to(wide).transpose(-2, -1) - shares
    if grad_logsumexp is not None:
        inner = inner + (grad_logsumexp / math.log(2)).unsqueeze(-1)
    inner = torch.where(scores.seen, weights * inner, 0.0)
    grad_scores, grad_buffers = _pulled_back(scores, inner, score_mod, score_buffers)
    grad_scores = torch.where(scores.seen, grad_scores * scale, 0.0).to(query.dtype)

    grad_query = grad_scores @ keys
    grad_key = _of_keys(grad_scores.transpose(-2, -1) @ query, key)
    return grad_query, grad_key, _of_keys(grad_value, value), grad_buffers


def _of_queries(x: Tensor, query: Tensor) -> Tensor:
    """Keys or values for each batch and head of the queries."""
    groups = query.shape[1] // x.shape[1]
    x = torch.repeat_interleave(x, groups, dim=1)
    return x.expand((query.shape[0], *x.shape[1:]))


def _of_keys(x: Tensor, key: Tensor) -> Tensor:
    """The sum over what shares keys or values."""
    groups = x.shape[1] // key.shape[1]
    x = torch.sum(x.view(x.shape[0], -1, groups, *x.shape[2:]), 2)
    return x if x.shape[0] == key.shape[0] else torch.sum(x, 0, keepdim=True)


def _scores(
    query: Tensor,
    key: Tensor,
    score_mod: Callable[..., Tensor],
    block_mask: Sequence[Any],
    scale: float,
    score_buffers: tuple[Any, ...],
    mask_buffers: tuple[Any, ...],
) -> _Scores:
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    plain = (query.to(wide) @ key.to(wide).transpose(-2, -1)) * scale
    lists, places = BlockLists.of(block_mask), _places(plain)
    with TransformGetItemToIndex():
        seen = _mapped(lists.mask_mod, (), mask_buffers)(*places, *mask_buffers)
        changed = _mapped(score_mod, (0,), score_buffers)(plain, *places, *score_buffers).to(wide)
    if not lists.lists_all:
        seen = _listed(lists, seen, plain)
    shown = torch.where(seen, changed, torch.tensor(-math.inf, dtype=wide, device=plain.device))
    return _Scores(plain, changed, shown, seen)


def _listed(lists: BlockLists, seen: Tensor, scores: Tensor) -> Tensor:
    """What the lists and the function let see: for one batch or head where they say the same of all."""
    for axis in range(seen.dim()):
        if seen.stride(axis) == 0:
            seen = seen.narrow(axis, 0, 1)
    listed = _in_list(lists, lists.kv_num_blocks, lists.kv_indices, scores)
    seen = torch.logical_and(listed, seen)
    if lists.full_kv_num_blocks is None or lists.full_kv_indices is None:
        return seen
    return torch.logical_or(_in_list(lists, lists.full_kv_num_blocks, lists.full_kv_indices, scores), seen)


def _in_list(lists: BlockLists, counts: Tensor, indices: Tensor, scores: Tensor) -> Tensor:
    """(batch or 1, heads or 1, rows, keys): whether a row's list has the block of a key."""
    rows, keys = scores.shape[-2:]
    blocks = (keys + lists.key_block - 1) // lists.key_block
    places = torch.arange(indices.shape[-1], device=indices.device)
    numbers = torch.arange(blocks, device=indices.device)
    there = (indices.unsqueeze(-2) == numbers.unsqueeze(-1)) & (places < counts.unsqueeze(-1)).unsqueeze(-2)
    return _spread(_spread(there.any(-1), 2, lists.row_block, rows), 3, lists.key_block, keys)


def _spread(x: Tensor, axis: int, block: int, size: Any) -> Tensor:
    """What is known of blocks for each of the `size` elements that these have."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    shape = list(x.shape)
    if statically_known_true(shape[axis] == 1):
        return x.expand(*shape[:axis], size, *shape[axis + 1 :])
    shape[axis : axis + 1] = [shape[axis], block]
    x = x.unsqueeze(axis + 1).expand(shape).reshape(*shape[:axis], shape[axis] * block, *shape[axis + 2 :])
    return x.narrow(axis, 0, size)


def _pulled_back(
    scores: _Scores, grad: Tensor, score_mod: Callable[..., Tensor], buffers: tuple[Any, ...]
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """The gradients of the scores and of the tensors that their function captures, by that of what it gives."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    places = _places(scores.plain)
    moved = [k for k, x in enumerate(buffers) if isinstance(x, Tensor) and x.is_floating_point()]

    def function(plain: Tensor, *captured: Tensor) -> Tensor:
        given = list(buffers)
        for k, x in zip(moved, captured, strict=True):
            given[k] = x
        with TransformGetItemToIndex():
            return _mapped(score_mod, (0,), given)(plain, *places, *given)

    changed, pull = torch.func.vjp(function, scores.plain, *[buffers[k] for k in moved])[:2]
    grad_scores, *grads = pull(grad.to(changed.dtype))
    of_buffers = dict(zip(moved, grads, strict=True))
    return grad_scores, tuple(of_buffers.get(k) for k in range(len(buffers)))


def _places(scores: Tensor) -> list[Tensor]:
    """Numbers of batches, heads, rows and keys, which functions are called with."""
    return [torch.arange(n, device=scores.device) for n in scores.shape]


def _mapped(function: Callable[..., Tensor], scores: tuple[int, ...], buffers: Sequence[Any]) -> Callable[..., Tensor]:
    """A function of one score for all of them."""
    from torch.nn.attention.flex_attention import _vmap_for_bhqkv

    return _vmap_for_bhqkv(function, prefix=scores, suffix=(None,) * len(buffers))


def lower_attention(b: Importer, node: Node) -> Any:
    """flex_attention"""
    return inline(b, attention, node.args, TABLES)


def lower_attention_backward(b: Importer, node: Node) -> Any:
    """flex_attention_backward"""
    return inline(b, attention_backward, node.args, TABLES)
