"""What may import what: dialects <- passes <- lowering <- targets <- tools, and no torch in the first two."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LAYERS = ("dialects", "passes", "lowering", "targets", "tools")
FILES = [file for layer in LAYERS for file in sorted((ROOT / layer).rglob("*.py"))]
LONGEST_FILE = 850


def at_load(tree: ast.Module) -> list[ast.stmt]:
    """The imports that run when the module is loaded: not those in functions, nor those for type checkers."""
    found: list[ast.stmt] = []
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append(node)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            pending.extend(node.orelse)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            pending.extend(ast.iter_child_nodes(node))
    return found


def imported(file: Path, node: ast.stmt) -> list[str]:
    """The modules that an import names, ours as `stepwell...`."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    assert isinstance(node, ast.ImportFrom)
    if not node.level:
        return [node.module or ""]
    package = ["stepwell", *file.relative_to(ROOT).parent.parts]
    base = package[: len(package) - node.level + 1]
    if node.module:
        return [".".join([*base, node.module])]
    return [".".join([*base, alias.name]) for alias in node.names]


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_run_one_way(layer):
    later = LAYERS[LAYERS.index(layer) + 1 :]
    wrong = []
    for file in (f for f in FILES if f.relative_to(ROOT).parts[0] == layer):
        for node in at_load(ast.parse(file.read_bytes())):
            for name in imported(file, node):
                part = name.split(".")[1] if name.startswith("stepwell.") else None
                if part in later or (layer in LAYERS[:2] and name.split(".")[0] == "torch"):
                    wrong.append(f"{file.relative_to(ROOT)}:{node.lineno} imports {name}")
    assert not wrong


def test_nothing_imports_inductor():
    wrong = []
    for file in (f for f in FILES if b"_inductor" in f.read_bytes()):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = imported(file, node)
                if any(name.startswith("torch._inductor") for name in names):
                    wrong.append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert not wrong


def test_no_file_is_too_long_to_review():
    lines = {str(f.relative_to(ROOT)): len(f.read_bytes().splitlines()) for f in FILES}
    assert {name: n for name, n in lines.items() if n > LONGEST_FILE} == {}
