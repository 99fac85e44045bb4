"""Products that add to their sum: values, by generated code and by the library, at every level."""

from __future__ import annotations

import pytest
import torch

import stepwell

LEVELS = "stepwell-cpu{to=loop},loop-to-mem,mem-plan,loop-schedule,contract-select{force=%s},stepwell-cpu{from=cpu}"


def three(a, b, x, y):
    return a.t() @ x + b.t() @ y + (a + 1).t() @ y


def batched(a, b, x, y):
    rows = [t.unflatten(0, (3, -1)) for t in (a, b, x, y)]
    return rows[0].mT @ rows[2] + rows[1].mT @ rows[3]


def beside_a_nest(a, b, x, y):
    return (a.sum() + x[:1].t() * y[:1]).t() + x.t() @ y


def run(function, tensors, who, **options):
    torch._dynamo.reset()
    stepwell.reset_counters()
    return torch.compile(function, backend="stepwell", options={"pipeline": LEVELS % who}, **options)(*tensors)


@pytest.mark.parametrize("who", ["gemm", "library"])
@pytest.mark.parametrize("function, dtype", [(three, torch.float32), (batched, torch.float64), (beside_a_nest, torch.float32)])
def test_values(function, dtype, who):
    torch.manual_seed(1)
    tensors = [torch.randn(330, n, dtype=dtype) for n in (40, 40, 24, 24)]
    got = run(function, tensors, who, dynamic=who == "gemm")
    torch.testing.assert_close(got, function(*(t.double() for t in tensors)).to(dtype), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("rows", [0, 1])
def test_depths_without_work(rows):
    tensors = [torch.randn(rows, n) for n in (40, 40, 24, 24)]
    torch.testing.assert_close(run(three, tensors, "gemm"), three(*tensors))


def test_no_temporary_for_each_product():
    tensors = [torch.randn(510, n) for n in (40, 40, 24, 24)]
    run(batched, tensors, "gemm")
    result = 3 * 40 * 24 * 4
    assert stepwell.counters["bytes_written"] == 2 * result
    assert stepwell.counters["bytes_read"] == sum(t.numel() * 4 for t in tensors) + result
    torch._dynamo.reset()
    stepwell.reset_counters()
    torch.compile(batched, backend="stepwell", options={"numerics": "eager"})(*tensors)
    assert stepwell.counters["bytes_written"] == 3 * result
