"""Convolutions as products on a GPU: one kernel with what stands behind it, eager's values and strides, and which way each goes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support import import_function, lower
from xdsl.dialects.builtin import StringAttr
from xdsl.utils.exceptions import VerifyException

from stepwell.dialects import nd
from stepwell.dialects.loop import NestOp
from stepwell.dialects.machine import MACHINE, MachineAttr
from stepwell.dialects.mem import ExternOp
from stepwell.dialects.tt.compute import DotOp
from stepwell.dialects.tt.structure import FuncOp
from stepwell.passes.manager.instrumentation import Instrumentation
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.loop import run_loop

BF16 = torch.bfloat16
FOUND = "nd-library-products{library=never tiny=0}"


def rows(*shape, dtype=BF16, scale=1.0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * scale).to(dtype)


def last(*shape, **more):
    """Channels side by side."""
    return rows(*shape, **more).movedim(1, -1).contiguous().movedim(-1, 1)


def steps(x):
    """Strides of the dimensions that have several places."""
    return [step for size, step in zip(x.shape, x.stride(), strict=True) if size > 1]


def conv(behind=F.relu, dims=2, **steps):
    function = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[dims]
    return lambda x, w, b=None: behind(function(x, w, b, **steps))


def residual(x, w, z):
    return F.relu(F.conv2d(x, w, padding=1) + z)


CASES = {
    "pixels": (conv(F.silu), last(3, 24, 5, 7), last(40, 24, 1, 1), rows(40)),
    "pixels, by rows": (conv(F.silu), rows(3, 24, 5, 7), rows(40, 24, 1, 1)),
    "pixels, every other one": (conv(F.silu, stride=2), last(3, 24, 5, 7), last(40, 24, 1, 1)),
    "windows": (residual, last(2, 16, 6, 5), last(24, 16, 3, 3), last(2, 24, 6, 5)),
    "windows, by rows": (conv(padding=1), rows(2, 16, 6, 5), last(24, 16, 3, 3)),
    "strides, dilation": (conv(padding=2, stride=(2, 1), dilation=(1, 2)), last(2, 16, 9, 7, scale=0.5), last(24, 16, 3, 3)),
    "uneven padding": (conv(padding=(0, 3)), last(1, 8, 4, 3, dtype=torch.float16), last(8, 8, 2, 5, dtype=torch.float16)),
    "groups": (conv(padding=1, groups=3), last(2, 48, 9, 7), last(24, 16, 3, 3), rows(24)),
    "groups of pixels": (conv(groups=2), last(2, 32, 5, 5), last(48, 16, 1, 1)),
    "volume": (conv(dims=3, padding=1), last(2, 8, 4, 5, 6), last(16, 8, 3, 3, 3)),
    "signal": (conv(F.gelu, dims=1, padding=1), last(2, 16, 33), last(24, 16, 3)),
    "one window": (conv(), last(2, 8, 3, 3), last(8, 8, 3, 3)),
}


@pytest.mark.parametrize("case", CASES)
def test_one_kernel_with_eagers_values(case):
    function, *args = CASES[case]
    module = lower(function, *args, nd_library_products=FOUND).module
    assert len([op for op in module.ops if isinstance(op, FuncOp)]) == len([op for op in module.walk() if isinstance(op, DotOp)]) == 1
    assert not [op for op in module.walk() if isinstance(op, ExternOp)]
    (got,) = run_loop(module, args, [], [])
    want = function(*args)
    torch.testing.assert_close(got, want, rtol=4e-2, atol=4e-2)
    assert steps(got) == steps(want)


def test_a_gpu_that_copies_no_blocks():
    function, *args = CASES["windows"]
    module = lower(function, *args, nd_library_products=FOUND, machine="sm_80").module
    torch.testing.assert_close(run_loop(module, args, [], [])[0], function(*args), rtol=4e-2, atol=4e-2)


def test_sizes_that_are_symbols():
    """One module for each batch and height, an empty batch too."""
    w, b = last(24, 16, 3, 3), rows(24)

    def function(x):
        return F.relu(F.conv2d(x, w, b, padding=1, stride=2))

    found = lower(function, last(2, 16, 9, 6), mode="symbolic", nd_library_products=FOUND)
    assert any(isinstance(op, DotOp) for op in found.module.walk()) and not any(isinstance(op, ExternOp) for op in found.module.walk())
    for sizes in ((2, 16, 9, 6), (3, 16, 4, 5), (0, 16, 7, 6)):
        x = last(*sizes)
        (got,) = run_loop(found.module, [x], found.constants, found.objects)
        torch.testing.assert_close(got, function(x), rtol=4e-2, atol=4e-2)


def test_no_image():
    function, *args = CASES["windows"]
    args = [args[0][:0], args[1], args[2][:0]]
    module = lower(function, *args, nd_library_products=FOUND).module
    assert run_loop(module, args, [], [])[0].shape == (0, 24, 6, 5)


IN_ORDER = {
    "signal": (conv(F.gelu, dims=1, padding=1), rows(2, 16, 33), rows(24, 16, 3)),
    "volume": (conv(dims=3, padding=1), rows(2, 8, 4, 5, 6), rows(16, 8, 3, 3, 3)),
    "weight": (conv(padding=1), last(2, 16, 6, 5), rows(24, 16, 3, 3)),
}


@pytest.mark.parametrize("case", IN_ORDER)
def test_what_lies_by_rows_is_put_in_order_by_one_kernel(case):
    function, *args = IN_ORDER[case]
    module = lower(function, *args, nd_library_products=FOUND).module
    assert len([op for op in module.ops if isinstance(op, FuncOp)]) == 2 and len([op for op in module.walk() if isinstance(op, DotOp)]) == 1
    (got,) = run_loop(module, args, [], [])
    torch.testing.assert_close(got, function(*args), rtol=4e-2, atol=4e-2)
    assert got.stride() == function(*args).stride()


def test_a_weight_in_order_stays_so():
    """Its dimensions are no image's: loop-layout has no other order for it."""
    function, *args = IN_ORDER["weight"]
    module = lower(function, *args, to="loop", nd_library_products=FOUND).module
    (copy,) = [op for op in module.walk() if isinstance(op, NestOp) and "no_fuse" in op.attributes]
    assert "layouts" not in copy.attributes


