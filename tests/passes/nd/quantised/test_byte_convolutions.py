"""Convolutions of bytes as products of integers, against float64 of the quantised model."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from torch.ao.quantization.fx._decomposed import quantized_decomposed_lib  # noqa: F401  (defines the operators)

import stepwell

decomposed = torch.ops.quantized_decomposed
CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}

KINDS = {
    "windows": ((2, 24, 9, 11), (40, 24, 3, 3), {"padding": 1}),
    "pixels": ((2, 24, 9, 11), (48, 24, 1, 1), {}),
    "pixels with steps": ((2, 64, 9, 11), (40, 64, 1, 1), {"stride": 2}),
    "steps and gaps": ((2, 24, 19, 21), (40, 24, 3, 2), {"stride": (2, 1), "padding": (2, 1), "dilation": (2, 1)}),
    "signal": ((2, 24, 31), (40, 24, 5), {"padding": 2}),
    "volume": ((1, 8, 5, 6, 7), (24, 8, 2, 3, 3), {"padding": 1}),
    "one pixel": ((3, 24, 1, 1), (48, 24, 1, 1), {}),
}  # fmt: skip
STAY = {
    "grouped": ((2, 24, 9, 11), (48, 12, 3, 3), {"groups": 2}),
    "depthwise": ((2, 24, 9, 11), (24, 1, 3, 3), {"groups": 24, "padding": 1}),
    "small": ((2, 4, 9, 11), (8, 4, 3, 3), {}),
    "of one channel out": ((2, 24, 9, 11), (1, 24, 9, 9), {}),
}  # fmt: skip


class Net(torch.nn.Module):
    """A quantised convolution: bytes as weight, the image quantised before and the result behind."""

    def __init__(self, weight, given, signed=False, zero=131, zeros=None):
        super().__init__()
        scale = weight.flatten(1).abs().amax(1) / 127
        self.register_buffer("scale", scale)
        self.register_buffer("zeros", torch.zeros(len(scale), dtype=torch.int64) if zeros is None else zeros)
        self.register_buffer("weight", decomposed.quantize_per_channel(weight, scale, self.zeros, 0, -128, 127, torch.int8))
        self.register_buffer("bias", torch.randn(len(scale)))
        self.given, self.zero = given, zero - 128 if signed else zero
        self.limits = (-128, 127, torch.int8) if signed else (0, 255, torch.uint8)

    def forward(self, x):
        x = decomposed.quantize_per_tensor(F.silu(x), 0.02, self.zero, *self.limits)
        x = decomposed.dequantize_per_tensor(x, 0.02, self.zero, *self.limits)
        weight = decomposed.dequantize_per_channel(self.weight, self.scale, self.zeros, 0, -128, 127, torch.int8)
        return F.relu(CONVOLUTIONS[x.dim() - 2](x, weight, self.bias, **self.given))

    def exact(self, x):
        """The same with a convolution in float64."""
        x = decomposed.quantize_per_tensor(F.silu(x), 0.02, self.zero, *self.limits)
        x = (x.double() - self.zero) * 0.02
        along = (-1, *[1] * (x.dim() - 1))
        weight = (self.weight.double() - self.zeros.double().reshape(along)) * self.scale.double().reshape(along)
        return F.relu(CONVOLUTIONS[x.dim() - 2](x, weight, self.bias.double(), **self.given))


def convolutions(net, *images, dynamic=False, **options):
    """How many became products of bytes, once results are as in float64."""
    torch._dynamo.reset()
    stepwell.reset_counters()
    f = torch.compile(net, backend="stepwell", dynamic=dynamic, options={"freezing": True} | options)
    with torch.no_grad():
        for x in images:
            torch.testing.assert_close(f(x).double(), net.exact(x), atol=1e-5, rtol=1e-5)
    return stepwell.counters["passes"]["nd-convolution-products"]["num-byte-convolutions"]


@pytest.mark.parametrize("name", KINDS)
def test_kinds(name):
    image, weight, given = KINDS[name]
    torch.manual_seed(0)
    assert convolutions(Net(torch.randn(weight), given), torch.randn(image)) == 1


@pytest.mark.spread
@pytest.mark.parametrize("signed, zero", [(False, 0), (False, 255), (True, 0), (True, 128)])
@pytest.mark.parametrize("frozen", [True, False])
def test_types_zero_points_and_weights_as_arguments(signed, zero, frozen):
    torch.manual_seed(0)
    net = Net(torch.randn(40, 24, 3, 3), {"padding": 1}, signed, zero)
    assert convolutions(net, torch.randn(2, 24, 9, 11), freezing=frozen) == 1


def test_sizes_and_layouts():
    """Symbolic numbers of samples and pixels, none of them, images by channels and parts of others."""
    torch.manual_seed(0)
    net = Net(torch.randn(40, 24, 3, 3), {"padding": 1, "stride": 2})
    images = [torch.randn(n, 24, h, w) for n, h, w in ((2, 9, 11), (5, 6, 7), (3, 16, 30), (0, 9, 11))]
    images += [images[0].to(memory_format=torch.channels_last), torch.randn(2, 48, 9, 11)[:, ::2]]
    assert convolutions(net, *images, dynamic=True) >= 1


def test_no_window_is_copied(tmp_path):
    """The product reads the padded bytes, whose channels lie side by side: a copy would be named in the remarks."""
    torch.manual_seed(0)
    net = Net(torch.randn(40, 24, 3, 3), {"padding": 1})
    assert convolutions(net, torch.randn(1, 24, 9, 11), debug=str(tmp_path)) == 1
    (remarks,) = (path.read_text() for path in tmp_path.rglob("remarks.txt"))
    (program,) = (path.read_text() for path in tmp_path.rglob("4_cpu.mlir"))
    assert "no strides" not in remarks and "_windows_panels64" in program


@pytest.mark.parametrize("name", STAY)
def test_others_stay(name):
    image, weight, given = STAY[name]
    torch.manual_seed(0)
    assert convolutions(Net(torch.randn(weight), given), torch.randn(image)) == 0


def test_the_scale_of_an_image_multiplies_sums_over_channels(tmp_path):
    """Of a depthwise convolution: not each number of each window."""
    image, weight, given = STAY["depthwise"]
    torch.manual_seed(0)
    assert convolutions(Net(torch.randn(weight), given), torch.randn(image), debug=str(tmp_path)) == 0
    (program,) = (path.read_text() for path in tmp_path.rglob("1_nd.mlir"))
    (padded,) = re.findall(r"nd.pad (%\w+),", program)
    assert re.search(rf"{padded} = nd.sub ", program)


def test_zero_points_of_a_weight():
    torch.manual_seed(0)
    net = Net(torch.randn(40, 24, 3, 3), {}, zeros=torch.arange(40) % 3)
    assert convolutions(net, torch.randn(2, 24, 9, 11)) == 1


def test_eager_numerics_keep_the_program():
    torch.manual_seed(0)
    assert convolutions(Net(torch.randn(40, 24, 3, 3), {}), torch.randn(2, 24, 9, 11), numerics="eager") == 0
