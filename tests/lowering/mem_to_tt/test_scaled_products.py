"""Products of 8-bit floats with scales (`torch._scaled_mm`) as kernels of ours, beside eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support import lower, without_data
from xdsl.dialects import arith
from xdsl.dialects.builtin import bf16

import stepwell
from stepwell.dialects.mem import ExternOp
from stepwell.dialects.support.float8 import f8e4m3fn, f8e5m2
from stepwell.dialects.tt.compute import DotOp
from stepwell.dialects.tt.structure import FuncOp
from stepwell.dialects.tt.types import element_of
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.tools.interpret.loop import run_loop
from stepwell.tools.interpret.target import InterpretedTarget

BF16, E4M3, E5M2 = torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2
NEVER = "nd-library-products{tiny=0 library=never}"


def numbers(*shape, dtype=E4M3, scale=1.0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * scale).to(dtype)


def scales(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape))) + 0.5


def scaled(x, w, s, t, bias=None, out=BF16, fast=False):
    return torch._scaled_mm(x, w.t(), s, t, bias=bias, out_dtype=out, use_fast_accum=fast)


def of_rows(x, w, t, fast=True):
    """Rows of x by scales of their own."""
    s = x.abs().amax(-1, keepdim=True).float() / 448
    return F.relu(scaled((x.float() / s).clamp(-448, 448).to(E4M3), w, s, t, fast=fast))


def gated(x, w, v, s, t, u):
    return F.silu(scaled(x, w, s, t, fast=True)) * scaled(x, v, s, u, fast=True)


def second_form(x, w, s, t):
    kinds = F.ScalingType.RowWise
    return F.relu(F.scaled_mm(x, w.t(), s, kinds, t, kinds, output_dtype=BF16))


by_eager = pytest.mark.skipif(torch.__version__ < (2, 12), reason="torch 2.11 has no scales of rows on a CPU")

X, W, S, T = numbers(130, 96), numbers(112, 96), scales(130, 1), scales(1, 112)
# Program, arguments, products in each kernel.
PROGRAMS = {
    "scales of rows": (lambda x, w, s, t: F.gelu(scaled(x, w, s, t)), [X, W, S, T], [1]),
    "one scale": (lambda x, w, s, t: scaled(x, w, s, t, fast=True), [X, W, scales(), scales(1)], [1]),
    "a bias": (lambda x, w, s, t, b: F.relu(scaled(x, w, s, t, b)), [X, W, S, T, numbers(112, dtype=BF16)], [1]),
    "E5M2": (lambda x, w, s, t: scaled(x, w, s, t, fast=True), [numbers(130, 96, dtype=E5M2), numbers(112, 96, dtype=E5M2), S, T], [1]),
    "float32": (lambda x, w, s, t: scaled(x, w, s, t, out=torch.float32), [X, W, S, T], [1]),
    "few rows": (lambda x, w, s, t: F.silu(scaled(x, w, s, t)), [X[:5], W, S[:5], T], [1]),
    "few terms": (lambda x, w, s, t: scaled(x, w, s, t), [X[:, :16], W[:, :16], S, T], [1]),
    "rows apart": (lambda x, w, s, t: scaled(x, w, s, t), [X[::2], W, S[:65], T], [1]),
    "two matrices": (gated, [X, W, numbers(112, 96, scale=0.5), S, T, scales(1, 112)], [2]),
    "quantised rows": (of_rows, [numbers(130, 96, dtype=BF16), W, T], [0, 1]),
    "few quantised rows": (of_rows, [numbers(7, 96, dtype=BF16), W, T], [0, 1]),
}  # fmt: skip
if hasattr(F, "scaled_mm"):
    PROGRAMS["scaled_mm"] = (second_form, [X, W, S, T], [1])


def kernels(module):
    return [f for f in module.ops if isinstance(f, FuncOp)]


def dots(module):
    return [op for op in module.walk() if isinstance(op, DotOp)]


@pytest.mark.parametrize("name", PROGRAMS)
@by_eager
def test_scaled_products(name):
    """N34"""
    function, args, expected = PROGRAMS[name]
    made = lower(function, *args, nd_library_products=NEVER)
    assert [len(dots(f)) for f in kernels(made.module)] == expected
    assert {element_of(d.a.type) for d in dots(made.module)} == {f8e5m2 if name == "E5M2" else f8e4m3fn}
    assert not [op for op in made.module.walk() if isinstance(op, ExternOp)]
    (got,), want = run_loop(made.module, args, made.constants, made.objects), function(*args)
    assert got.dtype == want.dtype and got.shape == want.shape
    torch.testing.assert_close(got.float(), want.float(), rtol=2e-2, atol=2e-2 * want.float().abs().max().item())


@pytest.mark.parametrize("fast", [False, True])
def test_sums_are_added_up_as_float32_unless_the_call_is_fast(fast):
    made = lower(lambda *args: scaled(*args, fast=fast), X, W, S, T, nd_library_products=NEVER)
    (dot,) = dots(made.module)
    assert dot.maxNumImpreciseAcc is not None and dot.maxNumImpreciseAcc.value.data > 1 << 20
    added = [use.operation for use in dot.d.uses if isinstance(use.operation, arith.AddfOp)]
    assert bool(added) != fast


def in_blocks(s, side, depth):
    """Scales of blocks, [rows, blocks], as one for each element."""
    wide = s.repeat_interleave(128, 1)[:, :depth]
    return wide if wide.shape[0] == side else wide.repeat_interleave(128, 0)[:side]


def exact(x, w, s, t, bias=None):
    """Eager's on a GPU, in float64."""
    left, right = x.double() * in_blocks(s, len(x), x.shape[1]), w.double() * in_blocks(t.t(), len(w), w.shape[1])
    return left @ right.t() + (0 if bias is None else bias.double())


