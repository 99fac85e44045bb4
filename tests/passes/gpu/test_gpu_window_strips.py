"""Sums over windows beside each other in one program: values, and which loops become strips."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support import lower

from stepwell.dialects import loop
from stepwell.dialects.mem import BufferType, ExternOp
from stepwell.dialects.tt.structure import FuncOp
from stepwell.tools.interpret.loop import run_loop

BF16 = torch.bfloat16
GENERATED = "nd-library-products{library=never tiny=0}"


def rows(*shape, dtype=BF16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def last(*shape, dtype=BF16):
    """Channels side by side."""
    return rows(*shape, dtype=dtype).movedim(1, -1).contiguous().movedim(-1, 1)


def conv(channels, behind=F.relu, dims=2, **steps):
    function = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[dims]
    return lambda x, w, b=None: behind(function(x, w, b, groups=channels, **steps))


def block(x, p, w, v):
    """As mobile networks have it: the depthwise convolution between two of one pixel."""
    h = F.relu6(F.conv2d(F.relu6(F.conv2d(x, p)), w, padding=1, groups=24))
    return F.conv2d(h, v) + x


def normed(x, w, b, g):
    return F.layer_norm(F.conv2d(x, w, b, padding=3, groups=24).permute(0, 2, 3, 1), (24,), g)


# Program, arguments, windows of each strip in the order of the kernels.
CASES = {
    "3 x 3": (conv(24, F.relu6, padding=1), [last(2, 24, 8, 12), rows(24, 1, 3, 3), rows(24)], [4]),
    "strips of 7": (conv(24, padding=1), [last(2, 24, 7, 14), last(24, 1, 3, 3)], [7]),
    "7 x 7, more channels than a program has": (conv(72, padding=3), [last(1, 72, 18, 8), rows(72, 1, 7, 7), rows(72)], [4]),
    "every other window": (conv(24, padding=2, stride=2), [last(2, 24, 12, 14), rows(24, 1, 5, 5)], [7]),
    "dilated, along the other loop": (conv(24, padding=(1, 2), dilation=(1, 2)), [last(2, 24, 9, 10), rows(24, 1, 3, 3)], [3]),
    "no multiple": (conv(24, padding=1), [last(2, 24, 11, 13), rows(24, 1, 3, 3)], [1]),
    "signal": (conv(24, F.silu, dims=1, padding=1), [last(2, 24, 12), rows(24, 1, 3)], [4]),
    "volume": (conv(8, dims=3, padding=1), [last(1, 8, 4, 5, 6), rows(8, 1, 3, 3, 3)], [3]),
    "by rows": (conv(24, padding=1), [rows(2, 24, 8, 12), rows(24, 1, 3, 3)], [4]),
    "f32": (conv(24, padding=1), [last(2, 24, 8, 12, dtype=torch.float32), rows(24, 1, 3, 3, dtype=torch.float32)], [4]),
    "residual": (lambda x, w: F.relu(F.conv2d(x, w, padding=1, groups=24) + x), [last(2, 24, 8, 12), rows(24, 1, 3, 3)], [4]),
    "two": (
        lambda x, w, v: F.relu(F.conv2d(F.relu(F.conv2d(x, w, padding=1, groups=24)), v, padding=1, groups=24)),
        [last(2, 24, 8, 12), rows(24, 1, 3, 3), rows(24, 1, 3, 3)], [4, 4],
    ),
    "between two of one pixel": (block, [last(2, 16, 8, 12), last(24, 16, 1, 1), rows(24, 1, 3, 3), last(16, 24, 1, 1)], [1, 4, 1]),
    "then a norm": (normed, [last(2, 24, 8, 12), rows(24, 1, 7, 7), rows(24), rows(24)], [4, 3]),
    "a mean": (lambda x, w: F.conv2d(x, w, padding=1, groups=24).mean((2, 3)), [last(2, 24, 8, 12), rows(24, 1, 3, 3)], [4, 1]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_values(name):
    function, args, strips = CASES[name]
    module = lower(function, *args, to="mem", nd_library_products=GENERATED).module
    assert [len(op.results) for op in module.walk() if isinstance(op, loop.ReduceOp)] == strips
    module = lower(function, *args, nd_library_products=GENERATED).module
    assert not any(isinstance(op, ExternOp) for op in module.walk()) and any(isinstance(op, FuncOp) for op in module.ops)
    (got,) = run_loop(module, args, [], [])
    exact, eager = function(*(a.double() for a in args)), function(*args)
    error, allowed = ((result.double() - exact).norm() / exact.norm() for result in (got, eager))
    assert got.dtype == eager.dtype and error <= max(1.2 * allowed, 1e-6)


def test_what_a_strip_reads():
    """Six elements of the image and three coefficients, which lie side by side, for twelve products."""
    function, args, _ = CASES["3 x 3"]
    module = lower(function, *args, to="mem", nd_library_products=GENERATED).module
    copy, nest = [op for op in module.walk() if isinstance(op, loop.NestOp)]
    (sums,) = [op for op in nest.walk() if isinstance(op, loop.ReduceOp)]
    loads = [op for op in sums.block.ops if isinstance(op, loop.LoadOp)]
    assert len(loads) == 9 and len([op for op in sums.block.ops if op.name == "arith.mulf"]) == 12
    assert copy.outs[0] in {op.source for op in loads}
    assert isinstance(kind := copy.outs[0].type, BufferType) and kind.stride_exprs[0].value == 1


def test_a_computed_image_is_stored_where_each_place_would_compute_it():
    """Exponentials, nine times; not what only selects."""
    w = rows(24, 1, 3, 3)
    for before, nests in ((F.silu, 3), (F.relu, 2)):
        module = lower(lambda x, w, f=before: F.conv2d(f(x), w, padding=1, groups=24), last(2, 24, 8, 12), w, to="mem").module
        assert len([op for op in module.walk() if isinstance(op, loop.NestOp)]) == nests


def test_sizes_that_are_symbols():
    """Strips go along a size that is known."""
    w = rows(24, 1, 3, 3)
    found = lower(lambda x: F.conv2d(x, w, padding=1, groups=24), last(3, 24, 6, 9), mode="symbolic", nd_library_products=GENERATED)
    for sizes in ((3, 24, 6, 9), (2, 24, 4, 5)):
        x = last(*sizes)
        (got,) = run_loop(found.module, [x], found.constants, found.objects)
        torch.testing.assert_close(got, F.conv2d(x, w, padding=1, groups=24), rtol=2e-2, atol=4e-2)


def test_terms_that_are_stored_too_are_no_strip():
    def powers(x, y):
        z = x**y
        return z, z.sum(1), z.sum(0)

    args = torch.arange(-20, 20).repeat(9, 1), torch.arange(-4, 5).repeat(40, 1).t()
    found = lower(powers, *args)
    for got, want in zip(run_loop(found.module, list(args), found.constants, found.objects), powers(*args), strict=True):
        assert torch.equal(got, want)
