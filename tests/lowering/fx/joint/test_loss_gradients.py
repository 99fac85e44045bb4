"""I13, AOT-03: losses of a vocabulary, forward and backward: no logits are kept for backward, and none are in memory as a whole."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from stepwell.lowering.fx.joint import loss_gradients
from stepwell.passes.manager import pipelines

BF16, F16 = torch.bfloat16, torch.float16
ROWS, CLASSES, DEPTH, BLOCK = 44, 103, 8, 16
WEIGHTS = torch.rand(CLASSES, generator=torch.Generator().manual_seed(0))


def z_loss(x, t):
    x = x.float()
    sums = torch.logsumexp(x, -1)
    return (sums - x.gather(1, t[:, None])[:, 0]).mean() + 1e-2 * sums.square().mean()


def shifted(x, t):
    """As models of language: a batch of two, views between the product and the loss."""
    x = x.view(2, ROWS // 2, CLASSES).float()
    return F.cross_entropy(x.view(-1, CLASSES), t)


LOSSES = {
    "cross-entropy": lambda x, t: F.cross_entropy(x.float(), t),
    "sum": lambda x, t: F.cross_entropy(x.float(), t, reduction="sum"),
    "ignored targets": lambda x, t: F.cross_entropy(x.float(), t, ignore_index=3),
    "class weights": lambda x, t: F.cross_entropy(x.float(), t, weight=WEIGHTS),
    "smooth labels": lambda x, t: F.cross_entropy(x.float(), t, label_smoothing=0.1),
    "scaled, softcap": lambda x, t: F.cross_entropy(torch.tanh(x.float() / 5) * 5 * 0.7, t),
    "sums beside": z_loss,
    "a batch": shifted,
    "rows weighed": lambda x, t: (F.cross_entropy(x.float(), t, reduction="none") * torch.linspace(0, 1, ROWS)).sum(),
    "two losses": lambda x, t: 0.3 * F.cross_entropy(x.float(), t) + 0.7 * (F.log_softmax(x.float(), -1)[:, 3]).mean(),
}


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Sizes that a test has count as large."""
    torch._dynamo.reset()
    stage = tuple(f"nd-row-blocks{{rows={BLOCK}}}" if name == "nd-row-blocks" else name for name in pipelines.TARGETS["cpu"]["nd"])
    monkeypatch.setitem(pipelines.TARGETS["cpu"], "nd", stage)
    monkeypatch.setattr(loss_gradients, "is_large", lambda node: node.args[-1].meta["val"].shape[-1] == CLASSES)


@pytest.fixture
def kept(saved_tensors):
    """The names of tensors as large as the logits that forward keeps for backward, a list for each graph."""
    return saved_tensors(lambda made, given: [k for k, t in {**given, **made}.items() if t.numel() == ROWS * CLASSES])


def inputs(dtype, rows=ROWS):
    rng = torch.Generator().manual_seed(1)
    h, w, b = (torch.randn(n, generator=rng).to(dtype).requires_grad_() for n in ((rows, DEPTH), (CLASSES, DEPTH), (CLASSES,)))
    return h, w, b, torch.randint(0, CLASSES, (rows,), generator=rng)


def step(function, args, scale=1.0):
    total = function(*args)
    return total.detach(), *torch.autograd.grad(total * scale, args[:3])


def check(loss, args, scale=1.0, **options):
    """A loss of a product with a bias, and its gradients, no less exact than eager's."""
    function = lambda h, w, b, t: loss(F.linear(h, w, b), t)  # noqa: E731
    compiled = torch.compile(function, backend="stepwell", options={"cache": "off"}, **options)
    got, eager = step(compiled, args, scale), step(function, args, scale)
    exact = step(function, [a.detach().double().requires_grad_() if a.is_floating_point() else a for a in args], scale)
    for ours, theirs, right in zip(got, eager, exact, strict=True):
        assert ours.dtype == theirs.dtype and ours.stride() == theirs.stride()
        few, least = (1.6, 5e-4) if args[0].dtype == BF16 else (1.2, 1e-6)  # a hundred roundings do not average out
        allowed = few * (theirs - right).norm() + least * right.norm()
        assert (ours - right).norm() <= allowed


@pytest.mark.long
@pytest.mark.parametrize("name, dtype", [*((name, torch.float32) for name in LOSSES), ("cross-entropy", BF16), ("smooth labels", BF16)])
def test_no_logits_are_kept(name, dtype, kept):
    check(LOSSES[name], inputs(dtype))
    assert kept == [[]]


def test_another_gradient_of_the_loss(kept):
    check(LOSSES["cross-entropy"], inputs(torch.float32), scale=-3.5)
    assert kept == [[]]


@pytest.mark.long
def test_numbers_of_rows_that_are_symbols(kept):
    args = inputs(torch.float32)
    check(LOSSES["ignored targets"], args, dynamic=True)
    for rows in (5, 2):  # fewer than blocks
        check(LOSSES["ignored targets"], inputs(torch.float32, rows), dynamic=True)


@pytest.mark.long
def test_gradients_of_halves_stay(kept):
    args = inputs(F16)
    function = torch.compile(lambda h, w, b, t: F.cross_entropy(F.linear(h, w, b).float(), t), backend="stepwell", options={"cache": "off"})
    got, eager = step(function, args, 2.0**16), step(lambda h, w, b, t: F.cross_entropy(F.linear(h, w, b).float(), t), args, 2.0**16)
    for ours, theirs in zip(got, eager, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2 * float(theirs.float().abs().max()))
    assert kept == [["addmm"]]


def test_products_that_are_moved_away_are_not_looked_at_again(kept):
    """A product without a bias, as those of backward, which have left the graph when their turn comes."""
    h, w, _, t = inputs(torch.float32)
    got, eager = (
        torch.autograd.grad(function(h, w, t), (h, w))
        for function in (
            torch.compile(lambda h, w, t: F.cross_entropy(h @ w.T, t), backend="stepwell", options={"cache": "off"}),
            lambda h, w, t: F.cross_entropy(h @ w.T, t),
        )
    )
    for ours, theirs in zip(got, eager, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert kept == [[]]
