"""Scatters that add up into zeros: sums of what each place gets, where that costs less than atomic operations."""

from __future__ import annotations

import pytest
import torch
from support import lower, without_data

import stepwell
from stepwell.dialects import loop
from stepwell.tools.interpret.target import InterpretedTarget

aten = torch.ops.aten


def positions(x):
    """(heads, rows, columns) -> (2 * rows, heads): by how far a column is from a row."""
    n = x.shape[1]
    i, j = torch.arange(n)[:, None], torch.arange(x.shape[2])
    return torch.zeros(n + x.shape[2], x.shape[0], dtype=x.dtype).index_put((i - j + x.shape[2],), x.permute(1, 2, 0), accumulate=True)


def antidiagonals(x):
    h, i, j = torch.arange(x.shape[0])[:, None, None], torch.arange(x.shape[1])[:, None], torch.arange(x.shape[2])
    return torch.zeros(x.shape[0], x.shape[1] + x.shape[2]).index_put((h, i + j), x, accumulate=True)


def buckets(x):
    """A table of few rows, by a function of positions that nothing is known of."""
    i, j = torch.arange(x.shape[1])[:, None], torch.arange(x.shape[2])
    return aten.embedding_dense_backward(x.permute(1, 2, 0), ((i - j).abs().float().sqrt().long() + (i > j) * 4).clamp(max=7), 8, -1, False)


def given(x, index):
    """Indices that are an input."""
    return torch.zeros(5, x.shape[0]).index_add(0, index, x[:, 0].t())


def added(x):
    """What is added to is not zero."""
    i, j = torch.arange(x.shape[1])[:, None], torch.arange(x.shape[2])
    return torch.ones(x.shape[1] + x.shape[2], x.shape[0]).index_put((i - j + x.shape[2],), x.permute(1, 2, 0), accumulate=True)


def stores(module):
    """How nests store: "set" or "add"."""
    return [op.store_mode for op in module.walk() if isinstance(op, loop.StoreOp)]


@pytest.mark.parametrize("function", [positions, antidiagonals, buckets])
def test_no_atomic_operations(function):
    module = lower(function, *without_data([torch.empty(8, 1024, 1024)], "cpu"), to="loop").module
    assert set(stores(module)) == {"set"}


def test_the_price_decides():
    """In a table of many rows each term would be compared with each of them; what is added to a tensor stays as it is."""
    x = torch.empty(8, 1024, 1024)
    assert "add" in stores(lower(added, *without_data([x], "cpu"), to="loop").module)

    def rows(x, index):
        return torch.zeros(50000, 8).index_add(0, index, x)

    def gathered(x):
        """DeBERTa's gradients of positions: few terms of each sum count."""
        i = torch.arange(x.shape[-1])
        return torch.zeros(*x.shape[:-1], 128).scatter_add(-1, ((i[:, None] - i).clamp(-64, 63) + 64).expand(x.shape), x)

    assert "add" in stores(lower(gathered, *without_data([x], "cpu"), to="loop").module)
    many = [torch.empty(4096, 8), torch.empty(4096, dtype=torch.int64)]
    assert "add" in stores(lower(rows, *without_data(many, "cpu"), to="loop").module)


@pytest.fixture
def interpreted():
    stepwell.register_target(InterpretedTarget, replace=True)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    stepwell.unregister_target("interpreted")


SIZES = [(positions, 9, 13), (positions, 1, 1), (positions, 40, 1), (antidiagonals, 9, 13), (antidiagonals, 1, 5), (buckets, 60, 64)]


@pytest.mark.parametrize(("function", "rows", "columns"), SIZES)
def test_numbers(function, rows, columns, interpreted):
    x = torch.randn(3, rows, columns, generator=torch.Generator().manual_seed(rows))
    stepwell.reset_counters()
    torch.testing.assert_close(torch.compile(function, backend="stepwell")(x), function(x))
    is_sum = rows * columns > 1  # else it is no scatter
    assert stepwell.counters["passes"]["gpu-gather-sums"].get("num-sums", 0) == is_sum


@pytest.mark.long
def test_sizes_that_are_symbols(interpreted):
    compiled = torch.compile(positions, backend="stepwell", dynamic=True)
    for n in (9, 20):
        x = torch.randn(3, n, n + 4)
        torch.testing.assert_close(compiled(x), positions(x))


def test_an_index_out_of_range_is_an_error(interpreted):
    x = torch.randn(3, 2, 6)
    compiled = torch.compile(given, backend="stepwell")
    index = torch.tensor([0, 4, 4, 1, 0, 2])
    torch.testing.assert_close(compiled(x, index), given(x, index))
    with pytest.raises(Exception, match="index"):
        compiled(x, index + 1)
