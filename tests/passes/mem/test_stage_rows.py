"""Rows that are computed once for the columns: values of the programs that have them."""

from __future__ import annotations

import pytest
import torch


def decode(q, keys, values, table):
    k, v = keys[table].flatten(1, 2), values[table].flatten(1, 2)
    shares = torch.softmax(torch.einsum("bhd,bnhd->bhn", q, k) * 0.3, -1)
    return torch.einsum("bhn,bnhd->bhd", shares, v)


def forward_algorithm(scores, moves):
    a = scores[:, 0]
    for t in range(1, 5):
        a = torch.logsumexp(a[:, :, None] + moves, 1) + scores[:, t]
    return torch.logsumexp(a, 1)


@pytest.mark.spread
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_to_a_table_of_pages(dtype, dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(decode, backend="stepwell", dynamic=dynamic)
    tolerance = 3e-2 if dtype == torch.bfloat16 else 1e-5
    for seed, (batch, heads, size, pages) in enumerate([(3, 4, 32, 4), (2, 3, 17, 5), (1, 2, 8, 2)]):
        torch.manual_seed(seed)
        q = torch.randn(batch, heads, size, dtype=dtype)
        keys, values = (torch.randn(11, 6, heads, size, dtype=dtype) for _ in range(2))
        table = torch.randint(-11, 11, (batch, pages))
        torch.testing.assert_close(compiled(q, keys, values, table), decode(q, keys, values, table), rtol=tolerance, atol=tolerance)


def test_an_index_beyond_the_pages_is_an_error():
    torch._dynamo.reset()
    q, keys = torch.randn(1, 2, 8), torch.randn(11, 6, 2, 8)
    with pytest.raises(Exception, match="index"):
        torch.compile(decode, backend="stepwell")(q, keys, keys, torch.tensor([[11, 3]]))


@pytest.mark.spread
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("tags", [3, 12, 40])
def test_forward_algorithm(tags, dynamic):
    torch._dynamo.reset()
    torch.manual_seed(tags)
    scores, moves = torch.randn(6, 5, tags), torch.randn(tags, tags)
    got = torch.compile(forward_algorithm, backend="stepwell", dynamic=dynamic)(scores, moves)
    torch.testing.assert_close(got, forward_algorithm(scores, moves), rtol=1e-5, atol=1e-5)
