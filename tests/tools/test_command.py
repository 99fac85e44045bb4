"""The command `stepwell`: what it lists, where it hands over, what it says of names that are none."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import stepwell
from stepwell.tools import command

ROOT = Path(stepwell.__file__).parent


def test_the_page_has_a_line_for_each_command(capsys):
    for arguments in ([], ["--help"], ["-h"], ["help"]):
        assert command.main(arguments) == 0
        page = capsys.readouterr().out
        assert all(f"  {name} " in page and one.summary in page for name, one in command.COMMANDS.items())
    assert max(map(len, page.splitlines())) <= 100


def test_the_version_names_what_it_runs_on(capsys):
    import torch

    assert command.main(["--version"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"stepwell {stepwell.__version__} (Python 3.") and f"torch {torch.__version__.partition(chr(43))[0]}" in said


@pytest.mark.parametrize("name", command.COMMANDS)
def test_each_command_has_a_page_of_its_own(name, capsys):
    with pytest.raises(SystemExit) as stopped:
        raise SystemExit(command.main([name, "--help"]))
    assert stopped.value.code == 0
    page = capsys.readouterr().out
    assert page.startswith(f"usage: stepwell {name}" if name != "opt" else "usage: opt-tool")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("expalin", "there is no command 'expalin'; did you mean 'explain'?"),
        ("xyz", "there is no command 'xyz'; there are: explain, explore, check, reduce, fuzz, export, inspect, cache, bench, lsp, opt"),
        ("--verison", "there is no option '--verison'; did you mean '--version'?"),
    ],
)
def test_a_name_that_is_none(name, message, capsys):
    assert command.main([name]) == 2
    assert capsys.readouterr().err == f"stepwell: error: {message}\n"


def test_the_exit_code_is_the_tool_s(capsys):
    assert command.main(["explain", "no.py:f"]) == 1
    assert command.main(["check", "no.py:f"]) == 2
    assert command.main(["opt", "no.mlir"]) == 1
    assert "there is no file 'no.py'" in capsys.readouterr().err


def test_neither_the_page_nor_the_version_imports_anything_heavy():
    code = (
        "import sys; from stepwell.tools.command import main; main(['--help']); main(['--version']);"
        "print([m for m in ('torch', 'xdsl', 'llvmlite', 'sympy', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"


def test_as_a_module():
    done = subprocess.run([sys.executable, "-m", "stepwell", "--version"], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith("stepwell ")


def test_the_scripts_of_an_installation():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts.keys() == {"opt-tool", "stepwell"}
    for entry in scripts.values():
        module, _, name = entry.partition(":")
        assert callable(getattr(import_module(module), name))


def test_the_page_of_the_documents_names_each_command():
    text = (ROOT / "docs/reference/command.md").read_text()
    assert all(f"| `{name}` | {one.summary}" in text for name, one in command.COMMANDS.items())
