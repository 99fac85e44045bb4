"""N29: FlexAttention as drawn: masks with empty rows, captured tensors that are trained, heads that share keys, values of another
width, odd lengths, the logarithms of the sums, dynamic sizes; on the CPU and on an interpreted GPU."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import pytest
import torch
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import stepwell

from ..passes.gpu.test_gpu_attention_spellings import as_on_a_gpu, interpreted  # noqa: F401

LENGTHS, WIDTHS = (1, 3, 17, 40, 64, 97), (16, 24, 32, 64, 80, 128, 256)
QUICK, LONG = {"cpu": (4,), "gpu": ()}, {"cpu": range(30, 35), "gpu": (1005, 1040)}
CAPTURED = {"alibi": "slopes", "by key": "places", "by distance": "places", "by head": "bias"}

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("trainable")]


@pytest.fixture
def trainable(monkeypatch):
    """torch refuses to train on the CPU before a backend sees the program; the operator and its gradients work."""
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)


@dataclass
class Draw:
    """A program and its inputs. `captured`: tensors that score functions read, `trained` those of them that have gradients."""

    seed: int
    on_gpu: bool
    captured: dict[str, torch.Tensor] = field(default_factory=dict, repr=False)

    def __post_init__(self):
        draw, rng = random.Random(self.seed), torch.Generator().manual_seed(self.seed)
        self.dtype = torch.bfloat16 if self.on_gpu or draw.random() < 0.3 else torch.float32
        groups, self.ratio = draw.choice((1, 2, 3)), draw.choice((1, 1, 2, 4))
        self.batch, self.heads = draw.choice((1, 2, 3)), groups * self.ratio
        self.rows, self.terms = draw.choice(LENGTHS[1:]), draw.choice(LENGTHS)
        width, of_values = draw.choice(WIDTHS[: 6 if self.on_gpu else 7]), draw.choice(WIDTHS[:4])
        sizes = [(self.heads, self.rows, width), (groups, self.terms, width), (groups, self.terms, of_values)]
        self.inputs = [torch.randn(self.batch, *size, generator=rng).to(self.dtype) for size in sizes]
        self.inputs[0] = self.inputs[0].transpose(1, 2).contiguous().transpose(1, 2)
        self.mask, self.score = draw.choice(("none", "causal", "window", "documents", "some rows", "padding")), draw.choice(list(SCORES))
        self.trains, self.logs = draw.random() < 0.7, draw.random() < 0.4
        self.scale, self.dynamic = draw.choice((None, 0.3)), draw.choice((None, None, True))
        self.window, self.ends = draw.randint(1, 40), torch.randint(0, self.terms + 1, (self.batch,), generator=rng)
        self.captured = {
            "slopes": torch.randn(self.heads, generator=rng) * 0.1,
            "places": torch.randn(2 * max(LENGTHS), generator=rng),
            "bias": torch.randn(self.batch, self.heads, generator=rng),
        }
        self.trained = [CAPTURED[self.score]] if self.trains and self.score in CAPTURED and draw.random() < 0.5 else []

    def sees(self, b, h, i, j):
        """Whether a row sees a term."""
        forms = {
            "causal": lambda: i >= j,
            "window": lambda: (i - j).abs() <= self.window,
            "documents": lambda: i // 20 == j // 20,
            "some rows": lambda: (i >= j) & (i % 3 != 0),
            "padding": lambda: j < self.ends[b],
        }
        return forms[self.mask]()

    def scores(self, s, b, h, i, j):
        return SCORES[self.score](self.captured, s, b, h, i, j)

    def called(self, q, k, v):
        sizes = (self.batch, None, self.rows, self.terms)
        mask = None if self.mask == "none" else create_block_mask(lambda b, h, i, j: self.sees(b, h, i, j), *sizes, device="cpu")
        return lambda q, k, v: flex_attention(
            q, k, v, score_mod=self.scores, block_mask=mask, scale=self.scale, enable_gqa=self.ratio > 1, return_lse=self.logs
        )

    def exact(self, q, k, v):
        """The same with all scores in memory."""
        k, v = (x.repeat_interleave(self.ratio, 1) for x in (k, v))
        wide = q.dtype if q.dtype == torch.float64 else torch.float32
        b, h, i, j = torch.meshgrid(*map(torch.arange, (self.batch, self.heads, self.rows, self.terms)), indexing="ij")
        s = self.scores(q.to(wide) @ k.to(wide).mT * (self.scale or q.shape[-1] ** -0.5), b, h, i, j)
        if self.mask != "none":
            s = torch.where(self.sees(b, h, i, j), s, -math.inf)
        dead = (s == -math.inf).all(-1, keepdim=True)
        top = s.amax(-1, keepdim=True).masked_fill(dead, 0.0).detach()
        weights = torch.exp(s - top)
        total = torch.where(dead, 1, weights.sum(-1, keepdim=True))
        out = (weights / total).to(v.dtype) @ v
        return (out, torch.where(dead, -math.inf, top + total.log())[..., 0]) if self.logs else out


SCORES = {
    "none": lambda t, s, b, h, i, j: s,
    "alibi": lambda t, s, b, h, i, j: s + t["slopes"][h] * (i - j),
    "by key": lambda t, s, b, h, i, j: s + t["places"][j],
    "by distance": lambda t, s, b, h, i, j: s + t["places"][i - j + max(LENGTHS)],
    "by head": lambda t, s, b, h, i, j: s * (1 + t["bias"][b, h] * 0.1),
    "softcap": lambda t, s, b, h, i, j: torch.tanh(s / 5) * 5,
    "triangle": lambda t, s, b, h, i, j: torch.where(i >= j, s, -math.inf),
}


def step(draw: Draw, function, dtype=None):
    """Results and gradients; `dtype`: of all tensors."""
    inputs = [x.detach().to(dtype or x.dtype).requires_grad_(draw.trains) for x in draw.inputs]
    for name, x in draw.captured.items():
        draw.captured[name] = x.detach().to(dtype or torch.float32).requires_grad_(name in draw.trained)
    with torch.set_grad_enabled(draw.trains):
        found = function(*inputs)
    found = list(found) if isinstance(found, tuple) else [found]
    if draw.trains:
        along = [torch.randn(x.shape, generator=torch.Generator().manual_seed(k)).to(x.dtype) for k, x in enumerate(found)]
        along = [x * torch.isfinite(y) for x, y in zip(along, found, strict=True)]
        found += torch.autograd.grad(found, [*inputs, *(draw.captured[name] for name in draw.trained)], along)
    return found


def compare(seed, on_gpu=False):
    draw = Draw(seed, on_gpu)
    print(f"seed {seed}: {draw.mask}, {draw.score}, {draw.batch} x {draw.heads} x {draw.rows} x {draw.terms}")
    torch._dynamo.reset()
    stepwell.reset_counters()
    exact, eager = step(draw, draw.exact, torch.float64), step(draw, draw.exact)
    function = torch.compile(draw.called(*draw.inputs), backend="stepwell", dynamic=draw.dynamic, fullgraph=True, options={"cache": "off"})
    got = step(draw, function)
    assert not stepwell.counters["fallback"]
    for a, b, want in zip(got, eager, exact, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype and torch.equal(torch.isfinite(a), torch.isfinite(b))
        there = torch.isfinite(b)
        found, given = ((x.double() - want)[there].norm() for x in (a, b))
        assert found <= 1.5 * given + (3e-6 if draw.dtype == torch.float32 else 1.5e-2) * want[there].norm() + 1e-6


def test_as_many_heads_as_rows():
    """Sizes that are equal by chance: a mask of each batch has as many elements as scores of each head would have of one row."""
    q, k, v = (torch.randn(2, 5, n, 24, generator=torch.Generator().manual_seed(n)) for n in (5, 40, 41))
    v = v[:, :, :40]
    mask = create_block_mask(lambda b, h, i, j: i >= j, 2, None, 5, 40, device="cpu")
    got = torch.compile(lambda q, k, v: flex_attention(q, k, v, block_mask=mask), backend="stepwell", dynamic=True)(q, k, v)
    hidden = torch.arange(5)[:, None] < torch.arange(40)
    torch.testing.assert_close(got, torch.softmax((q @ k.mT * 24**-0.5).masked_fill(hidden, -math.inf), -1) @ v)


@pytest.mark.parametrize("seed", [*QUICK["cpu"], *(pytest.param(seed, marks=pytest.mark.long) for seed in LONG["cpu"])])
def test_on_the_cpu(seed):
    compare(seed)


@pytest.mark.parametrize("seed", [*QUICK["gpu"], *(pytest.param(seed, marks=pytest.mark.long) for seed in LONG["gpu"])])
def test_on_an_interpreted_gpu(seed, interpreted):  # noqa: F811
    compare(seed, on_gpu=True)
