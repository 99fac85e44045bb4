"""Convolutions on a machine without a library: products of their windows, sums of windows, transposed ones as plain ones."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support import import_function

from stepwell.dialects import nd
from stepwell.dialects.machine import MACHINE, MachineAttr
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.nd import run_nd

CASES = {
    "product": (F.conv2d, (2, 8, 9, 11), (12, 8, 3, 3), {"padding": 1}, 1),
    "product of one element of an image": (F.conv2d, (1, 16, 7, 7), (4, 16, 7, 7), {"stride": 4}, 1),
    "groups": (F.conv2d, (2, 16, 9, 9), (8, 4, 3, 3), {"groups": 4, "stride": (2, 1)}, 1),
    "signal": (F.conv1d, (2, 8, 40), (12, 8, 5), {"stride": 2, "padding": 3, "dilation": 2}, 1),
    "volume": (F.conv3d, (2, 4, 5, 6, 7), (8, 4, 3, 3, 3), {"padding": 1, "stride": (1, 2, 1)}, 1),
    "depthwise": (F.conv2d, (2, 24, 9, 9), (24, 1, 3, 3), {"groups": 24}, 0),
    "few terms": (F.conv2d, (2, 3, 9, 9), (16, 3, 2, 2), {}, 0),
    "transposed": (F.conv_transpose2d, (2, 8, 5, 7), (8, 6, 3, 3), {}, 1),
    "transposed with steps": (F.conv_transpose2d, (2, 8, 5, 7), (8, 6, 4, 4), {"stride": 2, "padding": 1}, 1),
    "transposed groups": (
        F.conv_transpose2d, (2, 8, 5, 7), (8, 6, 3, 3),
        {"stride": (2, 3), "padding": 1, "output_padding": 1, "groups": 2, "dilation": 2}, 1,
    ),
    "transposed depthwise": (F.conv_transpose1d, (2, 4, 9), (4, 1, 5), {"stride": 2, "groups": 4}, 0),
}  # fmt: skip


@pytest.mark.spread
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_values(name, dtype):
    function, image, weight, arguments, products = CASES[name]
    torch.manual_seed(0)
    x, w = torch.randn(image).to(dtype), (torch.randn(weight) / 4).to(dtype)
    outputs = weight[1] * arguments.get("groups", 1) if "transpose" in function.__name__ else weight[0]
    b = torch.randn(outputs).to(dtype)
    found = import_function(lambda x, w, b: function(x, w, b, **arguments), x, w, b)
    found.module.attributes[MACHINE] = MachineAttr.get("cpu", library=0)
    run(parse_pipeline("nd-small-convolutions"), found.module, context())
    found.module.verify()
    ops = list(found.module.walk())
    assert not any(isinstance(op, nd.ConvOp) for op in ops)
    assert sum(isinstance(op, nd.MatmulOp) for op in ops) == products
    (got,) = run_nd(found.module, [x, w, b])
    want = function(x.double(), w.double(), b.double(), **arguments).to(dtype)
    tolerance = 1e-2 if dtype is torch.bfloat16 else 1e-5
    torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)


def test_one_that_takes_more_than_its_windows_away_stays():
    x, w = torch.randn(1, 4, 8), torch.randn(4, 4, 2)
    found = import_function(lambda x, w: F.conv_transpose1d(x, w, padding=2), x, w)
    found.module.attributes[MACHINE] = MachineAttr.get("cpu", library=0)
    run(parse_pipeline("nd-small-convolutions"), found.module, context())
    assert any(isinstance(op, nd.ConvOp) for op in found.module.walk())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_products_and_convolutions_of_a_gpu(dtype):
    """No call is left, and the values are those of the operators."""

    def function(x, w, b, image, kernel):
        return torch.addmm(b, x, w), torch.bmm(x[None], w[None]), F.conv2d(image, kernel), F.conv_transpose2d(image, kernel)

    torch.manual_seed(0)
    shapes = ((65, 129), (129, 70), (70,), (1, 6, 8, 9), (6, 6, 3, 3))
    given = [(torch.randn(shape) / 4).to(dtype) for shape in shapes]
    found = import_function(function, *given)
    found.module.attributes[MACHINE] = MachineAttr.get("sm_90", library=0)
    run(parse_pipeline("nd-library-products"), found.module, context())
    found.module.verify()
    assert not any(isinstance(op, nd.ConvOp | nd.MatmulOp | nd.ExternOp) for op in found.module.walk())
    want = function(*(x.double() for x in given))
    tolerance = 2e-2 if dtype is torch.bfloat16 else 1e-4
    torch.testing.assert_close(tuple(run_nd(found.module, given)), tuple(y.to(dtype) for y in want), atol=tolerance, rtol=tolerance)
