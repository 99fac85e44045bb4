"""The front page tells the truth: its programs run and its commands work, and print what stands below them."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"```sh\n(.*?)\n```\n\n```mlir\n(.*?)```", TEXT, re.DOTALL)


def test_it_is_short():
    assert len(TEXT.splitlines()) <= 120


def test_the_program_prints_what_stands_below_it(tmp_path):
    program, printed = (re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL) for language in ("python", "text"))
    (tmp_path / "readme.py").write_text("\n".join(program))
    done = subprocess.run([sys.executable, "readme.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(printed)
    assert (tmp_path / "stepwell-debug").is_dir()


@pytest.mark.parametrize("command, printed", COMMANDS)
def test_a_command_prints_what_stands_below_it(opt_tool, command, printed, monkeypatch):
    monkeypatch.chdir(ROOT)
    result = opt_tool(*shlex.split(command)[1:])
    assert result.code == 0, result.err
    assert result.out.strip() == printed.strip()


def test_every_command_is_followed_by_what_it_prints():
    assert len(COMMANDS) == len(re.findall(r"```sh\n", TEXT)) == 2


def test_the_pass_is_the_example():
    (shown,) = re.findall(r"```py\n(.*?)```", TEXT, re.DOTALL)
    assert (ROOT / "docs/examples/by_reciprocal.py").read_text().endswith(shown)