LEFT, RIGHT = numbers(130, 256), numbers(272, 256)
BIAS = numbers(272, dtype=BF16)
# Arguments of a call whose scales are those of blocks of 128 terms, of one row or column or of 128 of them.
BLOCKS = {
    "rows and blocks": [LEFT, RIGHT, scales(2, 130).t(), scales(2, 3)],
    "rows and columns": [LEFT, RIGHT, scales(130, 2), scales(2, 272)],
    "blocks and columns": [LEFT, RIGHT, scales(2, 2), scales(2, 272)],
    "a bias": [LEFT, RIGHT, scales(130, 2), scales(2, 3), BIAS],
    "few rows": [LEFT[:5], RIGHT, scales(5, 2), scales(2, 3)],
    "one block of terms": [LEFT[:, :128].contiguous(), RIGHT[:, :128].contiguous(), scales(130, 1), scales(1, 3)],
}


@pytest.mark.parametrize("name", BLOCKS)
def test_sums_of_blocks_are_scaled(name):
    """N34. The factors are loaded as they are, and what follows is part of the kernel."""
    args = BLOCKS[name]
    made = lower(lambda *a: F.silu(scaled(*a)), *args, nd_library_products=NEVER)
    (dot,) = dots(made.module)
    assert len(kernels(made.module)) == 1
    assert element_of(dot.a.type) == element_of(dot.b.type) == f8e4m3fn
    assert not [op for op in made.module.walk() if isinstance(op, ExternOp)]
    (got,) = run_loop(made.module, args, made.constants, made.objects)
    torch.testing.assert_close(got.double(), F.silu(exact(*args)), rtol=1e-2, atol=1e-2)


def test_blocks_of_quantised_rows():
    """What quantises blocks of rows is a kernel before the product."""

    def layer(x, w, t):
        v = x.float().unflatten(1, (-1, 128))
        s = v.abs().amax(-1) / 448
        return F.relu(scaled((v / s[..., None]).clamp(-448, 448).flatten(1).to(E4M3), w, s, t))

    args = [numbers(130, 256, dtype=BF16), RIGHT, scales(2, 3)]
    made = lower(layer, *args, nd_library_products=NEVER)
    assert [len(dots(f)) for f in kernels(made.module)] == [0, 1]
    (got,) = run_loop(made.module, args, made.constants, made.objects)
    want = F.relu(args[0].double() @ (RIGHT.double() * in_blocks(args[2].t(), len(RIGHT), 256)).t())
    torch.testing.assert_close(got.double(), want, rtol=5e-2, atol=5e-2 * want.abs().max().item())


