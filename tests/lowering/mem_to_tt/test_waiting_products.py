"""Kernels of products, convolutions and attention at sizes of models, as ptxas sees them: none spills, and no product waits for the one
before it (its message C7515), which takes a seventh to a third of the speed and is said nowhere else."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support import lower, without_data

from stepwell.dialects.tt.compute import DotOp

GENERATED = "nd-library-products{library=never}"


def empty(*shape, last=False):
    x = torch.empty(shape, dtype=torch.bfloat16, device="meta")
    return x.to(memory_format=torch.channels_last) if last else x


def gated(x, w):
    gate, values = F.linear(x, w).chunk(2, -1)
    return F.gelu(gate) * values


def attention(q, k, v, bias):
    return torch.softmax(q @ k.transpose(-1, -2) * 0.125 + bias, -1) @ v


HEADS = empty(4, 16, 1024, 64)
CASES = {
    "activation": (lambda x, w, b: F.relu(F.linear(x, w, b)), [empty(8192, 4096), empty(16384, 4096), empty(16384)]),
    "two sums": (gated, [empty(8192, 4096), empty(16384, 4096)]),
    "long sums": (lambda x, y: (x.t() @ y).float(), [empty(262144, 256), empty(262144, 256)]),
    "windows": (
        lambda x, w, r: F.relu(F.conv2d(x, w, padding=1) + r),
        [empty(32, 128, 112, 112, last=True), empty(128, 128, 3, 3, last=True), empty(32, 128, 112, 112, last=True)],
    ),
    "a signal": (lambda x, w: F.gelu(F.conv1d(x, w, padding=1)), [empty(32, 512, 4096), empty(512, 512, 3)]),
    "a volume": (lambda x, w: F.relu(F.conv3d(x, w, padding=1)), [empty(4, 64, 16, 56, 56), empty(64, 64, 3, 3, 3)]),
    "phases": (lambda x, w: F.silu(F.conv_transpose2d(x, w, stride=2)), [empty(32, 256, 64, 64, last=True), empty(256, 128, 2, 2)]),
    "attention": (attention, [HEADS, HEADS, HEADS, empty(16, 1024, 1024)]),
}


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_products_do_not_wait(case):
    """N34"""
    pytest.importorskip("triton", reason="Triton is not installed (the extra 'gpu')")
    from stepwell.targets.triton.compile import compile_kernel
    from stepwell.targets.triton.emit import kernel_modules
    from stepwell.targets.triton.gpu import gpu_target

    function, args = CASES[case]
    module = lower(function, *without_data(args, "cpu"), nd_library_products=GENERATED).module
    kernels = [one for one in kernel_modules(module) if any(isinstance(op, DotOp) for op in one.walk())]
    assert kernels
    for kernel in kernels:
        details = compile_kernel(kernel, gpu_target("sm_90")).details
        assert not details["spills"] and not details.get("waiting_products")
