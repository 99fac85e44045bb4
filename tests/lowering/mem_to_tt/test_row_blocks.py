"""I13: the loss of a vocabulary and its gradients on a GPU, block of rows by block; no tensor has all rows and all columns."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support import lower
from xdsl.dialects.func import CallOp

from stepwell.dialects.nd.types import TensorType, tensor_type
from stepwell.tools.interpret.loop import run_loop

ROWS, CLASSES, DEPTH = 40, 67, 16
BLOCKS = {"nd_row_blocks": "nd-row-blocks{rows=16}"}


def loss(x, w, b, t):
    return F.cross_entropy(F.linear(x, w, b).float(), t, ignore_index=3)


def step(*args):
    """A loss, and its gradients."""
    gradients, total = torch.func.grad_and_value(loss, (0, 1, 2))(*args)
    return total, *gradients


def inputs(dtype):
    rng = torch.Generator().manual_seed(0)
    values = [torch.randn(n, generator=rng, dtype=torch.float64).to(dtype) for n in ((ROWS, DEPTH), (CLASSES, DEPTH), (CLASSES,))]
    return [*values, torch.randint(0, CLASSES, (ROWS,), generator=rng)]


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.long)], ids=str)
@pytest.mark.parametrize("library", ["always", pytest.param("never", marks=pytest.mark.long)])
def test_kernels_against_float64(dtype, library):
    args = inputs(dtype)
    products = f"nd-library-products{{tiny=0 short=0 library={library}}}"
    imported = lower(step, *args, nd_library_products=products, **BLOCKS)
    found = run_loop(imported.module, [x.clone() for x in args], imported.constants, imported.objects)
    exact = step(*[x.double() if x.is_floating_point() else x for x in args])
    for got, eager, right in zip(found, step(*args), exact, strict=True):
        assert got.dtype == eager.dtype
        assert (got - right).norm() <= 1.6 * (eager - right).norm() + (5e-4 if dtype == torch.bfloat16 else 1e-6) * right.norm()


def test_no_logits_are_in_memory():
    imported = lower(step, *inputs(torch.float32), to="mem", **BLOCKS)
    sizes = [t.numel.value for op in imported.module.walk() for r in op.results if isinstance(t := r.type, TensorType)]
    sizes += [tensor_type(r).numel.value for op in imported.module.walk() if op.name == "mem.alloc" for r in op.results]
    assert sizes and max(s for s in sizes if s is not None) < ROWS * CLASSES


def test_rows_that_are_reduced_once_are_one_block():
    """Those of a softmax, too, unless all of it is needed again."""
    args = [torch.empty(n, dtype=torch.bfloat16) for n in ((16384, 512), (512, 16384))]
    for function, blocks in (
        (lambda x, w: (x @ w).amax(-1), False),
        (lambda x, w: (x @ w).float().logsumexp(-1), False),
        (lambda x, w: (x @ w).float().softmax(-1).square().sum(-1), True),
    ):
        imported = lower(function, *args, to="nd")
        assert (sum(isinstance(op, CallOp) for op in imported.module.walk()) > 1) == blocks
