"""A result is called as the operator of the graph that computes it, whatever was fused with it."""

import re

import pytest
import torch

from stepwell.passes.cost.machine.cpu import flat
from stepwell.tools.explain import main as tool

MACHINE = flat(gflops=100.0, memory_gbs=10.0, cache_gbs=50.0, threads=2)


def sums_of_a_product(x, w):
    y = torch.relu(x @ w + 1)
    return y.sum(), y.sum(0), y.sum(1)


def sum_of_a_relu(x, w):
    return torch.relu(x).sum(1)


def sine_of_a_sum(x, w):
    return torch.relu(x).sum(0).sin(), x.mean().exp()


def several(x, w):
    y = torch.relu(x)
    return y, y.sum(1), y.amax(1)


PROGRAMS = [
    (sums_of_a_product, {"sum_1", "sum_2", "sum_3"}, {"add", "relu", "sum_1", "sum_2", "sum_3", "mm"}),
    (sum_of_a_relu, {"sum_1"}, {"relu", "sum_1"}),
    (sine_of_a_sum, {"sin", "exp"}, {"relu", "sum_1", "sin", "mean", "exp"}),
    (several, {"relu", "sum_1", "amax"}, {"relu", "sum_1", "amax"}),
]


@pytest.mark.parametrize(("function", "results", "operators"), PROGRAMS, ids=[p[0].__name__ for p in PROGRAMS])
def test_results_and_steps_have_the_names_of_operators(function, results, operators):
    torch._dynamo.reset()
    found = tool.explain(function, torch.randn(64, 40), torch.randn(40, 30), machine=MACHINE, quiet=True)
    (graph,) = found.graphs
    (line,) = re.findall(r"Returned: (.*)\.", found.walk())
    assert {part.partition(" (")[0] for part in line.split(", ")} == results
    assert {name for step in graph.steps for name in step.operators} == operators
    assert results <= {use.name for step in graph.steps for use in step.writes}
