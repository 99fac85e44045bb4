"""Scales of rows that the products of few rows find themselves: no kernel before these, and eager's numbers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support import import_function, lower
from torch.utils import _pytree as pytree

import stepwell
from stepwell.dialects.machine import MACHINE, MachineAttr
from stepwell.dialects.tt.compute import DotOp
from stepwell.dialects.tt.structure import FuncOp
from stepwell.passes.manager.instrumentation import Instrumentation
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.loop import run_loop
from stepwell.tools.interpret.target import InterpretedTarget

BF16, F16 = torch.bfloat16, torch.float16
DEPTH, COLUMNS = 128, 520
SMALL = "sm_90,multiprocessors=8"
"""A GPU that few columns keep busy."""


def numbers(*shape, dtype=BF16, scale=1.0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * scale).to(dtype)


def norm(x, w, g=None):
    return F.linear(F.rms_norm(x, (x.shape[-1],), g), w)


def spelled_out(x, w, g):
    """As models write it: in float32, rounded before it is weighed."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return F.linear(g * wide.to(x.dtype), w)


def quotient(x, w, g):
    wide = x.float()
    return F.linear((wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * g.float()).to(w.dtype), w)


def gated(x, w, v, g):
    h = F.rms_norm(x, (x.shape[-1],), g)
    return F.silu(F.linear(h, w)) * F.linear(h, v)


