"""Whole programs as users write them, found wrong once: values, gradients and errors are eager's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import stepwell


def compiled(fn, **options):
    torch._dynamo.reset()
    return torch.compile(fn, backend="stepwell", **options)


def test_sparse_gradient_of_an_embedding_bag():
    bag = nn.EmbeddingBag(9, 4, mode="sum", sparse=True)
    index = torch.tensor([[1, 2], [2, 8], [0, 2]])
    bag(index).sum().backward()
    want, bag.weight.grad = bag.weight.grad, None
    compiled(bag)(index).sum().backward()
    assert bag.weight.grad.is_sparse
    torch.testing.assert_close(bag.weight.grad.to_dense(), want.to_dense())


@pytest.mark.parametrize("train", [False, True])
def test_jagged_tensors_of_several_lengths(train):
    """Their ragged size is no number: no program is given it, and outputs that want it get it as it is."""

    def program(n, w):
        return nn.functional.layer_norm((n @ w).relu(), (5,)) * 2

    run = compiled(program)
    for lengths in ((2, 3), (4, 1, 2), (5, 5)):
        rows = [torch.randn(k, 4) for k in lengths]
        weight = torch.randn(4, 5)
        seen = []
        for fn in (program, run):
            n = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=train)
            w = weight.clone().requires_grad_(train)
            out = fn(n, w)
            if train:
                (out.values() * torch.arange(5.0)).sum().backward()
            seen.append((out.values().detach(), *((n.grad.values(), w.grad) if train else ())))
        torch.testing.assert_close(seen[1], seen[0])


def test_a_size_that_only_the_output_wants():
    def program(x, k):
        return x * 2, k, x.reshape(-1, 2).shape[0]

    run = compiled(program, dynamic=True)
    for n in (4, 6, 10):
        doubled, k, half = run(torch.ones(n), n + 1)
        assert (k, half) == (n + 1, n // 2)
        assert torch.equal(doubled, torch.full((n,), 2.0))


def test_a_size_that_a_float_says():
    """What `int()` makes of a float is not the float."""
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        run = compiled(lambda x: torch.ones(int(x.sum().item()) + 2).cumsum(0), fullgraph=True)
        for total in (3.5, 0.25, 7.0):
            assert torch.equal(run(torch.tensor([total, 0.0])), torch.arange(1.0, int(total) + 3))


def test_random_numbers_are_drawn_in_order_whatever_is_fused():
    """The nest of the softmax reads what that of the last sum reads, which needs the second draw."""

    def program(mu, sd):
        one = torch.multinomial((mu - mu.logsumexp(-1, keepdim=True)).softmax(-1), 4, True)
        return one, mu + torch.rand(3) * (mu + sd - mu), torch.rand(2)

    mu, sd = torch.tensor([0.5, -1.0, 0.2]), torch.ones(3)
    run = compiled(program, options={"fallback_random": True})
    for seed in range(3):
        torch.manual_seed(seed)
        want = program(mu, sd)
        torch.manual_seed(seed)
        torch.testing.assert_close(run(mu, sd), want)


def test_what_has_a_late_size_stays_behind_what_says_it():
    """Both nests go over the rows of x, but the number of columns of the second is known only once the first has run."""

    def program(x):
        total = x.sum(1)
        n = (total > 0).sum().item()
        torch._check(n <= 100)
        return total.cos(), total[:, None] + torch.arange(n), x.sum(1) * 2

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        run = compiled(program, fullgraph=True)
        for shift in (0.0, 5.0, -5.0):
            x = torch.randn(6, 8) + shift
            torch.testing.assert_close(run(x), program(x))


@pytest.mark.spread
@pytest.mark.parametrize("dim", [0, -1, None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weight_norm_is_arithmetic(dim, dtype):
    """Of both kinds, with its gradient, which torch has no decomposition of."""
    for wrap in (nn.utils.weight_norm, nn.utils.parametrizations.weight_norm):
        layer = wrap(nn.Conv1d(3, 5, 2).to(dtype), dim=dim)
        x, calls = torch.randn(2, 3, 7).to(dtype), stepwell.counters["fallback"]
        grads = []
        for run in (layer, compiled(layer)):
            loss = run(x).float().square().mean()
            grads.append([loss, *torch.autograd.grad(loss, list(layer.parameters()))])
        tolerance = {"rtol": 3e-2, "atol": 3e-2} if dtype == torch.bfloat16 else {}
        torch.testing.assert_close(grads[1], grads[0], **tolerance)
        assert stepwell.counters["fallback"] == calls


def test_an_interrupt_while_compiling_leaves_nothing_behind(monkeypatch):
    from stepwell.tools.backend import compile_graph

    lower = compile_graph.lower_graph

    def interrupted(*args, **kwargs):
        lower(*args, **kwargs)
        raise KeyboardInterrupt

    x = torch.randn(6)
    run = compiled(lambda x: x.sin().cumsum(0) + 1, options={"cache": "off"})
    monkeypatch.setattr(compile_graph, "lower_graph", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(x)
    monkeypatch.undo()
    torch.testing.assert_close(run(x), x.sin().cumsum(0) + 1)


def test_derivatives_in_forward_mode_begin_without_the_library():
    def program(x, v):
        _, tangent = torch.func.jvp(lambda a: a.exp().cumsum(0) * a.t().sum(), (x,), (v,))
        return tangent, torch.func.jacfwd(torch.func.jacrev(lambda a: (a.sin() * a.cumsum(0)).sum()))(v)

    x, v, calls = torch.randn(3, 4).t(), torch.randn(4, 3), stepwell.counters["fallback"]
    torch.testing.assert_close(compiled(program, fullgraph=True)(x, v), program(x, v))
    assert stepwell.counters["fallback"] == calls


@pytest.mark.parametrize("train", [False, True])
def test_jagged_tensors_attend(train):
    """Each sequence to itself; torch runs its operator for nested tensors between our graphs."""

    def program(q, k, v):
        return nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)

    parts = [[torch.randn(n, 2, 8) for n in (3, 7, 1)] for _ in range(3)]
    seen = []
    for fn in (program, compiled(program)):
        given = [torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=train) for rows in parts]
        out = fn(*given)
        if train:
            (out.values() * torch.arange(8.0)).sum().backward()
        seen.append((out.values().detach(), *((x.grad.values() for x in given) if train else ())))
    torch.testing.assert_close(seen[1], seen[0])
