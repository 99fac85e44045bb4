"""Row and column reductions in one nest: the number of nests of the named programs, and their values against eager (in f64)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import stepwell

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-11, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def gradients(f: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The result of `f` and the gradients of its floating point inputs."""
    leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in inputs]
    y = f(*leaves)
    torch.manual_seed(1)
    y.backward(torch.randn(y.shape, dtype=torch.float64).to(y.dtype))
    return [y.detach(), *(x.grad for x in leaves if x.grad is not None)]


def check(f: Callable[..., Any], inputs: Sequence[torch.Tensor], nests: int | None, dynamic: bool = False) -> None:
    """Values and strides against eager, and how many nests run forward and backward together."""
    torch._dynamo.reset()
    stepwell.reset_counters()
    got = gradients(torch.compile(f, backend="stepwell", dynamic=dynamic), inputs)
    wide = gradients(f, [x.double() if x.is_floating_point() else x for x in inputs])
    if nests is not None:
        assert stepwell.counters["launches"] == nests
    assert len(got) == len(wide)
    for a, b in zip(got, wide, strict=True):
        scale = max(1.0, b.abs().max().item()) if b.numel() else 1.0
        torch.testing.assert_close(a.double(), b, rtol=TOLERANCE[a.dtype], atol=TOLERANCE[a.dtype] * scale)


def layer_norm(x, w, b):
    return F.layer_norm(x, (x.shape[-1],), w, b)


def rms_norm(x, w):
    return F.rms_norm(x, (x.shape[-1],), w)


def group_norm(x, w, b):
    return F.group_norm(x, 2, w, b)


def parameters(n: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, dtype=dtype), torch.randn(n, dtype=dtype)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_layer_norm_is_one_nest_each_way(dtype: torch.dtype):
    """Catalogue I23."""
    check(layer_norm, [torch.randn(70, 40, dtype=dtype), *parameters(40, dtype)], 2)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_rms_norm_is_one_nest_each_way(dtype: torch.dtype):
    check(rms_norm, [torch.randn(70, 40, dtype=dtype), parameters(40, dtype)[0]], 2)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_group_norm_is_one_nest_each_way(dtype: torch.dtype):
    check(group_norm, [torch.randn(5, 8, 6, 7, dtype=dtype), *parameters(8, dtype)], 2)


@pytest.mark.parametrize("shape", [(3000, 17), (40, 3), (9, 5, 70), (2, 3, 4, 70)])
def test_layer_norm_of_any_shape(shape: tuple[int, ...]):
    check(layer_norm, [torch.randn(shape), *parameters(shape[-1])], 2)


@pytest.mark.parametrize("shape", [(1, 70), (0, 70), (3, 70), (40, 1)])
def test_few_rows_or_columns(shape: tuple[int, ...]):
    check(layer_norm, [torch.randn(shape), *parameters(shape[-1])], None)


@pytest.mark.parametrize("rows", [0, 1, 300, 70000])
def test_a_dynamic_number_of_rows(rows: int):
    torch._dynamo.reset()
    norm = torch.nn.LayerNorm(6)
    with torch.no_grad():
        norm.weight.normal_()
    compiled = torch.compile(norm, backend="stepwell")
    for n in (50, rows):
        x = torch.randn(n, 6)
        torch._dynamo.maybe_mark_dynamic(x, 0)
        stepwell.reset_counters()
        y, want = compiled(x), norm(x)
        torch.testing.assert_close(y, want)
        dy = torch.randn_like(y)
        got = torch.autograd.grad(y, [norm.weight, norm.bias], dy)
        exact = F.layer_norm(x.double(), (6,), norm.weight.double(), norm.bias.double())
        wide = torch.autograd.grad(exact, [norm.weight, norm.bias], dy.double())
        for a, b in zip(got, wide, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * max(1.0, b.abs().max().item()) if n else 0.0)


@pytest.mark.parametrize(
    "name",
    ["softmax", "layer norm", "rms norm", "bias", "batch norm"],
)
def test_dynamic_sizes_are_fused_as_static_ones(name: str):
    programs = {
        "softmax": (lambda x: F.softmax(x, -1), lambda n, c: [torch.randn(n, c)]),
        "layer norm": (layer_norm, lambda n, c: [torch.randn(n, c), *parameters(c)]),
        "rms norm": (rms_norm, lambda n, c: [torch.randn(n, c), parameters(c)[0]]),
        "bias": (lambda x, b: F.gelu(x + b), lambda n, c: [torch.randn(n, c), torch.randn(c)]),
        "batch norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), lambda n, c: [torch.randn(n, c, 5), *parameters(c)]),
    }
    f, inputs = programs[name]
    check(f, inputs(40, 33), 2, dynamic=True)
    compiled = torch.compile(f, backend="stepwell", dynamic=True)
    for n, c in ((7, 400), (900, 3), (3, 70000)):
        xs = inputs(n, c)
        for a, b in zip(gradients(compiled, xs), gradients(f, [x.double() for x in xs]), strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4 * max(1.0, b.abs().max().item()))


