"""Indices that products read are checked before these: no kernel with units for products has a call in it."""

from __future__ import annotations

import pytest
import torch
from support import lower

from stepwell.dialects.tt.compute import DotOp
from stepwell.dialects.tt.structure import FuncOp
from stepwell.tools.interpret.loop import run_loop

pytestmark = pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this torch has no grouped products")

BF16 = torch.bfloat16
NEVER = "nd-library-products{tiny=0 library=never}"


def numbers(*shape, scale=1.0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * scale).to(BF16)


def experts(x, which, w, ends):
    """Tokens in the order of their experts."""
    return torch._grouped_mm(x[which], w, offs=ends)


def arguments(rows=152, tokens=90):
    which = torch.randint(-tokens, tokens, (rows,), generator=torch.Generator().manual_seed(rows))
    return [numbers(tokens, 72), which, numbers(4, 72, 88, scale=0.2), torch.tensor([3, 70, 71, rows], dtype=torch.int32)]


def test_rows_that_are_named():
    """Negative places, too: they are what the first kernel stores."""
    args = arguments()
    module = lower(experts, *args, nd_library_products=NEVER).module
    for kernel in (op for op in module.ops if isinstance(op, FuncOp)):
        names = {op.name for op in kernel.walk()}
        assert not {"tt.assert", DotOp.name} <= names
    (got,) = run_loop(module, args, [], [])
    torch.testing.assert_close(got, experts(*args), rtol=4e-2, atol=4e-2)


def test_what_is_no_place_is_an_error():
    args = arguments()
    args[1][5] = 90
    module = lower(experts, *args, nd_library_products=NEVER).module
    with pytest.raises(Exception, match="out of range"):
        run_loop(module, args, [], [])


@pytest.mark.parametrize("machine", ["sm_80", "gfx942"])
def test_other_units_do_not_wait(machine):
    args = arguments()
    made = lower(experts, *args, machine=machine, nd_library_products=NEVER).module
    kernels = [op for op in made.ops if isinstance(op, FuncOp)]
    assert any({"tt.assert", DotOp.name} <= {op.name for op in kernel.walk()} for kernel in kernels)


def test_products_do_not_wait():
    pytest.importorskip("triton", reason="Triton is not installed (the extra 'gpu')")
    from stepwell.targets.triton.compile import compile_kernel
    from stepwell.targets.triton.emit import kernel_modules
    from stepwell.targets.triton.gpu import gpu_target

    shapes = ((10000, 2048), BF16), ((16384,), torch.int64), ((32, 2048, 1536), BF16), ((32,), torch.int32)
    args = [torch.empty(shape, dtype=dtype) for shape, dtype in shapes]
    for kernel in kernel_modules(lower(experts, *args, nd_library_products=NEVER).module):
        if any(isinstance(op, DotOp) for op in kernel.walk()):
            built = compile_kernel(kernel, gpu_target("sm_90"))
            assert not built.details["spills"] and not built.details.get("waiting_products")
