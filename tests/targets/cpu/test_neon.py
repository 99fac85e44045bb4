"""Code for another machine: whole programs assemble for aarch64, and are refused where they would be run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stepwell.targets.cpu import features
from stepwell.targets.cpu.features import _make, arm_features, is_runnable, target
from stepwell.targets.cpu.gemm.spec import isa_for

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


def test_vectors_of_sve(opt_tool, monkeypatch):
    """Registers of a length that is known hold whole vectors, bfloats too."""
    monkeypatch.setattr(features, "_chosen", [target("sve256")])
    text = opt_tool(str(ROOT / "docs" / "examples" / "erf.mlir"), "-p", "stepwell-cpu", "-t", "asm").out
    assert "fmad\tz" in text or "fmla\tz" in text
    assert not re.search(r"fml[as]\tv", text)
    assert not is_runnable(target("sve256"))


def test_it_is_not_run_here():
    """CPW-02: a target that the machine is not."""
    if os.uname().machine in ("aarch64", "arm64"):
        pytest.skip("this machine runs it")
    program = "import torch\nprint(torch.compile(lambda x: x + 1, backend='stepwell')(torch.ones(4)))"
    done = run_for_neon("-c", program)
    assert done.returncode == 1
    assert "CompileError: code for aarch64-unknown-linux-gnu (neon) cannot run on this machine" in done.stderr


def test_what_an_arm_host_has(tmp_path):
    """LLVM does not look for dot products there; the system's names are its own."""
    described = tmp_path / "cpuinfo"
    described.write_text("processor\t: 0\nFeatures\t: fp asimd crc32 atomics asimddp lrcpc i8mm bf16\nCPU part\t: 0xd40\n")
    assert arm_features(str(described)) == ["+dotprod", "+i8mm", "+bf16", "+rcpc"]
    described.write_text("flags\t\t: fpu avx2\n")
    assert arm_features(str(described)) == [] == arm_features(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("present", "expected"), [("+neon", "neon"), ("+neon,+dotprod", "neon_dot"), ("+dotprod,+i8mm,+bf16", "neon_bf16")]
)
def test_products_are_those_of_the_processor(present, expected):
    assert isa_for(_make("host", "aarch64-unknown-linux-gnu", "generic", present)).name == expected