@pytest.mark.parametrize(("rows", "left"), [(16, 0), (4096, 1)])
def test_blocks_by_price(rows, left):
    """Many rows are the library's, whose kernels add up sums of blocks faster. Its call is as it was."""
    args = without_data([numbers(rows, 4096), numbers(4096, 4096), scales(rows, 32), scales(32, 32)], "cpu")
    made = lower(lambda *a: F.silu(scaled(*a)), *args, to="mem")
    assert [op.call.data.target for op in made.module.walk() if isinstance(op, ExternOp)] == ["aten._scaled_mm.default"] * left


@pytest.mark.parametrize("rows", [130, 16])
def test_kernels_of_blocks_compile(rows):
    """Without spills, and no product waits for another one (C7515)."""
    pytest.importorskip("triton", reason="Triton is not installed (the extra 'gpu')")
    from stepwell.targets.triton.compile import compile_kernel
    from stepwell.targets.triton.emit import kernel_modules
    from stepwell.targets.triton.gpu import gpu_target

    shapes = ((rows, 4096), E4M3), ((4096, 4096), E4M3), ((rows, 32), torch.float32), ((32, 32), torch.float32)
    args = [torch.empty(shape, dtype=dtype) for shape, dtype in shapes]
    for function, given in ((scaled, args), (scaled, [*args[:2], torch.empty(rows, 1), torch.empty(1, 4096)])):
        for kernel in kernel_modules(lower(lambda *a, f=function: F.silu(f(*a)), *given, nd_library_products=NEVER).module):
            built = compile_kernel(kernel, gpu_target("sm_90"))
            assert not built.details["spills"] and not built.details.get("waiting_products")


def test_products_that_are_spelled_out_are_no_less_exact_than_eager():
    """In 16 bits."""
    made = lower(lambda x, w: x.to(BF16) @ w.to(BF16).t(), X, W, nd_library_products=NEVER)
    assert {element_of(d.a.type) for d in dots(made.module)} == {bf16}


CALLS = {
    "two types": (lambda x, w, s, t: scaled(x, w, s, t), [X, numbers(112, 96, dtype=E5M2), S, T]),
    "8 bits": (lambda x, w, s, t: torch._scaled_mm(x, w.t(), s, t, out_dtype=E4M3), [X, W, scales(), scales()]),
    "blocks of two types": (scaled, [numbers(130, 256), numbers(112, 256, dtype=E5M2), scales(130, 2), scales(2, 112)]),
}


@pytest.mark.parametrize("name", CALLS)
def test_others_stay_calls(name):
    function, args = CALLS[name]
    made = lower(function, *without_data(args, "cpu"), to="mem", nd_library_products=NEVER)
    assert [op.call.data.target for op in made.module.walk() if isinstance(op, ExternOp)] == ["aten._scaled_mm.default"]


@pytest.mark.parametrize(("machine", "relu", "calls"), [("sm_90", False, 1), ("sm_90", True, 0), ("sm_80", True, 1), ("gfx942", True, 1)])
def test_the_price_decides_where_there_are_units(machine, relu, calls):
    """The library's call is as it was."""
    args = without_data([numbers(4096, 4096), numbers(4096, 4096), scales(4096, 1), scales(1, 4096)], "cpu")
    act = F.relu if relu else lambda x: x
    made = lower(lambda *a: act(scaled(*a, fast=True)), *args, to="mem", machine=machine)
    found = [op for op in made.module.walk() if isinstance(op, ExternOp)]
    assert len(found) == calls and all("f8E4M3FN" in str(op.operands[0].type) for op in found)
    assert all(op.call.data.args[-1] is True for op in found)


@by_eager
def test_sizes_that_are_symbols():
    pipeline = default_pipeline("gpu")
    pipeline.replace("nd-library-products", NEVER)
    stepwell.register_target(InterpretedTarget, replace=True)
    try:
        options = {"cache": "off", "pipeline": str(pipeline)}
        compiled = torch.compile(lambda x, w, s, t: F.relu(scaled(x, w, s, t)), backend="stepwell", dynamic=True, options=options)
        for rows in (70, 17, 0):
            args = [X[:rows], W, S[:rows], T]
            torch.testing.assert_close(compiled(*args), F.relu(scaled(*args)), rtol=2e-2, atol=0.5)
    finally:
        stepwell.unregister_target("interpreted")
        torch._dynamo.reset()
