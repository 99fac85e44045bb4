"""Small 1x1 convolutions of a GPU as products: which become products, and their values."""

from typing import Any

import pytest
import torch
from support import import_function
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.nd import run_nd

aten = torch.ops.aten
PASS = "nd-canonicalize,nd-library-products{tiny=0}"


def convolution(stride=1, padding=0, groups=1, transposed=False):
    """Forward, and both gradients, of a convolution with this window's steps."""

    def function(x, w, b, g):
        spatial = x.dim() - 2
        numbers = [stride] * spatial, [padding] * spatial, [1] * spatial, transposed, [0] * spatial, groups
        y = aten.convolution(x, w, b, *numbers)
        return (y, *aten.convolution_backward(g, x, w, None, *numbers, [True, True, False])[:2])

    return function


def inputs(n, c, o, *places, dtype=torch.float32, stride=1, padding=0, groups=1):
    x = torch.randn(n, c, *places, dtype=dtype)
    w, b = torch.randn(o, c // groups, *(1 for _ in places), dtype=dtype), torch.randn(o, dtype=dtype)
    return x, w, b, torch.randn(n, o, *((p + 2 * padding - 1) // stride + 1 for p in places), dtype=dtype)


def calls(module):
    """The convolutions and library calls that are left."""
    names = {"nd.conv": lambda op: "conv", "nd.extern": lambda op: op.call.data.target}
    return sorted(names[op.name](op) for op in module.walk() if op.name in names)


def lowered(function, args, passes=PASS, mode: Any = "fake"):
    module = import_function(function, *args, mode=mode).module
    run(parse_pipeline(passes), module, context())
    module.verify()
    return module


@pytest.mark.parametrize(
    ("sizes", "product"),
    [
        ((2, 6, 5, 4, 3), "bmm"), ((1, 6, 5, 4, 3), "mm"), ((4, 6, 5, 1, 1), "mm"), ((1, 6, 5, 1, 1), "mm"), ((3, 1, 1, 2, 2), "bmm"),
        ((2, 6, 5, 7), "bmm"), ((2, 6, 5, 2, 3, 2), "bmm"), ((0, 6, 5, 4, 3), None),
    ],
)  # fmt: skip
def test_forward_and_gradients(sizes, product):
    torch.manual_seed(0)
    args = inputs(*sizes)
    module = lowered(convolution(), args)
    assert calls(module) == ([f"aten.{product}.default"] * 3 if product else [])
    for got, wanted in zip(run_nd(module, list(args), (), (), "forward"), convolution()(*args), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("wanted", [[True, False, False], [False, True, False]])
def test_one_gradient(wanted):
    def function(x, w, b, g):
        both = aten.convolution_backward(g, x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, wanted)
        return (both[wanted.index(True)],)

    args = inputs(2, 6, 5, 4, 3)
    module = lowered(function, args)
    assert calls(module) == ["aten.bmm.default"]
    torch.testing.assert_close(run_nd(module, list(args), (), (), "forward")[0], function(*args)[0], rtol=1e-4, atol=1e-5)


def test_a_batch_of_any_size():
    shape_env = ShapeEnv()
    mode = FakeTensorMode(shape_env=shape_env)
    args = inputs(3, 6, 5, 4, 3)
    batch = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, *[DimDynamic.STATIC] * 3])
    fake = [mode.from_tensor(t, symbolic_context=batch if t.dim() == 4 and len(t) == 3 else None) for t in args]
    with mode:
        module = lowered(lambda x, w, b, g: (convolution()(x, w, b, g)[0],), fake, mode="real")
    assert calls(module) == ["aten.bmm.default"]


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"dtype": torch.bfloat16}, {}), ({"stride": 2}, {"stride": 2}), ({"padding": 1}, {"padding": 1}), ({"groups": 2}, {"groups": 2}),
    ],
)  # fmt: skip
def test_others_stay(options, steps):
    args = inputs(2, 6, 4, 4, 4, **options)
    assert calls(lowered(convolution(**steps), args)) == ["aten.convolution_backward.default", "conv"]


def test_transposed_ones_and_channels_last_stay():
    args = inputs(2, 6, 6, 4, 4)
    stay = ["aten.convolution_backward.default", "conv"]
    assert calls(lowered(convolution(transposed=True), args)) == stay
    last = [t.to(memory_format=torch.channels_last) if t.dim() == 4 else t for t in args]
    assert calls(lowered(convolution(), last)) == stay


def test_large_ones_stay():
    args = inputs(2, 6, 5, 4, 3)
    stay = ["aten.convolution_backward.default", "conv"]
    assert calls(lowered(convolution(), args, "nd-library-products{small=0}")) == stay
    count = args[0].numel() + args[3].numel()
    assert calls(lowered(convolution(), args, f"nd-library-products{{small={count}}}")) == stay
    assert calls(lowered(convolution(), args, f"nd-library-products{{tiny=0 small={count + 1}}}")) == ["aten.bmm.default"] * 3
    # a weight for each of many samples would be larger than they are
    many = inputs(100, 20, 20, 2, 1)
    assert calls(lowered(convolution(), many, "nd-library-products{small=10000}")) == stay
