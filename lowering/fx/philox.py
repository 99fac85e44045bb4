"""Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) through torch: the reference of
nd.random."""

from __future__ import annotations

import torch

from ...dialects.support.philox import KEY_STEPS, MULTIPLIERS, ROUNDS

_MASK = 0xFFFFFFFF


def random_numbers(kind: str, seed: int, offset: int, count: int) -> torch.Tensor:
    """Numbers offset, offset + 1, ... of the stream `seed`: rand (f32 in [0, 1)), randn (f32, Box and Muller) or
    randint (32 bits, i64).

    Number k is word k mod 4 of block k div 4; a normal number takes the first or the second pair of words, the cosine
    for even k and the sine for odd k."""
    numbers = torch.arange(count, dtype=torch.int64) + offset
    words = philox_words(seed, (numbers >> 2) & ((1 << 62) - 1))
    if kind == "randint":
        return _pick(words, numbers & 3)
    if kind == "rand":
        return _uniform(_pick(words, numbers & 3))
    pair = numbers & 2
    u, v = _uniform(_pick(words, pair)) + 2.0**-24, _uniform(_pick(words, pair + 1))
    angle = v * 6.283185307179586
    return torch.sqrt(torch.log(u) * -2.0) * torch.where((numbers & 1) == 1, torch.sin(angle), torch.cos(angle))


def _pick(words: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
    return words.gather(1, which.unsqueeze(1)).squeeze(1)


def _uniform(words: torch.Tensor) -> torch.Tensor:
    """The upper 24 bits as a float in [0, 1)."""
    return (words >> 8).to(torch.float32) * 2.0**-24


def philox_words(seed: int, blocks: torch.Tensor) -> torch.Tensor:
    """[n, 4] words of 32 bits in i64: the key is the seed, the counter the block's number (64 bits each, the upper two
    words 0)."""
    words = [blocks & _MASK, (blocks >> 32) & _MASK, torch.zeros_like(blocks), torch.zeros_like(blocks)]
    key = [seed & _MASK, (seed >> 32) & _MASK]
    for _ in range(ROUNDS):
        words = _round(words, key)
        key = [(k + w) & _MASK for k, w in zip(key, KEY_STEPS, strict=True)]
    return torch.stack(words, -1)


def _round(words: list[torch.Tensor], key: list[int]) -> list[torch.Tensor]:
    high0, low0 = _wide_product(words[0], MULTIPLIERS[0])
    high1, low1 = _wide_product(words[2], MULTIPLIERS[1])
    return [high1 ^ words[1] ^ key[0], low1, high0 ^ words[3] ^ key[1], low0]


def _wide_product(a: torch.Tensor, b: int) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low 32 bits of a product of 32-bit numbers, without overflow of i64."""
    low = (a & 0xFFFF) * b
    high = (a >> 16) * b
    total = low + ((high & 0xFFFF) << 16)
    return ((high >> 16) + (total >> 32)) & _MASK, total & _MASK
