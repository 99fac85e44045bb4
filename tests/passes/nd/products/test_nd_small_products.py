"""Products of small matrices as sums of a nest: values against eager, gradients, dynamic and empty sizes."""

from __future__ import annotations

import pytest
import torch

import stepwell

TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float32: 1e-5, torch.float64: 1e-12}


def product(a, b):
    return a @ b


def turned(a, b):
    return (a @ b.mT.contiguous().mT + 1).mT


def from_strided(a, b):
    return a.mT.contiguous().mT @ b[..., ::1]


def chain(a, b):
    return torch.relu(a @ b - a.sum(-1, keepdim=True)) @ b.mT


def compiled(function, *args, dynamic=False, **options):
    torch._dynamo.reset()
    return torch.compile(function, backend="stepwell", dynamic=dynamic, options=options)(*args)


@pytest.mark.parametrize(
    "function, batch, m, k, n, dtype",
    [
        (product, (70,), 3, 3, 3, torch.float32),
        (product, (5, 9), 1, 4, 2, torch.bfloat16),
        (turned, (40,), 5, 16, 8, torch.float64),
        (product, (64,), 4, 100, 1, torch.float16),
        (from_strided, (40,), 5, 16, 8, torch.float32),
        (chain, (70,), 3, 4, 2, torch.float32),
        (chain, (400,), 1, 1, 1, torch.bfloat16),
    ],
)
def test_values(function, batch, m, k, n, dtype):
    torch.manual_seed(1)
    a, b = torch.randn(*batch, m, k, dtype=dtype), torch.randn(*batch, k, n, dtype=dtype)
    bound = TOLERANCE[dtype] * k
    torch.testing.assert_close(compiled(function, a, b), function(a, b), rtol=bound, atol=bound)


@pytest.mark.parametrize("count", [0, 1, 65])
def test_sizes_that_are_symbols(count):
    torch.manual_seed(2)
    torch._dynamo.reset()
    f = torch.compile(product, backend="stepwell", dynamic=True)
    for rows in (count, 200):
        a, b = torch.randn(rows, 4, 3), torch.randn(rows, 3, 3)
        torch.testing.assert_close(f(a, b), a @ b)


def test_nothing_to_add_up():
    a, b = torch.randn(70, 3, 0), torch.randn(70, 0, 3)
    assert torch.equal(compiled(product, a, b), torch.zeros(70, 3, 3))


def test_gradients():
    torch.manual_seed(3)
    a, b = torch.randn(80, 3, 4, requires_grad=True), torch.randn(80, 4, 3, requires_grad=True)
    want = torch.autograd.grad((a @ b).square().sum(), (a, b))
    got = torch.autograd.grad(compiled(product, a, b).square().sum(), (a, b))
    torch.testing.assert_close(got, want)


def test_one_nest_with_its_neighbours():
    torch.manual_seed(4)
    a, b, t = torch.randn(200, 3, 3), torch.randn(200, 3, 3), torch.randn(200, 3, 1)
    stepwell.reset_counters()
    got = compiled(lambda a, b, t: torch.sin(a @ b) + t, a, b, t)
    torch.testing.assert_close(got, torch.sin(a @ b) + t)
    assert stepwell.counters["launches"] == 1
