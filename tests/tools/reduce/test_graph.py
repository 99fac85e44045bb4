"""FX graphs become small while they still fail, and print as programs that run."""

from __future__ import annotations

import operator

import pytest
import torch
from torch.fx import symbolic_trace

import stepwell
from stepwell.passes.manager.pass_manager import Pass
from stepwell.tools.reduce.graph import ReduceError, program_text, reduce_graph


def calls(gm) -> list:
    return [n.target for n in gm.graph.nodes if n.op not in ("placeholder", "output", "get_attr")]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(9, 9))

    def forward(self, x, y):
        for _ in range(20):
            x = torch.sin(x) @ self.weight
            y = y + x.sum(1, keepdim=True)
        z = torch.maximum(x, y.tanh())
        for _ in range(20):
            z = z * x + torch.cos(y)
        return z, x.t(), y


def test_a_hundred_nodes_become_a_few():
    gm, inputs = symbolic_trace(Net()), [torch.randn(37, 9), torch.randn(37, 9)]
    text = gm.code

    def fails(graph, given) -> bool:
        assert torch.is_tensor(graph(*given)[0]), "every candidate runs"
        return any(
            n.target is torch.maximum and any(getattr(a, "target", None) == "tanh" for a in n.args) for n in graph.graph.nodes
        )

    assert len(calls(gm)) > 100
    found, given = reduce_graph(gm, inputs, fails)
    assert fails(found, given) and len(calls(found)) == 2
    assert all(value.numel() == 1 for value in given) and len(given) <= 2
    assert gm.code == text and inputs[0].shape == (37, 9)
    scope: dict = {"torch": torch}
    exec(program_text(found), scope)
    torch.testing.assert_close(scope["program"](*given), found(*given))


def test_what_does_not_fail():
    gm = symbolic_trace(torch.nn.Tanh())
    with pytest.raises(ReduceError, match="does not fail"):
        reduce_graph(gm, [torch.randn(3)], lambda graph, given: False)
    with pytest.raises(stepwell.StepwellError, match="no graph of the function fails"):
        stepwell.reduce(lambda x: x + 1, torch.randn(3))


def test_updates_stay_where_they_matter():
    def function(x, y):
        x = x + y
        x.add_(1)
        x.mul_(2)
        return x * y

    def fails(graph, given) -> bool:
        return "mul_" in {n.target for n in graph.graph.nodes}

    found, _ = reduce_graph(symbolic_trace(function), [torch.randn(4), torch.randn(4)], fails)
    assert calls(found) == ["mul_"]


class MaximumIsMinimum(Pass):
    """A wrong rewrite."""

    name = "maximum-is-minimum"

    def apply(self, ctx, op) -> None:
        from xdsl.dialects.arith import MaximumfOp, MinimumfOp

        for nested in [nested for nested in op.walk() if isinstance(nested, MaximumfOp)]:
            new = MinimumfOp(nested.lhs, nested.rhs)
            nested.parent.insert_op_before(new, nested)
            nested.results[0].replace_all_uses_with(new.results[0])
            nested.detach()


def test_a_function_that_is_compiled_wrong(own_passes):
    stepwell.register_pass("mem", MaximumIsMinimum)

    def function(x, y):
        z = torch.sin(x) + y
        return torch.maximum(z.cos(), y).exp(), z

    reduced = stepwell.reduce(function, torch.randn(4, 5), torch.randn(4, 5))
    assert calls(reduced.graph) == [torch.maximum]
    assert "elements differ" in reduced.failure and "torch.maximum(" in str(reduced)
    compile(str(reduced), "<reduced>", "exec")


class Stumble(Pass):
    name = "stumble"

    def apply(self, ctx, op) -> None:
        for nested in op.walk():
            if nested.name == "nd.matmul":
                raise KeyError(operator.attrgetter("name")(nested))


def test_a_module_that_does_not_compile(own_passes):
    """Parameters are inputs of the graph; the failure stays the same one."""
    stepwell.register_pass("nd", Stumble)
    net = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.ReLU(), torch.nn.LayerNorm(6))
    reduced = stepwell.reduce(net, torch.randn(4, 6))
    assert len(calls(reduced.graph)) == 1 and "KeyError: 'nd.matmul'" in reduced.failure
