"""Rows that a sum of softmaxes weighs, as a sum of rows (differential attention)."""

from __future__ import annotations

import pytest
import torch

from stepwell.lowering.fx.joint.repeated_scores import ScoreKernels
from stepwell.lowering.fx.pre_grad.softmax_sinks import part_sinks
from stepwell.lowering.fx.pre_grad.softmax_sums import distribute_products


def difference(a, b, t, v):
    return (torch.softmax(a, -1) - (t + 0.5) * b.softmax(dim=-1)).to(v.dtype) @ v


def three(a, b, t, v):
    return torch.einsum("hij,hjd->ihd", 0.5 * a.softmax(-1) + (b.softmax(-1) - (a * b).softmax(-1)), v)


def with_another_tensor(a, b, t, v):
    return (torch.softmax(a, -1) - b) @ v


def needed(a, b, t, v):
    p = torch.softmax(a, -1) - torch.softmax(b, -1)
    return p @ v, p


def dropped(a, b, t, v):
    """One draw for both."""
    return torch.dropout(torch.softmax(a, -1) - torch.softmax(b, -1), 0.5, True) @ v


def of_columns(a, b, t, v):
    return v.mT @ (torch.softmax(a, -1) - torch.softmax(b, -1)).mT


@pytest.mark.parametrize("function", [difference, three, with_another_tensor, needed, dropped, of_columns])
def test_which_are_distributed(function):
    torch._dynamo.reset()
    numbers = torch.Generator().manual_seed(3)
    args, graphs = [torch.randn(size, generator=numbers) for size in ((2, 5, 7), (2, 5, 7), (1,), (2, 7, 3))], []
    torch.compile(function, backend=lambda gm, _: graphs.append(gm) or gm.forward, fullgraph=True)(*args)
    (gm,) = graphs
    found = function in (difference, three)
    assert distribute_products(gm, lambda _: None) == 0
    assert distribute_products(gm, lambda _: ScoreKernels((torch.float32,), 36)) == 0
    assert distribute_products(gm, lambda _: ScoreKernels((torch.float32,), 35)) == found
    assert part_sinks(gm) == found
    if found:
        given = {f"l_{name}_": x for name, x in zip("abtv", args, strict=True)}
        (got,) = gm(*(given[node.name] for node in gm.graph.find_nodes(op="placeholder")))
        torch.testing.assert_close(got, function(*args))
