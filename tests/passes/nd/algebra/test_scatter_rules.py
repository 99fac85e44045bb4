"""y + scatter_add(zeros, i, v): the values are added to y itself, where nothing else needs either."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import stepwell


def tied(table, tokens, weights):
    x = F.embedding(tokens, table)
    return torch.softmax((x * weights) @ table.T, -1).square().sum()


def gradient(function, table, *args):
    table = table.clone().requires_grad_()
    return torch.autograd.grad(function(table, *args), table)[0]


@pytest.mark.spread
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_tied_table_has_one_gradient(dtype, dynamic):
    torch.manual_seed(0)
    table, tokens, weights = torch.randn(50, 16).to(dtype), torch.randint(50, (3, 40)), torch.randn(3, 40, 16).to(dtype)
    torch._dynamo.reset()
    got = gradient(torch.compile(tied, backend="stepwell", dynamic=dynamic), table, tokens, weights)
    want = gradient(tied, table, tokens, weights)
    torch.testing.assert_close(got, want, rtol=3e-2 if dtype == torch.bfloat16 else 1e-4, atol=3e-2 if dtype == torch.bfloat16 else 1e-5)


def written(function, *args, **settings):
    """(result, bytes written)."""
    torch._dynamo.reset()
    stepwell.reset_counters()
    return torch.compile(function, backend="stepwell", **settings)(*args), stepwell.counters["bytes_written"]


def added(y, index, v):
    return torch.zeros_like(y).index_add(0, index, v) + y * 2


def other_order(y, index, v):
    return y.exp() + torch.zeros_like(y).scatter_add(0, index[:, None].expand(-1, y.shape[1]), v)


def argument(y, index, v):
    return torch.zeros_like(y).index_add(0, index, v) + y


@pytest.mark.spread
@pytest.mark.parametrize("function", [added, other_order, argument])
@pytest.mark.parametrize("count", [0, 1, 30])
def test_values_and_bytes(function, count):
    torch.manual_seed(0)
    y, index, v = torch.randn(200, 64), torch.randint(200, (count,)), torch.randn(count, 64)
    kept = y.clone()
    got, bytes_written = written(function, y, index, v)
    torch.testing.assert_close(got, function(y, index, v))
    assert torch.equal(y, kept), "an argument is not the place of the sum"
    assert bytes_written <= 200 * 64 * 4 + max(count, 1) * 64 * 4, "the table is written once"


def used_twice(y, index, v):
    s = torch.zeros_like(y).index_add(0, index, v)
    return s + y, s


def test_what_is_needed_itself_and_eager_rounding_stay():
    torch.manual_seed(0)
    y, index, v = torch.randn(20, 8), torch.randint(20, (30,)), torch.randn(30, 8)
    for got, want in zip(written(used_twice, y, index, v)[0], used_twice(y, index, v), strict=True):
        torch.testing.assert_close(got, want)
    assert torch.equal(written(argument, y, index, v, options={"numerics": "eager"})[0], argument(y, index, v))
