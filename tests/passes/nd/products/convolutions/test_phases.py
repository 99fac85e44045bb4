"""Transposed convolutions as products of phases: values for all kinds of numbers, one kernel with what stands behind, and by price."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support import import_function, lower
from xdsl.dialects.func import FuncOp as Function

from stepwell.dialects import nd
from stepwell.dialects.machine import MACHINE, MachineAttr
from stepwell.dialects.mem import ExternOp
from stepwell.dialects.tt.compute import DotOp
from stepwell.dialects.tt.structure import FuncOp
from stepwell.passes.manager.instrumentation import Instrumentation
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline
from stepwell.passes.nd.algebra.rewriter import Rewriter
from stepwell.passes.nd.products.convolutions.phases import as_phases
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.loop import run_loop
from stepwell.tools.interpret.nd import run_nd

BF16 = torch.bfloat16
FOUND = "nd-library-products{library=never tiny=0}"
UP = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def rows(*shape, scale=1.0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * scale).to(BF16)


def last(*shape):
    """Channels side by side."""
    return rows(*shape).movedim(1, -1).contiguous().movedim(-1, 1)


def up(behind=F.relu, dims=2, **numbers):
    return lambda x, w, b=None: behind(UP[dims](x, w, b, **numbers))


def kernels(module):
    """Kernels, products in them, and calls of the library."""
    found = list(module.walk())
    return [sum(isinstance(op, kind) for op in found) for kind in (FuncOp, DotOp, ExternOp)]


@pytest.mark.spread
@pytest.mark.parametrize("reach", [1, 3, 4])
@pytest.mark.parametrize("stride", [1, 2, 4])
@pytest.mark.parametrize("dilation", [1, 2, 4])
@pytest.mark.parametrize("padding", [0, 1, 3])
@pytest.mark.parametrize("more", [0, 1])
def test_values(reach, stride, dilation, padding, more):
    """Strides that share a factor with the dilation have phases without a place of the window."""
    more = min(more, max(stride, dilation) - 1)
    padding = min(padding, (4 * stride + dilation * (reach - 1) + more) // 2)
    x, w, b = torch.randn(2, 4, 5), torch.randn(4, 3, reach), torch.randn(6)

    def function(x, w, b):
        return F.conv_transpose1d(x, w, b, stride=stride, dilation=dilation, padding=padding, output_padding=more, groups=2)

    def rewritten(rw, op):
        return as_phases(rw, op)

    module = import_function(function, x, w, b).module
    for func in [op for op in module.ops if isinstance(op, Function)]:
        Rewriter(func, {nd.ConvOp: [rewritten]}, nd.symbol_ranges(module)).run()
    module.verify()
    assert not any(isinstance(op, nd.ConvOp) for op in module.walk())
    torch.testing.assert_close(run_nd(module, [x, w, b])[0], function(x, w, b), rtol=1e-4, atol=1e-4)


WEIGHT = rows(16, 24, 4, 4, scale=0.3)
CASES = {
    "twice as large": (up(stride=2, padding=1), last(2, 16, 5, 6), WEIGHT, rows(24)),
    "patches": (up(F.silu, stride=2), last(2, 16, 5, 6), rows(16, 24, 2, 2, scale=0.3), rows(24)),
    "uneven phases": (up(stride=2, padding=1, output_padding=1), last(2, 16, 5, 6), rows(16, 24, 3, 3, scale=0.3)),
    "no stride": (up(padding=1), last(2, 16, 5, 6), rows(16, 24, 3, 3, scale=0.3)),
    "groups": (up(stride=(2, 1), padding=1, groups=2), last(2, 32, 5, 6), rows(32, 24, 4, 3, scale=0.3), rows(48)),
    "signal": (up(F.gelu, dims=1, stride=4, padding=2), last(2, 16, 9), rows(16, 24, 8, scale=0.3), rows(24)),
    "volume": (up(dims=3, stride=2, padding=1), last(2, 8, 3, 4, 3), rows(8, 16, 4, 4, 4, scale=0.3)),
}


@pytest.mark.parametrize("case", CASES)
def test_one_kernel_behind_the_one_that_orders_the_weight(case):
    function, *args = CASES[case]
    module = lower(function, *args, nd_library_products=FOUND).module
    assert kernels(module) == [2, 1, 0]
    (got,) = run_loop(module, args, [], [])
    want = function(*args)
    torch.testing.assert_close(got, want, rtol=4e-2, atol=4e-2)
    assert got.stride() == want.stride()


def test_a_residual_is_part_of_the_kernel():
    def function(x, w, z):
        return F.relu(F.conv_transpose2d(x, w, stride=2, padding=1) + z)

    args = last(2, 16, 5, 6), WEIGHT, last(2, 24, 10, 12)
    for machine in ("sm_90", "sm_80"):
        module = lower(function, *args, nd_library_products=FOUND, machine=machine).module
        assert kernels(module) == [2, 1, 0]
        torch.testing.assert_close(run_loop(module, args, [], [])[0], function(*args), rtol=4e-2, atol=4e-2)


APART = {
    "a result that is no multiple of the stride": (up(stride=2, padding=1), last(2, 16, 5, 6), rows(16, 24, 3, 3, scale=0.3)),
}


@pytest.mark.parametrize("case", APART)
def test_three_kernels(case):
    """What stands behind reads a part of the product."""
    function, *args = APART[case]
    module = lower(function, *args, nd_library_products=FOUND).module
    assert kernels(module) == [3, 1, 0]
    torch.testing.assert_close(run_loop(module, args, [], [])[0], function(*args), rtol=4e-2, atol=4e-2)


def test_results_by_rows_are_put_in_order_by_what_follows():
    """A phase has every other place of them: the product stores channels side by side, and the activation turns them."""
    function, args = up(F.gelu, dims=1, stride=2, padding=1), (rows(2, 16, 9), rows(16, 24, 4, scale=0.3), rows(24))
    module = lower(function, *args, nd_library_products=FOUND).module
    assert kernels(module) == [4, 1, 0]  # image and weight in order, the product, the activation
    torch.testing.assert_close(run_loop(module, args, [], [])[0], function(*args), rtol=4e-2, atol=4e-2)


def test_one_pixel_is_a_matrix_times_a_vector():
    function, args = up(stride=2, padding=1), (last(1, 16, 1, 1), WEIGHT, rows(24))
    module = lower(function, *args, nd_library_products=FOUND).module
    assert kernels(module)[1:] == [0, 0]
    torch.testing.assert_close(run_loop(module, args, [], [])[0], function(*args), rtol=4e-2, atol=4e-2)


def test_sizes_that_are_symbols():
    """One module for each batch, height and width, an empty batch too."""

    def function(x):
        return F.relu(F.conv_transpose2d(x, WEIGHT, stride=2, padding=1))

    found = lower(function, last(2, 16, 5, 6), mode="symbolic", nd_library_products=FOUND)
    assert kernels(found.module)[2] == 0
    for sizes in ((2, 16, 5, 6), (3, 16, 4, 7), (0, 16, 5, 6)):
        x = last(*sizes)
        (got,) = run_loop(found.module, [x], found.constants, found.objects)
        torch.testing.assert_close(got, function(x), rtol=4e-2, atol=4e-2)


@pytest.mark.long
def test_signals_whose_length_is_a_symbol():
    """Down to one element; by rows, so that images and results are put in order."""
    narrow, wide = rows(24, 16, 3, scale=0.3), rows(24, 16, 4, scale=0.3)

    def function(x):
        return F.gelu(F.conv_transpose1d(F.relu(F.conv1d(x, narrow, padding=1)), wide, stride=2, padding=1))

    found = lower(function, rows(2, 16, 33), mode="symbolic", nd_library_products=FOUND)
    assert kernels(found.module)[2] == 0
    for sizes in ((2, 16, 33), (3, 16, 7), (1, 16, 1), (0, 16, 5)):
        x = rows(*sizes)
        (got,) = run_loop(found.module, [x], found.constants, found.objects)
        torch.testing.assert_close(got, function(x), rtol=4e-2, atol=4e-2)


# ---- which way


def said(function, *args, library="price"):
    module = import_function(function, *args).module
    module.attributes[MACHINE] = MachineAttr.from_text("sm_90")
    remarks: list[str] = []
    passes = parse_pipeline(f"nd-canonicalize,nd-library-products{{library={library}}}")
    run(passes, module, context(), Instrumentation(remarks=lambda r: remarks.append(r.text)))
    (remark,) = remarks
    return not any(isinstance(op, nd.ConvOp) for op in module.walk()), remark


def large(*shape, order=torch.channels_last):
    return torch.empty(shape, dtype=BF16, memory_format=order)


def test_by_price():
    """Both prices are in the remark."""
    function = up(stride=2, padding=1)
    image, weight = large(32, 256, 32, 32), large(256, 128, 4, 4)
    generated, remark = said(function, image, weight)
    assert generated and "generated: by price (library" in remark and "us, generated" in remark
    assert not said(function, image, weight, library="always")[0]
    by_rows = large(32, 256, 32, 32, order=torch.contiguous_format)
    assert "channels do not lie side by side in the image" in said(function, by_rows, weight)[1]
    assert not said(lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1), image, weight)[0]  # nothing follows
    signal = large(16, 256, 4096, order=torch.contiguous_format), large(256, 128, 8, order=torch.contiguous_format)
    assert said(up(dims=1, stride=4, padding=2), *signal)[0] and said(up(dims=1, padding=3), *signal)[0]
    assert "not of one type of floats" not in said(function, image.float(), weight.float())[1]
