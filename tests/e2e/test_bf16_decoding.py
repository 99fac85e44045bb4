"""Greedy decoding in bf16: where logits come near to each other, whose token it is."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

TOKENS, LENGTH = 12, 16


class Layer(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.one, self.two = heads, nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(2 * width, width, bias=False)
        self.register_buffer("keys", torch.zeros(1, heads, LENGTH, width // heads))
        self.register_buffer("values", torch.zeros(1, heads, LENGTH, width // heads))

    def forward(self, x, place, mask):
        q, k, v = (z.unflatten(-1, (self.heads, -1)).transpose(1, 2) for z in self.qkv(self.one(x)).chunk(3, -1))
        self.keys.index_copy_(2, place, k)
        self.values.index_copy_(2, place, v)
        x = x + self.out(F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask).transpose(1, 2).flatten(2))
        gate, value = self.up(self.two(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * value)


class Decoder(nn.Module):
    def __init__(self, width: int = 64, heads: int = 4, layers: int = 2, words: int = 500):
        super().__init__()
        self.words, self.layers = nn.Embedding(words, width), nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, word, place):
        x, mask = self.words(word), torch.arange(LENGTH)[None] <= place[:, None]
        for layer in self.layers:
            x = layer(x, place, mask)
        logits = self.head(self.norm(x))
        return logits.argmax(-1), logits


def decoded(call, words=None):
    """The words of each step and its logits; each step reads `words`, or its own."""
    word, found, logits = torch.ones(1, 1, dtype=torch.long), [], []
    with torch.no_grad():
        for step in range(TOKENS):
            best, values = call(word, torch.tensor([step]))
            found.append(best.clone())
            logits.append(values.double().flatten())
            word = found[-1] if words is None else words[step]
    return torch.cat(found).flatten(), torch.stack(logits)


def test_logits_are_as_near_to_float64_as_eagers():
    """A word differs from eager's only where the two logits are equal in eager or a rounding apart."""
    torch._dynamo.reset()
    ours = Decoder().bfloat16().eval()
    compiled = torch.compile(ours, backend="stepwell", fullgraph=True)
    off = torch.zeros(2, dtype=torch.float64)
    for seed in range(6):
        torch.manual_seed(seed)
        eager = Decoder().bfloat16().eval()
        ours.load_state_dict(eager.state_dict())
        exact = copy.deepcopy(eager).double()
        words, theirs = decoded(eager)
        given = words.view(-1, 1, 1)
        found, own = decoded(compiled, given)
        _, truth = decoded(exact, given)
        off += torch.stack([(own - truth).square().sum(), (theirs - truth).square().sum()])
        assert torch.equal(found, own.argmax(-1))
        for step in (found != words).nonzero().flatten().tolist():
            a, b = theirs[step, words[step]], theirs[step, found[step]]
            assert a - b <= 4 * a.abs() * torch.finfo(torch.bfloat16).eps, f"seed {seed}, step {step}"
    assert off[0].sqrt() <= 1.2 * off[1].sqrt()


@pytest.mark.parametrize("words", [7, 500, 8000])
def test_the_first_of_equal_logits_is_taken(words):
    """Also where the product before has more digits than its rounded values show."""

    def program(x, weight):
        logits = F.linear(x, weight)
        return logits.argmax(-1), logits

    torch._dynamo.reset()
    generator = torch.Generator().manual_seed(0)
    compiled = torch.compile(program, backend="stepwell", fullgraph=True)
    for _ in range(8):
        x, weight = torch.randn(3, 64, generator=generator).bfloat16(), torch.randn(words, 64, generator=generator).bfloat16()
        best = program(x, weight)[0]
        weight = torch.cat([weight, weight[best], weight[best]])[torch.randperm(words + 6, generator=generator)]
        weight = weight + 1e-4 * torch.randn(weight.shape, generator=generator).bfloat16()
        found, logits = compiled(x, weight)
        assert torch.equal(found, logits.double().argmax(-1))
