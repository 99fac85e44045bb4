"""opt-tool --verify-results: the pass that changes a result is named, at every level; rounding and other orders of sums are let be."""

from __future__ import annotations

import pytest
import torch

from stepwell.tools.opt import verify_results
from stepwell.tools.opt.verify_results import difference

TEXT = """builtin.module attributes {nd.symbols = {s0 = #nd.range<2, -1, 5>}} {
  func.func @forward(%x: !nd.tensor<s0 x 16 x f32> {nd.layout = #nd.layout<[16, 1], 0>},
      %k: !nd.tensor<16 x f32> {nd.layout = #nd.layout<[1], 0>}) -> (!nd.tensor<s0 x f32> {nd.layout = #nd.layout<[1], 0>}) {
    %e = nd.add %x, %k : (!nd.tensor<s0 x 16 x f32>, !nd.tensor<16 x f32>) -> !nd.tensor<s0 x 16 x f32>
    %s = nd.reduce %e {kind = "sum", dims = [1]} : (!nd.tensor<s0 x 16 x f32>) -> !nd.tensor<s0 x f32>
    nd.update %x, %e : (!nd.tensor<s0 x 16 x f32>, !nd.tensor<s0 x 16 x f32>) -> ()
    func.return %s : !nd.tensor<s0 x f32>
  }
}
"""

WRONG = """
from stepwell.passes.manager import Pass
from xdsl.dialects.arith import AddfOp, SubfOp

class Subtract(Pass):
    name = "subtract"

    def apply(self, ctx, op):
        add = next(nested for nested in op.walk() if isinstance(nested, AddfOp))
        sub = SubfOp(add.lhs, add.rhs)
        add.parent.insert_op_before(sub, add)
        add.results[0].replace_all_uses_with(sub.results[0])
        add.detach()

class Forget(Pass):
    name = "forget"

    def apply(self, ctx, op):
        for nested in [nested for nested in op.walk() if nested.name in ("nd.update", "loop.store", "host.launch")][:1]:
            nested.detach()
            nested.erase()
"""


@pytest.fixture
def wrong(tmp_path):
    path = tmp_path / "wrong.py"
    path.write_text(WRONG)
    return path


def test_the_pipeline_keeps_results(opt_tool):
    result = opt_tool("-p", "stepwell-cpu", "--verify-results", "-o", "/dev/null", stdin=TEXT)
    assert (result.code, result.err) == (0, "")


def test_memory_that_is_given_away_may_hold_anything(opt_tool):
    text = """func.func @forward(%x: !nd.tensor<4 x f32> {nd.layout = #nd.layout<[1], 0>, nd.donated})
        -> (!nd.tensor<4 x f32> {nd.layout = #nd.layout<[1], 0>}) {
      %a = nd.exp %x : !nd.tensor<4 x f32>
      %b = nd.reduce %a {kind = "sum", dims = [0]} : (!nd.tensor<4 x f32>) -> !nd.tensor<f32>
      %c = nd.div %a, %b : (!nd.tensor<4 x f32>, !nd.tensor<f32>) -> !nd.tensor<4 x f32>
      func.return %c : !nd.tensor<4 x f32>
    }"""
    result = opt_tool("-p", "stepwell-cpu", "--verify-results", "-o", "/dev/null", stdin=text)
    assert (result.code, result.err) == (0, "")
    assert "argument" not in opt_tool("-p", "stepwell-cpu{to=mem}", "--run", stdin=text).out


@pytest.mark.parametrize(
    ("to", "wrong_pass", "what"),
    [
        ("nd", "forget", "argument 0"),
        ("loop", "subtract", "result 0"),
        ("mem", "subtract", "result 0"),
        ("mem", "forget", ""),
        ("cpu", "forget", ""),
        ("cpu", "subtract", "result 0"),
    ],
)
def test_a_wrong_pass_is_named(opt_tool, wrong, to, wrong_pass, what):
    pipeline = f"stepwell-cpu{{to={to}}},{wrong_pass}"
    result = opt_tool("--load-module", wrong, "-p", pipeline, "--verify-results", stdin=TEXT)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(f"<stdin>: error: after pass '{wrong_pass}': {what}")
    assert " is another after this pass: " in result.err and "; it was " in result.err
    assert opt_tool("--load-module", wrong, "-p", pipeline, "-o", "/dev/null", stdin=TEXT).code == 0


@pytest.fixture
def all_is_long(monkeypatch):
    """Whatever has loops runs as machine code first."""
    monkeypatch.setattr(verify_results, "SOON", 0)


