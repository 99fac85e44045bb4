"""The front page tells the truth: its Python runs, its opt-tool commands work."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def test_python_of_the_readme_runs(tmp_path):
    program = tmp_path / "readme.py"
    program.write_text("\n".join(blocks("README.md", "python")))
    done = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "stepwell-debug").is_dir()


@pytest.mark.parametrize("command", "".join(blocks("README.md", "sh")).splitlines())
def test_command_of_the_readme(opt_tool, command, monkeypatch):
    monkeypatch.chdir(ROOT)
    result = opt_tool(*shlex.split(command)[1:])
    assert result.code == 0, result.err
    assert result.out
