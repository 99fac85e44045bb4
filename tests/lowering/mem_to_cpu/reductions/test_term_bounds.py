"""A reduction's loop on the CPU goes through the terms that conditions on indices, or loaded bounds, leave."""

from __future__ import annotations

import math

import pytest
import torch
from support import import_function, without_data

from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.tools.backend.compile_graph import context


def between(x, first, end):
    place = torch.arange(x.shape[-1])
    return (place >= first[:, None]) & (place < end[:, None])


FUNCTIONS = {
    "segments": lambda x, at: torch.where(between(x[0], at[:-1], at[1:]), x[0], 0.0).sum(1),
    "rows of their own": lambda x, at: torch.where(between(x, at[:-1], at[1:]), x, -math.inf).amax(1),
    "up to an end": lambda x, at: torch.where(torch.arange(x.shape[1]) < at[1:, None], x, math.inf).amin(1),
    "a triangle": lambda x, at: torch.where(torch.arange(x.shape[1]) <= 7 * torch.arange(x.shape[0])[:, None], x, 0.0).sum(1),
    "rows that are filled up": lambda x, at: torch.ops.aten._jagged_to_padded_dense_forward(x.t().contiguous(), [at], [300], 0.0).sum(1),
    "columns": lambda x, at: torch.where(torch.arange(x.shape[1]) < at[1:, None], x, 0.0).t().sum(0),
    "columns by another's bounds": lambda x, at: torch.where(torch.arange(x.shape[0]) < at[:5, None], x.t()[:5], 0.0).sum(1),
    "a softmax beside it": lambda x, at: torch.where(torch.arange(x.shape[1]) < at[1:, None], x, -math.inf).softmax(1),
}
ENDS = {
    "rising": [0, 3, 3, 64, 71, 300, 517, 518, 600, 2000],
    "any": [5000, 0, 17, 1 << 40, -4, 90, -(1 << 40), 3, 2000, 1999],
}


@pytest.mark.spread
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("kind", ENDS)
def test_terms_that_bounds_leave(name, kind, dynamic):
    if name == "rows that are filled up" and kind == "any":
        pytest.skip("offsets rise")
    x = torch.randn(9, 2000, generator=torch.Generator().manual_seed(0))
    at = torch.tensor(ENDS[kind])
    try:
        got = torch.compile(FUNCTIONS[name], backend="stepwell", dynamic=dynamic)(x, at)
    finally:
        torch._dynamo.reset()
    torch.testing.assert_close(got, FUNCTIONS[name](x, at), rtol=1e-5, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("name", ["segments", "a triangle"])
def test_loops_have_bounds(name):
    """Of the rows that lanes have, the widest ones."""
    x = torch.empty(9, 2000) if name == "segments" else torch.empty(300, 2000)
    module = import_function(FUNCTIONS[name], *without_data([x, torch.tensor(ENDS["rising"])], "cpu")).module
    run(default_pipeline("cpu", stages=("nd", "loop", "mem", "cpu")), module, context())
    text = str(module)
    assert "minsi" in text and ("cpu.reduce min" in text) == (name == "segments")


def test_a_nan_outside_of_the_bounds_does_not_count():
    x = torch.randn(4, 1000)
    x[:, 500:] = math.nan
    ends = torch.tensor([500, 3, 0, 499])
    function = FUNCTIONS["up to an end"]
    torch.testing.assert_close(
        torch.compile(function, backend="stepwell")(x, torch.cat([ends[:1], ends])), function(x, torch.cat([ends[:1], ends]))
    )
