"""run_module: a module at every level gives the same results, natively and interpreted."""

from __future__ import annotations

import re

import pytest
import torch
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from stepwell.dialects import load_dialects
from stepwell.dialects.machine import MACHINE, MachineAttr
from stepwell.errors import StepwellError
from stepwell.passes.manager.instrumentation import Instrumentation
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.tools.opt.inputs import entry_function, random_inputs
from stepwell.tools.opt.run_ir import LEVELS, level_of, lower_rest, run_module

CTX = load_dialects(Context())
TEXT = """
builtin.module attributes {nd.symbols = {s0 = #nd.range<2, -1, 5>}} {
  func.func @helper(%x: !nd.tensor<2 x f32>) -> !nd.tensor<2 x f32> {
    func.return %x : !nd.tensor<2 x f32>
  }
  func.func @forward(%x: !nd.tensor<s0 x 16 x f32> {nd.layout = #nd.layout<[16, 1], 0>},
      %k: !nd.tensor<16 x f32> {nd.layout = #nd.layout<[1], 0>, nd.constant = 0 : i64})
      -> (!nd.tensor<16 x s0 x f32> {nd.layout = #nd.layout<[1, 16], 0>}) {
    %m = nd.reduce %x {kind = "max", dims = [1]} : (!nd.tensor<s0 x 16 x f32>) -> !nd.tensor<s0 x f32>
    %r = nd.reshape %m : (!nd.tensor<s0 x f32>) -> !nd.tensor<s0 x 1 x f32>
    %d = nd.sub %x, %r : (!nd.tensor<s0 x 16 x f32>, !nd.tensor<s0 x 1 x f32>) -> !nd.tensor<s0 x 16 x f32>
    %e = nd.mul %d, %k : (!nd.tensor<s0 x 16 x f32>, !nd.tensor<16 x f32>) -> !nd.tensor<s0 x 16 x f32>
    %t = nd.permute %e {dims = [1, 0]} : (!nd.tensor<s0 x 16 x f32>) -> !nd.tensor<16 x s0 x f32>
    nd.update %x, %d : (!nd.tensor<s0 x 16 x f32>, !nd.tensor<s0 x 16 x f32>) -> ()
    func.return %t : !nd.tensor<16 x s0 x f32>
  }
}
"""


def at_level(level: str) -> ModuleOp:
    """The main function alone, lowered to `level`."""
    module = Parser(CTX, TEXT).parse_module()
    helper = next(iter(module.ops))
    helper.detach()
    stages = LEVELS[: LEVELS.index(level) + 1]
    if level != "nd":
        run(default_pipeline("cpu", stages=stages), module, CTX, Instrumentation())
    return module


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(5, 16, generator=generator), torch.randn(16, generator=generator)]


def check(module: ModuleOp, **options) -> None:
    given, (x, k) = inputs(), inputs()
    before = str(module)
    (result,) = run_module(module, CTX, given, **options)
    d = x - x.max(1, keepdim=True).values
    torch.testing.assert_close(result, (d * k).t())
    torch.testing.assert_close(given[0], d)
    assert result.stride() == (1, 16)
    assert str(module) == before


@pytest.mark.parametrize("level", ["nd", "loop", "mem", "cpu"])
def test_native(level):
    module = at_level(level)
    assert level_of(module) == level
    if level != "cpu":
        check(module)


@pytest.mark.parametrize("level", ["nd", "loop", "mem"])
def test_interpreted(level, monkeypatch):
    module = at_level(level)
    check(module, interpret=True)
    monkeypatch.setenv("STEPWELL_INTERPRET", "1")
    check(module)


@pytest.mark.parametrize("stages", [(), ("nd", "loop"), ("nd", "loop", "mem")])
def test_a_module_for_a_gpu_is_lowered_for_it_and_its_launches_interpreted(stages):
    module, plain = (Parser(CTX, TEXT).parse_module() for _ in range(2))
    module.attributes[MACHINE] = MachineAttr.get("sm_90", multiprocessors=132)
    if stages:
        run(default_pipeline("gpu", stages=stages), module, CTX, Instrumentation())
    inputs = random_inputs(plain, "forward", 0)
    wanted = run_module(plain, CTX, [x.clone() for x in inputs], "forward")
    lowered = lower_rest(module, CTX, level_of(module, "forward"), entry_function(module, "forward"))
    assert any(op.name == "tt.func" for op in lowered.ops)
    for found, other in zip(run_module(module, CTX, inputs, "forward"), wanted, strict=True):
        torch.testing.assert_close(found, other)


