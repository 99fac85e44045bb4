"""Convolutions of few channels as nests: values, over ranks, strides, groups, types and dynamic sizes, and which stay with the library."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from support import import_function

from stepwell.dialects import nd
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline
from stepwell.tools.backend.compile_graph import context


def conv(kind, **arguments):
    def function(x, w, b=None):
        return getattr(F, f"conv{kind}d")(x, w, b, **arguments).relu()

    return function


CASES = {
    "sobel": (conv(2, padding=1), (4, 1, 20, 33), (1, 1, 3, 3), None),
    "channels": (conv(2, padding=1), (2, 3, 17, 18), (4, 3, 3, 3), (4,)),
    "stride and dilation": (conv(2, stride=(3, 2), dilation=(2, 1), padding=(0, 2)), (2, 2, 19, 23), (3, 2, 3, 3), None),
    "one image channel each": (conv(2, groups=3, padding=2), (2, 3, 16, 17), (3, 1, 5, 5), (3,)),
    "two filters a channel": (conv(2, groups=3), (2, 3, 9, 9), (6, 1, 2, 2), None),
    "groups of two": (conv(2, groups=2, padding=1), (2, 4, 9, 9), (4, 2, 2, 2), None),
    "signal": (conv(1, padding=3), (3, 1, 50), (1, 1, 7), (1,)),
    "volume": (conv(3, padding=1), (1, 1, 6, 7, 8), (1, 1, 3, 3, 3), None),
    "depthwise": (conv(2, groups=40, padding=1), (2, 40, 15, 18), (40, 1, 3, 3), (40,)),
    "depthwise, rows of one": (conv(2, groups=12, padding=(1, 0)), (1, 12, 9, 1), (24, 1, 3, 1), None),
    "depthwise signal, as in a state space model": (conv(1, groups=48, padding=3), (2, 48, 50), (48, 1, 4), (48,)),
    "depthwise signal, dilated": (conv(1, groups=8, padding=8, dilation=4), (2, 8, 33), (8, 1, 5), None),
    "no image": (conv(2, padding=1), (0, 1, 8, 8), (1, 1, 3, 3), None),
}


@pytest.mark.spread
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values(name, dtype):
    torch._dynamo.reset()
    function, *shapes = CASES[name]
    torch.manual_seed(1)
    arguments = [None if s is None else torch.randn(s).to(dtype) for s in shapes]
    got = torch.compile(function, backend="stepwell")(*arguments)
    want = function(*arguments)
    tolerance = 3e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    if want.numel():  # of an empty result torch's fake tensors say other strides than eager's have
        assert got.stride() == want.stride()


@pytest.mark.parametrize("channels", [32, 96])
def test_depthwise_of_dynamic_sizes_and_transposed_signals(channels):
    """One kernel for all sizes; channels next to each other in memory, as a state space model has them, are read as they lie."""
    torch._dynamo.reset()

    def function(x, w):
        return F.silu(F.conv1d(x.transpose(1, 2), w, padding=3, groups=channels)[..., :-3])

    compiled = torch.compile(function, backend="stepwell", dynamic=True)
    for batch, length in ((2, 20), (3, 65), (2, 4)):
        x, w = torch.randn(batch, length, channels, requires_grad=True), torch.randn(channels, 1, 4, requires_grad=True)
        got, want = compiled(x, w), function(x, w)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
        mine, theirs = torch.autograd.grad(got.square().sum(), (x, w)), torch.autograd.grad(want.square().sum(), (x, w))
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_dynamic_sizes_and_gradients():
    torch._dynamo.reset()
    function = conv(2, padding=1)
    compiled = torch.compile(function, backend="stepwell", dynamic=True)
    for size in (9, 16, 33):
        x, w = torch.randn(2, 1, size, size + 3, requires_grad=True), torch.randn(2, 1, 3, 3, requires_grad=True)
        got, want = compiled(x, w), function(x, w)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
        mine, theirs = torch.autograd.grad(got.square().sum(), (x, w)), torch.autograd.grad(want.square().sum(), (x, w))
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_channels_last_stays_with_the_library():
    torch._dynamo.reset()
    x, w = torch.randn(2, 3, 9, 9).to(memory_format=torch.channels_last), torch.randn(3, 3, 3, 3)
    function = conv(2)
    got, want = torch.compile(function, backend="stepwell")(x, w), function(x, w)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert got.stride() == want.stride()


def convolutions_left(function, *arguments):
    module = import_function(function, *arguments).module
    run(parse_pipeline("nd-canonicalize,nd-small-convolutions"), module, context())
    return sum(isinstance(op, nd.ConvOp) for op in module.walk())


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("bias", [False, True])
def test_complex_ones_stay_with_the_library_and_give_the_same_bits(dtype, bias):
    """The three real convolutions of one are subtracted from each other: terms in another order would stand out."""
    torch._dynamo.reset()
    torch.manual_seed(2)
    x, w, b = (9 * torch.randn(*s, dtype=dtype) for s in ((1, 3, 4, 4), (3, 3, 3, 3), (3,)))
    function = functools.partial(F.conv2d, stride=2, padding=2)
    arguments = (x, w, b) if bias else (x, w)
    got = torch.compile(function, backend="stepwell")(*arguments)
    torch.testing.assert_close(got, function(*arguments), rtol=0, atol=0)
    assert convolutions_left(function, *arguments) == 3


def test_differences_of_other_convolutions_are_nests():
    x, narrow, wide = torch.randn(1, 1, 12, 12), torch.randn(1, 1, 3, 3), torch.randn(1, 1, 5, 5)
    assert convolutions_left(lambda x, a, b: F.conv2d(x, a, padding=1) - F.conv2d(x, b, padding=2), x, narrow, wide) == 0
