"""Code for another machine: whole programs assemble for aarch64, and are refused where they would be run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
AARCH64 = 183
"""The machine number of an ELF object."""


def run_for_neon(*command: str) -> subprocess.CompletedProcess[str]:
    """A Python process whose host target is NEON."""
    environment = {**os.environ, "STEPWELL_CPU": "neon"}
    return subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.long
def test_programs_assemble():
    done = run_for_neon(str(HERE / "neon_programs.py"))
    assert done.returncode == 0, done.stderr[-2000:]
    first, *lines = done.stdout.splitlines()
    assert first == "neon aarch64-unknown-linux-gnu"
    assert len(lines) >= 20
    assert all(line.endswith(f" True {AARCH64}") for line in lines), done.stdout


@pytest.mark.parametrize(("kind", "expected"), [("asm", "fmla"), ("llvm", 'target triple = "aarch64')])
def test_opt_tool_writes_it(kind, expected):
    example = str(ROOT / "docs" / "examples" / "erf.mlir")
    done = run_for_neon("-m", "stepwell.tools.opt", example, "-p", "stepwell-cpu", "-t", kind)
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout


def test_it_is_not_run_here():
    """CPW-02: a target that the machine is not."""
    if os.uname().machine in ("aarch64", "arm64"):
        pytest.skip("this machine runs it")
    program = "import torch\nprint(torch.compile(lambda x: x + 1, backend='stepwell')(torch.ones(4)))"
    done = run_for_neon("-c", program)
    assert done.returncode == 1
    assert "CompileError: code for aarch64-unknown-linux-gnu (neon) cannot run on this machine" in done.stderr
