"""Programs that the tests of the explorer look at."""

from __future__ import annotations

import torch
from torch import nn


def scores(x, w, b):
    h = torch.nn.functional.gelu(x @ w + b)
    y = torch.softmax(h, -1)
    return (y * h).sum(1)


FIRST = scores.__code__.co_firstlineno


def scores_case():
    torch.manual_seed(0)
    return scores, torch.randn(8, 16), torch.randn(16, 32, requires_grad=True), torch.randn(32)


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        weights = torch.softmax((q @ k.transpose(-1, -2)) * (c // self.heads) ** -0.5, -1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(b, n, c))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))


def block_case():
    torch.manual_seed(0)
    return Block(), torch.randn(2, 32, 64)
