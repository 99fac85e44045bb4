"""Products of short sums as multiplications and a sum, by the GPU's pipeline in the interpreter: values against eager, one nest."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import stepwell
from stepwell.tools.interpret.target import InterpretedTarget

TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 1e-3, torch.float32: 1e-5, torch.float64: 1e-12}


class NoneIsTiny(InterpretedTarget):
    """The pipeline for which small tensors are not few multiplications."""

    name = "none_is_tiny"
    stages = {
        stage: tuple(one.replace("{short=8", "{tiny=0 short=8") for one in passes) for stage, passes in InterpretedTarget.stages.items()
    }


@pytest.fixture(autouse=True)
def interpreted():
    assert any("tiny=0" in one for one in NoneIsTiny.stages["nd"])
    stepwell.register_target(NoneIsTiny, replace=True)
    yield
    stepwell.unregister_target("none_is_tiny")
    torch._dynamo.reset()


def compiled(function, *args, dynamic=False):
    torch._dynamo.reset()
    stepwell.reset_counters()
    return torch.compile(function, backend="stepwell", dynamic=dynamic, options={"cache": "off"})(*args)


def colours(x, m):
    return torch.einsum("bchw,dc->bdhw", x, m)


def layer(x, w, b):
    return F.relu(F.linear(x, w, b))


def product(a, b):
    return a @ b


def layers(x, *weights):
    for w in weights:
        x = F.gelu(x @ w)
    return x


CASES = {
    "channels": (colours, (2, 3, 5, 7), (3, 3)),
    "channels, another number": (colours, (2, 3, 5, 7), (2, 3)),
    "channels last": (lambda x, m: torch.einsum("bhwc,dc->bhwd", x, m), (2, 5, 7, 3), (4, 3)),
    "points": (lambda p, m, t: p @ m.T + t, (37, 3), (3, 3), (3,)),
    "points as columns": (product, (3, 3), (3, 37)),
    "a layer": (layer, (37, 4), (4, 4), (4,)),
    "poses": (product, (11, 4, 4), (11, 4, 13)),
    "poses of a pose": (product, (4, 4), (11, 4, 13)),
    "eight": (product, (65, 8), (8, 8)),
    "vector": (product, (37, 3), (3,)),
    "one column, one term": (product, (37, 1), (1, 1)),
    "layers": (layers, (19, 3), (3, 8), (8, 8), (8, 2)),
    "normalised rows": (lambda x, w: F.layer_norm(x, (8,)) @ w, (19, 8), (8, 5)),
    "none": (product, (0, 3), (3, 3)),
    "no columns": (product, (7, 3), (3, 0)),
}


@pytest.mark.spread
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", CASES)
def test_values(name, dtype):
    """One kernel, of which layers and norms are part."""
    function, *shapes = CASES[name]
    torch.manual_seed(0)
    args = [torch.randn(shape).to(dtype) for shape in shapes]
    got, want = compiled(function, *args), function(*args)
    torch.testing.assert_close(got, want, rtol=TOLERANCE[dtype], atol=8 * TOLERANCE[dtype])
    assert got.stride() == want.stride()
    assert stepwell.counters["launches"] == (1 if want.numel() else 0)


VIEWS = {
    "transposed": lambda x: x[:37, :3],
    "by columns": lambda x: x.t()[:37, :3],
    "sliced": lambda x: x[1:75:2, 1:7:2],
    "expanded": lambda x: x[:1, :3].expand(37, 3),
    "a number": lambda x: x[0, 0].expand(37, 3),
}


@pytest.mark.parametrize("name", VIEWS)
def test_strides(name):
    torch.manual_seed(1)
    x, m = VIEWS[name](torch.randn(80, 80)), torch.randn(3, 6)[:, ::2].t()
    torch.testing.assert_close(compiled(product, x, m), x @ m)


def test_sizes_that_are_symbols():
    torch.manual_seed(2)
    torch._dynamo.reset()
    f = torch.compile(layer, backend="stepwell", options={"cache": "off"})
    w, b = torch.randn(4, 4), torch.randn(4)
    for rows in (37, 5, 1, 0, 130):
        x = torch.randn(rows, 4)
        torch._dynamo.maybe_mark_dynamic(x, 0)
        torch.testing.assert_close(f(x, w, b), layer(x, w, b))
    x, m = torch.randn(2, 3, 5, 7), torch.randn(3, 3)
    torch.testing.assert_close(compiled(colours, x, m, dynamic=True), colours(x, m))


def test_gradients():
    """That of the points is such a product, that of the matrix has long sums."""
    torch.manual_seed(3)
    x, w, b = torch.randn(37, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True), torch.randn(3, requires_grad=True)
    want = torch.autograd.grad(layer(x, w, b).square().sum(), (x, w, b))
    got = torch.autograd.grad(compiled(layer, x, w, b).square().sum(), (x, w, b))
    torch.testing.assert_close(got, want)


def test_a_bias_is_added_before_the_sum_is_rounded():
    x, w, b = torch.tensor([[1.0, 2**-9]]).bfloat16(), torch.ones(1, 2).bfloat16(), torch.tensor([-1.0]).bfloat16()
    x = x.expand(20, 2)
    assert torch.equal(compiled(F.linear, x, w, b), torch.full((20, 1), 2**-9, dtype=torch.bfloat16))
