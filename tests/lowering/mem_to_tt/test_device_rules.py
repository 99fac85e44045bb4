"""Operators that a GPU treats otherwise than the CPU: traced for a pretended one, run by the interpreter on memory of the CPU."""

from __future__ import annotations

import pytest
import torch
from support import traced, without_data
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from stepwell.dialects import nd
from stepwell.lowering.fx_to_nd import import_graph
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.passes.manager.verify import verify_ir
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.loop import run_loop

aten = torch.ops.aten


def on_gpu(function, *args, library=()):
    """What the kernels for a GPU of a function compute; `library`: the operators that may be called instead."""

    fake = without_data(args)
    gm = traced(lambda *inputs: [t for t in pytree.tree_leaves(function(*inputs)) if t is not None], *fake)
    imported = import_graph(gm, fake)
    assert {op.call.data.target for op in imported.module.walk() if isinstance(op, nd.ExternOp)} == set(library)
    run(default_pipeline("gpu", stages=("nd", "loop", "mem", "tt")), imported.module, context())
    verify_ir(imported.module)
    found = run_loop(imported.module, [a.clone() for a in args], imported.constants, imported.objects)
    shapes = [n.meta["val"] for n in next(n for n in gm.graph.nodes if n.op == "output").args[0]]
    return [f.reshape(s.shape) for f, s in zip(found, shapes, strict=True)]


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


# ---- batch norm


@pytest.mark.parametrize(
    "dtype, statistics", [("float32", "float32"), ("float64", "float64"), ("bfloat16", "float32"), ("float16", "float16")]
)
@pytest.mark.parametrize("affine", [True, False])
def test_statistics_of_a_batch_norm_without_training(dtype, statistics, affine):
    """A GPU gives back the mean and the inverse deviation that were used, for the CPU there are none."""
    dtype, statistics = getattr(torch, dtype), getattr(torch, statistics)
    x, mean, var = randn(4, 3, 5, dtype=dtype), randn(3, dtype=statistics), randn(3, dtype=statistics).abs() + 0.5
    parameters = [randn(3, dtype=statistics), randn(3, dtype=statistics) + 1] if affine else []

    def native(op, *flags):
        return lambda x, m, v, *p: op(x, *(p or (None, None)), m, v, *flags, 0.1, 1e-3)

    wide = torch.float64 if dtype == torch.float64 else torch.float32
    want = [mean.to(wide), 1 / (var.to(wide) + 1e-3).sqrt()]
    kinds = [(aten.native_batch_norm, False), (aten._native_batch_norm_legit, False), (aten._native_batch_norm_legit_no_training,)]
    for op in (native(*kind) for kind in kinds):
        _, *got = on_gpu(op, x, mean, var, *parameters)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b)


# ---- integers


@pytest.mark.spread
@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "int8", "uint8"])
@pytest.mark.parametrize("shape", [(300,), (), (5, 1, 7)], ids=str)
def test_powers_of_integers(dtype, shape):
    dtype = getattr(torch, dtype)
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    bases = torch.tensor([0, 1, 2, 3, 7, 100, high] + [low, -1, -2] * (low < 0), dtype=dtype)
    exponents = torch.tensor([0, 1, 2, 5, 6, 62, 64, 100, high] + [low, -1, -2] * (low < 0), dtype=dtype)
    pairs = torch.cartesian_prod(bases, exponents)
    x, y = (pairs[torch.arange(torch.Size(shape).numel()) % len(pairs), k].view(shape) for k in (0, 1))

    def powers(x, y):
        return x**y, x**5, (-3) ** y if low else 3**y

    for got, want in zip(on_gpu(powers, x, y), powers(x, y), strict=True):
        assert torch.equal(got, want)


def test_powers_of_integers_in_tiles_of_two_axes_and_in_sums():
    x, y = torch.arange(-20, 20).repeat(9, 1), torch.arange(-4, 5).repeat(40, 1).t()
    for a, b in zip(on_gpu(lambda x, y: (x**y, (x**y).sum(1), (x**y).sum(0)), x, y), (x**y, (x**y).sum(1), (x**y).sum(0)), strict=True):
        assert torch.equal(a, b)


# ---- scatters that combine

def places(n: int, m: int) -> torch.Tensor:
    return torch.randint(0, n, (m,), generator=torch.Generator().manual_seed(m))


