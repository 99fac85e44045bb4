"""The few largest of short rows: one kernel, with what stands around them."""

from __future__ import annotations

import pytest
import torch

from stepwell.dialects.mem import ExternOp
from stepwell.dialects.tt.compute import ReduceOp
from stepwell.dialects.tt.memory import AddPtrOp
from stepwell.dialects.tt.types import element_of
from stepwell.tools.interpret.loop import run_loop

from .test_few_rows import found, kernels, lowered


def route(x, k):
    """The experts of each row, and what each counts for."""
    shares = torch.softmax(x, -1, dtype=torch.float32)
    values, experts = shares.topk(k, -1)
    return (values / values.sum(-1, keepdim=True)).to(x.dtype), experts


@pytest.mark.parametrize(("k", "columns", "dtype"), [(2, 64, torch.bfloat16), (8, 60, torch.float32)])
def test_routing_is_one_kernel(k, columns, dtype):
    """N22"""
    x = torch.randn(70, columns, generator=torch.Generator().manual_seed(k)).to(dtype)
    module = lowered(lambda x: route(x, k), x)
    assert len(kernels(module)) == 1 and not found(module, ExternOp)
    weights, experts = run_loop(module, [x], [], [])
    # of a bf16 row equal elements are found in other orders
    shares = torch.softmax(x, -1, dtype=torch.float32)
    torch.testing.assert_close(shares.gather(-1, experts), shares.topk(k, -1).values)
    assert all(len(set(row)) == k for row in experts.tolist())
    torch.testing.assert_close(weights, route(x, k)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
@pytest.mark.parametrize("largest", [True, False])
def test_each_one_is_a_reduction_of_what_is_on_chip(dtype, largest):
    x = torch.stack([torch.randperm(100, generator=torch.Generator().manual_seed(k)) - 50 for k in range(9)]).to(dtype)
    module = lowered(lambda x: x.topk(3, -1, largest), x)
    (kernel,) = kernels(module)
    assert len(found(kernel, ReduceOp)) == 3
    # numbers of more than 32 bits that are compared do not make those of addresses wide
    assert {str(element_of(op.operands[1].type)) for op in found(kernel, AddPtrOp)} == {"i32"}
    values, indices = run_loop(module, [x], [], [])
    expected = x.topk(3, -1, largest)
    assert torch.equal(values, expected.values) and torch.equal(indices, expected.indices)
