"""Linear layers: the bias is added inside of the product, by generated code and by the library, rounded once."""

from __future__ import annotations

import pytest
import torch

import stepwell


def compiled(f, force: str | None = None, dynamic: bool = False):
    torch._dynamo.reset()
    stepwell.reset_counters()
    select = f"contract-select{{force={force}}}"
    text = f"stepwell-cpu{{to=loop}},loop-to-mem,mem-plan,loop-schedule,{select},mem-to-cpu,to-host"
    options = {} if force is None else {"pipeline": text}
    return torch.compile(f, backend="stepwell", dynamic=dynamic, options=options)


def linear(x, w, b):
    return torch.nn.functional.linear(x, w, b)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16, torch.float16))
@pytest.mark.parametrize("force", (None, "gemm", "library"))
@pytest.mark.parametrize("dynamic", (False, True))
def test_values(dtype: torch.dtype, force: str | None, dynamic: bool):
    torch.manual_seed(0)
    x, w, b = torch.randn(37, 50, dtype=dtype), torch.randn(29, 50, dtype=dtype), torch.randn(29, dtype=dtype)
    exact = linear(x.double(), w.double(), b.double())
    ours = compiled(linear, force, dynamic)(x, w, b).double()
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12}.get(dtype, torch.finfo(dtype).eps)
    torch.testing.assert_close(ours, exact, rtol=tolerance, atol=tolerance * 4)
    assert stepwell.counters["launches"] + stepwell.counters["extern"] <= 1


def test_a_sum_in_bf16_is_rounded_once():
    # 256 + 1 is no bf16: rounding the product first would lose the bias of 1
    x, w = torch.full((4, 64), 2.0, dtype=torch.bfloat16), torch.full((32, 64), 2.0, dtype=torch.bfloat16)
    w[:, 0] = 2.5
    b = torch.full((32,), 1.0, dtype=torch.bfloat16)
    assert compiled(linear)(x, w, b).eq(258).all()


@pytest.mark.parametrize("force", ("gemm", "library"))
def test_a_bias_that_is_not_contiguous(force: str):
    x, w, b = torch.randn(8, 16), torch.randn(24, 16), torch.randn(48)[::2]
    torch.testing.assert_close(compiled(linear, force)(x, w, b), linear(x, w, b))


def test_a_transposed_result():
    def f(x, w, b):
        return torch.addmm(b, x, w).t().contiguous()

    x, w, b = torch.randn(8, 16), torch.randn(16, 24), torch.randn(24)
    torch.testing.assert_close(compiled(f)(x, w, b), f(x, w, b))


def test_a_product_that_others_read_stays():
    def f(x, w, b):
        y = x @ w
        return y + b, y

    x, w, b = torch.randn(8, 16), torch.randn(16, 24), torch.randn(24)
    for ours, eager in zip(compiled(f)(x, w, b), f(x, w, b), strict=True):
        torch.testing.assert_close(ours, eager)


@pytest.mark.parametrize("shape", ((0, 16, 24), (8, 0, 24), (1, 16, 1)))
def test_empty_and_single(shape: tuple[int, int, int]):
    m, k, n = shape
    x, w, b = torch.randn(m, k), torch.randn(n, k), torch.randn(n)
    torch.testing.assert_close(compiled(linear)(x, w, b), linear(x, w, b))
