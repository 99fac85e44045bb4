"""Derivatives of the digamma function."""

import math

import pytest
import torch

POINTS = [-8.25, -7.5, -3.0, -2.5, -1.0, -0.3, 0.0, 1e-3, 0.3, 0.5, 1.0, 2.7, 9.0, 40.0, 1e4, math.inf, -math.inf, math.nan]


@pytest.mark.spread
@pytest.mark.parametrize("order", range(1, 9))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_orders(check, order, dtype):
    """On both sides of zero, at poles, near zeros of the function, at the ends of the line."""
    x = torch.tensor(POINTS, dtype=dtype)
    close = {"rtol": 5e-5, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-8}
    found = check(lambda x: torch.polygamma(order, x), x, **close)
    assert not found.counts.extern


def test_other_types_and_high_orders(check):
    check(lambda i: (torch.polygamma(1, i), torch.polygamma(2, i)), torch.arange(-3, 6))
    check(lambda x: torch.polygamma(3, x), torch.tensor([0.7, 2.0, 5.5], dtype=torch.bfloat16), rtol=2e-2, atol=1e-2)
    check(lambda x: torch.polygamma(2, x.t()), torch.rand(3, 4) + 1, dynamic=True)
    assert check(lambda x: torch.polygamma(12, x), torch.rand(3) + 1).counts.extern


def test_a_gradient_of_digamma():
    x, y = (torch.linspace(-2.3, 4, 9).requires_grad_() for _ in range(2))
    torch.compile(torch.digamma, backend="stepwell")(x).sum().backward()
    torch.digamma(y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-4)
