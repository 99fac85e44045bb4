"""Contractions whose operands are shared by several entries of the batch."""

from __future__ import annotations

import pytest
import torch

import stepwell


def scores(q, k):
    """Three ways to write that four heads share the keys of one."""
    repeated = k[:, :, None].expand(-1, -1, 4, -1, -1).reshape(k.shape[0], 12, 50, 40)
    return q @ repeated.transpose(2, 3), q @ k.repeat_interleave(4, 1).mT, torch.bmm(q.flatten(0, 1), repeated.mT.flatten(0, 1))


@pytest.mark.parametrize("queries, batch, dynamic", [(1, 1, False), (3, 2, False), (1, 2, True), (5, 0, False)])
def test_heads_that_share_keys(queries, batch, dynamic):
    """Grouped queries: keys are read where they lie, not repeated in memory."""
    torch.manual_seed(1)
    q, k = torch.randn(batch, 12, queries, 40), torch.randn(batch, 3, 50, 40)
    torch._dynamo.reset()
    stepwell.reset_counters()
    got = torch.compile(scores, backend="stepwell", dynamic=dynamic)(q, k)
    for x, want in zip(got, scores(q, k), strict=True):
        torch.testing.assert_close(x, want, rtol=1e-4, atol=1e-4)
    if batch == 1:
        assert stepwell.counters["launches"] <= 3


@pytest.mark.parametrize("rows", [1, 4])
def test_a_matrix_that_a_batch_shares(rows):
    """Entries of the batch become rows, where these follow each other and where they do not; with strided results too."""
    torch.manual_seed(2)
    x, w = torch.randn(6, 7, rows, 40), torch.randn(1, 7, 40, 36)
    f = lambda x, w: (x.transpose(0, 1) @ w[0][:, None], (x[:, :3] @ w[:, :1]).transpose(0, 1))  # noqa: E731
    for got, want in zip(torch.compile(f, backend="stepwell")(x, w), f(x, w), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