def test_no_weight_or_no_bias():
    check(lambda x, b: F.layer_norm(x, (40,), None, b), [torch.randn(70, 40), parameters(40)[0]], 2)
    check(lambda x, w: F.layer_norm(x, (40,), w, None), [torch.randn(70, 40), parameters(40)[0]], 2)


def test_inputs_that_are_not_contiguous():
    check(layer_norm, [torch.randn(40, 70).t(), *parameters(40)], None)
    check(layer_norm, [torch.randn(70, 80)[:, ::2], *parameters(40)], 2)
    check(layer_norm, [torch.randn(1, 40).expand(70, 40), *parameters(40)], 2)
    check(group_norm, [torch.randn(5, 8, 6, 7).to(memory_format=torch.channels_last), *parameters(8)], None)


def test_an_addition_and_its_norm():
    check(lambda x, y, w, b: F.layer_norm(x + y, (40,), w, b), [torch.randn(70, 40), torch.randn(70, 40), *parameters(40)], 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dynamic", [False, True])
def test_cross_entropy_is_one_nest_each_way(dtype: torch.dtype, dynamic: bool):
    target = torch.randint(0, 50, (70,))
    target[4] = -100
    check(F.cross_entropy, [torch.randn(70, 50, dtype=dtype), target], 2, dynamic)


def test_a_loss_over_columns_of_one_element():
    def loss(x, w, t):
        return F.binary_cross_entropy(torch.sigmoid(x @ w), t)

    check(loss, (torch.randn(16, 8), torch.randn(8, 1), torch.full((16, 1), 0.25)), None)



def test_sums_that_make_one_tensor_or_need_each_other():
    """Two halves of a tensor of column sums; sums of what was reduced before."""

    def halves(x):
        return torch.cat([x * 2, x.exp()], 1), torch.cat([(x * 2).sum(0), x.exp().sum(0)])

    def chained(x):
        a = x.sum(0)
        return x * 2, a, (x * a).sum(0), x.sum(1).sum()

    for f in (halves, chained):
        x = torch.randn(40, 16)
        torch._dynamo.reset()
        for ours, eager in zip(torch.compile(f, backend="stepwell")(x), f(x), strict=True):
            torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-4)


def test_the_mean_of_the_norms_of_rows():
    check(lambda x: (x * x).sum(1).sqrt().mean(), [torch.randn(300, 40)], 2)


@pytest.mark.parametrize("activation", [F.relu, F.gelu])
def test_the_gradient_of_a_bias_comes_with_that_of_its_input(activation: Callable[[torch.Tensor], torch.Tensor]):
    check(lambda x, b: activation(x + b), [torch.randn(200, 40), parameters(40)[0]], 2)


def test_threads_give_the_same_values():
    inputs = [torch.randn(700, 96), *parameters(96)]
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            torch._dynamo.reset()
            found.append(gradients(torch.compile(layer_norm, backend="stepwell"), inputs))
    finally:
        torch.set_num_threads(1)
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_batch_norm_reads_its_data_twice_at_most(memory_format: torch.memory_format):
    x = torch.randn(8, 16, 12, 12).to(memory_format=memory_format)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, w, b: F.batch_norm(x, None, None, w, b, True), backend="stepwell")
    x.requires_grad_()
    stepwell.reset_counters()
    y = compiled(x, *(p.requires_grad_() for p in parameters(16)))
    data = x.numel() * 4
    assert stepwell.counters["bytes_read"] < 2 * data and stepwell.counters["bytes_written"] < 1.1 * data
    stepwell.reset_counters()
    y.backward(torch.ones_like(y))
    assert stepwell.counters["bytes_read"] <= 2.1 * data and stepwell.counters["bytes_written"] < 1.1 * data


def test_a_part_reads_what_a_shorter_loop_did_not_overwrite():
    """Zeros for the first five of six columns are no value of the sixth, although both loops have the same depth."""

    def fn(x):
        turned = x.flip(0)
        turned[:, :5] = 0
        return torch.stack([turned.sum(), turned[:, :5].sum()]), turned

    torch._dynamo.reset()
    x = torch.randn(4, 6, 2)
    torch.testing.assert_close(torch.compile(fn, backend="stepwell")(x), fn(x))
