"""nd-convolution-products: convolutions as products of pixels and channels, against eager, and when they are some."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from support import import_function
from torch import nn

import stepwell
from stepwell.dialects import nd
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.nd import run_nd

KINDS = {
    "pixels": (nn.Conv2d, (24, 40, 1), {}, (2, 24, 9, 11)),
    "pixels without bias": (nn.Conv2d, (24, 40, 1), {"bias": False}, (1, 24, 9, 11)),
    "one channel out": (nn.Conv2d, (24, 1, 1), {}, (2, 24, 5, 7)),
    "one pixel": (nn.Conv2d, (24, 40, 1), {}, (3, 24, 1, 1)),
    "pixels with steps": (nn.Conv2d, (24, 40, 1), {"stride": 2}, (2, 24, 9, 11)),
    "padded pixels": (nn.Conv2d, (24, 40, 1), {"padding": 1}, (2, 24, 9, 11)),
    "grouped pixels": (nn.Conv2d, (24, 48, 1), {"groups": 3}, (2, 24, 9, 11)),
    "windows": (nn.Conv2d, (24, 40, 3), {"padding": 1}, (2, 24, 9, 11)),
    "windows with steps": (nn.Conv2d, (24, 33, (3, 2)), {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}, (2, 24, 9, 11)),
    "reflected": (nn.Conv2d, (24, 40, 3), {"padding": 1, "padding_mode": "reflect"}, (2, 24, 9, 11)),
    "depthwise": (nn.Conv2d, (24, 24, 3), {"groups": 24, "padding": 1}, (2, 24, 9, 11)),
    "depthwise with steps": (nn.Conv2d, (24, 24, 5), {"groups": 24, "padding": 2, "stride": 2, "dilation": 2}, (2, 24, 19, 21)),
    "two of each channel": (nn.Conv2d, (24, 48, 3), {"groups": 24}, (2, 24, 9, 11)),
    "signal": (nn.Conv1d, (24, 40, 1), {}, (2, 24, 31)),
    "windows of a signal": (nn.Conv1d, (24, 40, 5), {"padding": 4, "dilation": 2}, (2, 24, 31)),
    "depthwise signal": (nn.Conv1d, (24, 24, 7), {"groups": 24, "padding": 3}, (2, 24, 31)),
    "volume": (nn.Conv3d, (8, 24, (2, 3, 3)), {"padding": 1, "stride": (1, 2, 1)}, (2, 8, 5, 6, 7)),
    "volume of pixels": (nn.Conv3d, (24, 40, 1), {}, (2, 24, 3, 4, 5)),
    "transposed": (nn.ConvTranspose2d, (24, 40, 3), {"stride": 2}, (2, 24, 5, 7)),
}  # fmt: skip


class Net(nn.Module):
    """A convolution between others, so that orders in memory are handed on."""

    def __init__(self, kind, arguments, options):
        super().__init__()
        self.middle = kind(*arguments, **options)

    def forward(self, x):
        y = self.middle(F.hardswish(x))
        return F.relu(y) * torch.sigmoid(y.mean(tuple(range(2, y.dim())), keepdim=True)), y


def compiled(net, dynamic=False):
    torch._dynamo.reset()
    return torch.compile(net, backend="stepwell", dynamic=dynamic, options={"freezing": True})


def compare(net, f, x, tolerance):
    with torch.no_grad():
        got, want, exact = f(x), net(x), copy.deepcopy(net).double()(x.double())
    for a, b, c in zip(got, want, exact, strict=True):
        assert a.stride() == b.stride() and a.dtype == b.dtype
        torch.testing.assert_close(a.double(), c, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("name", KINDS)
def test_kinds(name):
    kind, arguments, options, shape = KINDS[name]
    torch.manual_seed(0)
    net = Net(kind, arguments, options).eval()
    compare(net, compiled(net), torch.randn(shape), 1e-4)


@pytest.mark.spread
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", KINDS)
def test_types(name, dtype):
    kind, arguments, options, shape = KINDS[name]
    torch.manual_seed(0)
    net = Net(kind, arguments, options).eval().to(dtype)
    compare(net, compiled(net), torch.randn(shape).to(dtype), 1e-6 if dtype is torch.float64 else 5e-2)


@pytest.mark.parametrize("name", ["pixels", "windows", "depthwise"])
def test_layouts_and_sizes_that_are_symbols(name):
    """Images by channels, slices of others, and other sizes than those that were compiled for, none and one among them."""
    kind, arguments, options, shape = KINDS[name]
    torch.manual_seed(0)
    net = Net(kind, arguments, options).eval()
    x = torch.randn(shape)
    compare(net, compiled(net), x.to(memory_format=torch.channels_last), 1e-4)
    compare(net, compiled(net), torch.randn(shape[0], 2 * shape[1], *shape[2:])[:, ::2], 1e-4)
    f = compiled(net, dynamic=True)
    for count, height, width in ((2, 9, 11), (5, 6, 7), (3, 16, 30)):
        compare(net, f, torch.randn(count, shape[1], height, width), 1e-4)
    with torch.no_grad():
        assert f(torch.randn(0, shape[1], 9, 11))[1].shape[0] == 0


def passed(function, *args):
    found = import_function(function, *args)
    run(parse_pipeline("nd-convolution-products"), found.module, context())
    found.module.verify()
    return found


def test_weights_by_channels_are_products_or_sums():
    """Whatever calls them; the values are those of eager."""
    torch.manual_seed(0)
    x, w = torch.randn(2, 32, 20, 20), torch.randn(64, 32, 1, 1)
    found = passed(F.conv2d, x, w)
    assert [type(op) for op in found.module.walk() if isinstance(op, nd.ConvOp | nd.MatmulOp)] == [nd.MatmulOp]
    (got,) = run_nd(found.module, [x, w])
    torch.testing.assert_close(got, F.conv2d(x, w), atol=1e-4, rtol=1e-4)
    by_channels = torch.randn(3, 3, 1, 32).permute(3, 2, 0, 1)
    for weight, stays in ((by_channels, False), (by_channels.contiguous(), True)):
        found = passed(lambda x, w: F.conv2d(x, w, groups=32), x, weight)
        assert any(isinstance(op, nd.ConvOp) for op in found.module.walk()) is stays


def test_what_is_saved_for_gradients_stays_a_call():
    x, w = torch.randn(2, 32, 20, 20), torch.randn(64, 32, 1, 1)
    found = passed(lambda x, w: (F.conv2d(x, w), w), x, w)
    assert any(isinstance(op, nd.ConvOp) for op in found.module.walk())


def test_a_network_hands_channels_on():
    """Between convolutions that are products no copy is made, and nothing of the library is called."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(32, 64, 1), nn.Hardswish(), nn.Conv2d(64, 64, 3, padding=1, groups=64), nn.ReLU(), nn.Conv2d(64, 32, 1)
    ).eval()
    x = torch.randn(1, 32, 14, 14)
    stepwell.reset_counters()
    f = compiled(net)
    with torch.no_grad():
        torch.testing.assert_close(f(x), net(x), atol=1e-4, rtol=1e-4)
    assert stepwell.counters["extern"] == 0


