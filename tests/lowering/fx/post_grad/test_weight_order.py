"""Weights that are constants lie by output channels where convolutions of ours read them, and as they came where others do."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from stepwell.lowering.fx.post_grad.freezing import fold

aten = torch.ops.aten


def folded(weight, groups=1, transposed=False):
    def function(x, w):
        return (aten.convolution(x, w, None, [1, 1], [0, 0], [1, 1], transposed, [0, 0], groups),)

    gm = make_fx(function, tracing_mode="fake")(torch.randn(2, 32, 20, 20), weight)
    fold(gm, {[n for n in gm.graph.nodes if n.op == "placeholder"][1]: weight})
    (node,) = [n.args[1] for n in gm.graph.nodes if n.target is aten.convolution.default]
    held = getattr(gm, node.target)
    assert torch.equal(held, weight) and node.meta["val"].stride() == held.stride()
    return held


@pytest.mark.parametrize("shape, groups", [((64, 32, 1, 1), 1), ((32, 1, 3, 3), 32)])
def test_output_channels_lie_side_by_side(shape, groups):
    weight = torch.randn(shape)
    held = folded(weight, groups)
    assert held.permute(2, 3, 1, 0).is_contiguous()
    assert weight.is_contiguous()


@pytest.mark.parametrize("name", ["transposed", "of few channels", "grouped"])
def test_what_the_library_computes_stays(name):
    weight = {
        "transposed": torch.randn(32, 64, 1, 1),
        "of few channels": torch.randn(1, 32, 1, 1), "grouped": torch.randn(64, 16, 1, 1),
    }[name]  # fmt: skip
    groups = 2 if name == "grouped" else 1
    held = folded(weight, groups, transposed=name == "transposed")
    assert held.is_contiguous()


def test_sizes_that_are_symbols_leave_windows_to_the_library():
    """A product reads windows of known places only; pixels it reads of any."""
    for window, by_channels in ((3, False), (1, True)):
        weight = torch.randn(64, 32, window, window)
        gm = make_fx(lambda x, w: (aten.convolution(x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),), tracing_mode="symbolic")(
            torch.randn(2, 32, 20, 20), weight
        )
        fold(gm, {[n for n in gm.graph.nodes if n.op == "placeholder"][1]: weight})
        (node,) = [n.args[1] for n in gm.graph.nodes if n.target is aten.convolution.default]
        held = getattr(gm, node.target) if node.op == "get_attr" else None
        assert held is None or held.permute(2, 3, 1, 0).is_contiguous() is by_channels
