"""Programs explained for a GPU that is not there."""

from __future__ import annotations

import pytest
import torch

from stepwell.dialects.machine import TargetError
from stepwell.errors import StepwellError
from stepwell.tools.explain import main as tool

IR = """\
func.func @f(%x : !nd.tensor<64 x 32 x f32>) -> !nd.tensor<64 x 32 x f32> {
  %y = nd.exp %x : !nd.tensor<64 x 32 x f32>
  func.return %y : !nd.tensor<64 x 32 x f32>
}
"""


def told(fn, *args, **settings):
    torch._dynamo.reset()
    return tool.explain(fn, *args, quiet=True, **settings)


@pytest.mark.parametrize("target", ["sm_80", pytest.param("gfx942", marks=pytest.mark.long)])
def test_a_program_in_training_for_a_gpu(target):
    x, w = torch.randn(8, 16), torch.randn(16, 4, requires_grad=True)
    found = told(lambda x: torch.softmax(x @ w, -1) * 2, x, target=target)
    assert [graph.title for graph in found.graphs] == ["graph 1 (forward)", "graph 2 (backward)"]
    assert all([level.name for level in graph.levels][-2:] == ["tt", "host"] for graph in found.graphs)
    assert found.machine.name == target and all(step.predicted_us > 0 for graph in found.graphs for step in graph.steps)
    assert "cuda:0" in found.graphs[0].levels[0].text


@pytest.mark.long
def test_attention_is_traced_as_products():
    q = torch.randn(1, 2, 16, 8)
    found = told(torch.nn.functional.scaled_dot_product_attention, q, q, q, target="sm_90")
    assert not any("for_cpu" in name for graph in found.graphs for name in graph.operators)


@pytest.mark.long
def test_branches_and_sizes_that_are_symbols():
    def branches(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)) + 1

    assert len(told(branches, torch.randn(4, 8), target="sm_90").graphs) == 3
    x = torch.randn(6, 8)
    torch._dynamo.mark_dynamic(x, 0)
    (graph,) = told(lambda x: x.exp().sum(1), x, target="sm_90").graphs
    assert graph.steps and graph.levels[-2].name == "tt"


def test_a_file_of_ir_for_a_gpu():
    found = tool.explain_text(IR, "f.mlir", quiet=True, target="sm_90")
    assert [level.name for level in found.graphs[0].levels][-2:] == ["tt", "host"]


@pytest.mark.parametrize("target", ["sm90", "cpu"])
def test_a_target_that_is_none(target):
    with pytest.raises(TargetError, match=rf"'{target}'"):
        told(torch.sin, torch.ones(3), target=target)
    assert issubclass(TargetError, StepwellError)
