"""Incomplete gamma functions and the zeta function."""

import pytest
import torch

FUNCTIONS = {"igamma": torch.special.gammainc, "igammac": torch.special.gammaincc, "zeta": torch.special.zeta}


@pytest.mark.spread
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_types_and_layouts(check, name, dtype):
    if name == "zeta" and dtype.itemsize == 2:
        pytest.skip("torch has none")
    x = (torch.rand(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 30 + 1.1).to(dtype)
    y = (torch.rand(7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) * 30 + 0.1).to(dtype)
    fn = FUNCTIONS[name]
    close = {torch.float32: 2e-5, torch.float64: 1e-7}.get(dtype, 1e-2)
    assert not check(fn, x, y.t(), rtol=close, atol=close * 1e-2).counts.extern
    assert not check(fn, x[0], y[:, :1].expand(7, 7), dynamic=True, rtol=close, atol=close * 1e-2).counts.extern
    assert not check(fn, x[:0], y.t()[:0]).counts.extern


def test_zeta_of_integers_and_numbers(check):
    assert not check(torch.special.zeta, torch.tensor([2, 3, 5]), torch.tensor([1, 2, -3])).counts.extern
    assert not check(lambda q: torch.special.zeta(2.5, q), torch.rand(4) + 0.5).counts.extern
    assert not check(lambda s: torch.special.zeta(s, 2), torch.rand(4) + 1.5).counts.extern


def test_a_gradient():
    a, x = torch.rand(9) * 5 + 0.1, (torch.rand(9) * 5).requires_grad_()
    y = x.detach().clone().requires_grad_()
    for fn in (torch.special.gammainc, torch.special.gammaincc):
        torch.compile(fn, backend="stepwell")(a, x).sum().backward()
        fn(a, y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