def test_one_function_of_several():
    module = Parser(CTX, TEXT).parse_module()
    check(module)
    x = torch.ones(2)
    (result,) = run_module(module, CTX, [x], "helper")
    assert result.data_ptr() != x.data_ptr() and torch.equal(result, x)


def test_random_inputs():
    module = at_level("loop")
    first, second, third = (run_module(module, CTX, None, seed=seed)[0] for seed in (1, 1, 2))
    assert torch.equal(first, second) and not torch.equal(first, third)


def test_random_inputs_of_a_program():
    (x,) = random_inputs(at_level("host"), None, 0)
    assert (x.shape, x.stride()) == ((5, 16), (16, 1))


def test_what_is_updated_is_written(opt_tool, tmp_path):
    text = str(at_level("loop"))
    result = opt_tool("--run", "--outputs", tmp_path / "y", stdin=text)
    lines = [line.split(" ->")[0] for line in result.out.splitlines()]
    assert lines == ["result 0: float32 16x5", "argument 0 after the call: float32 5x16"]
    assert (tmp_path / "yarg0.npy").is_file()


def test_random_numbers_hang_on_the_seed(opt_tool):
    text = """func.func @forward() -> (!nd.tensor<4 x f32> {nd.layout = #nd.layout<[1], 0>}) {
      %x = nd.extern {call = #nd.call<"aten.rand", [[4]]>, effect} : !nd.tensor<4 x f32>
      func.return %x : !nd.tensor<4 x f32>
    }"""
    before = torch.get_rng_state()
    first = opt_tool("--run", "--seed=1", stdin=text)
    assert first.code == 0, first.err
    assert first.out == opt_tool("--run", "--seed=1", stdin=text).out != opt_tool("--run", "--seed=2", stdin=text).out
    assert torch.equal(torch.get_rng_state(), before)


def test_launches_of_kernels_that_do_not_fit(opt_tool):
    text = str(at_level("cpu"))
    missing = opt_tool("--run", stdin=text.replace("host.launch @k0", "host.launch @k7", 1))
    assert "error: 'host.launch' op: the module has no kernel 'k7'; it has: k0" in missing.err
    launch = re.search(r"host.launch @(k\d)\((%\w+ : [^,]*, )", text)
    assert launch is not None
    fewer = opt_tool("--run", stdin=text.replace(launch[0], launch[0].replace(launch[2], ""), 1))
    assert re.search(rf"error: 'host.launch' op: host.launch @{launch[1]}: the kernel takes \d arguments, \d are given", fewer.err)


def test_flags_without_their_values_follow_each_other(opt_tool):
    text = "func.func @f(%x: !nd.tensor<2 x f32>) -> !nd.tensor<2 x f32> {\n  func.return %x : !nd.tensor<2 x f32>\n}"
    for flags in (["--remarks", "--run"], ["--verify-results", "--run"], ["--run", "--verify-results"], ["--run", "--verify-each"]):
        result = opt_tool("-p", "nd-canonicalize", *flags, stdin=text)
        assert (result.code, result.err) == (0, "") and result.out.startswith("result 0: float32 2\n")


def test_errors():
    module = at_level("nd")
    with pytest.raises(StepwellError, match="the module has no function 'forwards'; did you mean 'forward'"):
        run_module(module, CTX, [], "forwards")
    with pytest.raises(StepwellError, match="@forward takes 2 arguments, 1 were given"):
        run_module(module, CTX, [torch.ones(2, 16)])
    with pytest.raises(StepwellError, match="@forward takes 2 arguments, 1 were given"):
        run_module(module, CTX, [torch.ones(2, 16)], interpret=True)
