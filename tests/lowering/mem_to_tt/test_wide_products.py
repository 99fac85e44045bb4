"""Products of f32 and f64 as kernels, as exact as eager's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support import STAGES, import_function
from xdsl.dialects.builtin import ArrayAttr, StringAttr

from stepwell.dialects.machine import MACHINE, MachineAttr
from stepwell.dialects.mem import ExternOp
from stepwell.dialects.tt.compute import DotOp
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.passes.nd.products.factor_types import TF32
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.loop import run_loop

F32, F64 = torch.float32, torch.float64


def lowered(function, *args, rounded=(), machine="sm_90", options="tiny=0 library=never"):
    """A program down to kernels; `rounded`: the operations of which the library may round factors to TF32."""
    module = import_function(function, *args).module
    module.attributes[MACHINE] = MachineAttr.from_text(machine)
    if rounded:
        module.attributes[TF32] = ArrayAttr([StringAttr(name) for name in rounded])
    pipeline = default_pipeline("gpu", stages=STAGES)
    pipeline.replace("nd-library-products", f"nd-library-products{{{options}}}")
    run(pipeline, module, context())
    module.verify()
    return module


def numbers(*shape, dtype=F32, scale=1.0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=F64) * scale).to(dtype)


def gated(x, w, v):
    return F.silu(F.linear(x, w)) * F.linear(x, v)


X, W = numbers(130, 72), numbers(100, 72, scale=0.2)
PROGRAMS = {
    "activation": (lambda x, w, b: F.gelu(F.linear(x, w, b)), [X, W, numbers(100)]),
    "columns side by side": (lambda x, w: F.relu(x @ w), [numbers(97, 65), numbers(65, 129)]),
    "both transposed": (lambda x, w: F.relu(x.t() @ w.t()), [numbers(72, 130), W]),
    "a batch": (lambda x, y: torch.tanh(torch.bmm(x, y) + 1), [numbers(3, 70, 16), numbers(3, 16, 90)]),
    "two matrices": (gated, [X, W, numbers(100, 72, scale=0.3)]),
    "few rows": (lambda x, w: F.relu(F.linear(x, w)), [numbers(5, 72), W]),
    "every second row": (lambda x, w: F.relu(F.linear(x[::2], w)), [X, W]),
    "a factor that is computed": (lambda x, w, s: F.relu(F.linear(x, w * s[:, None])), [X, W, numbers(100)]),
    "a factor of bf16": (lambda x, w: F.relu(F.linear(x, w.to(x.dtype))), [X, W.bfloat16()]),
}  # fmt: skip


def error(module, function, args):
    """The error beside eager's, against float64."""
    (got,) = run_loop(module, args, [], [])
    want = function(*args)
    assert got.dtype == want.dtype and got.shape == want.shape
    exact = function(*[a.double() for a in args])
    size = exact.norm()
    return ((got.double() - exact).norm() / size).item(), ((want.double() - exact).norm() / size).item()


@pytest.mark.spread
@pytest.mark.parametrize("machine", ["sm_90", "gfx942"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_f32_is_as_exact_as_eager(name, machine):
    function, args = PROGRAMS[name]
    module = lowered(function, *args, machine=machine)
    dots = [op for op in module.walk() if isinstance(op, DotOp)]
    assert dots and not [op for op in module.walk() if isinstance(op, ExternOp)]
    assert {op.precision for op in dots} == {"ieee" if machine == "gfx942" else "tf32x3"}
    own, eager = error(module, function, args)
    assert own < max(1.2 * eager, 4e-7)


def test_settings_are_a_matter_of_price():
    """Where the library may round factors to TF32, its call is faster; a kernel of ours never does."""
    x = torch.empty(4096, 4096)
    for rounded, calls in (((), 0), (["products"], 1), (["convolutions"], 0)):
        module = lowered(lambda x, w: F.relu(F.linear(x, w)), x, x, rounded=rounded, options="")
        assert sum(isinstance(op, ExternOp) for op in module.walk()) == calls
    function, args = PROGRAMS["activation"]
    assert {op.precision for op in lowered(function, *args, rounded=["products"]).walk() if isinstance(op, DotOp)} == {"tf32x3"}


@pytest.mark.parametrize(("rows", "calls"), [(1, 1), (8, 0), (64, 0)])
def test_few_rows_by_price(rows, calls):
    """The library's blocks have 64 rows at least, and no units for them; a vector has kernels of its own."""
    x, w = torch.empty(rows, 4096), torch.empty(4096, 4096)
    module = lowered(lambda x, w: F.relu(F.linear(x, w)), x, w, options="")
    assert sum(isinstance(op, ExternOp) for op in module.walk()) == calls


@pytest.mark.parametrize("name", ["activation", "columns side by side", "a batch"])
def test_f64(name):
    function, args = PROGRAMS[name]
    args = [a.double() for a in args]
    module = lowered(function, *args)
    assert [op.precision for op in module.walk() if isinstance(op, DotOp)] == ["ieee"]
    (got,) = run_loop(module, args, [], [])
    torch.testing.assert_close(got, function(*args), rtol=1e-11, atol=1e-11)


def layer(x, w, r):
    return F.relu(F.conv2d(x, w, padding=1) + r)


def test_convolutions():
    args = [t.contiguous(memory_format=torch.channels_last) for t in (numbers(2, 16, 9, 7), numbers(24, 16, 3, 3), numbers(2, 24, 9, 7))]
    module = lowered(layer, *args)
    assert {op.precision for op in module.walk() if isinstance(op, DotOp)} == {"tf32x3"}
    (got,) = run_loop(module, args, [], [])
    torch.testing.assert_close(got, layer(*args), rtol=1e-5, atol=1e-5)
    (call,) = [op for op in lowered(layer, *args, options="tiny=0").walk() if isinstance(op, ExternOp)]
    assert "convolution" in str(call)


def test_numbers_that_are_not_finite():
    """An infinite factor may give NaN: infinity times what rounding leaves of the other one has either sign."""
    x, w = X.clone(), W.clone()
    x[1, 3], x[2, 5], x[3], x[4, 4] = float("inf"), float("nan"), 0.0, 1e30
    function = PROGRAMS["activation"][0]
    args = [x, w, numbers(100)]
    (got,) = run_loop(lowered(function, *args), args, [], [])
    want = function(*args)
    assert torch.equal(got.isfinite(), want.isfinite()) and got[2].isnan().all()
    torch.testing.assert_close(got[3:], want[3:], rtol=1e-5, atol=1e-5)


KERNELS = {
    "f32": (F32, "sm_90"), "f32, sm_80": (F32, "sm_80"), "f64": (F64, "sm_90"), "f64, sm_80": (F64, "sm_80"),
}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_compile(name):
    """Without spills, and no product waits for another one (C7515)."""
    pytest.importorskip("triton", reason="Triton is not installed (the extra 'gpu')")
    from stepwell.targets.triton.compile import compile_kernel
    from stepwell.targets.triton.emit import kernel_modules
    from stepwell.targets.triton.gpu import gpu_target

    dtype, machine = KERNELS[name]
    x = torch.empty(4096, 4096, dtype=dtype)
    kernels = kernel_modules(lowered(lambda x, w: F.relu(F.linear(x, w)), x, x, machine=machine))
    for kernel in kernels:
        if any(isinstance(op, DotOp) for op in kernel.walk()):
            built = compile_kernel(kernel, gpu_target(machine))
            assert not built.details["spills"] and not built.details.get("waiting_products")
