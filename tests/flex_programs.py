"""Programs with flex_attention for tests on several devices, and what they compute, in doubles. Block lists count: torch's eager asks the
mask's function alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.attention.experimental._paged_attention import PagedAttention
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Program:
    """A program, the same in doubles, and its inputs: float32, or integers."""

    function: Callable
    exact: Callable
    inputs: tuple[torch.Tensor, ...]
    trains: bool = True


def lists(batch: int, heads: int, rows: int, columns: int, seed: int = 0):
    """Counts and indices of blocks, and of full ones: each block is in one of the lists, or in none."""
    kind = torch.randint(0, 3, (batch, heads, rows, columns), generator=torch.Generator().manual_seed(seed))
    kind[:, :, -1] = 0  # rows that see nothing

    def ordered(there: torch.Tensor) -> list[torch.Tensor]:
        order = torch.argsort(there.int(), dim=-1, descending=True, stable=True)
        return [there.sum(-1).to(torch.int32), order.to(torch.int32)]

    return (*ordered(kind == 1), *ordered(kind == 2))


def seen_of(mask: BlockMask, b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
    """What a mask lets see, block by block as its lists have them."""
    rows, keys = mask.BLOCK_SIZE
    columns = -(-j.numel() // keys)

    def listed(counts: torch.Tensor | None, indices: torch.Tensor | None) -> torch.Tensor | bool:
        if counts is None or indices is None:
            return False
        there = torch.arange(indices.shape[-1]) < counts[..., None]
        table = torch.zeros(*indices.shape[:-1], columns + 1, dtype=torch.bool)
        table = table.scatter(-1, torch.where(there, indices, columns).long(), True)
        return table[:, :, i[:, 0] // rows][..., j // keys]

    full = listed(mask.full_kv_num_blocks, mask.full_kv_indices)
    return full | (listed(mask.kv_num_blocks, mask.kv_indices) & torch.as_tensor(mask.mask_mod(b, h, i, j)))


def exact(q, k, v, score=None, mask=None, scale=None, sums=False):
    """flex_attention in doubles; sums: the logarithm of the sums, too."""
    q, k, v = (x.double() for x in (q, k, v))
    groups = q.shape[1] // k.shape[1]
    k, v = (x.expand(q.shape[0], -1, -1, -1).repeat_interleave(groups, 1) for x in (k, v))
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    b, h = torch.arange(q.shape[0])[:, None, None, None], torch.arange(q.shape[1])[:, None, None]
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    if score is not None:
        scores = score(scores, b, h, i, j)
    if mask is not None:
        scores = torch.where(seen_of(mask, b, h, i, j), scores, -math.inf)
    hidden = (scores == -math.inf).all(-1, keepdim=True)
    weights = torch.where(hidden, 0.0, torch.softmax(torch.where(hidden, 0.0, scores), -1))
    return (weights @ v, torch.logsumexp(scores, -1)) if sums else weights @ v


def heads(rows=100, keys=130, width=32, columns=None, count=2, shared=None, batch=2, keys_batch=None):
    """Queries, keys and values."""
    shape = keys_batch or batch, shared or count, keys
    return numbers(batch, count, rows, width), numbers(*shape, width, seed=1), numbers(*shape, columns or width, seed=2)


def causal(b, h, i, j):
    return i >= j


def plain(mask=None, score=None, **given) -> Program:
    """With one mask and one function of scores."""
    return Program(
        lambda q, k, v: flex_attention(q, k, v, score_mod=score, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1]),
        lambda q, k, v: exact(q, k, v, score, mask),
        heads(**given),
    )


def by_lists(mask_mod=None, full=True, batch=2, count=2, of=None) -> Program:
    """Lists of `batch` and `count` heads, of queries and keys as `of` says."""
    counts, indices, *whole = lists(batch, count, 4, 5)
    blocks = (counts, indices, *whole) if full else (counts, indices)
    mask = BlockMask.from_kv_blocks(*blocks, BLOCK_SIZE=32, mask_mod=mask_mod, seq_lengths=(100, 130))
    return plain(mask, **(of or {}))


def lists_that_are_inputs() -> Program:
    def mask(blocks):
        return BlockMask.from_kv_blocks(*blocks, BLOCK_SIZE=32, mask_mod=causal, seq_lengths=(100, 130))

    return Program(
        lambda q, k, v, *blocks: flex_attention(q, k, v, block_mask=mask(blocks)),
        lambda q, k, v, *blocks: exact(q, k, v, mask=mask(blocks)),
        (*heads(), *lists(1, 1, 4, 5)),
        trains=False,
    )


def blocks_of_two_lengths() -> Program:
    counts = torch.tensor([[[1, 2, 0, 3]]], dtype=torch.int32)
    indices = torch.tensor([[[[2, 0, 1], [0, 1, 2], [0, 1, 2], [2, 1, 0]]]], dtype=torch.int32)
    return plain(BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=(32, 64), seq_lengths=(100, 180)), keys=180)


def masked(mask_mod, rows=100, keys=130, batch=None, **given) -> Program:
    return plain(create_block_mask(mask_mod, batch, None, rows, keys, device="cpu", BLOCK_SIZE=32), rows=rows, keys=keys, **given)


def documents() -> Program:
    ids = torch.tensor([0] * 30 + [1] * 50 + [2] * 20)
    return masked(lambda b, h, i, j: (ids[i] == ids[j]) & (i >= j), keys=100)


def captured(table: torch.Tensor, score: Callable) -> Program:
    """A table that the function of scores reads, with its gradient."""
    return Program(
        lambda q, k, v, t: flex_attention(q, k, v, score_mod=score(t)),
        lambda q, k, v, t: exact(q, k, v, score(t.double())),
        (*heads(), table),
    )


def with_sums() -> Program:
    def function(q, k, v):
        out, aux = flex_attention(q, k, v, return_aux=AuxRequest(lse=True))
        return out, aux.lse

    return Program(function, lambda q, k, v: exact(q, k, v, sums=True), heads())


def pages(queries: int, count: int, shared: int) -> Program:
    """PagedAttention: keys and values lie in pages of one cache; lists have the numbers of pages. In doubles: as if they lay in a row."""
    lengths, page, width = [70, 33, 128], 32, 32
    paged = PagedAttention(16, page, 3, device="cpu")
    for stop in (32, 64, 128):  # pages of one sequence lie apart
        for b, n in enumerate(lengths):
            paged.reserve(torch.tensor(b), torch.tensor(min(stop, -(-n // page) * page)))
    q, k, v = heads(queries, 128, width, count=count, shared=shared, batch=3)
    caches = [numbers(1, shared, 16 * page, width, seed=3 + n) for n in range(2)]
    for b, n in enumerate(lengths):
        paged.assign(torch.tensor([b]), torch.arange(n)[None], k[b : b + 1, :, :n], v[b : b + 1, :, :n], *caches)
    ends = torch.tensor(lengths)
    first = ends - 1 if queries == 1 else torch.zeros(3, dtype=torch.long)

    def seen(b, h, i, j):
        return (i + first[b] >= j) & (j < ends[b])

    mask = create_block_mask(seen, 3, 1, queries, 128, device="cpu", BLOCK_SIZE=(min(queries, 32), page))
    physical = paged.convert_logical_block_mask(mask, torch.arange(3), ends)
    score = paged.get_score_mod(lambda s, b, h, i, j: s + j * 0.01, ends)
    want = exact(q, k, v, score=lambda s, b, h, i, j: torch.where(seen(b, h, i, j), s + j * 0.01, -math.inf))
    return Program(
        lambda q, k, v: flex_attention(q, k, v, score_mod=score, block_mask=physical, enable_gqa=count != shared),
        lambda q, k, v: want,
        (q, *caches),
        trains=False,
    )


PROGRAMS: dict[str, Callable[[], Program]] = {
    "lists": lambda: by_lists(full=False),
    "lists, full and causal": lambda: by_lists(causal),
    "lists for all heads, shared keys": lambda: by_lists(causal, batch=1, count=1, of={"count": 4, "shared": 2}),
    "lists that are inputs": lists_that_are_inputs,
    "blocks of two lengths": blocks_of_two_lengths,
    "pages, prompts": lambda: pages(96, 2, 2),
    "pages, decoding": lambda: pages(1, 8, 2),
    "documents": documents,
    "rows that see nothing": lambda: masked(lambda b, h, i, j: i >= j + 40),
    "logarithm of the sums": with_sums,
    "keys that heads share": lambda: masked(causal, count=6, shared=2),
    "keys that batches share": lambda: plain(
        create_block_mask(lambda b, h, i, j: i + b * 8 >= j, 3, None, 100, 130, device="cpu", BLOCK_SIZE=32), batch=3, keys_batch=1
    ),
    "table by distance": lambda: captured(numbers(2, 300, seed=5), lambda t: lambda s, b, h, i, j: s + t[h, i - j + 130]),
    "table of buckets": lambda: captured(
        numbers(2, 16, seed=5), lambda t: lambda s, b, h, i, j: s + t[h, ((i - j).abs() // 16).clamp(max=15)]
    ),
    "bias of each score": lambda: captured(numbers(2, 100, 130, seed=5), lambda t: lambda s, b, h, i, j: s + t[h, i, j]),
    "factors of heads": lambda: captured(numbers(2, seed=5), lambda t: lambda s, b, h, i, j: s * t[h]),
    "one captured number": lambda: captured(numbers(1, seed=5)[0], lambda t: lambda s, b, h, i, j: s * t),
    **{
        f"heads of {width} and {columns}": lambda width=width, columns=columns: masked(
            causal, 70, 90, batch=None, width=width, columns=columns
        )
        for width, columns in ((16, 16), (24, 40), (64, 32), (192, 128), (256, 256))
    },
}

