"""Products whose elements weigh rows of others: the kernels that a group is, and what each does."""

from __future__ import annotations

import pytest
import torch
from support import import_function, lower, without_data

from stepwell.dialects import nd
from stepwell.dialects.expr.ranges import RangeEnv
from stepwell.passes.cost.contraction_price import Weighing
from stepwell.passes.nd.products.carried_weights import carried_weights


def gradients(q, k, v, g, log_sums, delta):
    """Of attention by queries, keys and values, without the softmax's own steps."""
    p = (q @ k.transpose(-1, -2) - log_sums).exp()
    ds = p * (g @ v.transpose(-1, -2) - delta)
    return ds @ k, ds.transpose(-1, -2) @ q, p.transpose(-1, -2) @ g


def gradients_of_columns(q, k, v, g, log_sums, delta):
    """The same sums as columns of their products: the weights are the right factor."""
    p = (q @ k.transpose(-1, -2) - log_sums).exp()
    ds = p * (g @ v.transpose(-1, -2) - delta)
    return ds @ k, q.transpose(-1, -2) @ ds, g.transpose(-1, -2) @ p


def works(function, queries: int, keys: int, head: int) -> list[Weighing]:
    shapes = [(queries, head), (keys, head), (keys, head), (queries, head), (queries, 1), (queries, 1)]
    args = without_data([torch.empty(4, *shape, dtype=torch.bfloat16) for shape in shapes], "cpu")
    products = [op for op in import_function(function, *args).module.walk() if isinstance(op, nd.MatmulOp)]
    (group,) = carried_weights(products, RangeEnv({}))
    return list(group.works({}))


@pytest.mark.parametrize("function", [gradients, gradients_of_columns], ids=lambda f: f.__name__)
@pytest.mark.parametrize("sizes", [(512, 512), (512, 256)])
def test_sums_by_the_same_weights_are_one_kernel(function, sizes):
    """The gradients by keys and by values: what both need is read once, their columns lie side by side."""
    queries, keys = sizes
    one, other = sorted(works(function, queries, keys, 64), key=lambda work: work.columns)
    assert (one.rows, one.terms, one.depth, one.columns) == (queries, keys, 128, 64)
    assert (other.rows, other.terms, other.depth, other.columns) == (keys, queries, 128, 128)
    read = 2 * 4 * (64 * 2 * (queries + keys) + 2 * queries)
    assert (one.moved, other.moved) == (read + 2 * 4 * 64 * queries, read + 2 * 2 * 4 * 64 * keys)


def test_wide_sums_are_kernels_apart():
    """A program has no room for both."""
    assert [work.columns for work in works(gradients, 512, 512, 128)] == [128, 128, 128]


@pytest.mark.parametrize("power", [lambda x, w: x, lambda x, w: torch.softmax(x @ w, -1)], ids=["loaded", "softmax"])
def test_powers_before_a_product_are_looked_through_once(power):
    """Each square has the one before it on both sides: by every way to it, sixty would never end."""

    def function(x, w):
        x = power(x, w)
        for _ in range(60):
            x = x * x
        return x @ w

    x = torch.empty(512, 512, dtype=torch.bfloat16)
    module = lower(function, x, x, to="mem").module
    assert not any(isinstance(op, nd.MatmulOp) for op in module.walk())
