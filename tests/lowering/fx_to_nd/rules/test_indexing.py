"""Indexing by tensors: gather, scatter, index, index_put, embedding."""

import pytest
import torch
from torch.nn import functional as F

ROWS = torch.tensor([2, 0, -1])
COLUMN = torch.tensor([[1], [0]])

INDEXED = {
    "one": lambda x: x[ROWS],
    "second": lambda x: x[:, ROWS],
    "two": lambda x: x[ROWS, torch.tensor([1, 1, 0])],
    "broadcast": lambda x: x[COLUMN, ROWS],
    "apart": lambda x: x[COLUMN, :, ROWS],
    "last": lambda x: x[..., ROWS],
    "mixed": lambda x: x[1:, None, ROWS, 0],
    "int32": lambda x: x[ROWS.int()],
    "select": lambda x: torch.index_select(x, 1, torch.tensor([0, 2])),
    "take": lambda x: torch.take(x, torch.tensor([0, 5, 3])),
    "put": lambda x: (x.put(ROWS, torch.ones(3)), x.put(ROWS.abs(), torch.ones(3), accumulate=True)),
    "take along": lambda x: torch.take_along_dim(x, x.argsort(1), 1),
}


@pytest.mark.parametrize("name", INDEXED)
def test_index(check, name):
    """N13"""
    check(INDEXED[name], torch.randn(3, 4, 5))


def test_index_of_symbolic_sizes(check):
    check(lambda x, i: (x[i], x[:, i], x.index_select(0, i)), torch.randn(4, 5), torch.tensor([1, 0, 3]), dynamic=True)


def test_gather_and_scatter(check):
    """N13, N14"""
    index = torch.tensor([[0, 1, 2], [2, 2, 0]])
    x, source = torch.randn(3, 4), torch.randn(3, 4)

    def both(x, source):
        return (
            x.gather(0, index), x.gather(1, index), x.scatter(0, index, source), x.scatter(0, index, 2.0),
            x.scatter_add(0, index, source), x.scatter_reduce(0, index, source, "amax"), x.scatter_reduce(0, index,
            source, "prod", include_self=False), x.scatter_reduce(0, index, source, "amin", include_self=False),
            x.scatter(0, index, source, reduce="add"),
        )  # fmt: skip

    check(both, x, source)
    check(
        lambda x: (x.gather(0, torch.tensor([1, 0])), x.scatter_add(0, torch.tensor([0, 0, 1]), torch.ones(3))),
        torch.randn(3),
    )


@pytest.mark.parametrize("dtype", (torch.float32, torch.int64, torch.bool))
@pytest.mark.parametrize("include_self", (True, False))
def test_scatter_reduce(check, dtype, include_self):
    """N14"""
    index = torch.tensor([[0, 1, 2], [2, 2, 0]])
    x, source = (torch.randn(3, 4) * 3).to(dtype), (torch.randn(3, 4) * 5).to(dtype)
    kinds = ("prod", "amax", "amin") if dtype == torch.bool else ("sum", "prod", "mean", "amax", "amin")
    check(lambda x, s: [x.scatter_reduce(0, index, s, k, include_self=include_self) for k in kinds], x, source)


def test_index_put(check):
    """A08, N14"""
    def put(x, v):
        a, b, c, d, e = x.clone(), x.clone(), x.clone(), x.clone(), x.clone()
        a[ROWS] = v[:3]
        b[:, torch.tensor([0, 0])] = 3.0
        c.index_put_((torch.tensor([0, 0, 1]),), v[:3], accumulate=True)
        d[d > 0] = 0.0
        e[torch.tensor([True, False, True])] = 1.0
        f = x.index_add(0, torch.tensor([0, 2, 0]), v[:3], alpha=2)
        g = x.index_copy(1, torch.tensor([3, 1]), v[:3, :2])
        return a, b, c, d, e, f, g, x.index_fill(0, torch.tensor([1, -1]), 9.0)

    check(put, torch.randn(3, 4), torch.randn(4, 4))


def test_embedding(check):
    ids = torch.tensor([[1, 2, 0], [0, 3, 3]])
    check(lambda w: (F.embedding(ids, w), F.embedding(ids, w, padding_idx=0)), torch.randn(4, 5))

    check(torch.func.grad(lambda w: F.embedding(ids, w, padding_idx=3).pow(2).sum()), torch.randn(4, 5))


def test_masks_with_unknown_sizes_are_library_calls(check):
    found = check(lambda x: x.masked_fill(x > 0, 0.0), torch.randn(5))
    assert found.counts.extern == 0


def test_out_of_range_is_an_error(imported, compare):
    """G11, NR-05"""
    found = imported(lambda x, i: x[i], torch.randn(3), torch.tensor([1, 2]))
    with pytest.raises(IndexError):
        compare(lambda x, i: x, found, (torch.randn(3), torch.tensor([1, 3])))


@pytest.mark.parametrize("dtype", (torch.float32, torch.int64, torch.bfloat16))
@pytest.mark.parametrize("include_self", (True, False))
def test_index_reduce(check, dtype, include_self):
    index = torch.tensor([2, 0, 2, 2])
    x, source = (torch.randn(3, 5, 2) * 3).to(dtype), (torch.randn(3, 4, 2) * 5).to(dtype)
    kinds = ("prod", "mean", "amax", "amin")
    found = check(
        lambda x, s: [x.index_reduce(1, index, s, k, include_self=include_self) for k in kinds], x, source,
        rtol=0.02, atol=0.05,
    )  # fmt: skip
    assert not found.counts.extern


def test_masked_scatter(check):
    def program(x, mask, source):
        result, pull = torch.func.vjp(lambda x, s: x.masked_scatter(mask, s), x, source)
        return result, *pull(result.sin())

    mask = torch.rand(3, 4) > 0.5
    check(program, torch.randn(3, 4), mask, torch.randn(20))
    check(program, torch.randn(3, 4), mask[0], torch.randn(12))
    check(lambda x, m, s: x.masked_scatter(m, s), torch.randn(3, 4), mask, torch.randn(4, 5), dynamic=True, grow=False)
    every, none = torch.ones(3, 4, dtype=torch.bool), torch.zeros(3, 4, dtype=torch.bool)
    check(program, torch.randn(3, 4), every, torch.randn(12))
    check(lambda x, m: x.masked_scatter(m, x.new_zeros(0)), torch.randn(3, 4), none)
    found = check(program, torch.randn(0, 4), mask[:0], torch.randn(2))
    assert not found.counts.extern


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
def test_sums_of_16_bits_that_are_scattered_are_rounded_once(dtype):
    """Many numbers to one place: with a rounding each, the error is that of the largest sum on the way, many times over."""
    index, x, values = torch.arange(400) % 3, torch.randn(3, 4).to(dtype), torch.rand(400, 4).to(dtype)
    each = index[:, None].repeat(1, 4)

    def sums(x, values):
        return (
            x.index_add(0, index, values), x.index_put((index,), values, accumulate=True), x.put(each * 4, values, accumulate=True),
            x.scatter_add(0, each, values), x.scatter_reduce(0, each, values, "mean"),
        )  # fmt: skip

    for got, want in zip(torch.compile(sums, backend="stepwell")(x, values), sums(x.double(), values.double()), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps)
