"""Kernels for sizes that are symbols, over other sizes, strides and types: traced once, run by the interpreter of `tt` against eager."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from support import import_function, lower
from torch.utils import _pytree as pytree
from xdsl.parser import Parser

from stepwell.dialects.host import LaunchOp
from stepwell.dialects.tt.structure import RARE, AssertOp, FuncOp
from stepwell.lowering.fx.pre_grad import whole_operators  # noqa: F401 - its operators
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.loop import run_loop

PROGRAMS = {
    "values": lambda x: (F.gelu(x) * 2 + x, x.exp() > 1),
    "softmax": lambda x: torch.softmax(x, -1),
    "log-softmax of columns": lambda x: torch.log_softmax(x, 0),
    "layer norm": lambda x: F.layer_norm(x, (x.shape[1],)),
    "sums": lambda x: (x.sum(), x.sum(0), x.sum(1), x.mean(1)),
    "extremes": lambda x: (x.amax(1), x.amin(0), x.argmax(1), x.argmin(0)),
    "variance": lambda x: torch.var_mean(x, 1, correction=0),
    "cumsum": lambda x: (x.cumsum(1), x.cumsum(0)),
    "running extremes": lambda x: (x.cummax(1)[0], torch.logcumsumexp(x, 1)),
    "group norm": lambda x: F.group_norm(x[None] * 1.5, 1),
    "norm and its gradient": lambda x: norm_and_gradient(x),
    "transposed": lambda x: (x.t().contiguous(), x.t() * 2),
    "joined": lambda x: torch.cat([x, x * 2, x[:, :1]], 1),
    "padded": lambda x: F.pad(x, (1, 2, 0, 3), value=1.5),
    "flipped": lambda x: (x.flip(0), x.roll(1, 1)),
    "parts": lambda x: (x[1:, :] + x[:-1, :], x[:, ::2] * 3),
    "broadcast": lambda x: (x + x[:, :1], x * x[:1], x - x.mean(1, keepdim=True)),
    "gathered": lambda x: x[torch.arange(x.shape[0] - 1, -1, -1)],
    "added up": lambda x: torch.zeros(x.shape[1]).index_add(0, torch.arange(x.shape[1]) // 2, x.sum(0)),
    "cast": lambda x: (x.to(torch.bfloat16), x.to(torch.int32), x.double()),
    "halves": lambda x: F.silu(x[:, : (x.shape[1] + 1) // 2]) * x[:, x.shape[1] // 2 :],
    "halves swapped": lambda x: x * 2 + torch.cat([-x[:, x.shape[1] // 2 :], x[:, : x.shape[1] // 2]], 1),
    "pooled": lambda x: F.max_pool2d(x[None], 3, 2, 1),
    "resampled": lambda x: F.interpolate(x[None, None], scale_factor=4.0, mode="bilinear"),
    "clamped": lambda x: x[(x[:, 0] * 3).long().clamp(0, x.shape[0] - 1)],
    "triangle": lambda x: (torch.tril(x), torch.triu(x, 1)),
    "cross-entropy": lambda x: F.cross_entropy(x, torch.arange(x.shape[0]) % x.shape[1]),
    "reshaped": lambda x: (x.reshape(-1) * 2, x.view(x.shape[1], x.shape[0]).sum(0)),
}


def norm_and_gradient(x):
    mean, rstd = x.mean(1, keepdim=True), torch.rsqrt(x.var(1, keepdim=True, correction=0) + 1e-5)
    y = (x - mean) * rstd
    return y, torch.ops.aten.native_layer_norm_backward(x * 2, x, [x.shape[1]], mean, rstd, None, None, [True, False, False])[0]


def example(shape, strided, dtype):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    return torch.empty_strided(shape, (shape[1] + 3, 1) if strided else (shape[1], 1), dtype=dtype).copy_(values)


@functools.cache
def lowered(name: str, strided: bool, dtype: torch.dtype, target: str = "sm_90"):
    return lowered_from(name, example((6, 40), strided, dtype), target)


def lowered_from(name: str, x: torch.Tensor, target: str):
    return lowered_function(PROGRAMS[name], x, target)


def lowered_function(function, x: torch.Tensor, target: str = "sm_90"):
    return lower(function, x, mode="symbolic", machine=target)


def check(name, shape, strided=False, dtype=torch.float32):
    close = {torch.bfloat16: 3e-2, torch.float16: 4e-3}.get(dtype, 2e-4)
    check_with(lowered(name, strided, dtype), name, example(shape, strided, dtype), close)


def check_with(imported, name, x, close):
    got = run_loop(imported.module, [x], imported.constants, imported.objects)
    expected = pytree.tree_leaves(PROGRAMS[name](x))
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a.reshape(b.shape), b, rtol=close, atol=close, equal_nan=True)


@pytest.mark.spread
@pytest.mark.parametrize("shape", [(6, 40), (2, 3), (5, 129), (17, 2)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_other_sizes_than_the_graph_was_traced_with(name, shape):
    check(name, shape)


@pytest.mark.parametrize("name", ["values", "softmax", "layer norm", "sums", "extremes", "cumsum", "transposed", "parts", "joined"])
def test_rows_with_gaps(name):
    check(name, (5, 37), strided=True)


@pytest.mark.long
@pytest.mark.parametrize("name", ["extremes", "sums", "halves swapped"])
def test_long_rows(name):
    """Rows that go by in blocks, of which the last may hang over; halves whose lengths have bounds."""
    x = example((2, 5000), False, torch.float32)
    imported = lowered_from(name, x, "sm_90")
    for shape in [(2, 5000), (3, 4096), (1, 3), (2, 8193)]:
        check_with(imported, name, example(shape, False, torch.float32), 1e-3)


def test_sizes_that_are_one_symbol():
    """Statistics of n images of n pixels, with a bound for n that torch has found, and rows as long as its square."""

    def statistics(x):
        torch._check(x.shape[0] < 1 << 28)
        return torch.var_mean(x, (0, 2))

    imported = lowered_function(statistics, torch.randn(5, 5, 5))
    for n in (5, 3, 40):
        x = torch.randn(n, n, n, generator=torch.Generator().manual_seed(n))
        got = run_loop(imported.module, [x], imported.constants, imported.objects)
        for found, want in zip(got, statistics(x), strict=True):
            torch.testing.assert_close(found.reshape(want.shape), want, rtol=1e-4, atol=1e-4)


@pytest.mark.long
def test_three_passes_of_six_taps_are_several_kernels():
    """In one body they would be 216 loads, which Triton compiles for a minute."""

    def gradient(x):
        y = F.interpolate(x, scale_factor=1.7, mode="trilinear")
        scales = [1.7, 1.7, 1.7]
        return torch.ops.stepwell.interpolate_backward(y, "upsample_trilinear3d", list(y.shape[2:]), list(x.shape), False, scales)

    imported = lowered_function(gradient, torch.randn(2, 3, 6, 6, 6))
    loads = [sum(op.name == "tt.load" for op in f.walk()) for f in imported.module.ops if isinstance(f, FuncOp)]
    assert max(loads) < 100
    x = torch.randn(2, 3, 10, 10, 10, generator=torch.Generator().manual_seed(0))
    (got,) = run_loop(imported.module, [x], imported.constants, imported.objects)
    torch.testing.assert_close(got, gradient(x), rtol=1e-4, atol=1e-4)


def test_what_is_computed_from_sizes_is_passed_by_the_host():
    module = lowered("halves", False, torch.float32).module
    launches = [op for op in module.walk() if isinstance(op, LaunchOp)]
    assert launches and all(any("floordiv 2" in str(size) for size in op.sizes.data) for op in launches)


def test_sizes_that_are_quotients_of_others_are_loops_like_them():
    """What a norm's decomposition makes of its sizes: height times width over width."""

    def scaled(x):
        n, c, h, w = x.shape
        flat = x.reshape(n, c, h * w)
        rows = flat / flat.amax(-1, keepdim=True)
        return (torch.relu(rows.reshape(n, c, (h * w) // w, w)),)

    x = torch.rand(2, 3, 5, 7) + 1
    imported = import_function(scaled, x, mode="symbolic")
    assert "floordiv" not in str(imported.module)
    run(default_pipeline("gpu", stages=("nd", "loop", "mem", "tt")), imported.module, context())
    given = torch.rand(3, 2, 4, 9) + 1
    torch.testing.assert_close(run_loop(imported.module, [given], imported.constants, imported.objects)[0], scaled(given)[0])


def test_indices_that_sizes_clamp_are_not_checked():
    kernels = [f for f in lowered("clamped", False, torch.float32).module.ops if isinstance(f, FuncOp)]
    usual = [f for f in kernels if RARE not in f.attributes]
    assert usual and not any(isinstance(op, AssertOp) for f in usual for op in f.walk())


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_rows_of_small_products_may_be_a_symbol(rows):
    weight = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))

    def product(x):
        return (torch.relu(x @ weight),)

    x = torch.randn(7, 8, generator=torch.Generator().manual_seed(1))
    imported = lower(product, x, to="tt", target="gpu", mode="symbolic")
    assert "aten.mm" not in str(imported.module)
    given = torch.randn(rows, 8, generator=torch.Generator().manual_seed(rows))
    (got,) = run_loop(imported.module, [given], imported.constants, imported.objects)
    torch.testing.assert_close(got, torch.relu(given @ weight))


@pytest.mark.spread
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", ["values", "softmax", "layer norm", "sums", "extremes", "broadcast", "padded"])
def test_types(name, dtype):
    check(name, (7, 33), dtype=dtype)


@pytest.mark.spread
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_triton_compiles_it(name, target):
    pytest.importorskip("triton", reason="Triton is not installed (the extra 'gpu')")
    from stepwell.targets.triton.compile import compile_kernels
    from stepwell.targets.triton.emit import kernel_modules
    from stepwell.targets.triton.gpu import gpu_target

    modules = kernel_modules(lowered(name, name != "reshaped", torch.float32, target).module)
    assert all(built.code[:4] == b"\x7fELF" for built in compile_kernels(modules, gpu_target(target)))


def test_chunks_of_one_term_that_are_none():
    """The bound has three terms, the call two: the third chunk stores nothing, where the next row's first element is."""
    imported = import_function(lambda x: (x[:, 1:] * x[:, :-1]).cumsum(1), torch.randn(3, 3), mode="symbolic")
    run(default_pipeline("gpu", stages=("nd", "loop", "mem")), imported.module, context())
    text = str(imported.module)
    for old, new in (("blocks = [4", "blocks = [1"), ("reduction_block = 4", "reduction_block = 1"), ("chunks = 1", "chunks = 3")):
        assert old in text
        text = text.replace(old, new)
    module = Parser(context(), text).parse_module()
    run(default_pipeline("gpu", stages=("tt",)), module, context())
    x = torch.randn(3, 3)
    (found,) = run_loop(module, [x], imported.constants, imported.objects)
    torch.testing.assert_close(found.reshape(3, 2), (x[:, 1:] * x[:, :-1]).cumsum(1))


def test_one_size_of_several_has_the_room_that_the_others_leave():
    """Within 32 bits the first size may be 64 times its example (4096, a power of two), the others four times theirs (512)."""
    module = lower(torch.relu, torch.randn(60, 120, 120), to="tt", target="gpu", mode="symbolic").module
    bounded = next(op for op in module.walk() if isinstance(op, LaunchOp))
    grid = str(bounded.grid)
    assert "+ 4097, 0), 1)" in grid and "+ 513, 0), 1)" in grid