def test_what_is_computed_is_stored_in_order():
    """Of two convolutions of a signal the first one stores channels side by side: nothing copies them."""

    def block(x, w, v):
        return F.gelu(F.conv1d(F.relu(F.conv1d(x, w, padding=1)), v, padding=1))

    args = last(2, 16, 33), last(24, 16, 3, scale=0.3), last(16, 24, 3, scale=0.3)
    module = lower(block, *args, nd_library_products=FOUND).module
    assert len([op for op in module.ops if isinstance(op, FuncOp)]) == 2
    torch.testing.assert_close(run_loop(module, args, [], [])[0], block(*args), rtol=4e-2, atol=4e-2)


def test_two_convolutions_are_two_kernels():
    """The second one reads what the first one stores, rounded."""

    def block(x, w, v):
        return F.relu(F.conv2d(F.relu(F.conv2d(x, w, padding=1)), v, padding=1) + x)

    args = last(2, 16, 6, 5), last(16, 16, 3, 3, scale=0.3), last(16, 16, 3, 3, scale=0.2)
    module = lower(block, *args, nd_library_products=FOUND).module
    assert len([op for op in module.walk() if isinstance(op, DotOp)]) == 2
    torch.testing.assert_close(run_loop(module, args, [], [])[0], block(*args), rtol=4e-2, atol=4e-2)


# ---- which way


def large(*shape, order=torch.channels_last):
    return torch.empty(shape, dtype=BF16, memory_format=order)


def by_rows(*shape):
    return large(*shape, order=torch.contiguous_format)


PIXELS = conv(F.silu), (large(64, 256, 64, 64), large(512, 256, 1, 1))
PLAIN = conv(lambda y: y, padding=1), (large(64, 256, 56, 56), large(256, 256, 3, 3))


