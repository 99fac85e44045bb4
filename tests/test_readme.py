"""The front page tells the truth: its Python runs, its opt-tool commands work, the files that it names are there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")))


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


@pytest.mark.parametrize("page", PAGES)
def test_named_files_exist(page):
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    named = re.findall(r"`((?:dialects|passes|lowering|targets|tools|tests|docs)/[\w./]*)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```|`[^`]*`", "", (ROOT / page).read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\((?!http)([^)\s]+)\)", text):
        name, _, anchor = link.partition("#")
        target = (ROOT / page).parent / name if name else ROOT / page
        assert target.exists(), link
        if anchor:
            titles = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles], link