def step(net, f, x):
    net.zero_grad()
    f(x).square().sum().backward()
    return [x.grad, *(p.grad for p in net.parameters())]


@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.spread)])
def test_gradients_of_pixels(dynamic):
    """Windows of one pixel between others, with and without steps and bias: their gradients are products, and those of eager."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    net = nn.Sequential(
        nn.Conv2d(16, 48, 1), nn.Conv2d(48, 48, 3, padding=1, groups=3), nn.SiLU(), nn.Conv2d(48, 64, 1, bias=False), nn.ReLU(),
        nn.Conv2d(64, 32, 1, stride=2),
    ).to(memory_format=torch.channels_last)  # fmt: skip
    exact, f = copy.deepcopy(net).double(), torch.compile(net, backend="stepwell", dynamic=dynamic)
    for shape in ((2, 16, 9, 11), *(((3, 16, 12, 7),) if dynamic else ())):
        x = torch.randn(shape).to(memory_format=torch.channels_last).requires_grad_()
        want = step(exact, exact, x.detach().double().requires_grad_())
        for a, b in zip(step(net, f, x), want, strict=True):
            torch.testing.assert_close(a.double(), b, atol=1e-3, rtol=1e-3)
            # of dimensions of one element, eager's depend on the number of threads
            assert all(n == 1 or i == j for n, i, j in zip(a.shape, a.stride(), b.stride(), strict=True))


def gradients(order, stride, mask):
    """What the pass makes of the gradients of windows of one pixel, images in an order of memory."""
    g, x = (torch.randn(2, c, n, n).to(memory_format=order) for c, n in ((64, 20 // stride), (32, 20)))
    w = torch.randn(64, 32, 1, 1)

    def backward(g, x, w):
        found = torch.ops.aten.convolution_backward(g, x, w, [64], [stride] * 2, [0, 0], [1, 1], False, [0, 0], 1, mask)
        return tuple(one for one in found if one is not None)

    found, want = passed(backward, g, x, w), backward(g, x, w)
    for a, b in zip(run_nd(found.module, [g, x, w]), want, strict=True):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)
    return [type(op) for op in found.module.walk() if isinstance(op, nd.ExternOp | nd.MatmulOp)]


def test_which_gradients_are_products():
    last, rows = torch.channels_last, torch.contiguous_format
    assert gradients(last, 1, [True, True, True]) == [nd.MatmulOp, nd.MatmulOp]
    assert gradients(last, 1, [False, True, False]) == [nd.MatmulOp]
    assert gradients(last, 2, [True, True, False]) == [nd.ExternOp, nd.MatmulOp]
    assert gradients(rows, 1, [True, True, False]) == [nd.ExternOp]


@pytest.mark.parametrize("stride, dilation", [(1, 1), (2, 1), pytest.param(1, 2, marks=pytest.mark.spread)])
@pytest.mark.parametrize("mask", [[True, True, True], [False, True, False]], ids=str)
def test_gradients_of_depthwise_weights(stride, dilation, mask):
    """Sums over the image for wide windows; the library's call gives the gradient by the image."""
    torch.manual_seed(0)
    x = torch.randn(2, 64, 41, 36).to(memory_format=torch.channels_last)
    args = ([stride] * 2, [2, 4], [dilation] * 2, False, [0, 0], 64)

    def backward(g, x, w):
        return tuple(one for one in torch.ops.aten.convolution_backward(g, x, w, [64], *args, mask) if one is not None)

    for width, count in ((5, 1), (3, 0)):
        w = torch.randn(64, 1, 3, width)
        g = torch.randn_like(torch.ops.aten.convolution(x, w, None, *args))
        found, want = passed(backward, g, x, w), backward(g, x, w)
        for a, b in zip(run_nd(found.module, [g, x, w]), want, strict=True):
            torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)
        sums = [op for op in found.module.walk() if isinstance(op, nd.ReduceOp)]
        assert len(sums) == count * (1 + mask[2])
