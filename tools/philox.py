"""Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) through torch: the reference of nd.random."""

from __future__ import annotations

import torch

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF


def philox_words(seed: int, offset: int, count: int) -> torch.Tensor:
    """[count, 4] words of 32 bits in i64: the key is the seed, counter i is offset + i (64 bits each, the upper counter words 0)."""
    counter = torch.arange(count, dtype=torch.int64) + offset
    words = [counter & _MASK, (counter >> 32) & _MASK, torch.zeros_like(counter), torch.zeros_like(counter)]
    key = [seed & _MASK, (seed >> 32) & _MASK]
    for _ in range(10):
        words = _round(words, key)
        key = [(k + w) & _MASK for k, w in zip(key, _WEYL, strict=True)]
    return torch.stack(words, -1)


def _round(words: list[torch.Tensor], key: list[int]) -> list[torch.Tensor]:
    high0, low0 = _wide_product(words[0], _MULTIPLIERS[0])
    high1, low1 = _wide_product(words[2], _MULTIPLIERS[1])
    return [high1 ^ words[1] ^ key[0], low1, high0 ^ words[3] ^ key[1], low0]


def _wide_product(a: torch.Tensor, b: int) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low 32 bits of a product of 32-bit numbers, without overflow of i64."""
    low = (a & 0xFFFF) * b
    high = (a >> 16) * b
    total = low + ((high & 0xFFFF) << 16)
    return ((high >> 16) + (total >> 32)) & _MASK, total & _MASK
