"""Batch norm in bfloat16, forward and backward, next to eager: errors against float64."""

import copy

import pytest
import torch

import stepwell  # noqa: F401 - registers the backend


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("activation", [torch.nn.Identity, torch.nn.ReLU, torch.nn.SiLU, torch.nn.Hardswish])
def test_bf16_batch_norm_is_as_exact_as_eager(activation, channels_last):
    """Against float64, over several draws: a single one decides nothing, because rounding moves elements over the
    kinks of the activation."""
    torch._dynamo.reset()
    ours = torch.nn.Sequential(torch.nn.BatchNorm2d(16), activation()).bfloat16()
    eager, exact = copy.deepcopy(ours), copy.deepcopy(ours).double()
    compiled = torch.compile(ours, backend="stepwell", fullgraph=True)

    def step(net, call, x, gradient):
        x = x.clone().requires_grad_()
        net.zero_grad()
        y = call(x)
        y.backward(gradient.to(y.dtype))
        values = y, x.grad, *(p.grad for p in net.parameters()), net[0].running_mean, net[0].running_var
        return [v.detach().double() for v in values]

    errors = []
    for seed in range(16):
        generator = torch.Generator().manual_seed(seed)
        x = (torch.randn(8, 16, 8, 8, generator=generator) * 2 + 1).bfloat16()
        if channels_last:
            x = x.to(memory_format=torch.channels_last)
        gradient = torch.randn(8, 16, 8, 8, generator=generator).bfloat16()
        truth = step(exact, exact, x.double(), gradient)
        found = (step(net, call, x, gradient) for net, call in ((ours, compiled), (eager, eager)))
        errors.append([[(a - b).square().sum().item() for a, b in zip(f, truth, strict=True)] for f in found])
    for name, got, limit in zip(("y", "x", "weight", "bias", "mean", "var"), *torch.tensor(errors).sum(0), strict=True):
        assert got <= 1.25**2 * limit, f"{name}: {got} against {limit} of eager"
