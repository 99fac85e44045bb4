"""AOT-03: attention in training on the CPU keeps no scores but what the last cache holds: backward computes them, and dropout, again."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention

import stepwell
from stepwell.lowering.fx.joint.repeated_scores import HALVES, KERNELS, ScoreKernels, kernels_for

ROWS, TERMS, WIDTH = 70, 90, 16
SCORES = 6 * ROWS * TERMS
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    """All scores are computed again, however few."""
    torch._dynamo.reset()
    stepwell.reset_counters()
    monkeypatch.setitem(KERNELS, "nd-weigh-rows", ScoreKernels((torch.float32, *HALVES), 1))


@pytest.fixture
def kept(saved_tensors):
    """Tensors with as many elements as there are scores that forward keeps for backward, a list for each graph."""
    return saved_tensors(lambda made, given: [k for k, t in {**given, **made}.items() if t.numel() == SCORES])


def shown(scores):
    """Scores that are hidden from a row are -inf; the first rows see nothing."""
    hidden = torch.arange(TERMS) + 3 > torch.arange(ROWS)[:, None]
    return scores.masked_fill(hidden, -math.inf)


def spelled(q, k, v):
    return F.dropout(torch.softmax(20 * torch.tanh(q @ k.mT / 40), -1), 0.3) @ v


def called(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, dropout_p=0.3)


def masked(q, k, v):
    seen = torch.arange(TERMS) + 3 <= torch.arange(ROWS)[:, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=0.3)


WEIGHTS = {
    spelled: lambda q, k: torch.softmax(20 * torch.tanh(q @ k.mT / 40), -1),
    called: lambda q, k: torch.softmax(q @ k.mT * WIDTH**-0.5, -1),
    masked: lambda q, k: torch.ops.aten._safe_softmax(shown(q @ k.mT * WIDTH**-0.5), -1),
}
QUICK = (masked, torch.float32)
CASES = [(f, t) for f in WEIGHTS for t in (torch.float32, torch.bfloat16)]
DROPPED = [pytest.param(*case, marks=() if case == QUICK else pytest.mark.long) for case in CASES]


@pytest.mark.parametrize(("function", "dtype"), DROPPED)
def test_dropout_is_drawn_again(function, dtype, kept):
    """Rows of the unit matrix show which weights are dropped, of the same seeds."""
    generator = torch.Generator().manual_seed(1)
    q, k, v, seed = (torch.randn(2, 3, n, WIDTH, generator=generator).to(dtype) for n in (ROWS, TERMS, TERMS, ROWS))
    compiled = torch.compile(function, backend="stepwell", fullgraph=True, dynamic=False)

    def drawn(*args):
        torch.manual_seed(5)
        return compiled(*(x.requires_grad_() for x in args))

    unit = torch.eye(TERMS, dtype=dtype).expand(2, 3, TERMS, TERMS).contiguous()
    keep = (drawn(q, k, unit) != 0).double() / 0.7
    got = drawn(q, k, v)
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    want = (WEIGHTS[function](*exact[:2]) * keep) @ exact[2]
    pairs = [(got, want)]
    pairs += zip(torch.autograd.grad(got, (q, k, v), seed), torch.autograd.grad(want, exact, seed.double()), strict=True)
    for a, b in pairs:
        assert (a.double() - b).norm() < (1e-6 if dtype == torch.float32 else 1e-2) * b.norm()
    assert 0.6 < (keep[WEIGHTS[function](*exact[:2]) > 0] > 0).double().mean() < 0.8
    assert kept[1] == [] and not stepwell.counters["fallback"]


def of_bias(q, k, v, bias):
    return torch.softmax(q @ k.mT * 0.1 + bias, -1) @ v


def of_table(q, k, v, table):
    away = torch.arange(ROWS)[:, None] - torch.arange(TERMS) + TERMS
    return torch.softmax(q @ k.mT * 0.1 + table[away].permute(2, 0, 1), -1) @ v


def of_function(q, k, v, table):
    """Torch takes no gradients of queries, keys and values on the CPU."""
    q, k, v = (x.detach() for x in (q, k, v))
    return flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score * 0.5 + table[i - j + TERMS, h])


def of_positions(q, k, v, of_key):
    """Contents against positions, and positions against contents (DeBERTa)."""
    away = (torch.arange(ROWS)[:, None] - torch.arange(TERMS)).clamp(-16, 15) + 16
    seen = torch.gather(q @ of_key.mT, -1, away.expand(2, 3, ROWS, TERMS))
    seen = seen + torch.gather(k @ of_key.mT, -1, away.mT.expand(2, 3, TERMS, ROWS)).mT
    return torch.softmax((q @ k.mT + seen) * 0.1, -1) @ v


CAPTURED = {of_bias: (3, ROWS, TERMS), of_table: (ROWS + TERMS, 3), of_function: (ROWS + TERMS, 3), of_positions: (3, 32, WIDTH)}


@pytest.mark.parametrize("function", [pytest.param(f, marks=() if f is of_table else pytest.mark.long) for f in CAPTURED])
def test_gradients_of_tables_are_added_up_by_blocks(function, kept):
    generator = torch.Generator().manual_seed(1)
    sizes = [(2, 3, n, WIDTH) for n in (ROWS, TERMS, TERMS)]
    args = [torch.randn(s, generator=generator).requires_grad_() for s in (*sizes, CAPTURED[function])]
    exact = [x.detach().double().requires_grad_() for x in args]
    wanted = 3 if function is of_function else 0
    got, want = torch.compile(function, backend="stepwell", fullgraph=True)(*args), function(*exact)
    seed = torch.randn(want.shape, generator=generator)
    given, right = torch.autograd.grad(got, args[wanted:], seed), torch.autograd.grad(want, exact[wanted:], seed.double())
    for a, b in zip((got, *given), (want, *right), strict=True):
        assert (a.double() - b).norm() < 2e-6 * b.norm()
    assert kept == [[]] and stepwell.counters["passes"]["nd-weigh-rows"]["num-weighed"] > 1 and not stepwell.counters["fallback"]


def test_few_scores_are_kept(monkeypatch):
    """Those that the last cache holds, unless torch is asked to save memory; sizes of symbols are those of the example."""
    monkeypatch.undo()
    assert kernels_for(torch.empty(1, 8, 1024, 1024, device="meta")) is None  # a device without kernels
    for sizes, many in (((1, 8, 1024, 1024), False), ((2, 8, 1024, 1024), True)):
        scores = torch.empty(1).expand(sizes)
        assert (kernels_for(scores) is not None) == many
        assert kernels_for(scores, left=("nd-weigh-rows",)) is None
        with torch._functorch.config.patch(activation_memory_budget=0.5):
            assert kernels_for(scores) is not None
