"""Attention of models that are not plain: T5, Swin, Gemma 2, ALiBi, DeBERTa, GPT-OSS and others, as layers. No kernel stores scores."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from .test_gpu_attention_spellings import as_on_a_gpu, graphs_of, stored  # noqa: F401

BATCH, LENGTH, HEADS, WIDTH = 2, 1024, 8, 64
BF16 = torch.bfloat16


class Layer(nn.Module):
    """Projections around an attention of heads."""

    def __init__(self, groups: int = HEADS):
        super().__init__()
        self.query, self.output = (nn.Linear(HEADS * WIDTH, HEADS * WIDTH, bias=False, dtype=BF16) for _ in range(2))
        self.key, self.value = (nn.Linear(HEADS * WIDTH, groups * WIDTH, bias=False, dtype=BF16) for _ in range(2))

    def forward(self, x, *others):
        q, k, v = (f(x).unflatten(-1, (-1, WIDTH)).transpose(1, 2) for f in (self.query, self.key, self.value))
        return self.output(self.attention(q, k, v, *others).transpose(1, 2).flatten(2))


class T5(Layer):
    """Buckets of relative positions, whose biases are trained."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(32, HEADS, dtype=BF16)

    def bias(self, n):
        away = torch.arange(n) - torch.arange(n)[:, None]
        far = away.abs()
        log = 8 + (torch.log(far.float() / 8) / math.log(128 / 8) * 8).long().clamp(max=7)
        return self.table((away > 0) * 16 + torch.where(far < 8, far, log)).permute(2, 0, 1)

    def attention(self, q, k, v):
        scores = q @ k.mT + self.bias(q.shape[2])
        weights = F.dropout(F.softmax(scores.float(), -1).type_as(scores), 0.1)
        return weights @ v


