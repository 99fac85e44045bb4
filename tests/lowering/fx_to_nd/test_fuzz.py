"""Random chains of views, and random small graphs, against eager."""

import random

import pytest
import torch


def random_view(rng, x):
    """One random view of x."""
    dims = x.dim()
    choice = rng.randrange(9)
    d = rng.randrange(dims)
    if choice == 0:
        order = rng.sample(range(dims), dims)
        return x.permute(order)
    if choice == 1 and x.shape[d] > 1:
        start = rng.randrange(x.shape[d] - 1)
        return x.narrow(d, start, rng.randrange(1, x.shape[d] - start + 1))
    if choice == 2:
        return x.unsqueeze(d)
    if choice == 3 and dims > 1:
        return x.select(d, rng.randrange(-x.shape[d], x.shape[d]))
    if choice == 4:
        return x[tuple(slice(None, None, rng.choice((1, 2))) if k == d else slice(None) for k in range(dims))]
    if choice == 5 and x.numel() < 200:
        return x.unsqueeze(0).expand(rng.randrange(1, 4), *x.shape)
    if choice == 6:
        return x.flip(d)
    if choice == 7:
        shape = list(x.shape)
        for k in range(dims):
            if shape[k] % 2 == 0 and shape[k]:
                return x.reshape(*shape[:k], 2, shape[k] // 2, *shape[k + 1 :])
        return x.reshape(-1)
    if x.shape[d] > 1:
        return x.unfold(d, 2, 1)
    return x


@pytest.mark.parametrize("seed", range(12))
def test_view_chains(check, seed):
    rng = random.Random(seed)
    print("seed", seed)
    steps = rng.randrange(3, 9)

    def chain(x):
        own = random.Random(seed)
        own.randrange(3, 9)
        for _ in range(steps):
            x = random_view(own, x)
        return x, x + 1

    check(
        chain, torch.arange(96.0).reshape(4, 6, 4) if seed % 2 else torch.arange(96.0).reshape(4, 4, 6).permute(2, 0, 1)
    )


def random_graph(seed, xs):
    """A random graph over tensors of broadcastable shapes."""
    rng = random.Random(seed)
    values = list(xs)
    for _ in range(10):
        a, b = rng.choice(values), rng.choice(values)
        kind = rng.randrange(8)
        if kind == 0:
            new = a + b
        elif kind == 1:
            new = torch.where(a > b, a, b * 0.5)
        elif kind == 2:
            new = torch.tanh(a) * b
        elif kind == 3:
            new = a.sum(-1, keepdim=True) * 0.1 + b
        elif kind == 4:
            new = a.softmax(-1)
        elif kind == 5:
            new = (a - a.mean((0, 1), keepdim=True)) + b
        elif kind == 6:
            new = torch.cat([a, a], 0).amax(0, keepdim=True) - b
        else:
            new = a.mT.contiguous().mT.clamp(-1, 1)
        values.append(new)
    return values[-4:]


@pytest.mark.spread
@pytest.mark.parametrize("dynamic", (False, True))
@pytest.mark.parametrize("seed", range(6))
def test_graphs(check, seed, dynamic):
    print("seed", seed)
    inputs = torch.randn(3, 4, 5), torch.randn(3, 1, 5), torch.randn(1, 4, 1)
    check(lambda *xs: random_graph(seed, xs), *inputs, dynamic=dynamic, rtol=1e-4, atol=1e-4)
