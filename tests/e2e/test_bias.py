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


@pytest.mark.spread
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


def test_the_product_has_the_bias_with_the_numerics_of_eager_and_what_follows_is_a_nest():
    torch._dynamo.reset()
    stepwell.reset_counters()
    x, w, b = torch.randn(8, 16), torch.randn(24, 16), torch.randn(24)
    f = torch.compile(lambda x, w, b: linear(x, w, b).relu(), backend="stepwell", options={"numerics": "eager"})
    torch.testing.assert_close(f(x, w, b), linear(x, w, b).relu())
    assert stepwell.counters["launches"] + stepwell.counters["extern"] == 2


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


@pytest.mark.parametrize(("force", "dynamic"), ((None, True), ("gemm", False), ("library", False)))
def test_rows_in_several_dimensions(force: str | None, dynamic: bool):
    """The product's rows are two dimensions where the bias is added: still one step, and the result has the strides of eager's."""

    def f(x, w, b):
        return (x.reshape(-1, 50) @ w.t()).view(x.shape[0], x.shape[1], 29) + b

    w, b = torch.randn(29, 50), torch.randn(29)
    for sizes in ((3, 4, 50), (1, 7, 50), (0, 4, 50)):
        x = torch.randn(sizes)
        got, want = compiled(f, force, dynamic)(x, w, b), f(x, w, b)
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()
        assert stepwell.counters["launches"] + stepwell.counters["extern"] <= 1


def test_rows_in_another_order_stay_a_nest():
    def f(x, w, b):
        return (x @ w).view(3, 4, 29).transpose(0, 1) + b

    x, w, b = torch.randn(12, 50), torch.randn(50, 29), torch.randn(29)
    torch.testing.assert_close(compiled(f)(x, w, b), f(x, w, b))


@pytest.mark.parametrize("batch_first", (False, True))
def test_attention_with_one_projection(batch_first: bool):
    """`nn.MultiheadAttention` adds the bias of q, k and v to the joint product seen in three dimensions."""
    torch.manual_seed(0)
    net = torch.nn.MultiheadAttention(32, 4, batch_first=batch_first)
    torch.nn.init.normal_(net.in_proj_bias)
    x = torch.randn(3, 10, 32, requires_grad=True)

    def f(x):
        return net(x, x, x, need_weights=False)[0]

    want = f(x)
    got = compiled(f)(x)
    torch.testing.assert_close(got, want)
    leaves = [x, *net.parameters()]
    g = torch.randn_like(want)
    torch.testing.assert_close(torch.autograd.grad(got, leaves, g), torch.autograd.grad(want, leaves, g), rtol=1e-4, atol=1e-5)
