"""What a nest stores in 16 bits is what all who use it see: in that nest, in others, in backward, in the caller."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from stepwell.tools.fuzz.check import on

Program = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _standardised(x, weight):
    var, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    return (x - mean) * torch.rsqrt(var + 1e-5) * weight


def _spelled_softmax(x, weight):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def _centred(x, weight):
    return (x - x.float().mean(-1, keepdim=True)) * 300


NORMS: dict[str, Program] = {
    "layer_norm": lambda x, weight: F.layer_norm(x, x.shape[-1:], weight),
    "group_norm": lambda x, weight: F.group_norm(x[:, :, None], 1, weight),
    "instance_norm": lambda x, weight: F.instance_norm(torch.stack([x, x], -1), weight=weight),
    "batch_norm": lambda x, weight: F.batch_norm(x, None, None, weight, training=True),
    "var_mean": _standardised,
    "mean of rows": lambda x, weight: (x - x.mean(0, keepdim=True)) * 300,
    "mean of columns": _centred,
    "softmax": lambda x, weight: torch.softmax(x, -1),
    "log_softmax": lambda x, weight: F.log_softmax(x, 0),
    "softmax spelled out": _spelled_softmax,
}
ON_GPU = ("layer_norm", "group_norm", "batch_norm", "var_mean", "softmax spelled out")
CASES = [(name, "cpu") for name in NORMS] + [(name, "gpu") for name in ON_GPU]


@pytest.mark.spread
@pytest.mark.parametrize("shape", [(4, 1), (2, 33)], ids=str)
@pytest.mark.parametrize("name, device", CASES)
def test_a_norm_is_that_of_the_numbers_that_are_stored(name, device, shape):
    """Rows of nearly equal elements: a mean of one rounding and elements of another would be apart by more than their deviation."""
    norm = NORMS[name]
    torch.manual_seed(0)
    size = 500.0 if "softmax" in name else 3.0
    a, b = ((torch.randn(shape) * 1e-3 * size + size).bfloat16().requires_grad_() for _ in range(2))
    weight = (torch.rand(shape[1]) + 0.5).bfloat16().requires_grad_()

    def program(a, b, weight):
        x = a + b
        return x, norm(x, weight)

    torch._dynamo.reset()
    with on(device):
        x, y = torch.compile(program, backend="stepwell", fullgraph=True)(a, b, weight)
        upstream = torch.randn(y.shape).to(y.dtype)
        gradients = torch.autograd.grad(y, [a, weight], upstream, allow_unused=True)

    found = []
    for dtype in (torch.float64, x.dtype):
        stored, scale = (t.detach().to(dtype).requires_grad_() for t in (x, weight))
        result = norm(stored, scale)
        found.append((result, *torch.autograd.grad(result, [stored, scale], upstream.to(result.dtype), allow_unused=True)))
    for what, got, exact, eager in zip(("value", "gradient", "gradient of the weight"), (y, *gradients), *found, strict=True):
        if exact is not None:
            limit = 0.02 * exact.abs().max() + 4 * (eager.double() - exact).abs().max() + 1e-4
            assert (got.double() - exact).abs().max() <= limit, what


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_the_sum_of_a_list_of_steps_is_of_what_each_step_stores(device):
    """A loop of cells: one element a row, so that each norm is 0 whatever came before."""

    def program(xs, w):
        h, outs = xs.mean(1), []
        for k in range(3):
            h = F.layer_norm(h + xs[:, k], h.shape[-1:]) * torch.sigmoid(xs[:, k] @ w)
            outs.append(h)
        return torch.stack(outs, 1)

    torch.manual_seed(0)
    xs, w = (torch.randn(shape).bfloat16().requires_grad_() for shape in ((2, 3, 1), (1, 1)))
    torch._dynamo.reset()
    with on(device):
        assert torch.compile(program, backend="stepwell", fullgraph=True)(xs, w).abs().max() < 1e-4


def test_an_argument_that_is_updated_is_read_as_it_is_stored():
    def program(x, y):
        x.add_(y)
        return F.layer_norm(x, x.shape[-1:]), x.float()

    torch._dynamo.reset()
    torch.manual_seed(0)
    x, y = ((torch.randn(4, 1) + 3).bfloat16() for _ in range(2))
    norm, wide = torch.compile(program, backend="stepwell", fullgraph=True)(x, y)
    assert norm.abs().max() < 1e-4 and torch.equal(wide, x.float())
