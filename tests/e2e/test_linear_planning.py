"""What planning looks at grows as the graph does: calls of functions, counted pass by pass, of a graph and of one twice as long."""

from __future__ import annotations

import cProfile
from collections import Counter

import pytest
import torch
from support import import_function
from xdsl.dialects.builtin import ModuleOp

from stepwell.passes.manager.instrumentation import Instrumentation
from stepwell.passes.manager.pass_manager import ModulePass, run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.tools.backend.compile_graph import context

MAX_GROWTH = 2.3
"""Calls for a graph of two lengths by those for one. Before the twice in each pass there is what no length changes."""
MIN_CALLS = 3000
"""Passes of fewer calls are no part of the time."""


def layers(count: int):
    """Equal layers: a norm, two products with an activation between them, what is added to the input."""

    def step(x, w):
        for _ in range(count):
            centred = x - x.mean(1, keepdim=True)
            normed = centred * torch.rsqrt((centred * centred).mean(1, keepdim=True) + 1e-5)
            x = x + torch.tanh(normed @ w) @ w
        return (x,)

    return step


def products_added_up(count: int):
    """Products that nothing parts from each other but what is computed element by element."""

    def step(x, w):
        total = x.sin()
        for k in range(count):
            total = total + torch.tanh((x + k) @ w) * total
        return (total,)

    return step


def unequal_parts(count: int):
    """Parts that differ: none stands for another one."""

    def step(x, w):
        for k in range(count):
            y = x.sin() if k % 3 else x @ w
            for _ in range(k * k % 5):
                y = torch.tanh(y * w + k)
            x = x + y - (y.sum(1, keepdim=True) if k % 4 else y)
        return (x,)

    return step


def many_updates(count: int):
    """Small computations that have nothing to do with each other: the step of an optimizer."""

    def step(x, w):
        return tuple(x * k + w.sqrt() / (x + k) for k in range(count))

    return step


COUNTS = {"layers": 60, "products added up": 80, "unequal parts": 40, "many updates": 40}
PROGRAMS = {"layers": layers, "products added up": products_added_up, "unequal parts": unequal_parts, "many updates": many_updates}


def calls_of_passes(function) -> Counter[str]:
    """How many functions each pass calls until buffers are planned."""
    module = import_function(function, torch.randn(16, 16), torch.randn(16, 16)).module
    counts: Counter[str] = Counter()
    profile = cProfile.Profile()

    def passed(p: ModulePass, _: ModuleOp) -> None:
        profile.disable()
        counts[p.name] += sum(entry.callcount for entry in profile.getstats())
        profile.clear()
        profile.enable()

    profile.enable()
    try:
        run(default_pipeline("cpu", stages=["nd", "loop", "mem"]), module, context(), Instrumentation(after_pass=passed))
    finally:
        profile.disable()
    return counts


@pytest.mark.parametrize(
    ("program", "count"),
    [("unequal parts", 10), *[pytest.param(name, count, marks=(pytest.mark.long, pytest.mark.crossed)) for name, count in COUNTS.items()]],
    ids=str,
)
def test_each_pass_looks_at_twice_as_much_of_twice_the_graph(program, count):
    one, two = (calls_of_passes(PROGRAMS[program](n)) for n in (count, 2 * count))
    grown = {name: (one[name], n) for name, n in two.items() if n > max(MIN_CALLS, MAX_GROWTH * one[name])}
    assert not grown, f"calls for {count} and {2 * count} parts"
