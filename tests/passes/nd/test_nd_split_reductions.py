"""Reductions over rows and columns of what is computed from statistics of the rows: values against float64, and the nests of losses."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import stepwell
from stepwell.passes.loop.fusion.price import MIN_PARALLEL_TRIPS
from stepwell.tools.interpret.target import InterpretedTarget


def divergence(x, y):
    return F.kl_div(F.log_softmax(x / 2, -1), F.softmax(y / 2, -1), reduction="batchmean")


def entropy(x, y):
    return -(x.softmax(1) * x.log_softmax(1)).sum() / y.numel()


def between_unit_rows(x, y):
    return ((F.normalize(x, dim=-1) - F.normalize(y, dim=-1)) ** 2).mean()


def between_norms(x, y):
    return F.mse_loss(F.layer_norm(x, x.shape[-1:]), F.layer_norm(y, y.shape[-1:]))


def above_the_mean(x, y):
    return (x > x.mean(-1, keepdim=True)).sum() + (y < y.amax(-1, keepdim=True)).all()


def places_of_maxima(x, y):
    return (x.argmax(-1, keepdim=True) * (y > 0)).amax((0, -1), keepdim=True)


def rows_and_columns(x, y):
    return (x.softmax(-1) * y.softmax(0)).sum((0, -1))


LOSSES = [divergence, entropy, between_unit_rows, between_norms]
CASES = [
    (divergence, (16, 130), torch.float32, False),
    (divergence, (9, 7, 33), torch.bfloat16, True),
    (entropy, (16, 300), torch.float16, False),
    (entropy, (3, 5, 17), torch.float64, True),
    (entropy, (0, 6), torch.float32, False),
    (between_unit_rows, (33, 1), torch.float32, False),
    (between_unit_rows, (8, 9, 4, 3), torch.bfloat16, False),
    (between_norms, (12, 40), torch.float16, True),
    (between_norms, (5, 4, 48), torch.float32, True),
    (above_the_mean, (40, 9), torch.bfloat16, False),
    (places_of_maxima, (40, 9), torch.float32, True),
    (places_of_maxima, (8, 3, 9), torch.float16, False),
    (rows_and_columns, (20, 30), torch.float32, True),
    (rows_and_columns, (1, 30), torch.float64, False),
]


class FewRows(InterpretedTarget):
    """The GPU's pipeline, for as few rows as there are here."""

    name = "few_rows"
    stages = {**InterpretedTarget.stages, "nd": ("nd-canonicalize", f"nd-split-reductions{{rows={MIN_PARALLEL_TRIPS}}}")}


@pytest.fixture(params=["cpu", "gpu"])
def target(request):
    """The target of tensors on the CPU."""
    if request.param == "gpu":
        stepwell.register_target(FewRows, replace=True)
    yield request.param
    if request.param == "gpu":
        stepwell.unregister_target(FewRows.name)


def compiled(function, args, **options):
    torch._dynamo.reset()
    stepwell.reset_counters()
    return torch.compile(function, backend="stepwell", options={"cache": "off"}, **options)(*args)


@pytest.mark.spread
@pytest.mark.parametrize("function, shape, dtype, dynamic", CASES)
@pytest.mark.parametrize("turned", [False, True], ids=["rows", "columns"])
def test_values(target, function, shape, dtype, dynamic, turned):
    torch.manual_seed(1)
    args = [torch.randn(shape[::-1] if turned else shape, dtype=dtype) for _ in range(2)]
    if turned:
        args = [x.permute(*reversed(range(x.dim()))) for x in args]
    want = function(*args)
    exact = function(*[x.double() for x in args]) if want.is_floating_point() else want
    got = compiled(function, args, dynamic=dynamic)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    rtol = {torch.float64: 1e-10, torch.float32: 1e-4}.get(dtype, 3e-2)
    torch.testing.assert_close(got.double(), exact.double(), rtol=rtol, atol=rtol / 10, equal_nan=True)


@pytest.mark.parametrize("function", LOSSES)
def test_gradients(function):
    torch.manual_seed(2)
    args = [torch.randn(24, 50, requires_grad=True) for _ in range(2)]
    wide = [x.detach().double().requires_grad_() for x in args]
    got = torch.autograd.grad(compiled(function, args), args, allow_unused=True)
    want = torch.autograd.grad(function(*wide), wide, allow_unused=True)
    for a, b in zip(got, want, strict=True):
        assert (a is None or not a.any()) if b is None else torch.allclose(a.double(), b, rtol=1e-4, atol=1e-7)


def test_sums_of_rows_are_not_rounded():
    """Each is 1 + 1/256, which lies between two numbers of bfloat16."""
    x = torch.ones(257, 257, dtype=torch.bfloat16)
    x[:, 1:] = 1 / 65536
    got = compiled(lambda x: (x - x.amin(-1, keepdim=True) + 1 / 65536).sum(), (x,))
    assert got == torch.tensor(257 * (1 + 1 / 256)).bfloat16()


@pytest.mark.parametrize("function", LOSSES)
def test_kernels(target, function):
    """I24: one; on a GPU one of the rows and one of their sum."""
    args = [torch.randn(64, 256) for _ in range(2)]
    compiled(function, args)
    assert stepwell.counters["kernels"] == (1 if target == "cpu" else 2)
    assert stepwell.counters["bytes_written"] <= 65 * args[0].itemsize


def test_a_plain_mean_stays():
    compiled(lambda x: (x.sigmoid() - 0.5).square().mean(), (torch.randn(64, 256),))
    assert stepwell.counters["bytes_written"] == 4
