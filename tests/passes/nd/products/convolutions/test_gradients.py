"""Gradients of convolutions by their images as kernels of ours, with what stands behind; those by weights stay calls."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from support import import_function, lower
from torch.nn import BatchNorm2d, Conv2d, ConvTranspose2d, Module

import stepwell
from stepwell.dialects import nd
from stepwell.dialects.machine import MACHINE, MachineAttr
from stepwell.dialects.mem import ExternOp
from stepwell.dialects.tt.compute import DotOp
from stepwell.dialects.tt.structure import FuncOp
from stepwell.passes.manager.instrumentation import Instrumentation
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline, parse_pipeline
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.loop import run_loop
from stepwell.tools.interpret.target import InterpretedTarget

aten = torch.ops.aten
BF16 = torch.bfloat16
FOUND = "nd-library-products{library=never tiny=0}"


def last(*shape, scale=1.0):
    """Channels side by side."""
    x = (torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * scale).to(BF16)
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def gradients(wanted, stride=1, padding=0, transposed=False, groups=1):
    """The gradients that are wanted, that by the image behind a ReLU."""

    def function(g, x, w):
        spatial = x.dim() - 2
        numbers = [stride] * spatial, [padding] * spatial, [1] * spatial, transposed, [0] * spatial, groups
        found = aten.convolution_backward(g, x, w, None, *numbers, wanted)
        return [torch.where(x > 0, found[0], 0), *[y for y, one in zip(found[1:], wanted[1:], strict=True) if one]]

    return function


ALONE, BOTH = [True, False, False], [True, True, False]
CASES = {
    "stride": (gradients(ALONE, stride=2, padding=1), last(2, 24, 4, 3), last(2, 16, 8, 6), last(24, 16, 3, 3, scale=0.3)),
    "no stride": (gradients(BOTH, padding=1), last(2, 24, 4, 3), last(2, 16, 4, 3), last(24, 16, 3, 3, scale=0.3)),
    "pixels": (gradients(BOTH, stride=2), last(2, 24, 4, 3), last(2, 16, 8, 6), last(24, 16, 1, 1, scale=0.3)),
    "groups": (gradients(ALONE, padding=1, groups=2), last(2, 48, 4, 3), last(2, 32, 4, 3), last(48, 16, 3, 3, scale=0.3)),
    "signal": (gradients(BOTH, stride=2, padding=1), last(2, 24, 8), last(2, 16, 16), last(24, 16, 4, scale=0.3)),
    "transposed": (
        gradients(ALONE, stride=2, padding=1, transposed=True), last(2, 24, 8, 6), last(2, 16, 4, 3), last(16, 24, 4, 4, scale=0.3),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_values(case):
    function, *args = CASES[case]
    module = lower(function, *args, nd_library_products=FOUND).module
    found = list(module.walk())
    both = function(*args)[1:]
    assert [op.call.data.args[-1] for op in found if isinstance(op, ExternOp)] == ([(False, True, False)] if both else [])
    assert sum(isinstance(op, DotOp) for op in found) == 1
    assert sum(isinstance(op, FuncOp) for op in found) == (1 if case == "transposed" else 2)  # a weight in order, and the product
    for got, want in zip(run_loop(module, args, [], []), function(*args), strict=True):
        torch.testing.assert_close(got, want, rtol=4e-2, atol=4e-2)
        assert got.stride() == want.stride()


def chosen(function, *args, library="price"):
    """The calls that are left, by what is wanted of them, and the remarks."""
    module = import_function(function, *args).module
    module.attributes[MACHINE] = MachineAttr.from_text("sm_90")
    said: list[str] = []
    passes = parse_pipeline(f"nd-canonicalize,nd-library-products{{library={library}}}")
    run(passes, module, context(), Instrumentation(remarks=lambda r: said.append(r.text)))
    module.verify()
    assert not any(isinstance(op, nd.ConvOp) for op in module.walk())
    return [op.call.data.args[-1] for op in module.walk() if isinstance(op, nd.ExternOp)], said


def large(*shape, dtype=BF16):
    return torch.empty(shape, dtype=dtype, memory_format=torch.channels_last)


def test_by_price():
    args = large(64, 256, 28, 28), large(64, 256, 28, 28), large(256, 256, 3, 3)
    left, said = chosen(gradients(BOTH, padding=1), *args)
    assert left == [(False, True, False)] and any("generated: by price (library" in one for one in said)
    left, said = chosen(gradients(BOTH, padding=1), *args, library="always")
    assert left == [(True, True, False)] and any("library=always" in one for one in said)


def test_those_of_float32_stay_one_call():
    args = [large(4, 32, 28, 28, dtype=torch.float32), large(4, 16, 56, 56, dtype=torch.float32), large(32, 16, 3, 3, dtype=torch.float32)]
    left, said = chosen(gradients(BOTH, stride=2, padding=1), *args)
    assert left == [(True, True, False)] and any("nobody has measured" in one for one in said)


def test_one_by_the_weight_alone_is_a_call():
    def function(g, x, w):
        return aten.convolution_backward(g, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [False, True, False])[1]

    left, _ = chosen(function, large(64, 256, 28, 28), large(64, 128, 28, 28), large(256, 128, 3, 3), library="never")
    assert left == [(False, True, False)]


class Net(Module):
    """A convolution by steps, one that is added to its input, and one back to the size of the image."""

    def __init__(self):
        super().__init__()
        self.down, self.same, self.norm = Conv2d(8, 16, 3, padding=1, stride=2), Conv2d(16, 16, 3, padding=1), BatchNorm2d(16)
        self.up = ConvTranspose2d(16, 8, 4, stride=2, padding=1)

    def forward(self, x):
        h = F.relu(self.norm(self.down(x)))
        return torch.tanh(self.up(F.silu(self.same(h)) + h))


def step(net, x):
    """The result of a step, and the gradients that are not 0 but for rounding."""
    x = x.detach().requires_grad_()
    y = net(x)
    y.float().square().sum().backward()
    return [y.detach(), x.grad, *(p.grad for name, p in net.named_parameters() if "down.bias" not in name)]


@pytest.mark.long
def test_a_training_step():
    """Gradients by weights are the calls that are left."""
    torch.manual_seed(0)
    net, x = Net().to(BF16).to(memory_format=torch.channels_last), last(2, 8, 8, 6)
    exact = step(copy.deepcopy(net).double(), x.double())
    eager = step(copy.deepcopy(net), x)
    pipeline = default_pipeline("gpu")
    pipeline.replace("nd-library-products", FOUND)
    stepwell.register_target(InterpretedTarget, replace=True)
    stepwell.reset_counters()
    try:
        own = step(torch.compile(net, backend="stepwell", options={"cache": "off", "pipeline": str(pipeline)}), x)
    finally:
        stepwell.unregister_target("interpreted")
        torch._dynamo.reset()
    assert stepwell.counters["extern"] == 3
    for got, want, true in zip(own, eager, exact, strict=True):
        assert (got.double() - true).norm() <= 1.2 * (want.double() - true).norm() + 1e-6 * true.norm()