def chosen(function, args, library="price", schedule="", machine="sm_90"):
    """Whether a convolution is generated, and what the remark says."""
    module = import_function(function, *args).module
    module.attributes[MACHINE] = MachineAttr.from_text(machine)
    for op in module.walk():
        if schedule and isinstance(op, nd.ConvOp):
            op.properties["schedule"] = StringAttr(schedule)
    said: list[str] = []
    passes = parse_pipeline(f"nd-canonicalize,nd-library-products{{library={library}}}")
    run(passes, module, context(), Instrumentation(remarks=lambda r: said.append(r.text)))
    (remark,) = said
    return not any(isinstance(op, nd.ConvOp) for op in module.walk()), remark


def test_by_price():
    assert chosen(*PIXELS)[0] and chosen(*PIXELS, machine="sm_80")[0]
    generated, remark = chosen(*PLAIN)
    assert not generated and "a call of the library: by price (library" in remark


def test_images_by_rows_are_put_in_order_on_both_ways():
    """The library's kernels have channels side by side, too. Which order images of two dimensions have, loop-layout decides."""
    generated, remark = chosen(conv(F.gelu, dims=1, padding=1), (by_rows(32, 512, 4096), by_rows(512, 512, 3)))
    assert generated and "by price" in remark
    assert chosen(conv(dims=3, padding=1), (by_rows(8, 64, 16, 56, 56), by_rows(128, 64, 3, 3, 3)))[0]
    assert chosen(conv(padding=1), (large(64, 256, 64, 64), by_rows(512, 256, 3, 3)))[0]


def test_a_call_is_a_choice():
    generated, remark = chosen(*PIXELS, library="always")
    assert not generated and "a call of the library: library=always" in remark


def test_a_schedule_comes_first():
    assert chosen(*PLAIN, schedule="generated")[0]
    assert 'a call of the library: schedule = "library"' in chosen(*PIXELS, library="never", schedule="library")[1]
    assert 'generated: schedule = "generated"' in chosen(*PLAIN, library="always", schedule="generated")[1]


@pytest.mark.parametrize(
    ("function", "args", "reason"),
    [
        (conv(), (large(2, 3, 8, 8), large(64, 3, 3, 3)), "its groups have 3 and 64 channels, no number of 8"),
        (conv(groups=16), (large(2, 16, 8, 8), large(32, 1, 3, 3)), "its groups have 1 and 2 channels, no number of 8"),
        (lambda x, w: F.conv_transpose2d(x, w, groups=16), (large(2, 16, 8, 8), large(16, 1, 3, 3)), "it is transposed"),
        (lambda x, w: F.conv_transpose2d(x, w), (large(2, 16, 8, 8), large(16, 12, 3, 3)), "its groups have 16 and 12 channels"),
        (conv(), (large(0, 16, 8, 8), large(16, 16, 3, 3)), "it is empty"),
    ],
)  # fmt: skip
def test_what_is_no_product(function, args, reason):
    for schedule in ("", "generated"):
        generated, remark = chosen(function, args, library="never", schedule=schedule)
        assert not generated and reason in remark


@pytest.mark.parametrize(
    ("function", "x", "w", "reason"),
    [
        (conv(), by_rows(64, 256, 64, 64), by_rows(512, 256, 3, 3), "channels do not lie side by side in the image"),
        (conv(), by_rows(64, 256, 7, 7), by_rows(512, 256, 1, 1), "channels of 49 pixels are no multiple of 16 bytes"),
        (conv(groups=384), by_rows(64, 384, 58, 58), by_rows(384, 1, 3, 3), "channels do not lie side by side in the image"),
        (conv(groups=384), large(64, 384, 13, 15), by_rows(384, 1, 3, 3), "no number of windows is a multiple of 2, 3, 5 or 7"),
    ],
    ids=["rows", "pixels", "depthwise", "no strips"],
)  # fmt: skip
def test_elements_that_are_read_one_by_one_stay_with_the_library(function, x, w, reason):
    generated, remark = chosen(function, (x, w))
    assert not generated and reason in remark
    assert chosen(function, (x, w), library="never")[0]


def test_another_word_is_an_error():
    module = import_function(*PLAIN[:1], *PLAIN[1]).module
    (op,) = [op for op in module.walk() if isinstance(op, nd.ConvOp)]
    op.properties["schedule"] = StringAttr("own")
    with pytest.raises(VerifyException, match='nd.conv: schedule is "generated" or "library", not "own"'):
        op.verify_()
