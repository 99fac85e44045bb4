"""Joins of joins: what the inner ones are made of goes to its place in the outer one, without a tensor between."""

from __future__ import annotations

from functools import reduce

import pytest
import torch
from support import import_function, lower
from torch.utils import _pytree as pytree

from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.loop import run_loop


def blocks(a, b, c, d):
    return torch.cat([torch.cat([a * 2, b], 1), torch.cat([c, d + 1], 1)], 0)


# with how many tensors are made
PROGRAMS = {
    "blocks": (blocks, 1),
    "one after the other": (lambda a, b, c, d: torch.cat([torch.cat([torch.cat([a, a * 2]), a + 1]), a.abs()]), 1),
    "a view between": (lambda a, b, c, d: torch.cat([a, torch.cat([c[:3, :1], c[3:, :1] * 3], 1).flip(1), b], 1), None),
    "three levels": (lambda a, b, c, d: torch.cat([torch.cat([torch.cat([a, b], 1), torch.cat([c, d], 1)]), a[:1, :1].expand(9, 2)], 1), 1),
    "empty parts": (lambda a, b, c, d: torch.cat([torch.cat([a[:0], a], 0), torch.cat([b, b[:, :0]], 1)], 1), 1),
    "the inner one is needed": (lambda a, b, c, d: (torch.cat([(e := torch.cat([a, b], 1)), e * 2]), e), 2),
    "the inner one twice": (lambda a, b, c, d: torch.cat([(e := torch.cat([a * 2, b], 1)), e]), 2),
    "rounded": (lambda a, b, c, d: torch.cat([torch.cat([a, b], 1).bfloat16(), torch.cat([a.bfloat16(), b.bfloat16()], 1) * 2]), None),
}  # fmt: skip


@pytest.mark.spread
@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize("mode", ["real", "symbolic"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_parts_go_to_their_places(name, mode, device):
    """Catalogue D23, N07."""
    program, tensors = PROGRAMS[name]
    args = [torch.randn(3, 4), torch.randn(3, 5), torch.randn(6, 2), torch.randn(6, 7)]
    expected = pytree.tree_leaves(program(*args))
    imported = import_function(program, *args, mode=mode)
    run(default_pipeline(device, stages=("nd", "loop", "mem", *["tt"] * (device == "gpu"))), imported.module, context())
    if tensors is not None and mode == "real":  # sizes that are symbols are the same only by an assertion of the graph's
        assert sum(op.name == "mem.alloc" for op in imported.module.walk()) == tensors
    for got, want in zip(run_loop(imported.module, args, imported.constants, imported.objects), expected, strict=True):
        assert torch.equal(got, want)


def test_a_tensor_that_grows_step_by_step_is_written_once():
    args = [torch.randn(k % 3, 4) for k in range(1200)]
    imported = lower(lambda *xs: [reduce(lambda y, x: torch.cat([y, x]), xs)], *args, to="mem", target="cpu", mode="real")
    assert sum(op.name == "mem.alloc" for op in imported.module.walk()) == 1
    (got,) = run_loop(imported.module, args, imported.constants, imported.objects)
    assert torch.equal(got, torch.cat(args))
