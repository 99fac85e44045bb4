"""Padded rows of intermediate buffers: values, through every kind of reader, and what keeps its strides."""

from __future__ import annotations

import pytest
import torch

PIPELINE = (
    "stepwell-cpu{to=loop},loop-to-mem,mem-term-blocks,mem-pad-strides{%s},mem-plan,loop-schedule,contract-select{force=%s},"
    "stepwell-cpu{from=cpu}"
)


def softmax_of_columns(x, w):
    e = (x @ w).exp()
    return (e / e.sum(0)).t().contiguous() + e.t()


def product_of_a_sum(x, w):
    return (x @ w + 1).relu() @ (w.t() + 2)


def three_dimensions(x, w):
    y = (x @ w).unflatten(0, (4, -1)).cumsum(1)
    return y.sum(0) + y.transpose(0, 1).sum(1)


def odd_rows(x, w):
    return (x[:, :33] @ w[:33, :51]).tanh() @ w[:51, :7]


@pytest.mark.spread
@pytest.mark.parametrize("who", ["gemm", "library"])
@pytest.mark.parametrize("function", [softmax_of_columns, product_of_a_sum, three_dimensions, odd_rows])
def test_values(function, who):
    """B11: every row of a buffer is padded."""
    torch.manual_seed(5)
    x, w = torch.randn(72, 96), torch.randn(96, 1024)
    torch._dynamo.reset()
    options = {"pipeline": PIPELINE % ("always=true align=64", who)}
    got = torch.compile(function, backend="stepwell", options=options, dynamic=who == "library")(x, w)
    torch.testing.assert_close(got, function(x, w), rtol=2e-4, atol=2e-4)


def test_the_caller_sees_dense_results():
    torch._dynamo.reset()
    options = {"pipeline": PIPELINE % ("always=true", "gemm")}
    x, w = torch.randn(72, 96), torch.randn(96, 1024)
    got = torch.compile(lambda x, w: (x @ w, (x @ w).exp()), backend="stepwell", options=options)(x, w)
    assert all(t.is_contiguous() for t in got)


def test_a_batch_of_rows_keeps_its_order(opt_tool):
    text = """func.func @f(%x : !nd.tensor<6 x 4 x 1024 x f32>) -> !nd.tensor<6 x 4 x f32> {
      %0 = loop.empty : !nd.tensor<6 x 4 x 1024 x f32>
      %e = loop.nest (%i = 6, %j = 4, %k = 1024) outs(%o = %0 : !nd.tensor<6 x 4 x 1024 x f32>) {
        %v = loop.load %x[%i, %j, %k] : !nd.tensor<6 x 4 x 1024 x f32> -> f32
        loop.store %v, %o[%i, %j, %k] : f32, !nd.tensor<6 x 4 x 1024 x f32>
      }
      %1 = loop.empty : !nd.tensor<6 x 4 x f32>
      %y = loop.nest (%i = 6, %j = 4) outs(%o = %1 : !nd.tensor<6 x 4 x f32>) {
        %v = loop.load %e[%i, %j, 5] : !nd.tensor<6 x 4 x 1024 x f32> -> f32
        loop.store %v, %o[%i, %j] : f32, !nd.tensor<6 x 4 x f32>
      }
      func.return %y : !nd.tensor<6 x 4 x f32>
    }"""
    ran = opt_tool("-", "-p", "loop-to-mem,mem-term-blocks,mem-pad-strides{always=true}", stdin=text)
    assert ran.code == 0, ran.err
    assert "!mem.buffer<6 x 4 x 1024 x f32, [4160, 1040, 1]>" in ran.out
