"""Batch norm in bfloat16, forward and backward, next to eager: errors against float64."""

import copy

import pytest
import torch

import stepwell  # noqa: F401 - registers the backend


@pytest.mark.spread
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


def test_gradients_of_bf16_networks_are_off_where_eagers_are():
    """Statistics and gates of channels are rounded as torch's are: what the gradients of a small network with batch norm and squeezed
    excitation are off (against float64) is much alike. Rounded otherwise they would be as exact, and about a third alike."""

    class Block(torch.nn.Module):
        def __init__(self, channels, stride):
            super().__init__()
            self.first, self.last = torch.nn.Conv2d(channels, 16, 3, stride, 1, bias=False), torch.nn.Conv2d(16, 16, 1, bias=False)
            self.one, self.two = torch.nn.BatchNorm2d(16), torch.nn.BatchNorm2d(16)
            self.squeeze, self.excite = torch.nn.Conv2d(16, 4, 1), torch.nn.Conv2d(4, 16, 1)

        def forward(self, x):
            x = torch.nn.functional.silu(self.one(self.first(x)))
            gate = self.excite(torch.nn.functional.silu(self.squeeze(x.mean((2, 3), keepdim=True)))).sigmoid()
            return self.two(self.last(x * gate))

    torch._dynamo.reset()
    torch.manual_seed(0)
    exact = torch.nn.Sequential(Block(3, 2), Block(16, 1), Block(16, 2), Block(16, 1)).double()
    eager, ours = (copy.deepcopy(exact).bfloat16() for _ in range(2))
    compiled = torch.compile(ours, backend="stepwell", fullgraph=True)
    alike = []
    for _ in range(4):
        x, gradient = torch.randn(2, 3, 32, 32), torch.randn(2, 16, 8, 8)
        found = []
        for net, call in ((exact, exact), (eager, eager), (ours, compiled)):
            net.zero_grad()
            dtype = next(net.parameters()).dtype
            call(x.to(dtype)).backward(gradient.to(dtype))
            found.append([p.grad.double().flatten() for p in net.parameters() if p.grad is not None])
        alike += [torch.cosine_similarity(a - truth, b - truth, dim=0) for truth, a, b in zip(*found, strict=True)]
    assert torch.stack(alike).mean() > 0.7


@pytest.mark.spread
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dynamic", [False, True])
def test_statistics_beside_wider_parameters_are_not_rounded(dtype, dynamic):
    """Under autocast values are narrow, weights and running statistics are not: torch's kernel keeps statistics in their type."""

    def fn(x, weight, bias, mean, var):
        running = torch.nn.functional.batch_norm(x, mean, var, weight, bias, True, 0.1)
        return running, torch.nn.functional.batch_norm(x, None, None, weight, bias, True)

    torch._dynamo.reset()
    ours = torch.compile(fn, backend="stepwell", fullgraph=True, dynamic=dynamic)
    generator = torch.Generator().manual_seed(0)
    for shape in ((4, 3, 5, 7), (6, 3, 9, 7)):
        x = (torch.randn(shape, generator=generator) * 3 + 1).to(dtype)
        weight, bias, mean, var = (torch.rand(3, generator=generator) + k for k in (0.5, 0, 0, 1))
        found = []
        for f in (ours, fn):
            running = mean.clone(), var.clone()
            found.append((*f(x, weight, bias, *running), *running))
        for got, want in zip(*found, strict=True):
            assert got.dtype == want.dtype
            # a sum in another order may round the other way: one unit of the values, no more of the statistics than in f32
            torch.testing.assert_close(got, want, rtol=torch.finfo(got.dtype).eps, atol=1e-6)


@pytest.mark.spread
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [{}, {"fallback": ["aten._native_batch_norm_legit_functional"]}])
def test_gradients_beside_wider_parameters_are_as_exact_as_eagers(dtype, options):
    """The statistics that forward saves are as wide as torch's kernel saves them, whatever its fake kernel says."""

    def step(net, call, x, gradient):
        x = x.clone().requires_grad_()
        net.zero_grad()
        y = call(x)
        y.backward(gradient.to(y.dtype))
        return [v.double() for v in (x.grad, *(p.grad for p in net.parameters()))]

    torch._dynamo.reset()
    ours = torch.nn.Sequential(torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.BatchNorm2d(8))
    eager, exact = copy.deepcopy(ours), copy.deepcopy(ours).double()
    compiled = torch.compile(ours, backend="stepwell", fullgraph=True, options=options)
    generator = torch.Generator().manual_seed(0)
    for shape in ((4, 8, 5, 7), (6, 8, 9, 7)):
        x, gradient = ((torch.randn(shape, generator=generator) * 2 + k).to(dtype) for k in (1, 0))
        truth = step(exact, exact, x.double(), gradient)
        for got, plain, want in zip(step(ours, compiled, x, gradient), step(eager, eager, x, gradient), truth, strict=True):
            limit = 2 * (plain - want).square().mean().sqrt() + 1e-5 * want.abs().max()
            assert (got - want).square().mean().sqrt() <= limit