def test_what_is_long_to_interpret_runs_as_machine_code(opt_tool, wrong, all_is_long, monkeypatch):
    interpreted: list[str] = []
    run = verify_results.run_module

    def recorded(module, ctx, inputs, function, *, interpret):
        if interpret and (level := verify_results.level_of(module, function)) in ("loop", "mem"):
            interpreted.append(level)
        return run(module, ctx, inputs, function, interpret=interpret)

    monkeypatch.setattr(verify_results, "run_module", recorded)
    result = opt_tool("-p", "stepwell-cpu", "--verify-results", "-o", "/dev/null", stdin=TEXT)
    assert (result.code, result.err, interpreted) == (0, "", [])
    result = opt_tool("--load-module", wrong, "-p", "stepwell-cpu{to=loop},subtract", "--verify-results", stdin=TEXT)
    assert result.err.startswith("<stdin>: error: after pass 'subtract': result 0 is another")
    assert interpreted == ["loop"]


def test_machine_code_that_is_wrong_blames_no_pass_before_the_wrong_one(opt_tool, wrong, all_is_long):
    wrong.write_text(f"{WRONG}\nimport stepwell\nstepwell.register_pass('mem', Subtract)\n")
    result = opt_tool("--load-module", wrong, "-p", "stepwell-cpu", "--verify-results", stdin=TEXT)
    assert result.err.startswith("<stdin>: error: after pass 'subtract': result 0 is another")


def test_layers_that_are_outlined_run(opt_tool, all_is_long):
    text = """func.func @forward(%x: !nd.tensor<4 x f32> {nd.layout = #nd.layout<[1], 0>})
        -> (!nd.tensor<4 x f32> {nd.layout = #nd.layout<[1], 0>}) {
      %a = func.call @layer0(%x) : (!nd.tensor<4 x f32>) -> !nd.tensor<4 x f32>
      %b = func.call @layer0(%a) : (!nd.tensor<4 x f32>) -> !nd.tensor<4 x f32>
      func.return %b : !nd.tensor<4 x f32>
    }
    func.func private @layer0(%x: !nd.tensor<4 x f32>) -> !nd.tensor<4 x f32> {
      %a = nd.exp %x : !nd.tensor<4 x f32>
      func.return %a : !nd.tensor<4 x f32>
    }"""
    assert opt_tool("-p", "stepwell-cpu", "--verify-results", "-o", "/dev/null", stdin=text).err == ""
    interpreted, compiled = (opt_tool("-p", p, "--run=forward", stdin=text).out for p in ("nd-canonicalize", "nd-to-loop"))
    assert interpreted == compiled != ""


def test_the_reproducer_is_of_the_wrong_pass(opt_tool, wrong, tmp_path):
    """DBG-07: a program that goes wrong is cut down to one pass."""
    crash = tmp_path / "crash.mlir"
    flags = (f"--mlir-pass-pipeline-crash-reproducer={crash}", "--mlir-pass-pipeline-local-reproducer")
    opt_tool("--load-module", wrong, "-p", "stepwell-cpu{to=loop},subtract,loop-to-mem", "--verify-results", *flags, stdin=TEXT)
    assert "--pass-pipeline='builtin.module(subtract)'" in crash.read_text()
    again = opt_tool(crash, "--load-module", wrong, "--run-reproducer", "--verify-results")
    assert "after pass 'subtract': result 0 is another" in again.err


def test_what_cannot_be_run(opt_tool):
    call = TEXT.replace("%e = nd.add %x, %k :", '%e = nd.extern %x, %k {call = #nd.call<"py", [object(0), arg(0), arg(1)]>} :')
    result = opt_tool("-p", "nd-canonicalize", "--verify-results", stdin=call)
    assert result.code == 1 and "--verify-results: " not in result.out
    assert "<stdin>:4:10: error: 'nd.extern' op: 'py' is given a Python object" in result.err
    assert "expected a relative tolerance such as 1e-3, not 'tight'" in opt_tool("--verify-results=tight", stdin=TEXT).err


def test_differences():
    x = torch.tensor([1.0, 2.0, float("nan"), float("inf")])
    assert difference(x, x.clone()) == ""
    assert difference(x, x + 1e-5) == "" != difference(x, x + 1e-5, tolerance=1e-6)
    assert difference(x, x.nan_to_num(0.0)).startswith("2 of 4 elements differ; it was nan, it is 0 at [2]")
    assert difference(x, x.double()) == "it was float32 4, it is float64 4"
    assert difference(torch.tensor(3), torch.tensor(4)) == "1 of 1 elements differ; it was 3, it is 4"
    assert difference(torch.ones(2).bfloat16(), torch.ones(2).bfloat16() * 1.02) == ""
    assert difference(2, 3) == "it was 2, it is 3" and difference(True, True) == ""
    assert difference(torch.zeros(0), torch.zeros(0)) == ""
