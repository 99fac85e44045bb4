"""PASS-11: what makes a result wrong is found by taking out one rule, or one pass, after the other."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

import stepwell
from stepwell.dialects.nd.pointwise import OPS
from stepwell.lowering.fx_to_nd import load_rules
from stepwell.lowering.fx_to_nd.core import registry
from stepwell.passes.manager.user import isolated
from stepwell.tools.check.find_fault import Fault, find_fault
from stepwell.tools.check.main import main

Exp, Sin = OPS["exp"], OPS["sin"]


class ExpIsSin(RewritePattern):
    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: Exp, rewriter: PatternRewriter):
        rewriter.replace(op, [Sin.create(operands=op.operands, result_types=[op.result.type])])


def program(x, w, state):
    y = torch.tanh(x @ w) + x.cos()
    z = y.exp().sum(0) * y
    state.mul_(2)
    return z.erf(), torch.sigmoid(z)


def inputs():
    return torch.randn(6, 6), torch.randn(6, 6, requires_grad=True), torch.randn(3)


@pytest.fixture(autouse=True)
def _no_passes_stay():
    with isolated():
        yield


@pytest.fixture
def wrong_erf(monkeypatch):
    load_rules()
    monkeypatch.setitem(registry.REGISTRY, torch.ops.aten.erf.default, lambda b, x: b.op("sin", x))
    monkeypatch.setattr(registry, "_RESOLVED", {})


def test_nothing_is_wrong():
    found = find_fault(program, *inputs())
    assert found == Fault("") and str(found) == "The results are those of eager."


def test_pass_11_a_wrong_rule(wrong_erf):
    found = find_fault(program, *inputs())
    line = program.__code__.co_firstlineno + 4
    assert found.wrong.startswith("result 0: ") and (found.operator, found.left_out) == ("aten.erf.default", "")
    assert found.nodes == (f"erf at test_find_fault.py:{line}",)
    text = f"Right where the library runs aten.erf.default (erf at test_find_fault.py:{line}): "
    assert text + "options={'fallback': ['aten.erf.default']}." in str(found)


def test_pass_11_a_wrong_pass():
    stepwell.register_pass("nd", ExpIsSin)
    found = find_fault(program, *inputs())
    assert found.left_out == "exp-is-sin" and found.operator == "aten.exp.default"  # both take the place away where it goes wrong
    assert "Right without the pass 'exp-is-sin': options={'disable_passes': ['exp-is-sin']}." in str(found)


def test_pass_11_gradients_of_modules(wrong_erf):
    """Only the gradient is wrong, and only that of a layer's weight."""

    class Keep(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad.erf()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm = nn.Linear(5, 5), nn.BatchNorm1d(5)

        def forward(self, x):
            return Keep.apply(self.norm(self.first(x)).tanh())

    found = find_fault(Net(), torch.randn(4, 5))
    assert found.wrong.startswith("the gradient of ") and found.operator == "aten.erf.default"


def test_pass_11_what_fails_to_compile(monkeypatch):
    load_rules()
    monkeypatch.setitem(registry.REGISTRY, torch.ops.aten.erf.default, lambda b, x: {}["missing"])
    monkeypatch.setattr(registry, "_RESOLVED", {})
    found = find_fault(program, *inputs())
    assert "BackendCompilerFailed" in found.wrong and found.operator == "aten.erf.default"


def test_the_command(tmp_path, capsys):
    file = tmp_path / "model.py"
    file.write_text("def step(x):\n    return x.exp() + 1\n")
    assert main(["--leave-out", f"{file}:step", "--args", "torch.randn(4)"]) == 0
    stepwell.register_pass("nd", ExpIsSin)
    assert main(["--leave-out", f"{file}:step", "--args", "torch.randn(4)"]) == 1
    assert "aten.exp.default (exp at model.py:2)" in capsys.readouterr().out
    assert main(["--leave-out", f"{file}:stop", "--args", "torch.randn(4)"]) == 2
    assert "defines no 'stop'" in capsys.readouterr().err
