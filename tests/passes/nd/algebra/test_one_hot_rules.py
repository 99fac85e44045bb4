"""Sums over one-hot rows without a loop: values where the index is outside, negative, masked, for every kind of operand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import stepwell


def run(function, *args, dynamic=False):
    torch._dynamo.reset()
    stepwell.reset_counters()
    return torch.compile(function, backend="stepwell", dynamic=dynamic)(*args)


def last(index, value):
    return torch.where(torch.arange(11) == index[:, None], value[:, None], 0.0).sum(1)


def first(index, value):
    return torch.where(index == torch.arange(11)[:, None], value * 2, 0.0).sum(0)


def masked(index, value):
    hit = (torch.arange(11) == index[:, None]) & (value > 0)[:, None]
    return torch.where(hit, value[:, None], 0.0).sum(-1)


def constant(index, value):
    return torch.where(torch.arange(11) == index[:, None], torch.tensor(-0.0), 0.0).sum(1)


def middle(index, value):
    x = torch.where(torch.arange(11)[:, None] == index.view(2, 1, -1), value.view(2, 1, -1), 0.0)
    return x.sum(1)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [last, first, masked, constant, middle])
def test_values(function, dynamic):
    index = torch.tensor([0, 3, 10, 11, -1, 5, 7, 99])
    value = torch.tensor([1.5, -2.0, 3.0, 4.0, float("nan"), -0.0, float("inf"), 1.0])
    got, want = run(function, index, value, dynamic=dynamic), function(index, value)
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(got.signbit() & (got == 0), want.signbit() & (want == 0))


def test_the_rule_is_seen(opt_tool):
    text = """func.func @f(%i : !nd.tensor<8 x 1 x i64>, %v : !nd.tensor<8 x 1 x f32>) -> !nd.tensor<8 x f32> {
      %zero = nd.full {value = 0.0 : f32} : !nd.tensor<f32>
      %iota = nd.iota {dim = [1]} : !nd.tensor<8 x 11 x i64>
      %c = nd.cmp %iota, %i {predicate = "eq"} : (!nd.tensor<8 x 11 x i64>, !nd.tensor<8 x 1 x i64>) -> !nd.tensor<8 x 11 x i1>
      %s = nd.select %c, %v, %zero : (!nd.tensor<8 x 11 x i1>, !nd.tensor<8 x 1 x f32>, !nd.tensor<f32>) -> !nd.tensor<8 x 11 x f32>
      %r = nd.reduce %s {kind = "sum", dims = [1]} : (!nd.tensor<8 x 11 x f32>) -> !nd.tensor<8 x f32>
      func.return %r : !nd.tensor<8 x f32>
    }"""
    ran = opt_tool("-", "-p", "nd-canonicalize", stdin=text)
    assert ran.code == 0, ran.err
    assert "nd.reduce" not in ran.out and "8 x 11" not in ran.out


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_gradient_of_cross_entropy(reduction):
    x = torch.randn(9, 13, requires_grad=True)
    target = torch.tensor([0, 12, -100, 3, 4, -100, 5, 6, 7])
    weight = torch.rand(13)

    def gradient(loss):
        out = loss(x, target)
        return torch.autograd.grad(out, x, torch.ones_like(out))[0]

    def loss(x, target):
        return F.cross_entropy(x, target, weight=weight, reduction=reduction)

    torch._dynamo.reset()
    torch.testing.assert_close(gradient(torch.compile(loss, backend="stepwell")), gradient(loss))
