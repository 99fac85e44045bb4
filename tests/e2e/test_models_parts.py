"""Parts of models whose nests fuse in ways that single operators do not: the same values as eager."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def compiled(fn):
    torch._dynamo.reset()
    return torch.compile(fn, backend="stepwell")


def check(fn, *args, rtol=1e-4, atol=1e-4):
    torch.testing.assert_close(compiled(fn)(*args), fn(*args), rtol=rtol, atol=atol)


def test_a_residual_stream_into_a_layer_norm():
    """The expression that is normalised is kept in one row of scratch, for the variance and for the result."""
    torch.manual_seed(0)

    def part(a, w, b, g, r, lw, lb):
        y = torch.addmm(b, a.view(130, 128), w).view(2, 65, 128) * g + r
        return F.layer_norm(y, (128,), lw, lb), y * 2

    wide, row = (2, 65, 128), (128,)
    check(part, *map(torch.randn, (wide, (128, 128), row, row, wide, row, row)))


def test_a_sum_that_is_stored_and_normalised():
    """The variance reads its body twice, so that the stored sum may not overwrite an operand of it."""
    torch.manual_seed(0)

    def part(x, index, n):
        y = x + torch.zeros_like(x).index_add(0, index, n)
        m = F.layer_norm(y, (32,))
        return torch.cat([m[index], m[index]], 1), y

    check(part, torch.randn(200, 32), torch.randint(0, 200, (1000,)), torch.randn(1000, 32))


def test_training_with_sizes_that_vary():
    """Strides of saved activations that depend on a size symbol."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    fast = torch.compile(net, backend="stepwell", dynamic=True)
    for batch, length in ((3, 5), (4, 7)):
        x = torch.randn(batch, length, 8).transpose(0, 1)
        grads = []
        for call in (net, fast):
            net.zero_grad(set_to_none=True)
            call(x).square().sum().backward()
            grads.append([p.grad.clone() for p in net.parameters()])
        torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-4)


def test_gradients_of_maxima_in_low_precision():
    """The backward finds the largest element by comparing what was stored with what is computed again."""
    torch.manual_seed(0)

    def part(x, w, index):
        a = (x @ w).tanh().sum(1) * 1.1
        top = torch.full((5,), -1e4, dtype=a.dtype).scatter_reduce(0, index, a, "amax")
        return (a - top[index]).exp() + (x * 1.3).amax(1)

    index = torch.randint(0, 5, (40,))
    x, w = torch.randn(40, 8), torch.randn(8, 16)
    grads = []
    for call, dtype in ((part, torch.float32), (compiled(part), torch.bfloat16)):
        args = [t.to(dtype).detach().clone().requires_grad_() for t in (x, w)]
        (call(*args, index) * torch.linspace(-1, 1, 40)).sum().backward()
        grads.append(torch.cat([a.grad.float().flatten() for a in args]))
    assert torch.nn.functional.cosine_similarity(*grads, dim=0) > 0.98
