"""Powers that torch cannot trace, or traces wrongly: values, types and gradients are eager's."""

import pytest
import torch

SYMBOLIC = {
    "operator": lambda x, a: a**x,
    "function": lambda x, a: torch.pow(a, x),
    "by name": lambda x, a: torch.pow(a, exponent=x),
    "method": lambda x, a: x.__rpow__(a),
    "computed": lambda x, a: (2 * a + 1) ** (x * 2),
    "a size": lambda x, a: x.shape[0] ** x,
    "double": lambda x, a: a ** x.double(),
    "integers": lambda x, a: a ** torch.arange(3),
    "scalar": lambda x, a: a ** x[0],
    "branches": lambda x, a: torch.where(x > 1, a**x, x**a),
}


@pytest.mark.spread
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("fn", SYMBOLIC.values(), ids=SYMBOLIC)
def test_a_symbol_to_the_power_of_a_tensor(fn, grad):
    torch._dynamo.reset()
    compiled = torch.compile(fn, backend="stepwell", dynamic=True)
    for size, a in ((5, 1.75), (7, 2.25)):
        x = (torch.arange(size) / 4 + 0.5).requires_grad_(grad)
        got, want = compiled(x, a), fn(x, a)
        torch.testing.assert_close(got, want)
        assert got.dtype == want.dtype and got.requires_grad == want.requires_grad
        if want.requires_grad:
            torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x) for y in (got, want)))


def test_sixteen_bits():
    torch._dynamo.reset()
    x = (torch.arange(5) / 4 + 0.5).bfloat16()
    got = torch.compile(lambda x, a: a**x, backend="stepwell", dynamic=True)(x, 1.75)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got, 1.75**x)
