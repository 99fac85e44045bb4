"""The notebooks run: as scripts where marimo is installed, and else cell by cell with a stand-in for what they show."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.py"))
ids = [file.stem for file in NOTEBOOKS]


class App:
    """What a notebook makes: its cells in the order of the file."""

    def __init__(self, **settings: object) -> None:
        self.cells = []

    def cell(self, function):
        self.cells.append(function)
        return function


def given_back(notebook: Path) -> list[list[str]]:
    """The names that each cell returns."""
    cells = [one for one in ast.parse(notebook.read_text()).body if isinstance(one, ast.FunctionDef)]
    found = []
    for cell in cells:
        last = cell.body[-1]
        assert isinstance(last, ast.Return), f"{notebook.name}:{last.lineno}: a cell ends with a return"
        found.append([name.id for name in last.value.elts] if isinstance(last.value, ast.Tuple) else [])
    return found


def stand_in(shown: list[object]) -> SimpleNamespace:
    """A `marimo` that keeps what cells show."""

    def keep(*values: object, **named: object) -> SimpleNamespace:
        shown.append(values[0])
        return SimpleNamespace(value=named.get("value"))

    return SimpleNamespace(App=App, md=keep, iframe=keep, ui=SimpleNamespace(table=keep, dropdown=keep))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=ids)
def test_cells_run_in_order(notebook, monkeypatch, own_passes):
    shown: list[object] = []
    monkeypatch.setitem(sys.modules, "marimo", stand_in(shown))
    spec = importlib.util.spec_from_file_location(notebook.stem, notebook)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    names = given_back(notebook)
    assert len(names) == len(module.app.cells)
    known: dict[str, object] = {}
    for cell, back in zip(module.app.cells, names, strict=True):
        found = cell(*(known[name] for name in inspect.signature(cell).parameters))
        assert not known.keys() & set(back), "a name is given by one cell"
        known.update(zip(back, found or (), strict=True))
    torch._dynamo.reset()
    assert len(shown) > 10 and all(shown)


@pytest.mark.long
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=ids)
def test_marimo_runs_it_as_a_script(notebook, tmp_path):
    pytest.importorskip("marimo", reason="marimo is not installed (the extra 'notebook')")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT.parent), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, str(notebook)], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
