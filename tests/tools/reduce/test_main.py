"""The command line of stepwell.reduce."""

from __future__ import annotations

from pathlib import Path

import torch

import stepwell
from stepwell.tools.reduce.main import main

PROGRAM = """
import torch

def right(x):
    return x.sin() * 2

def step(x):
    return (x.sin() * 2).erf() + x
"""
EXAMPLES = Path(stepwell.__file__).parent / "docs/examples"


def test_functions(tmp_path, capsys):
    file, out = tmp_path / "model.py", tmp_path / "small.py"
    file.write_text(PROGRAM)
    stepwell.register_rule(torch.ops.aten.erf.default, replace=True)(lambda b, x: b.op("sin", x))
    try:
        assert main([f"{file}:right", "--args", "torch.randn(4)"]) == 1
        assert "there is nothing to reduce: no graph of the function fails" in capsys.readouterr().err
        assert main([f"{file}:step", "--args", "torch.randn(4)", "-o", str(out), "--seconds", "20"]) == 0
    finally:
        stepwell.unregister_rule(torch.ops.aten.erf.default)
        torch._dynamo.reset()
    assert "erf" in out.read_text() and "sin" not in out.read_text()
    assert main([f"{file}:stop", "--args", "torch.randn(4)"]) == 2
    assert "defines no 'stop'" in capsys.readouterr().err


def test_files_of_ir_go_to_opt_tool(capsys):
    """Nothing fails, which opt-tool says."""
    assert main([str(EXAMPLES / "axpy.mlir"), "-p", "cse"]) == 1
    assert "opt-tool: error: " in capsys.readouterr().err
