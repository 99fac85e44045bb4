"""Sizes that guards say to be equal are one size, however torch writes them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import sympy
import torch
from torch.utils._sympy import functions as tsf

from stepwell.lowering.equal_sizes import EqualSizes

S, T = (sympy.Symbol(name, integer=True, positive=True) for name in ("s0", "s1"))
PART = tsf.FloorDiv(S, 16)
GUARDS = [
    sympy.Eq(tsf.Mod(524288 * S, 8388608), 0, evaluate=False), sympy.Eq(tsf.FloorDiv(S, PART), 16, evaluate=False),
    sympy.Eq(tsf.Mod(8 * S, 8 * T), 0, evaluate=False), sympy.Eq(T, tsf.FloorDiv(S, tsf.FloorDiv(S, T)), evaluate=False),
    sympy.Ne(PART, S),
]  # fmt: skip


@pytest.mark.parametrize(("written", "simple"), [
    (8 * PART * tsf.FloorDiv(S, PART), 8 * S), (16 * PART, S), (PART, PART), (8 * PART, 8 * PART), (PART + 32 * PART * T, PART + 2 * S * T),
    (tsf.FloorDiv(S, T) * tsf.FloorDiv(S, tsf.FloorDiv(S, T)), S), (16 * tsf.FloorDiv(T, 16), 16 * tsf.FloorDiv(T, 16)), (S + 1, S + 1),
])
def test_quotients(written, simple):
    equal = EqualSizes(SimpleNamespace(guards=[SimpleNamespace(expr=e) for e in GUARDS]))
    assert equal.simplify(written) == simple


def test_nothing_is_known_without_guards():
    assert EqualSizes(None).simplify(16 * PART) == 16 * PART


def windows(x, mask):
    """Parted by the number of windows of the mask, as Swin does."""
    y = x.view(-1, mask.shape[0], *x.shape[1:]) * 2 + mask[:, None]
    return torch.softmax(y.tanh().view(-1, *x.shape[1:]), -1)


def cut(x, mask):
    """What fills no group is left out: nothing says that groups are all there is."""
    n = mask.shape[0]
    return (x[: x.shape[0] // n * n].view(-1, n, *x.shape[1:]) + mask[:, None]).sum((0, 1))


@pytest.mark.parametrize("function", [windows, cut])
def test_programs(function):
    torch._dynamo.reset()
    compiled, mask = torch.compile(function, backend="stepwell", options={"cache": "off"}), torch.randn(4, 5, 5)
    for n in (8, 12, 20, *((22,) if function is cut else ())):
        x = torch.randn(n, 3, 5, 5)
        torch._dynamo.maybe_mark_dynamic(x, 0)
        torch.testing.assert_close(compiled(x, mask), function(x, mask))
