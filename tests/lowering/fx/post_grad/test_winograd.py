"""3 x 3 convolutions in Winograd's form: against float64, with a bound of the error, and where there are none."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from stepwell.lowering.fx.post_grad.freezing import fold
from stepwell.lowering.fx.post_grad.winograd import transformed_weight, winograd
from stepwell.tools.backend import frozen
from stepwell.tools.options.options import Options

TOLERATED = {2: 2.0, 4: 6.0}
"""Tile -> by how much the root mean square of errors may exceed that of sums whose terms are added one after the other."""


def folded(convolution, image, weight, tile=4):
    """The nodes of a graph whose second argument is a constant."""
    gm = make_fx(convolution, tracing_mode="fake")(image, weight)
    fold(gm, {[n for n in gm.graph.nodes if n.op == "placeholder"][1]: weight}, winograd=tile)
    gm.recompile()
    return gm, [n for n in gm.graph.nodes if n.target is winograd]


def added_in_order(x, weight):
    """A convolution, padded by 1, in the arithmetic that every machine has: a library's sums differ from CPU to CPU."""
    rows, total = F.unfold(x, 3, padding=1)[0], torch.zeros(len(weight), x[0, 0].numel())
    for row, column in zip(rows, weight.flatten(1).unbind(1), strict=True):
        total += column[:, None] * row
    return total.view(1, len(weight), *x.shape[2:])


def rms(got, want):
    return (got.double() - want).pow(2).mean().sqrt().item()


@pytest.mark.parametrize("channels", [16, 64, 256])
@pytest.mark.parametrize("tile", TOLERATED)
def test_n28_errors_are_bounded(tile, channels):
    """Of images behind a ReLU, whose sums do not cancel."""
    torch.manual_seed(0)
    x, weight = torch.randn(1, channels, 26, 26).relu(), torch.randn(32, channels, 3, 3)
    want = F.conv2d(x.double(), weight.double(), padding=1)
    got = winograd(x, transformed_weight(weight, tile), None, [1, 1])
    assert rms(got, want) < TOLERATED[tile] * rms(added_in_order(x, weight), want)


SIZES = [
    (4, (27, 30), (0, 2), torch.contiguous_format),
    pytest.param(2, (27, 30), (1, 1), torch.channels_last, marks=pytest.mark.long),
    pytest.param(4, (14, 17), (3, 0), torch.channels_last, marks=pytest.mark.long),
]


@pytest.mark.parametrize("tile, size, padding, order", SIZES)
def test_sizes_layouts_and_numbers_of_samples(tile, size, padding, order):
    """Sizes that are no multiple of a tile, parts of other images by rows and by channels, none and several samples."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.ReLU(), nn.Conv2d(64, 64, 3, padding=padding), nn.Hardswish()).eval()
    exact, whole = copy.deepcopy(net).double(), [torch.randn(samples, 128, *size) for samples in (2, 3, 0)]
    assert folded(lambda x, w: F.conv2d(x, w, padding=padding), whole[0][:, ::2], net[1].weight.detach(), tile)[1]
    torch._dynamo.reset()
    f = torch.compile(net, backend="stepwell", options={"freezing": True, "winograd": str(tile)})
    with torch.no_grad():
        for image in whole:
            x = image.contiguous(memory_format=order)[:, ::2]
            torch._dynamo.maybe_mark_dynamic(x, 0)
            got = f(x)
            assert got.stride() == net(x).stride()
            torch.testing.assert_close(got.double(), exact(x.double()), atol=1e-5, rtol=1e-5)


def test_one_weight_of_two_convolutions_and_a_residual():
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64)

        def forward(self, x):
            return F.relu(self.norm(self.conv(F.relu(self.conv(x)))) + x)

    net, x = Net().eval(), torch.randn(1, 64, 28, 28)
    torch._dynamo.reset()
    f = torch.compile(net, backend="stepwell", options={"freezing": True})
    with torch.no_grad():
        torch.testing.assert_close(f(x), net(x), atol=1e-5, rtol=1e-5)


def plain(x, weight):
    return F.conv2d(x, weight, padding=1)


def test_fz_01_the_graph_has_the_operator_and_its_values():
    torch.manual_seed(0)
    x, weight = torch.randn(1, 64, 28, 28), torch.randn(64, 64, 3, 3)
    gm, found = folded(plain, x, weight)
    assert len(found) == 1 and getattr(gm, found[0].args[1].target).shape == (36, 64, 64)
    assert found[0].meta["val"].shape == (1, 64, 28, 28)
    torch.testing.assert_close(gm(x, None).double(), plain(x.double(), weight.double()), atol=2e-4, rtol=1e-4)
    torch.library.opcheck(winograd, (x, transformed_weight(weight, 2), None, [1, 1]), test_utils="test_faketensor")


OTHERS = {
    "of f64": (plain, (1, 64, 28, 28), (64, 64, 3, 3), torch.float64),
    "of bf16": (plain, (1, 64, 28, 28), (64, 64, 3, 3), torch.bfloat16),
    "with steps": (lambda x, w: F.conv2d(x, w, stride=2), (1, 64, 57, 57), (64, 64, 3, 3), torch.float32),
    "with gaps": (lambda x, w: F.conv2d(x, w, dilation=2), (1, 64, 30, 30), (64, 64, 3, 3), torch.float32),
    "grouped": (lambda x, w: F.conv2d(x, w, groups=2), (1, 64, 30, 30), (64, 32, 3, 3), torch.float32),
    "transposed": (F.conv_transpose2d, (1, 64, 30, 30), (64, 64, 3, 3), torch.float32),
    "of a signal": (F.conv1d, (1, 64, 400), (64, 64, 3), torch.float32),
    "of a volume": (F.conv3d, (1, 64, 9, 9, 9), (64, 64, 3, 3, 3), torch.float32),
    "whose weight is read otherwise": (lambda x, w: (plain(x, w), w * x.sum()), (1, 64, 28, 28), (64, 64, 3, 3), torch.float32),
    "with few channels": (plain, (1, 8, 28, 28), (8, 8, 3, 3), torch.float32),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_others_stay(name):
    function, image, weight, dtype = OTHERS[name]
    assert not folded(function, torch.randn(image, dtype=dtype), torch.randn(weight, dtype=dtype))[1]


LEAVING = [{"winograd": "off"}, {"numerics": "eager"}, {"batch_invariant": True}, {"fallback": ["aten.convolution"]}]


@pytest.mark.parametrize("given", LEAVING, ids=str)
def test_options_leave_convolutions_as_they_are(given):
    """Where sums are eager's, or the library's, no other form takes their place."""
    assert frozen.winograd_tile(Options(**given)) == 0
    assert frozen.winograd_tile(Options(winograd="4")) == 4
