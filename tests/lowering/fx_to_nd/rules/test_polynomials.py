"""Orthogonal polynomials."""

import pytest
import torch

NAMES = (
    "chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w "
    "shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v "
    "shifted_chebyshev_polynomial_w hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l legendre_polynomial_p"
).split()


@pytest.mark.spread
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


DEGREES = [-2.0, -0.5, 0.0, 1.0, 1.9, 2.0, 3.0, 6.0, 7.0, 12.0, 40.0, 65.0, 130.0, 600.0, float("inf"), float("nan")]


@pytest.mark.spread
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_degrees_that_are_elements(check, name, dtype):
    x = torch.tensor([-1.5, -1.0, -0.9, -0.3, 0.0, 0.2, 0.8, 1.0, 1.01, float("inf"), float("nan")], dtype=dtype)
    close = {"rtol": 3e-4, "atol": 3e-4} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-9}
    found = check(getattr(torch.special, name), x[:-1, None], torch.tensor(DEGREES, dtype=dtype), **close)
    assert not found.counts.extern
    torch._dynamo.reset()
    got = torch.compile(getattr(torch.special, name), backend="stepwell")(x[-1:], torch.tensor([2.0, 7.0], dtype=dtype))
    assert got.isnan().all()


def test_other_degrees(check):
    """Integers, numbers that are tensors, large numbers, sizes that change."""
    p = torch.special.legendre_polynomial_p
    assert not check(torch.special.laguerre_polynomial_l, torch.rand(4), torch.tensor([0, 1, 2, 5])).counts.extern
    assert not check(lambda n: p(0.3, n), torch.tensor([0.0, 4.0, 9.0])).counts.extern
    assert not check(lambda x: p(x, 1000), torch.rand(4), rtol=1e-4, atol=1e-5).counts.extern
    check(p, torch.rand(3, 1).t(), torch.arange(3.0), dynamic=True)
    check(p, torch.rand(0, 3), torch.arange(3))


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="torch's loops have no fused multiplication and addition")
@pytest.mark.parametrize("name", [n for n in NAMES if "chebyshev" not in n])
def test_recurrences_round_as_eagers_do(name):
    """Each step rounds a product and a difference once: to the bit as torch, and no more than its error for many degrees."""
    torch.manual_seed(0)
    fn, x = getattr(torch.special, name), torch.randn(500)
    for n in (3, 9, torch.full_like(x, 9.0)):
        torch._dynamo.reset()
        assert torch.equal(torch.compile(fn, backend="stepwell")(x, n), fn(x, n))
