"""docs/howto/common-changes.md: what it names is there, its code works when it is put where the page says, its commands run."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp, f32
from xdsl.ir import SSAValue

import stepwell.dialects.nd
from stepwell.dialects.expr import sym
from stepwell.dialects.nd import ops as nd

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/howto/common-changes.md").read_text()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_files_and_names_are_there():
    for path in re.findall(r"`((?:dialects|passes|lowering|targets|tools|tests)/[\w./]*)`", PAGE):
        assert (ROOT / path).exists(), path
    for name, path in re.findall(r"`(\w+)`(?: and in `\w+`)? (?:in|of|\()\s?\(?`([\w/]+\.py)`", PAGE):
        assert re.search(rf"\b{name}\b", (ROOT / path).read_text()), (name, path)


TEXT = """func.func @forward(%a: !nd.tensor<s0 x f32> {nd.layout = #nd.layout<[1], 0>},
    %b: !nd.tensor<7 x f32> {nd.layout = #nd.layout<[1], 0>})
    -> (!nd.tensor<s0 x 7 x f32> {nd.layout = #nd.layout<[7, 1], 0>}) {
  %n = nd.neg %a : !nd.tensor<s0 x f32>
  %y = nd.outer %n, %b : (!nd.tensor<s0 x f32>, !nd.tensor<7 x f32>) -> !nd.tensor<s0 x 7 x f32>
  func.return %y : !nd.tensor<s0 x 7 x f32>
}
"""


@pytest.fixture
def outer(monkeypatch):
    """The operation of the page, in the places that the page names."""
    from stepwell.lowering.nd_to_loop import rules
    from stepwell.tools.interpret import nd as interpret_nd

    places = re.findall(r"`((?:dialects|lowering|tools)/[\w/]+)\.py`", PAGE.partition("## An operation on tensors")[2])[:3]
    assert places == ["dialects/nd/ops", "lowering/nd_to_loop/rules", "tools/interpret/nd"]
    monkeypatch.setattr(nd, "SSAValue", SSAValue, raising=False)
    monkeypatch.setattr(nd, "OuterOp", None, raising=False)
    monkeypatch.setattr(interpret_nd, "_RULES", dict(interpret_nd._RULES))
    for place, code in zip(places, BLOCKS, strict=True):
        module = importlib.import_module("stepwell." + place.replace("/", "."))
        namespace = vars(module) if module is nd else dict(vars(module))
        exec(compile("from __future__ import annotations\n" + code, place, "exec"), namespace)
        monkeypatch.setattr(stepwell.dialects.nd, "OuterOp", nd.OuterOp, raising=False)  # pyright: ignore[reportAttributeAccessIssue]
        if module is rules:
            monkeypatch.setitem(rules.RULES, nd.OuterOp, namespace["_outer"])  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setattr(nd.Nd, "_operations", [*nd.Nd.operations, nd.OuterOp])  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.usefixtures("outer")
def test_the_operation(opt_tool, tmp_path):
    import numpy as np

    assert opt_tool(stdin=TEXT).out.count("nd.outer %n, %b : (!nd.tensor<s0 x f32>, !nd.tensor<7 x f32>)") == 1
    wrong = opt_tool(stdin=TEXT.replace("s0 x 7 x f32", "7 x s0 x f32"))
    assert "5:8: error: 'nd.outer' op: nd.outer: result sizes are [7, s0], must be [s0, 7]" in wrong.err
    verified = opt_tool("-p", "stepwell-cpu", "--verify-results", "-o", "/dev/null", stdin=TEXT)
    assert (verified.code, verified.err) == (0, "")
    a, b = torch.randn(5), torch.randn(7)
    np.save(tmp_path / "a.npy", a.numpy())
    np.save(tmp_path / "b.npy", b.numpy())
    opt_tool("--run", "--args", f"{tmp_path}/a.npy,{tmp_path}/b.npy", "--outputs", tmp_path / "y", stdin=TEXT)
    torch.testing.assert_close(torch.from_numpy(np.load(tmp_path / "y0.npy")), torch.outer(-a, b))
    nests = opt_tool("-p", "stepwell-cpu{to=loop}", stdin=TEXT).out
    assert nests.count("loop.nest") == 1, "the negation is fused into it"


@pytest.mark.usefixtures("outer")
def test_its_sizes():
    module = ModuleOp([])
    block = module.body.block
    a, b = (block.insert_arg(nd.TensorType.get((size,), f32), k) for k, size in enumerate((3, sym("s0"))))
    made = nd.OuterOp.of(a, b)  # pyright: ignore[reportAttributeAccessIssue]
    assert str(made.result.type) == "!nd.tensor<3 x s0 x f32>"
    made.verify()


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(opt_tool, command, monkeypatch):
    monkeypatch.chdir(ROOT / "docs/examples")
    result = opt_tool(*shlex.split(command)[1:])
    assert result.code == 0, result.err
    if "fuse_multiply_add" in command:
        assert "math.fma" in result.out and "arith.mulf" not in result.out
        assert ("IR Dump After FuseMultiplyAdd (fuse-multiply-add)" in result.err) == ("print-ir" in command)
    elif "remarks" in command:
        assert "norm.mlir:10:8: remark: [buffer-bytes] analysis: 'mem.alloc' op: s0 * s1 * 4 bytes, kind output" in result.err
    else:
        assert "buffer-bytes\n  (S) 2048 bytes-output\n" in result.err