def combining(*dtypes: str):
    """(x, indices, indices of each element, values) of element types."""
    made = []
    for name in dtypes:
        dtype = getattr(torch, name)
        x, values = randn(6, 3) * 4, randn(40, 3) * 4
        if dtype == torch.uint8:
            x, values = x.abs(), values.abs()
        index = places(6, 40)
        tensors = [t > 2 if dtype == torch.bool else t.to(dtype) for t in (x, values)]
        made.append(pytest.param(tensors[0], index, index[:, None].repeat(1, 3), tensors[1], id=name))
    return pytest.mark.parametrize("x, index, each, values", made)


def sums(x, index, each, values):
    return (
        x.index_add(0, index, values), x.index_put((index,), values, accumulate=True), x.put(each, values, accumulate=True),
        x.scatter_add(0, each, values), x.scatter_reduce(0, each, values, "sum"),
        x.scatter_reduce(0, each, values, "sum", include_self=False),
    )  # fmt: skip


@combining("bool", "int8", "uint8", "int16", "int64")
def test_sums_of_integers_that_are_scattered(x, index, each, values):
    """OP-18: of booleans `or`; of 8 and 16 bits, for which there is no atomic operation, in 32."""
    for got, want in zip(on_gpu(sums, x, index, each, values), sums(x, index, each, values), strict=True):
        assert got.dtype == x.dtype and torch.equal(got, want)


@combining("bool", "int8", "uint8", "int16", "int64")
@pytest.mark.parametrize("include_self", [True, False])
def test_extremes_and_means_of_integers_that_are_scattered(x, index, each, values, include_self):
    kinds = ["amax", "amin", "prod" if x.dtype == torch.bool else "mean"]

    def reduced(x, each, values):
        return tuple(x.scatter_reduce(0, each, values, k, include_self=include_self) for k in kinds)

    for got, want in zip(on_gpu(reduced, x, each, values), reduced(x, each, values), strict=True):
        assert got.dtype == x.dtype and torch.equal(got, want)


@pytest.mark.parametrize("include_self", [True, False])
def test_extremes_of_floats_that_are_scattered(include_self):
    """NaN stays where it was, and goes where it is scattered to."""
    x, values = torch.tensor([1.0, float("nan"), -0.5]), torch.tensor([2.0, -3.0, float("nan"), 0.25])
    index = torch.tensor([0, 0, 2, 1])

    def extremes(x, values, index):
        return tuple(x.scatter_reduce(0, index, values, kind, include_self=include_self) for kind in ("amax", "amin"))

    given = x, values, index
    torch.testing.assert_close(list(on_gpu(extremes, *given)), list(extremes(*given)), rtol=0, atol=0, equal_nan=True)


@combining("float16", "bfloat16")
def test_sums_of_16_bits_that_are_scattered_are_rounded_once(x, index, each, values):
    def means(x, index, each, values):
        return (*sums(x, index, each, values), x.scatter_reduce(0, each, values, "mean"))

    found = on_gpu(means, x, index, each, values)
    for got, want in zip(found, means(x.double(), index, each, values.double()), strict=True):
        near = want.to(x.dtype)
        assert got.dtype == x.dtype
        assert ((got.double() - near.double()).abs() <= near.double().abs() * torch.finfo(x.dtype).eps).all()
        assert (got == near).float().mean() > 0.9


@pytest.mark.parametrize("numbers, copied", [(1 << 19, True), (1 << 10, False)])
def test_a_large_tensor_is_not_copied_for_the_precision_of_few_sums(numbers, copied):
    with FakeTensorMode():
        x, values = (torch.empty(n >> 10, 1 << 10, dtype=torch.bfloat16, device="cuda") for n in (1 << 20, numbers))
        index = torch.empty(numbers >> 10, dtype=torch.int64, device="cuda")
        gm = make_fx(lambda x, i, v: (x.index_add(0, i, v),), tracing_mode="fake")(x, index, values)
    (put,) = [op for op in import_graph(gm, [x, index, values]).module.walk() if isinstance(op, nd.IndexPutOp)]
    assert ("f32" in str(put.results[0].type)) == copied


# ---- pooling


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradient_of_adaptive_pooling_in_three_dimensions(dtype):
    dtype = getattr(torch, dtype)
    grad, x = randn(2, 3, 3, 2, 4, dtype=dtype), randn(2, 3, 4, 3, 5, dtype=dtype)
    program = lambda g, x: aten._adaptive_avg_pool3d_backward(g, x)  # noqa: E731
    (found,) = on_gpu(program, grad, x)
    torch.testing.assert_close(found, program(grad, x))
