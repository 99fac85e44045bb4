"""Reductions of rows and columns that products begin: eager's numbers, and the product in memory only where somebody reads it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support import lower, without_data
from torch.utils import _pytree as pytree

import stepwell
from stepwell.dialects.tt.compute import DotOp
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.tools.interpret.target import InterpretedTarget

BF16, F16 = torch.bfloat16, torch.float16
ALWAYS = {
    "nd_library_products": "nd-library-products{tiny=0 library=never}",
    "gpu_carry_reductions": "gpu-carry-reductions{always=true}",
}


def numbers(*shape, dtype=BF16, scale=1.0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * scale).to(dtype)


def empty(*shape):
    return torch.empty(shape, dtype=BF16, device="meta")


def stored(x, w):
    y = x @ w
    return y, y.float().amax(-1)


def softmax_parts(x, w):
    y = (x @ w).float()
    return y.amax(-1), torch.logsumexp(y, -1)


def sums(x, w):
    y = (x @ w).float()
    return y.sum(-1), (y * y).sum(-1)


def behind(x, w):
    return (F.relu(x @ w + w[0]) * x[:, :1]).abs().amax(-1)


def computed_later(x, w):
    y = (x @ w).float()
    return (y * w.float().exp().sum(0)).amax(-1)


# Program, whether the product itself is stored.
PROGRAMS = {
    "maxima": (lambda x, w: (x @ w).float().amax(-1), False),
    "magnitudes": (lambda x, w: (x @ w).abs().amax(-1), False),
    "maxima, stored": (stored, True),
    "softmax": (softmax_parts, False),
    "sums": (sums, False),
    "columns": (lambda x, w: (x @ w).float().sum(0), False),
    "extremes of columns": (lambda x, w: (x @ w).amin(0), False),
    "places": (lambda x, w: (x @ w).float().argmax(-1), False),
    "an epilogue": (behind, False),
    "numbers of columns behind the product": (computed_later, False),
}
FEW = ("maxima, stored", "softmax", "columns", "numbers of columns behind the product")
SIZES = [(70, 100, 48), pytest.param((65, 512, 40), marks=pytest.mark.spread), pytest.param((130, 264, 72), marks=pytest.mark.spread)]


@pytest.fixture
def interpreted():
    stepwell.register_target(InterpretedTarget, replace=True)
    yield
    stepwell.unregister_target("interpreted")


def pipeline():
    made = default_pipeline("gpu")
    for name, text in ALWAYS.items():
        made.replace(name.replace("_", "-"), text)
    return {"pipeline": str(made)}


def compare(got, function, args, dtype):
    wide = function(*[x.double() for x in args])
    for a, b, near in zip(*map(pytree.tree_leaves, (got, function(*args), wide)), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        if not a.is_floating_point():
            continue
        size = near.abs().max() + 1e-9
        error, eager = ((v.double() - near).abs().max() / size for v in (a, b))
        assert error <= 1.2 * eager + (2e-3 if dtype is BF16 else 3e-4)


@pytest.mark.parametrize("dtype", [BF16, pytest.param(F16, marks=pytest.mark.spread)])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", [name if name in FEW else pytest.param(name, marks=pytest.mark.spread) for name in PROGRAMS])
def test_numbers_of_eager(interpreted, name, sizes, dtype):
    """I13"""
    (function, _), (rows, columns, terms) = PROGRAMS[name], sizes
    args = numbers(rows, terms, dtype=dtype), numbers(terms, columns, dtype=dtype, scale=terms**-0.5)
    got = torch.compile(function, backend="stepwell", options=pipeline())(*args)
    compare(got, function, args, dtype)
    if name == "places":
        product = args[0].double() @ args[1].double()
        assert torch.all(product.gather(1, got[:, None])[:, 0] >= product.amax(-1) - 0.02)


@pytest.mark.parametrize("name", FEW)
def test_the_product_is_in_memory_where_somebody_reads_it(name):
    function, is_stored = PROGRAMS[name]
    module = lower(function, *without_data([empty(2048, 256), empty(256, 1024)], "cpu"), to="mem", **ALWAYS).module
    assert ("buffer<2048 x 1024 x" in str(module)) == is_stored


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.spread) for name in FEW])
def test_sizes_that_are_symbols(interpreted, name):
    function, _ = PROGRAMS[name]
    compiled = torch.compile(function, backend="stepwell", dynamic=True, options=pipeline())
    for rows, columns in ((130, 264), (70, 600), (1, 264)):
        args = numbers(rows, 40), numbers(40, columns, scale=0.15)
        compare(compiled(*args), function, args, BF16)


@pytest.mark.parametrize("columns", [128, pytest.param(100, marks=pytest.mark.spread)])
def test_variances_of_whole_blocks(interpreted, columns):
    """Of blocks that are not whole there is no variance without what lies behind them: the reduction stays apart."""

    def moments(x, w):
        return torch.var_mean((x @ w).float(), -1)

    args = numbers(70, 48), numbers(48, columns, scale=0.15)
    compare(torch.compile(moments, backend="stepwell", options=pipeline())(*args), moments, args, BF16)


def test_rows_that_are_read_again_stay_apart():
    """A norm reads the product anyway: nothing is saved where rows are on chip."""

    def norm(x, w):
        return F.rms_norm(x @ w, (1024,))

    options = {"nd_library_products": ALWAYS["nd_library_products"]}
    module = lower(norm, *without_data([empty(2048, 256), empty(256, 1024)], "cpu"), to="mem", **options).module
    assert "_reduced" not in str(module)


@pytest.mark.long
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_products_do_not_wait(name, arch):
    """N34"""
    pytest.importorskip("triton", reason="Triton is not installed (the extra 'gpu')")
    from stepwell.targets.triton.compile import compile_kernel
    from stepwell.targets.triton.emit import kernel_modules
    from stepwell.targets.triton.gpu import gpu_target

    function, _ = PROGRAMS[name]
    args = without_data([empty(8192, 1024), empty(1024, 4096)], "cpu")
    module = lower(function, *args, machine=f"{arch},multiprocessors=132", **ALWAYS).module
    kernels = [one for one in kernel_modules(module) if any(isinstance(op, DotOp) for op in one.walk())]
    assert kernels
    for kernel in kernels:
        details = compile_kernel(kernel, gpu_target(arch)).details
        assert not details["spills"] and not details.get("waiting_products")
