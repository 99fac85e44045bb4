"""Sums over batches of what is computed of products: the gradient of what is added to scores, of all batches or heads or of both."""

from __future__ import annotations

import pytest
import torch

from stepwell.dialects import loop
from stepwell.dialects.nd.types import tensor_type
from stepwell.dialects.tt.compute import DotOp
from stepwell.dialects.tt.structure import FuncOp
from stepwell.tools.interpret.loop import run_loop

from ..test_gpu_carry_softmax import lowered, numbers

GENERATED = "nd-library-products{tiny=0 library=never}"


def gradients(*over):
    """Of queries and of a bias that is the same for these dimensions."""

    def backward(q, k, v, do, lse):
        weights = torch.exp((q @ k.mT).float() * 0.25 - lse)
        inner = weights * (do @ v.mT).float()
        return inner.to(q.dtype) @ k, inner.sum(over)

    return backward


@pytest.mark.parametrize("over", [(0,), (1,), (0, 1)])
def test_gradients_of_a_bias(over):
    args = [*(numbers(3, 2, n, 16) for n in (70, 33, 33, 70)), torch.full((3, 2, 70, 1), 2.0)]
    module, remarks = lowered(gradients(*over), *args, products=GENERATED)
    assert [r.kind for r in remarks] == ["applied"], [r.message for r in remarks]
    dots = [sum(isinstance(op, DotOp) for op in f.walk()) for f in module.ops if isinstance(f, FuncOp)]
    assert sum(dots) >= 4
    for got, want in zip(run_loop(module, args, [], []), gradients(*over)(*args), strict=True):
        torch.testing.assert_close(got.float(), want.float(), rtol=2e-2, atol=2e-2 * want.abs().max().item())


@pytest.mark.parametrize("over", [(0,), (0, 1)])
def test_price_keeps_scores_on_chip(over):
    args = [torch.empty(4, 16, 1024, 64, dtype=torch.bfloat16, device="meta") for _ in range(4)]
    module, _ = lowered(gradients(*over), *args, torch.empty(4, 16, 1024, 1, device="meta"), stages=("nd", "loop"))
    stored = [int(tensor_type(r).numel) for op in module.walk() if isinstance(op, loop.NestOp) for r in op.results]
    assert len(stored) == 2 and max(stored) < 4 * 16 * 1024 * 1024


@pytest.mark.parametrize("machine", ["sm_80", "sm_90"])
def test_products_of_a_step_do_not_wait(machine):
    pytest.importorskip("triton", reason="Triton is not installed (the extra 'gpu')")
    from stepwell.targets.triton.compile import compile_kernel
    from stepwell.targets.triton.emit import kernel_modules
    from stepwell.targets.triton.gpu import gpu_target

    args = [torch.empty(4, 16, 1024, 64, dtype=torch.bfloat16, device="meta") for _ in range(4)]
    module, _ = lowered(gradients(0), *args, torch.empty(4, 16, 1024, 1, device="meta"), machine=machine)
    for kernel in kernel_modules(module):
        assert not compile_kernel(kernel, gpu_target(machine)).details.get("waiting_products")
