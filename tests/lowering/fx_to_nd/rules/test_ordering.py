"""Sorted rows and searches in them."""

import math

import pytest
import torch


def row_values(dtype, shape=(3, 7)):
    """Few distinct values, so that there are ties; NaN, infinities and zeros of both signs among floats."""
    x = torch.randint(-3, 4, shape).to(dtype)
    if dtype.is_floating_point:
        flat = x.view(-1)
        flat[1], flat[2], flat[5], flat[8] = math.nan, -math.inf, -0.0, math.inf
        flat[9] = math.nan
    return x


@pytest.mark.spread
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool))
@pytest.mark.parametrize("descending", (False, True))
def test_sort(check, dtype, descending):
    """N22"""
    def program(x):
        return x.sort(dim=1, stable=True, descending=descending), x.argsort(dim=0, stable=True, descending=descending)

    found = check(program, row_values(dtype))
    assert not found.counts.extern


def test_sort_of_small_and_long_rows(check):
    found = check(lambda x: (x.sort(-1), x[:, :1].sort(-1), x[0, 0].sort()), torch.randn(4, 3))
    assert not found.counts.extern
    assert not check(lambda x: x.sort(1), torch.randn(2, 1024)).counts.extern
    assert check(lambda x: x.sort(0), torch.randn(1025)).counts.extern == 1
    assert check(lambda x: x.sort(0), torch.randn(300).double()).counts.extern == 1
    for dtype in (torch.int64, torch.float64, torch.int8):
        assert not check(lambda x: torch.sort(x, dim=1, stable=True), torch.ones(2, 1, dtype=dtype)).counts.extern
    check(lambda x: x.sort(-1), torch.randn(0, 3))
    check(lambda x: x.sort(0), torch.randn(0, 3))
    check(lambda x: x.sort(dim=1, stable=True), torch.randn(4, 3), dynamic=True)


def extremes(dtype):
    """Rows without equal elements: NaN, infinities, the ends of integer types."""
    x = torch.stack([torch.randperm(12) for _ in range(3)]).to(dtype) - (4 if dtype != torch.uint8 else -1)
    if dtype.is_floating_point:
        x[0, 3], x[1, 5], x[2, 0], x[2, 7] = math.nan, -math.inf, math.inf, -math.nan
    else:
        x[0, 11], x[1, 0] = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    return x


@pytest.mark.spread
@pytest.mark.parametrize(
    "dtype", (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
)
@pytest.mark.parametrize("largest", (False, True))
def test_topk(check, dtype, largest):
    """N22"""
    x = extremes(dtype)
    found = check(lambda x: [x.topk(k, 1, largest) for k in (1, 2, 4, 5, 12)] + [x.t().topk(3, 0, largest)], x)
    assert not found.counts.extern
    found = check(lambda x: x.topk(7, 1, largest).values, row_values(dtype, (3, 10)))
    assert not found.counts.extern


def test_topk_names_the_first_of_equal_elements_and_each_once(compiled):
    x = torch.full((2, 9), -math.inf)
    x[0, 4] = x[0, 2] = 1.0
    values, indices = compiled(lambda x: x.topk(5))(x)
    assert torch.equal(values, x.topk(5).values)
    assert indices.tolist() == [[2, 4, 0, 1, 3], [0, 1, 2, 3, 4]]


def test_topk_of_equal_elements_as_eager_names_them():
    x = torch.zeros(3, 40)
    program = torch.compile(lambda x: x.topk(3), backend="stepwell", options={"numerics": "eager"})
    assert torch.equal(program(x).indices, x.topk(3).indices)


def test_topk_of_other_rows_is_the_librarys(check):
    assert check(lambda x: x.topk(9), torch.randn(2, 65)).counts.extern == 1
    assert check(lambda x: x.topk(2), torch.randn(2, 65, dtype=torch.float64)).counts.extern == 1
    assert check(lambda x: x.topk(2), torch.randn(4097)).counts.extern == 1
    assert not check(lambda x: (x.topk(8), x.topk(2, 0)), torch.randn(3, 1000)).counts.extern
    check(lambda x: x.topk(0), torch.randn(3, 4))
    check(lambda x: x.topk(1), torch.randn(0, 4))
    check(lambda x: x.topk(1), torch.tensor(2.0))
    check(lambda x: x.topk(2, 1), torch.randn(5, 6), dynamic=True)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.int64))
def test_medians(check, dtype):
    """N22"""
    def program(x):
        return x.median(1).values, x.nanmedian(0).values, x.median(), x[2:].median(), x.nanmedian(), x[2:].nanmedian()

    found = check(program, row_values(dtype, (4, 6)))
    assert not found.counts.extern
    found = check(lambda x: [x.kthvalue(k, 0, keepdim=True).values for k in (1, 3, 4)], row_values(dtype, (4, 6)))
    assert not found.counts.extern


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.int64, torch.int32))
@pytest.mark.parametrize("right", (False, True))
def test_bucketize(check, dtype, right):
    """N12"""
    edges = torch.tensor([-2, -1, -1, 0, 2]).to(dtype)

    def program(x, edges):
        return torch.bucketize(x, edges, right=right), torch.bucketize(x, edges[:1], right=right, out_int32=True)

    found = check(program, row_values(dtype), edges)
    assert not found.counts.extern
    check(lambda x, e: torch.bucketize(x, e[:0], right=right), row_values(dtype), edges)
    check(lambda e: torch.bucketize(0.5, e), edges.double())


def test_buckets_of_mixed_types(check):
    edges = torch.tensor([-1.5, 0.0, 0.5])
    found = check(lambda x, e: torch.bucketize(x, e), torch.arange(-3, 4), edges)
    assert not found.counts.extern


@pytest.mark.parametrize("side", ("left", "right"))
def test_searchsorted(check, side):
    """N12"""
    rows, order = torch.randn(4, 3, 9).sort(-1)
    values = torch.randn(4, 3, 5)
    found = check(lambda r, v: torch.searchsorted(r, v, side=side), rows, values)
    assert not found.counts.extern
    back = order.argsort(-1)
    shuffled = rows.gather(-1, back)
    check(lambda r, v, o: torch.searchsorted(r, v, side=side, sorter=o), shuffled, values, order)
    check(lambda r, v: torch.searchsorted(r[0, 0], v, side=side), rows, values)
