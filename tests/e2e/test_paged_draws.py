"""N29: attention of a few rows by a cache of pages, as drawn: page tables that pick pages, or that FlexAttention's block lists name; heads
that share keys, values of another width, sequences of any length, also of none; on the CPU and on an interpreted GPU."""

from __future__ import annotations

import math
import random

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.experimental._paged_attention import PagedAttention
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import stepwell

from ..passes.gpu.test_gpu_attention_spellings import as_on_a_gpu, interpreted  # noqa: F401

SEEDS = {"cpu": (4, 6, 7), "gpu": (100,)}
WIDTHS = (16, 24, 32, 64, 80, 128, 256)

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh")]


class Draw:
    """A program and its inputs: queries (batch, heads, rows, width), pages (pages, page, shared heads, width) of keys and of values, the
    pages of each sequence, and its length."""

    def __init__(self, seed: int, on_gpu: bool):
        draw, rng = random.Random(seed), torch.Generator().manual_seed(seed)
        self.dtype = torch.bfloat16 if on_gpu or draw.random() < 0.4 else torch.float32
        self.batch, shared, self.ratio = draw.choice((1, 2, 3)), draw.choice((1, 2, 3)), draw.choice((1, 2, 4, 8))
        self.rows, self.width = draw.choice((1, 1, 1, 1, 2, 5)), draw.choice(WIDTHS)
        of_values = draw.choice((self.width, self.width, 16, 40, 64))
        self.page, self.pages = draw.choice((8, 16, 32)), draw.choice((1, 2, 3, 7))
        self.terms, self.block = self.page * self.pages, 128 if seed % 2 == 0 else (16, 16)
        self.form = draw.choice(("index", "select", "sdpa", "flex", "paged", "cat"))
        self.causal, self.cap, self.dynamic = draw.random() < 0.3, draw.choice((None, None, 20.0)), draw.choice((None, None, True))
        count = self.pages * self.batch + 3

        def numbers(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=rng).to(self.dtype)

        pages = [numbers(count, self.page, shared, n) for n in (self.width, of_values)]
        table = torch.randperm(count, generator=rng)[: self.pages * self.batch].view(self.batch, self.pages)
        lengths = torch.randint(0 if draw.random() < 0.3 else 1, self.terms + 1, (self.batch,), generator=rng)
        self.inputs = [numbers(self.batch, shared * self.ratio, self.rows, self.width), *pages, table, lengths]

    def gathered(self, k, v, table):
        """(batch, shared heads, terms, width) each."""
        pick = (lambda x: torch.index_select(x, 0, table.reshape(-1))) if self.form == "select" else lambda x: x[table]
        return [pick(x).reshape(self.batch, self.terms, *x.shape[2:]).transpose(1, 2) for x in (k, v)]

    def sees(self, lengths, i, j):
        """Whether a row sees a term of a sequence; the last row stands at its end."""
        return (j < lengths) & (j <= lengths - self.rows + i) if self.causal else j < lengths

    def spelled(self, q, k, v, table, lengths):
        k, v = (x.repeat_interleave(self.ratio, 1) for x in self.gathered(k, v, table))
        if self.form == "cat":
            k, v = (torch.cat([x[:, :, : self.page // 2], x[:, :, self.page // 2 :]], 2) for x in (k, v))
        seen = self.sees(lengths[:, None, None, None], torch.arange(self.rows)[:, None], torch.arange(self.terms))
        if self.form == "sdpa":
            return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.where(seen, 0.0, -1e9).to(q.dtype))
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        scores = (q.to(wide) @ k.to(wide).mT) * self.width**-0.5
        scores = torch.tanh(scores / self.cap) * self.cap if self.cap else scores
        return torch.ops.aten._safe_softmax(torch.where(seen, scores, -math.inf), -1).to(v.dtype) @ v

    def called(self):
        if self.form not in ("flex", "paged"):
            return self.spelled
        *_, table, lengths = self.inputs
        score = (lambda s, b, h, i, j: torch.tanh(s / self.cap) * self.cap) if self.cap else None
        block = (self.page, self.page) if self.form == "paged" else self.block
        sizes = (self.batch, None, self.rows, self.terms)
        mask = create_block_mask(lambda b, h, i, j: self.sees(lengths[b], i, j), *sizes, device="cpu", BLOCK_SIZE=block)
        if self.form == "paged":
            paged = PagedAttention(self.inputs[1].shape[0], self.page, self.batch, device="cpu")
            paged.page_table[:, : self.pages] = table
            for b in range(self.batch):
                paged.physical_to_logical[b, table[b]] = torch.arange(self.pages)
            mask, score = paged.convert_logical_block_mask(mask), paged.get_score_mod(score) if score else None

        def attend(q, k, v, table, lengths):
            k, v = [x.flatten(0, 1).transpose(0, 1)[None] for x in (k, v)] if self.form == "paged" else self.gathered(k, v, table)
            return flex_attention(q, k, v, score_mod=score, block_mask=mask, enable_gqa=self.ratio > 1)

        return attend


def compare(seed, on_gpu=False):
    draw = Draw(seed, on_gpu)
    print(f"seed {seed}: {draw.form}, {[tuple(x.shape) for x in draw.inputs]}, lengths {draw.inputs[-1].tolist()}")
    wide = [x.double() if x.is_floating_point() else x for x in draw.inputs]
    exact, eager = draw.spelled(*wide), draw.spelled(*draw.inputs)
    options = {"cache": "off"}
    got = torch.compile(draw.called(), backend="stepwell", dynamic=draw.dynamic, fullgraph=True, options=options)(*draw.inputs)
    assert got.shape == eager.shape and got.dtype == eager.dtype and not stepwell.counters["fallback"]
    found, given = ((x.double() - exact).norm() for x in (got, eager))
    assert found <= 1.2 * given + (2e-7 if draw.dtype == torch.float32 else 2e-3) * exact.norm()


@pytest.mark.parametrize("seed", SEEDS["cpu"])
def test_on_the_cpu(seed):
    compare(seed)


@pytest.mark.parametrize("seed", SEEDS["gpu"])
def test_on_an_interpreted_gpu(seed, interpreted):  # noqa: F811
    compare(seed, on_gpu=True)
