"""Reductions, scans, norms, softmax, losses."""

import math

import pytest
import torch
from torch.nn import functional as F

LOW = {"rtol": 2e-2, "atol": 2e-2}


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.int32, torch.uint8, torch.bool))
def test_sums_and_extremes(check, dtype):
    """A09, A24, N20"""
    x = (torch.randn(3, 4, 5) * 3).to(dtype)

    def reduce(x):
        results = [
            x.sum(),
            x.sum(1),
            x.sum((0, -1), keepdim=True),
            x.any(),
            x.all(1),
            x.amax(1),
            x.amin((0, 2), keepdim=True),
        ]
        results += [x.max(), x.min(), *x.max(1), *x.min(-1, keepdim=True), x.prod(2), x.sum(0, dtype=torch.float64)]
        if dtype != torch.bool:
            results += [x.argmax(), x.argmax(1), x.argmin(-1, keepdim=True), x.count_nonzero(1)]
        return results

    check(reduce, x)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_moments_and_norms(check, dtype):
    """A18, N20"""
    def reduce(x):
        return (
            x.mean(), x.mean(1), x.mean((0, 2), keepdim=True), x.var(), x.var(1, correction=0), x.std((0, 1)),
            *torch.var_mean(x, 2), x.norm(), x.norm(1, dim=1), x.norm(math.inf), torch.linalg.vector_norm(x, 3, dim=(0,
            1)), x.logsumexp(1), x.nansum(1),
        )  # fmt: skip

    check(reduce, torch.randn(3, 4, 5).to(dtype), **(LOW if dtype == torch.bfloat16 else {}))


def test_nan_and_infinities(check):
    """A17, NR-04"""
    x = torch.tensor([[1.0, math.nan, 2.0], [math.inf, 1.0, math.inf], [-math.inf, -math.inf, -math.inf]])

    def reduce(x):
        return (
            x.amax(1),
            x.amin(0),
            x.max(1),
            x.argmax(1),
            x.argmin(0),
            x.sum(1),
            x.logsumexp(1),
            x.softmax(1),
            x.cummax(1),
        )

    check(reduce, x)


def test_ties_give_the_first_index(check):
    """A17, TWELVE-05"""
    check(lambda x: (x.argmax(1), x.argmin(0), *x.max(0)), torch.ones(3, 4))
    check(lambda x: x.t().argmax(), torch.tensor([[0, 3, 1], [3, 3, 0]]))


def test_empty_and_scalar(check):
    """A10, DEFECT-06"""
    check(lambda x: (x.sum(), x.sum(0), x.prod(1), x.any(0), x.sum(1)), torch.zeros(0, 3))
    check(
        lambda x: (x.sum(), x.mean(), x.amax(), x.argmax(), x.var(correction=0), *x.max(0), x.cumsum(0)),
        torch.tensor(2.0),
    )


def test_symbolic_sizes(check):
    check(
        lambda x: (x.mean(1), x.var(0), x.sum(), x.softmax(-1), x.amax(0), x.argmax(1)), torch.randn(5, 7), dynamic=True
    )


def test_scans(check):
    """A21, N21"""
    def scans(x):
        return (
            x.cumsum(1),
            x.cumprod(0),
            x.cumsum(0, dtype=torch.float64),
            *x.cummax(1),
            *x.cummin(0),
            x.logcumsumexp(1),
        )

    check(scans, torch.randn(3, 5))
    check(lambda x: (x.cumsum(0), x.cumprod(0)), torch.tensor([1, 2, 3], dtype=torch.int32))


@pytest.mark.parametrize("dtype", (torch.float64, torch.bfloat16))
def test_normalisations(check, dtype):
    tolerance = LOW if dtype == torch.bfloat16 else {}
    x, w, b = torch.randn(4, 6, 5, dtype=dtype), torch.randn(6, dtype=dtype), torch.randn(6, dtype=dtype)

    def forward(x, w, b):
        return (
            F.layer_norm(x, (6, 5)), F.layer_norm(x.mT, (6,), w, b), F.group_norm(x, 3, w, b), F.rms_norm(x.mT, (6,),
            w), F.batch_norm(x, None, None, w, b, True), F.batch_norm(x, b, w.abs() + 1, w, b, False),
            F.instance_norm(x), x.softmax(1), x.log_softmax(-1),
        )  # fmt: skip

    check(forward, x, w, b, **tolerance)


def gradients(fn):
    """A function that gives the gradients of fn's sum of squares."""

    def of(*inputs):
        return torch.func.grad(lambda *args: fn(*args).pow(2).sum(), argnums=tuple(range(len(inputs))))(*inputs)

    return of


BACKWARD = {
    "layer norm": lambda x, w, b: F.layer_norm(x.mT, (6,), w, b),
    "group norm": lambda x, w, b: F.group_norm(x, 2, w, b),
    "batch norm": lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
    "softmax": lambda x, w, b: (x.mT * w + b).softmax(-1),
    "log softmax": lambda x, w, b: (x.mT * w + b).log_softmax(1),
    "gelu": lambda x, w, b: F.gelu(x.mT * w) + F.gelu(x.mT, approximate="tanh") * b,
    "silu": lambda x, w, b: F.silu(x.mT * w) + torch.sigmoid(x.mT) + torch.tanh(b),
    "activations": lambda x, w, b: (
        F.elu(x.mT * w) + F.leaky_relu(x.mT) + F.hardswish(x.mT) + F.softplus(b) + F.mish(x.mT)
    ),
    "max pool": lambda x, w, b: F.max_pool2d(x.unsqueeze(1), 2) + w[:2].sum() * b[1],
    "indexing": lambda x, w, b: (
        x[:, torch.tensor([0, 2, 2])] * w[0] + b[3] + x.gather(2, torch.tensor([[[1, 0, 4, 2, 2]]])).sum()
    ),
    "selects": lambda x, w, b: x[1, 2:4, ::2].sum() * w[3] + x.diagonal(0, 1, 2).sum() + b.unfold(0, 2, 1).sum(),
}


@pytest.mark.parametrize("name", BACKWARD)
def test_backward(check, name):
    x, w, b = (
        torch.randn(4, 6, 5, dtype=torch.float64),
        torch.randn(6, dtype=torch.float64),
        torch.randn(6, dtype=torch.float64),
    )
    check(gradients(BACKWARD[name]), x, w, b, rtol=1e-6, atol=1e-6)


def test_losses(check):
    target = torch.tensor([1, 0, -100, 3])
    weight = torch.rand(5)

    def losses(x):
        return (
            F.cross_entropy(x, target), F.cross_entropy(x, target, weight, reduction="sum"), F.nll_loss(x, target,
            reduction="none"), F.cross_entropy(x, target, label_smoothing=0.1), F.mse_loss(x, x * 2), F.l1_loss(x, x *
            2), F.smooth_l1_loss(x, x * 3), F.binary_cross_entropy_with_logits(x, x.sigmoid()),
            F.kl_div(x.log_softmax(1), x.softmax(1)),
        )  # fmt: skip

    check(losses, torch.randn(4, 5))
    check(
        gradients(lambda x: F.cross_entropy(x, target, weight) + F.nll_loss(x, target, reduction="sum")),
        torch.randn(4, 5),
    )
