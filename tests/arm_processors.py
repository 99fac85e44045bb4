"""Programs of 64-bit Arm on emulated processors (qemu-user), and what they are built with."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
MISSING = [tool for tool in (COMPILER, EMULATOR) if shutil.which(tool) is None]
needs_arm = pytest.mark.skipif(
    "STEPWELL_TEST_ARM" not in os.environ or bool(MISSING),
    reason=f"this machine has no {' and no '.join(MISSING)}" if MISSING else "`make test-arm` runs it",
)
PROCESSORS = {"cpu-armv8": "cortex-a72", "cpu-armv8.2": "neoverse-n1", "cpu-armv8.6": "max,sve=off"}
"""Level -> an emulated processor for which it is the best one."""


def on(processor: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a program in its folder, without an environment, on an emulated processor."""

    def run(program: Path, *words: str) -> subprocess.CompletedProcess[str]:
        command = ["env", "-i", shutil.which(EMULATOR) or EMULATOR, "-cpu", processor, str(program), *words]
        return subprocess.run(command, capture_output=True, text=True, cwd=program.parent, check=False)

    return run
