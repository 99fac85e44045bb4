"""The rooms of each floor: which may import which, how many files one holds, and that a pass is found by its name."""

from __future__ import annotations

import ast
import graphlib
from pathlib import Path

import pytest

from stepwell.passes.manager.registry import OURS

ROOT = Path(__file__).resolve().parents[1]
MAX_FILES_IN_A_ROOM = 20
MAX_CLASS_LINES = 300
LARGE_ROOMS = {"lowering/fx_to_nd/rules"}
"""One file a family of operators."""

ARROWS: dict[str, dict[str, str]] = {
    "dialects": {
        "support": "",
        "expr": "support",
        "nd": "expr support",
        "loop": "expr nd support",
        "cpu": "support",
        "tt": "support",
        "host": "expr nd support",
        "mem": "expr nd support",
    },
    "passes": {
        "fingerprint": "",
        "manager": "fingerprint",
        "analysis": "manager",
        "cost": "analysis manager",
        "mem/arena": "analysis cost manager",
        "loop": "analysis cost manager mem/arena",
        "mem": "analysis cost loop manager mem/arena",
        "nd": "analysis cost loop manager mem/arena",
        "gpu": "analysis cost loop manager mem",
    },
    "lowering": {
        "control_flow": "",
        "outputs": "",
        "equal_sizes": "",
        "sympy_bridge": "",
        "fx_to_nd": "control_flow equal_sizes outputs sympy_bridge",
        "fx": "equal_sizes fx_to_nd outputs sympy_bridge",
        "loop_to_mem": "",
        "nd_to_loop": "loop_to_mem",
        "outline": "",
        "to_host": "",
        "nest": "",
        "mem_to_cpu": "nest outline",
        "mem_to_tt": "nest outline",
    },
    "targets": {
        "llvm_text": "",
        "measurements": "cpu",
        "target": "",
        "cpu": "llvm_text target",
        "triton": "cpu measurements target",
        "host": "cpu llvm_text measurements target triton",
        "package": "cpu host",
    },
    "tools": {
        "field_texts": "",
        "ir_parser": "",
        "worker_pool": "",
        "options": "",
        "debug": "options",
        "compiled": "debug",
        "extensions": "ir_parser options",
        "cache": "compiled debug extensions options",
        "recovery": "compiled",
        "launch_graphs": "compiled",
        "backend": "cache compiled debug extensions options recovery",
        "package": "backend compiled debug extensions options",
        "interpret": "",
        "opt": "field_texts",
        "rewrite": "extensions ir_parser",
        "reduce": "ir_parser opt worker_pool",
        "explain": "compiled",
        "explore": "backend explain highlight ir_parser opt worker_pool",
        "check": "backend compiled debug explain interpret opt options",
        "find_fault": "check",
        "fuzz": "check interpret ir_parser opt reduce worker_pool",
        "bench": "backend compiled explain options",
        "docs": "field_texts options",
        "lsp": "docs ir_parser opt worker_pool",
        "highlight": "",
    },
}
"""Room -> the rooms of its floor that it may import when it is loaded. What is not listed is a mistake of the change, or a line here."""


def at_load(tree: ast.Module) -> list[ast.ImportFrom]:
    """The relative imports that run when a module is loaded."""
    found: list[ast.ImportFrom] = []
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.ImportFrom):
            found.append(node)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            pending.extend(node.orelse)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            pending.extend(ast.iter_child_nodes(node))
    return [n for n in found if n.level]


def room_of(floor: str, parts: tuple[str, ...]) -> str | None:
    """The room of a module, by its path below the package; None outside of the floor and for the floor's own `__init__`."""
    if parts[:1] != (floor,) or len(parts) == 1 or parts[1] == "__init__":
        return None
    inner = "/".join(parts[1:3])
    return inner if inner in ARROWS[floor] else parts[1]


def arrows(floor: str) -> dict[str, dict[str, str]]:
    """Room -> room of the same floor that it imports -> a place where it does."""
    found: dict[str, dict[str, str]] = {}
    for file in sorted((ROOT / floor).rglob("*.py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        room = room_of(floor, parts)
        if room is None:
            continue
        for node in at_load(ast.parse(file.read_bytes())):
            base = (*parts[: len(parts) - node.level], *(node.module.split(".") if node.module else ()))
            for target in [base] if node.module else [(*base, alias.name) for alias in node.names]:
                other = room_of(floor, target)
                if other is None and target == (floor,):
                    other = next((a.name for a in node.names if a.name in ARROWS[floor]), None)
                if other not in (None, room):
                    found.setdefault(room, {})[other] = f"{file.relative_to(ROOT)}:{node.lineno}"
    return found


@pytest.mark.parametrize("floor", ARROWS)
def test_rooms_import_what_the_table_allows(floor):
    wrong = []
    for room, others in arrows(floor).items():
        assert room in ARROWS[floor], f"{floor}/{room} is not in the table of rooms"
        wrong += [f"{place}: {room} imports {o}" for o, place in others.items() if o not in ARROWS[floor][room].split()]
    assert not wrong


@pytest.mark.parametrize("floor", ARROWS)
def test_the_table_has_no_circle(floor):
    graphlib.TopologicalSorter({room: allowed.split() for room, allowed in ARROWS[floor].items()}).prepare()


def test_a_room_holds_what_a_reader_can_look_through():
    rooms = {folder for floor in ARROWS for folder in (ROOT / floor).rglob("*") if folder.is_dir()}
    large = {r.relative_to(ROOT).as_posix() for r in rooms if len(list(r.glob("*.py"))) > MAX_FILES_IN_A_ROOM}
    assert large == LARGE_ROOMS


def test_classes_are_short():
    found: list[str] = []
    for file in (f for floor in ARROWS for f in (ROOT / floor).rglob("*.py")):
        if len((text := file.read_bytes()).splitlines()) <= MAX_CLASS_LINES:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and (node.end_lineno or 0) - node.lineno > MAX_CLASS_LINES:
                found.append(f"{file.relative_to(ROOT)}: {node.name}")
    assert not found, f"a class has at most {MAX_CLASS_LINES} lines; part it by what its methods share: {found}"


def test_a_pass_is_found_by_its_name():
    assert {name: m for name, m in OURS.items() if m.partition(":")[0].rpartition(".")[2] != name.replace("-", "_")} == {}
