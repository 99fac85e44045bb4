"""The worked examples of docs/howto/custom-passes.md, and the commands on that page."""

import re
import shlex
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", (DOCS / "howto/custom-passes.md").read_text(), re.DOTALL)
    for line in block.splitlines()
    if line.startswith("opt-tool ")
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_page(opt_tool, command, monkeypatch):
    monkeypatch.chdir(DOCS / "examples")
    result = opt_tool(*shlex.split(command)[1:])
    assert result.code == 0, result.err
    new, old = ("nd.tanh", "nd.erf") if "erf.mlir" in command else ("nd.rsqrt", "nd.sqrt")
    assert new in result.out and old not in result.out


def test_statistics_and_remarks(opt_tool):
    flags = ("--load-module", DOCS / "examples/approximate_erf.py", "-p", "approximate-erf")
    text = (DOCS / "examples/erf.mlir").read_text()
    assert "(S) 1 num-rewritten" in opt_tool(*flags, "--mlir-pass-statistics", stdin=text).err
    double = opt_tool(*flags, "--remarks", stdin=text.replace("f32", "f64"))
    assert "nd.erf" in double.out
    assert "remark: [approximate-erf] missed: 'nd.erf' op: kept, its element type is f64" in double.err


def test_the_page_and_the_file_agree():
    page, code = (DOCS / "howto/custom-passes.md").read_text(), (DOCS / "examples/approximate_erf.py").read_text()
    for line in ("class ApproximateErf(Pass):", 'stepwell.register_pass("nd", ApproximateErf, position="end")'):
        assert line in page and line in code
    code = (DOCS / "examples/rms_norm.py").read_text()
    block = next(b for b in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def norm" in b)
    assert all(line in code for line in block.splitlines())
