"""AOT-03: softmaxes that backward computes again from the logits instead of reading what forward saved."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from stepwell.lowering.fx.joint import recomputable

BF16 = torch.bfloat16
ROWS, CLASSES, DEPTH = 32, 103, 16
WEIGHTS = torch.rand(CLASSES, generator=torch.Generator().manual_seed(0))

LOSSES = {
    "cross-entropy": (lambda x, t: F.cross_entropy(x, t), torch.float32),
    "cross-entropy of f64": (lambda x, t: F.cross_entropy(x, t), torch.float64),
    "cross-entropy of bf16": (lambda x, t: F.cross_entropy(x, t), BF16),
    "bf16 in f32": (lambda x, t: F.cross_entropy(x.float(), t), BF16),
    "smooth labels": (lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), torch.float32),
    "weights, ignored classes": (lambda x, t: F.cross_entropy(x, t, weight=WEIGHTS, ignore_index=3, reduction="sum"), torch.float32),
    "a loss for each row": (lambda x, t: F.cross_entropy(x, t, reduction="none").square().sum(), torch.float32),
    "images": (lambda x, t: F.cross_entropy(x.view(4, 8, CLASSES).transpose(1, 2), t.view(4, 8)), torch.float32),
    "divergence": (lambda x, t: F.kl_div(F.log_softmax(x, -1), torch.softmax(x.detach() * 2, -1), reduction="sum"), torch.float32),
    "entropy": (lambda x, t: (torch.softmax(x, -1) * F.log_softmax(x, -1)).sum(), torch.float32),
    "focal": (lambda x, t: ((1 - x.float().softmax(-1)) ** 2 * F.one_hot(t, CLASSES) * x.float().log_softmax(-1)).sum(), BF16),
    "behind an activation": (lambda x, t: F.cross_entropy(torch.relu(x) * 2, t), torch.float32),
    "columns": (lambda x, t: -F.log_softmax(x, 0).diagonal().sum(), torch.float32),
}


@pytest.fixture(autouse=True)
def _forget():
    torch._dynamo.reset()


@pytest.fixture
def kept(saved_tensors):
    """The names of tensors as large as the logits that forward keeps for backward, a list for each graph."""
    return saved_tensors(lambda made, given: [k for k, t in {**given, **made}.items() if t.numel() == ROWS * CLASSES])


def inputs(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    rng = torch.Generator().manual_seed(1)
    h, w = (torch.randn(n, DEPTH, generator=rng).to(dtype).requires_grad_() for n in (ROWS, CLASSES))
    return h, w, torch.randint(0, CLASSES, (ROWS,), generator=rng)


def step(loss, args, **options):
    """The loss of a product, and its gradients."""
    h, w, t = args
    total = torch.compile(lambda h, w, t: loss(h @ w.T, t), backend="stepwell", options={"cache": "off"}, **options)(h, w, t)
    return total.detach(), *torch.autograd.grad(total, (h, w))


@pytest.mark.spread
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_forward_keeps_the_logits(name, dynamic, kept):
    loss, dtype = LOSSES[name]
    args = inputs(dtype)
    got = step(loss, args, dynamic=dynamic)
    assert kept == [["mm"]]
    total = loss(args[0] @ args[1].T, args[2])
    close = {BF16: 3e-2, torch.float32: 2e-4, torch.float64: 1e-9}[dtype]
    for a, b in zip(got, (total, *torch.autograd.grad(total, args[:2])), strict=True):
        assert a.dtype == b.dtype and a.stride() == b.stride()
        torch.testing.assert_close(a, b, rtol=close, atol=close)


@pytest.mark.parametrize("name", ["cross-entropy", "bf16 in f32", "smooth labels", "columns"])
def test_the_same_numbers_as_from_what_is_saved(name, monkeypatch):
    loss, dtype = LOSSES[name]
    args = inputs(dtype)
    got = step(loss, args)
    monkeypatch.setattr(recomputable, "spell_out_softmaxes", lambda *given: 0)
    torch._dynamo.reset()
    for a, b in zip(got, step(loss, args), strict=True):
        assert torch.equal(a, b)


def test_rows_of_infinities():
    x = torch.randn(5, 40)
    x[1] = -torch.inf
    x[2, 7], x[3, 9], x[4, 3:] = torch.inf, torch.nan, -torch.inf
    for f in (lambda x: F.log_softmax(x * 1.0, -1), lambda x: torch.softmax(x * 1.0, -1)):
        (given,), (expected,) = ([x.clone().requires_grad_()] for _ in range(2))
        torch.compile(lambda x, f=f: (f(x) * torch.arange(40)).sum(), backend="stepwell", options={"cache": "off"})(given).backward()
        (f(expected) * torch.arange(40)).sum().backward()
        torch.testing.assert_close(given.grad, expected.grad, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_what_is_in_memory_anyway_is_kept(kept):
    """A result, and what backward reads as a whole."""
    h, w, t = inputs(torch.float32)

    def returned(h, w, t):
        y = F.log_softmax(h @ w.T, -1)
        return y, F.nll_loss(y, t)

    for f in (returned, lambda h, w, t: (None, (torch.softmax(h @ w.T, -1) @ w).square().sum())):
        _, total = torch.compile(f, backend="stepwell", options={"cache": "off"})(h, w, t)
        total.backward()
    assert [len(graph) for graph in kept] == [1, 1] and not any("mm" in graph for graph in kept)


def test_operators_that_stay_whole(kept):
    step(LOSSES["cross-entropy"][0], inputs(torch.float32))
    torch._dynamo.reset()
    h, w, t = inputs(torch.float32)
    options = {"cache": "off", "fallback": ["aten._log_softmax"]}
    torch.compile(lambda h, w, t: F.cross_entropy(h @ w.T, t), backend="stepwell", options=options)(h, w, t).backward()
    assert kept == [["mm"], ["_log_softmax"]]


def test_no_classes_and_no_rows():
    x = torch.randn(4, 0, requires_grad=True)
    torch.compile(lambda x: F.log_softmax(x * 2, -1).sum(), backend="stepwell", options={"cache": "off"})(x).backward()
    assert x.grad.shape == (4, 0)
    x = torch.randn(0, 5, requires_grad=True)
    t = torch.zeros(0, dtype=torch.int64)
    loss = torch.compile(lambda x, t: F.cross_entropy(x * 2, t), backend="stepwell", options={"cache": "off"})(x, t)
    loss.backward()
    assert loss.isnan() and x.grad.shape == (0, 5)


def test_a_wrong_class_is_told_as_before():
    h, w, t = inputs(torch.float32)
    t[3] = CLASSES
    with pytest.raises(IndexError, match=f"Target {CLASSES} is out of bounds"):
        step(LOSSES["cross-entropy"][0], (h, w, t))