def four_bits(x, q, s, g):
    w = torch.stack([q & 15, q >> 4], -1).view(COLUMNS, DEPTH // 64, 64).to(x.dtype) - 8
    return F.linear(F.rms_norm(x, (DEPTH,), g), (w * s[..., None]).view(COLUMNS, DEPTH))


W, G = numbers(COLUMNS, DEPTH, scale=0.05), numbers(DEPTH)
BYTES = torch.randint(0, 256, (COLUMNS, DEPTH // 2), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
# Program, arguments.
CARRIED = {
    "a norm": (norm, [numbers(8, DEPTH), W, G]),
    "one row": (norm, [numbers(1, DEPTH), numbers(2080, DEPTH, scale=0.05), G]),
    "rows of two loops": (spelled_out, [numbers(3, 5, DEPTH), W, G]),
    "a quotient": (quotient, [numbers(2, DEPTH), W, G]),
    "two products": (gated, [numbers(40, DEPTH), W, numbers(COLUMNS, DEPTH, scale=0.06), G]),
    "weights of 4 bits": (four_bits, [numbers(8, DEPTH), BYTES, numbers(COLUMNS, DEPTH // 64, scale=0.1), G]),
    "every second row": (norm, [numbers(16, 2 * DEPTH)[::2, :DEPTH], W, G]),
    "columns": (norm, [numbers(DEPTH, 8).t(), W, G]),
    "rows that a table names": (lambda t, i, w, g: norm(t[i], w, g), [numbers(50, DEPTH), torch.tensor([3, -1, 3, 0, 49]), W, G]),
    "f32 rows": (
        lambda x, w, g: F.linear(F.rms_norm(x, (DEPTH,), g).to(w.dtype), w), [numbers(8, DEPTH, dtype=torch.float32), W, G.float()],
    ),
    "f16 without weights": (norm, [numbers(8, DEPTH, dtype=F16), W.half()]),
    "a unit vector": (lambda x, w: F.linear(F.normalize(x.float(), dim=-1).to(w.dtype), w), [numbers(8, DEPTH), W]),
}  # fmt: skip


@pytest.mark.parametrize("name", CARRIED)
def test_one_kernel(name):
    """I13: as exact as eager, whose product takes rows that are rounded once."""
    function, args = CARRIED[name]
    module = lower(function, *args, machine=SMALL).module
    assert len([f for f in module.ops if isinstance(f, FuncOp)]) == 1
    (got,) = run_loop(module, args, [], [])
    want = function(*args)
    exact = function(*[a.double() if a.is_floating_point() else a for a in args])
    assert got.dtype == want.dtype and got.shape == want.shape
    assert (got.double() - exact).norm() <= 1.1 * (want.double() - exact).norm()


def remarks(function, *args, machine=SMALL, numerics=""):
    """What the pass says."""
    module = import_function(function, *args, **({"numerics": numerics} if numerics else {})).module
    module.attributes[MACHINE] = MachineAttr.from_text(machine)
    found = []
    run(default_pipeline("gpu", stages=("nd", "loop")), module, context(), Instrumentation(remarks=found.append))
    return [str(r) for r in found if r.pass_name == "gpu-carry-norms"]


def test_remarks():
    function, args = CARRIED["a norm"]
    (said,) = remarks(function, *args)
    assert "applied" in said and "find the scales of their rows themselves" in said


X = numbers(8, DEPTH)
KEPT = {
    "needed in memory": (lambda x, w, g: (F.rms_norm(x, (DEPTH,), g), norm(x, w, g)), [X, W, G], "others need the rows in memory"),
    "f16": (norm, [X.half(), W.half(), G.half()], "too large, or too small"),
    "many programs": (norm, [X, W, G], "its sums are split"),
    "not only a factor": (
        lambda x, w, g: F.linear(F.relu(F.rms_norm(x, (DEPTH,), g)), w), [X, W, G], "",
    ),
    "a mean": (lambda x, w, g: F.linear(F.layer_norm(x, (DEPTH,), g), w), [X, W, G], ""),
    "long sums": (norm, [numbers(8, 8192), torch.empty(COLUMNS, 8192, dtype=BF16), numbers(8192)], "by price"),
    "many rows": (norm, [numbers(200, DEPTH), W, G], ""),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_what_stays_in_memory(name):
    function, args, why = KEPT[name]
    said = remarks(function, *args, machine="sm_90" if name == "many programs" else SMALL)
    assert not any("applied" in one for one in said)
    assert not why or why in said[0]


def test_numerics_of_eager_keep_the_norm():
    """NR-03: each operation rounds."""
    function, args = CARRIED["a norm"]
    assert remarks(function, *args, numerics="eager") == []


def test_values_that_are_not_finite():
    x = numbers(8, DEPTH)
    x[1, 3], x[2, 5], x[3], x[4] = float("inf"), float("nan"), 0.0, 1e30
    module = lower(norm, x, W, G, machine=SMALL).module
    (got,) = run_loop(module, [x, W, G], [], [])
    want = norm(x, W, G)
    torch.testing.assert_close(got, want, rtol=4e-2, atol=4e-2, equal_nan=True)


def test_dynamic_columns():
    stepwell.register_target(InterpretedTarget, replace=True)
    try:
        compiled = torch.compile(norm, backend="stepwell", dynamic=True, options={"cache": "off"})
        for depth in (DEPTH, DEPTH // 2):
            args = [numbers(8, depth), numbers(3328, depth, scale=0.05), numbers(depth)]
            torch.testing.assert_close(compiled(*args), norm(*args), rtol=4e-2, atol=4e-2)
    finally:
        stepwell.unregister_target("interpreted")
        torch._dynamo.reset()


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_kernels_compile(target):
    """Without spills, and no product waits for another one (C7515)."""
    pytest.importorskip("triton", reason="Triton is not installed (the extra 'gpu')")
    from stepwell.targets.triton.compile import compile_kernel
    from stepwell.targets.triton.emit import kernel_modules
    from stepwell.targets.triton.gpu import gpu_target

    args = [torch.empty(n, dtype=BF16) for n in ((8, 512), (10240, 512), (512,))]
    (kernel,) = kernel_modules(lower(norm, *args, machine=target).module)
    assert sum(isinstance(op, DotOp) for op in kernel.walk()) == 1
    built = compile_kernel(kernel, gpu_target(target))
    assert not built.details["spills"] and not built.details.get("waiting_products")


def test_leaves_of_results_are_those_of_eager():
    """Two products of the same rows, each of which finds the scales."""
    args = [X, W, numbers(COLUMNS, DEPTH, scale=0.06), G]

    def both(x, w, v, g):
        h = F.rms_norm(x, (DEPTH,), g)
        return F.linear(h, w), F.linear(h, v)

    got = run_loop(lower(both, *args, machine=SMALL).module, args, [], [])
    for one, want in zip(got, pytree.tree_leaves(both(*args)), strict=True):
        torch.testing.assert_close(one, want, rtol=4e-2, atol=4e-2)
