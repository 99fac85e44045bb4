"""Numbers that planning chooses by: how many constants of modules have them, and that a name says what is counted."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLANNING = ("passes", "lowering", "targets")
RULES_OF_OPERATORS = "lowering/fx_to_nd/rules"
"""What operators compute: coefficients of functions, no choices."""
APPROXIMATIONS = "functions"
"""Folders of what functions are approximated by: tuples of floats in them are coefficients of polynomials."""
MAX_CONSTANTS = 334


def is_number(value: ast.expr) -> bool:
    """Whether a value is a number, arithmetic with one, or a tuple or table of them."""
    if isinstance(value, ast.Constant):
        return isinstance(value.value, int | float) and not isinstance(value.value, bool)
    if isinstance(value, ast.UnaryOp):
        return is_number(value.operand)
    if isinstance(value, ast.BinOp):
        parts = list(ast.walk(value))
        return any(isinstance(n, ast.Constant) and isinstance(n.value, int | float) for n in parts) and not any(
            isinstance(n, ast.List | ast.Tuple) for n in parts  # a list that is repeated
        )
    if isinstance(value, ast.Tuple | ast.List):
        return bool(value.elts) and all(map(is_number, value.elts))
    if isinstance(value, ast.Dict):
        return bool(value.values) and all(map(is_number, value.values))
    return isinstance(value, ast.Call) and bool(value.args) and all(map(is_number, value.args))


def constants(tree: ast.Module) -> Iterator[str]:
    """The names that a module gives numbers to."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        if targets and (value := node.value) is not None and is_number(value):  # pyright: ignore[reportAttributeAccessIssue]
            yield from (n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name) and n.id.isupper())


def is_polynomial(value: ast.expr) -> bool:
    """Whether a value is coefficients: a tuple of floats, or of such tuples."""
    if not isinstance(value, ast.Tuple) or len(value.elts) < 2:
        return False
    return all(isinstance(ast.literal_eval(one), float) for one in value.elts) or all(map(is_polynomial, value.elts))


@cache
def planning() -> list[tuple[str, str]]:
    """File and name of each constant with a number in planning code."""
    found: list[tuple[str, str]] = []
    for file in (f for room in PLANNING for f in sorted((ROOT / room).rglob("*.py"))):
        name, tree = file.relative_to(ROOT).as_posix(), ast.parse(file.read_bytes())
        if name.startswith(RULES_OF_OPERATORS):
            continue
        if file.parent.name == APPROXIMATIONS:
            tree.body = [n for n in tree.body if not (isinstance(n, ast.Assign) and is_number(n.value) and is_polynomial(n.value))]
        found += [(name, one) for one in constants(tree)]
    return found


def test_constants_with_numbers_are_few():
    found = planning()
    rooms = Counter("/".join(name.split("/")[:2]) for name, _ in found)
    reason = (
        f"{len(found)} module constants with numbers in planning code, and fewer than {MAX_CONSTANTS} are allowed: each is a choice that"
        " nobody weighs again. Derive the new one from another, ask the price, or give a fact of a machine to passes/cost/machine/*.json."
    )
    assert len(found) < MAX_CONSTANTS, f"{reason} By room: {rooms}"


def test_names_of_constants_say_what_is_counted():
    short = [f"{name}: {one}" for name, one in planning() if "_" not in one]
    assert not short, f"a constant has a noun and a unit in its name (MAX_REPEATED_OPS, CHUNK_ELEMENTS): {short}"


def test_what_counts_as_coefficients():
    values = [ast.parse(text, mode="eval").body for text in ("(1.0, -2.5)", "((1.0, 2.0), (3.0, 4.0))", "(1, 2)", "(1.0,)", "1.0")]
    assert list(map(is_polynomial, values)) == [True, True, False, False, False]


def test_what_counts_as_a_number():
    numbers = "A = 1\nB, C = 2.0, 1 << 3\nD: dict = {1: 2}\nE = F = -1\nI = frozenset((1, 2))\nM = 2 * A\n"
    others = "G = 'x'\nH = True\nJ = f()\nk = 1\nL = A\nN = 3 * ['x']\n"
    assert list(constants(ast.parse(numbers + others))) == ["A", "B", "C", "D", "E", "F", "I", "M"]
