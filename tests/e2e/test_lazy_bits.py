"""Inputs that torch conjugates or negates by a bit (IN-01, MUT-01, NR-08): what kernels read, and write, is what eager does."""

import pytest
import torch

PROGRAMS = {
    "reads": lambda x: (x + 1, x.clone(), x.sum(0), x.t() * 2),
    "products and library calls": lambda x: (x @ x.t(), torch.linalg.vector_norm(x)),
    "an update": lambda x: x.add_(1).sum(),
    "an update of a view": lambda x: x.t().copy_(torch.ones(4, 3)) * 2,
    "a part of it": lambda x: x[1:, ::2].mul_(3).abs(),
}
INPUTS = {
    "conjugated": lambda: torch.randn(3, 4, dtype=torch.complex64).conj(),
    "conjugated, transposed": lambda: torch.randn(4, 3, dtype=torch.complex128).t().conj(),
    "negated": lambda: torch.randn(3, 4, dtype=torch.complex64).conj().imag,
    "negated, part of another": lambda: torch.randn(5, 6, dtype=torch.complex64)[1:4, 2:].conj().imag,
}


@pytest.mark.spread
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_a_bit_says(program, kind, dynamic, fresh):
    torch.manual_seed(1)
    given = INPUTS[kind]()
    torch.manual_seed(1)
    again = INPUTS[kind]()
    want = PROGRAMS[program](again)
    got = torch.compile(PROGRAMS[program], backend="stepwell", dynamic=dynamic)(given)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(given, again)
    assert given.is_conj() == again.is_conj() and given.is_neg() == again.is_neg()


def test_expanded_and_empty(fresh):
    for x in (torch.randn(1, 4, dtype=torch.complex64).conj().expand(3, 4), torch.zeros(0, 3, dtype=torch.complex64).conj().imag):
        torch.testing.assert_close(torch.compile(lambda x: x * 2, backend="stepwell")(x), x * 2)


def test_gradients(fresh):
    x = torch.randn(3, 4, dtype=torch.complex64)

    def loss(x):
        return (x * x.conj()).real.sum() + x.imag.exp().sum()

    found = []
    for f in (torch.compile(loss, backend="stepwell"), loss):
        leaf = x.clone().requires_grad_()
        found += torch.autograd.grad(f(leaf.conj()), leaf)
    torch.testing.assert_close(*found)
