"""Orthogonal polynomials of a known degree."""

import pytest
import torch

NAMES = (
    "chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w "
    "shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v "
    "shifted_chebyshev_polynomial_w hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l legendre_polynomial_p"
).split()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_degrees(check, name, dtype):
    """From none to many, inside of (-1, 1), at its ends and outside."""
    fn = getattr(torch.special, name)
    x = torch.tensor([-1.5, -1.0, -0.9, -0.3, 0.0, 0.2, 0.5, 0.8, 1.0, 1.25], dtype=dtype)
    close = {"rtol": 2e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-9}
    found = check(lambda x: tuple(fn(x, n) for n in (-1, 0, 1, 2, 3, 5, 6, 9, 12)), x, **close)
    assert not found.counts.extern


def test_integers_and_sizes(check):
    check(lambda i: torch.special.legendre_polynomial_p(i, 3), torch.arange(-2, 3))
    check(lambda x: torch.special.hermite_polynomial_h(x, 4), torch.randn(3, 4).t(), dynamic=True)
    check(lambda x: torch.special.chebyshev_polynomial_t(x, 4), torch.randn(0, 3))


def test_a_degree_that_is_a_tensor_is_a_call(check):
    found = check(torch.special.laguerre_polynomial_l, torch.rand(4), torch.tensor([0, 1, 2, 5]))
    assert found.counts.extern == 1
    assert check(lambda x: torch.special.legendre_polynomial_p(x, 1000), torch.rand(4)).counts.extern == 1