class Swin(Layer):
    """Windows with a table of relative positions, and regions that do not see each other."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn((2 * 16 - 1) ** 2, HEADS) * 0.02)
        at = torch.stack(torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")).flatten(1)
        away = at[:, :, None] - at[:, None, :] + 15
        self.register_buffer("places", away[0] * 31 + away[1])

    def attention(self, q, k, v, mask):
        n = q.shape[2]
        scores = (q * WIDTH**-0.5) @ k.mT + self.table[self.places.view(-1)].view(n, n, HEADS).permute(2, 0, 1)
        windows = mask.shape[0]
        scores = scores.view(-1, windows, HEADS, n, n) + mask[:, None]
        return torch.softmax(scores.view(-1, HEADS, n, n), -1).to(v.dtype) @ v


class Gemma2(Layer):
    """Soft caps, heads that share keys, a window."""

    def __init__(self):
        super().__init__(groups=HEADS // 2)

    def attention(self, q, k, v):
        k, v = (x[:, :, None].expand(-1, -1, 2, -1, -1).reshape(q.shape) for x in (k, v))
        scores = torch.tanh((q @ k.mT) * WIDTH**-0.5 / 50.0) * 50.0
        ahead = torch.arange(q.shape[2])[:, None] - torch.arange(q.shape[2])
        mask = torch.where((ahead >= 0) & (ahead < 256), 0.0, torch.finfo(BF16).min)
        return F.softmax(scores + mask.to(BF16), dim=-1, dtype=torch.float32).to(v.dtype) @ v


class Alibi(Layer):
    """Slopes times distances, and padding."""

    def attention(self, q, k, v, there):
        b, h, n, d = q.shape
        slopes = torch.exp2(-torch.arange(1, h + 1) * 8.0 / h)
        alibi = (slopes[:, None] * ((there.cumsum(-1) - 1) * there)[:, None]).reshape(b * h, 1, n).to(q.dtype)
        scores = alibi.baddbmm(q.reshape(b * h, n, d), k.reshape(b * h, n, d).mT, beta=1.0, alpha=d**-0.5).view(b, h, n, n)
        hidden = ~there[:, None, None].bool() | torch.ones(n, n, dtype=torch.bool).triu(1)
        scores = scores.float().masked_fill(hidden, torch.finfo(torch.float32).min)
        return torch.bmm(F.softmax(scores, -1).to(v.dtype).view(b * h, n, n), v.reshape(b * h, n, d)).view(b, h, n, d)


class LearnedAlibi(Layer):
    """Slopes that are trained times distances, causal."""

    def __init__(self):
        super().__init__()
        self.slopes = nn.Parameter(torch.exp2(-torch.arange(1, HEADS + 1) * 8.0 / HEADS))

    def attention(self, q, k, v):
        at = torch.arange(q.shape[2])
        scores = (q @ k.mT) * WIDTH**-0.5 + self.slopes[:, None, None] * (at - at[:, None])
        return torch.softmax(scores.masked_fill(at > at[:, None], -math.inf), -1).to(v.dtype) @ v


class Deberta(Layer):
    """Contents against positions, and positions against contents, both gathered."""

    def __init__(self):
        super().__init__()
        self.positions = nn.Parameter(torch.randn(2 * 64, HEADS * WIDTH, dtype=BF16))

    def attention(self, q, k, v):
        n, scale = q.shape[2], (3 * WIDTH) ** -0.5
        of_key, of_query = (f(self.positions).unflatten(-1, (-1, WIDTH)).transpose(0, 1) for f in (self.key, self.query))
        away = (torch.arange(n)[:, None] - torch.arange(n)).clamp(-64, 63) + 64
        seen = torch.gather(q @ of_key.mT, -1, away.expand(*q.shape[:2], n, n))
        seen = seen + torch.gather(k @ of_query.mT, -1, away.mT.expand(*q.shape[:2], n, n)).mT
        return torch.softmax((q @ k.mT + seen) * scale, -1) @ v


class Sinks(Layer):
    """A number of each head in the sums of its softmaxes (GPT-OSS)."""

    def __init__(self):
        super().__init__()
        self.sinks = nn.Parameter(torch.randn(HEADS, dtype=BF16))

    def attention(self, q, k, v):
        ahead = torch.arange(q.shape[2])[:, None] - torch.arange(q.shape[2])
        scores = (q @ k.mT) * WIDTH**-0.5 + torch.where((ahead >= 0) & (ahead < 128), 0.0, torch.finfo(BF16).min).to(BF16)
        scores = torch.cat([scores, self.sinks.reshape(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[2], -1)], dim=-1)
        weights = F.softmax(scores - scores.max(dim=-1, keepdim=True).values, dim=-1, dtype=scores.dtype)
        return F.dropout(weights[..., :-1], 0.1, self.training) @ v


class Differential(Layer):
    """A softmax less a trained part of another one."""

    def __init__(self):
        super().__init__()
        self.part = nn.Parameter(torch.tensor(0.2))

    def attention(self, q, k, v):
        first, second = (torch.softmax((a @ b.mT).float() * 32**-0.5, -1) for a, b in zip(q.chunk(2, -1), k.chunk(2, -1), strict=True))
        return (first - (0.5 + self.part.exp()) * second).to(v.dtype) @ v * 0.8


def inputs(model, batch=BATCH):
    torch.manual_seed(1)
    if isinstance(model, Swin):
        x = torch.randn(batch * 16, 256, HEADS * WIDTH, dtype=BF16)
        return x, torch.where(torch.rand(16, 256, 256) < 0.1, -100.0, 0.0)
    x = torch.randn(batch, LENGTH, HEADS * WIDTH, dtype=BF16)
    return (x, (torch.arange(LENGTH) < torch.tensor([[900], [LENGTH]])[:batch]).long()) if isinstance(model, Alibi) else (x,)


CASES = [(model, trains) for model in (T5, Swin, Gemma2, Alibi, LearnedAlibi, Deberta, Sinks, Differential) for trains in (True, False)]
MODELS = list(dict.fromkeys(model for model, _ in CASES))
ALONE = [pytest.param(m, marks=() if m is LearnedAlibi else pytest.mark.long) for m in MODELS]
DYNAMIC = [pytest.param(m, t, marks=() if (m, t) == (T5, True) else pytest.mark.long) for m, t in CASES]


def no_scores(model, trains, dynamic=(), batch=BATCH):
    """That no graph stores scores, nor half as much; `dynamic`: dimensions of the inputs that are symbols (of Swin the numbers of windows
    alone)."""
    made = model().train(trains)
    given = inputs(made, batch)
    for one in given:
        torch._dynamo.maybe_mark_dynamic(one, dynamic[: len(dynamic) - (model is Swin)])
    x, *others = given
    scores = x.shape[0] * HEADS * x.shape[1] ** 2
    graphs = graphs_of(made, (x.requires_grad_(trains), *others), trains)
    for gm, args in graphs:
        assert max(stored(gm, args)) < scores / 2


@pytest.mark.parametrize(("model", "trains"), CASES)
def test_no_scores_are_in_memory(model, trains, as_on_a_gpu):  # noqa: F811
    no_scores(model, trains)


@pytest.mark.parametrize("model", ALONE)
def test_one_batch_has_no_scores_in_memory_in_training(model, as_on_a_gpu):  # noqa: F811
    no_scores(model, True, batch=1)


@pytest.mark.parametrize(("model", "trains"), DYNAMIC)
def test_no_scores_of_symbols_are_in_memory(model, trains, as_on_a_gpu):  # noqa: F811
    no_scores(model, trains, (0, 1))
