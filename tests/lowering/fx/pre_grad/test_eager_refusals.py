"""Calls on types that eager has no kernel for are refused in eager's words, whatever they would be taken apart into."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import stepwell
from stepwell.lowering.fx.pre_grad import eager_refusals

PICTURE = torch.arange(32).reshape(1, 2, 4, 4)
ROWS, CLASSES = torch.arange(16).reshape(4, 4), torch.tensor([0, 1, 2, 0])
CASES = {
    "interpolate_nearest": lambda x: F.interpolate(x, scale_factor=2),
    "interpolate_bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "interpolate_bicubic": lambda x: F.interpolate(x, size=3, mode="bicubic"),
    "hardshrink": F.hardshrink,
    "multi_margin_loss": lambda x: F.multi_margin_loss(x[0, 0], CLASSES),
    "multilabel_margin_loss": lambda x: F.multilabel_margin_loss(x[0, 0], ROWS[:1].expand(4, 4)),
    "unfold": lambda x: F.unfold(x, 2),
    "fold": lambda x: F.fold(x[0], (5, 1), (2, 1)),
    "rrelu": F.rrelu,
    "grid_sample": lambda x: F.grid_sample(x, torch.zeros(1, 2, 2, 2, dtype=torch.int64), align_corners=False),
    "method": lambda x: x.hardshrink(),
    "not_first": lambda x: (x.float().exp(), F.hardshrink(x * 2)),
}


@pytest.mark.spread
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_what_eager_refuses_raises(name, dynamic):
    function = CASES[name]
    torch._dynamo.reset()
    with pytest.raises(NotImplementedError) as eager:
        function(PICTURE)
    with pytest.raises(NotImplementedError) as ours:
        torch.compile(function, backend="stepwell", dynamic=dynamic)(PICTURE)
    assert str(ours.value) == str(eager.value)


def test_what_eager_computes_is_compiled():
    """Integers and booleans; sizes stay symbols, and random numbers are not drawn."""

    def program(x, places):
        picked = x[places][:, : x.shape[1] - 1]
        return picked * 2 + 1, (x > 3).any(0), F.one_hot(places, 5), x.sort(1).values, F.dropout(x.float(), 0.5)

    torch._dynamo.reset()
    stepwell.counters.clear()
    compiled = torch.compile(program, backend="stepwell", dynamic=True, options={"fallback_random": True})
    for rows, columns in ((4, 6), (5, 7), (9, 3)):
        inputs = torch.arange(rows * columns).reshape(rows, columns), torch.arange(rows) % 4
        torch.manual_seed(3)
        want = program(*inputs)
        torch.manual_seed(3)
        for a, b in zip(compiled(*inputs), want, strict=True):
            assert torch.equal(a, b)
    assert stepwell.counters["graphs"] == 1 and not stepwell.counters["fallback"]


def test_each_kind_of_call_is_tried_once(monkeypatch):
    tried = []
    monkeypatch.setattr(eager_refusals, "_known", {})
    monkeypatch.setattr(eager_refusals, "_tried", lambda node, args, kwargs: tried.append(node.name) or "")
    for size in (3, 4):
        torch._dynamo.reset()
        torch.compile(lambda x: (x * 2 + 1) * 3, backend="stepwell", options={"cache": "off"})(torch.ones(size, dtype=torch.int64))
    assert tried == ["mul", "add"]


def test_large_calls_are_not_tried(monkeypatch):
    monkeypatch.setattr(eager_refusals, "_tried", lambda *_: pytest.fail("a large call was run"))
    monkeypatch.setattr(eager_refusals, "_known", {})
    monkeypatch.setattr(eager_refusals, "MAX_TRIED_ELEMENTS", 9)
    torch._dynamo.reset()
    torch.compile(lambda x: x * 2, backend="stepwell", options={"cache": "off"})(torch.ones(5, dtype=torch.int64))


def test_positions_beside_floats_are_not_made_up(monkeypatch):
    """LAPACK writes where pivots point to, and 0 is before the matrix."""
    monkeypatch.setattr(eager_refusals, "_tried", lambda *_: pytest.fail("pivots of 0 were given to LAPACK"))
    monkeypatch.setattr(eager_refusals, "_known", {})
    factors, pivots = torch.linalg.ldl_factor(torch.eye(4) * 2)
    torch._dynamo.reset()
    solve = torch.compile(torch.linalg.ldl_solve, backend="stepwell", options={"cache": "off"})
    assert torch.equal(solve(factors, pivots, torch.eye(4)), torch.eye(4) / 2)


def test_calls_with_positions_beside_complex_numbers_are_not_tried(monkeypatch):
    """Zeros are no pivots: LAPACK writes out of bounds for them. Complex numbers alone, and with masks, are tried."""
    tried = []
    monkeypatch.setattr(eager_refusals, "_known", {})
    monkeypatch.setattr(eager_refusals, "_tried", lambda node, args, kwargs: tried.append(node.name) or "")

    def program(x, pivots, y, mask):
        return torch.linalg.ldl_solve(x, pivots, y, hermitian=True), torch.neg(y), torch.masked_fill(y, mask, 0)

    y = torch.randn(2, 3, 3, dtype=torch.complex64)
    factors, pivots = torch.linalg.ldl_factor(y + y.mH, hermitian=True)
    inputs = factors, pivots, y, y.real > 0
    torch._dynamo.reset()
    got = torch.compile(program, backend="stepwell", options={"cache": "off"})(*inputs)
    torch.testing.assert_close(got, program(*inputs))
    assert tried == ["neg", "masked_fill"]
