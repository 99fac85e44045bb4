"""Writes docs/reference/coverage.md: every behaviour of tests/behaviours.txt and the tests that show it.

    python -m stepwell.tools.docs.coverage_page            write the page of this checkout
    python -m stepwell.tools.docs.coverage_page --missing  print what has neither a test nor a reason, P0 first

A test cites a behaviour by its id: in its name (`test_mut_08_...` is MUT-08; the ids of one letter stand at either end, as in
`test_k02_n33_...` and `test_..._a09_a24`), in its docstring or that of its class, or, for .mlir tests, in a comment."""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...errors import StepwellError

ROOT = Path(__file__).resolve().parents[2]
_LIST, _PAGE = Path("tests/behaviours.txt"), Path("docs/reference/coverage.md")
_LINE = re.compile(r"([A-Z]+-?\d\d) (P[012]) ([^|]*[^|\s])(?: \| (.*))?")
_CITED = re.compile(r"\b(?:[A-Z]{2,6}-\d\d|[A-Z]\d\d)\b")
_NAMED = re.compile(r"test_([a-z]{2,6})_(\d\d)_")
_LETTERS = re.compile(r"^test((?:_[a-z]\d\d)+)_|((?:_[a-z]\d\d)+)$")


@dataclass(frozen=True)
class Behaviour:
    """One line of the list: its section, id, priority, what it says, and why there is no test of it (or "")."""

    section: str
    name: str
    priority: str
    text: str
    reason: str


class BehaviourListError(StepwellError):
    """A line of the list that does not read as one, or an id that stands there twice."""


def read_list(text: str) -> list[Behaviour]:
    """The behaviours of a list (see tests/behaviours.txt); `# ` lines are the titles of sections."""
    section, found, seen = "", [], set()
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("# ") or not line.strip():
            section = line[2:] or section
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise BehaviourListError(f"line {number} is no behaviour: {line!r}")
        name, priority, what, reason = match.groups()
        if name in seen:
            raise BehaviourListError(f"line {number}: {name} stands there twice")
        seen.add(name)
        found.append(Behaviour(section, name, priority, what, reason or ""))
    return found


def citations(folder: Path) -> dict[str, list[str]]:
    """Id -> the tests below `folder` that cite it, as `file.py::test` or `file.mlir`, relative to its parent, sorted."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in folder.rglob("*"):
        place = path.relative_to(folder.parent).as_posix()
        if path.suffix == ".mlir":
            comments = "\n".join(line for line in path.read_text().splitlines() if line.lstrip().startswith("//"))
            for name in _CITED.findall(comments):
                found[name].add(place)
        elif path.suffix == ".py" and path.name.startswith("test_"):
            for test, text in _tests(ast.parse(path.read_text())):
                for name in [*_named(test), *_CITED.findall(text)]:
                    found[name].add(f"{place}::{test}")
    return {name: sorted(tests) for name, tests in found.items()}


def _named(test: str) -> Iterator[str]:
    """The ids in the name of a test."""
    if named := _NAMED.match(test):
        yield f"{named[1].upper()}-{named[2]}"
    for found in _LETTERS.finditer(test):
        yield from found[0].removeprefix("test").strip("_").upper().split("_")


def _tests(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The name of each test function and the docstrings that are about it."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            about = ast.get_docstring(node) or ""
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and inner.name.startswith("test_"):
                    yield inner.name, f"{about}\n{ast.get_docstring(inner) or ''}"
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.name, ast.get_docstring(node) or ""


def page(behaviours: list[Behaviour], tests: dict[str, list[str]]) -> str:
    """The text of docs/reference/coverage.md."""
    lines = [
        "# Behaviours and their tests",
        "",
        "Made by `python -m stepwell.tools.docs.coverage_page` from `tests/behaviours.txt` and the tests, which cite the ids. "
        "Where there is no test, the page says why.",
        "",
        "| priority | behaviours | with a test | with a reason | open |",
        "|---|---|---|---|---|",
    ]
    for priority in ("P0", "P1", "P2"):
        some = [b for b in behaviours if b.priority == priority]
        tested = sum(b.name in tests for b in some)
        explained = sum(b.name not in tests and bool(b.reason) for b in some)
        lines.append(f"| {priority} | {len(some)} | {tested} | {explained} | {len(some) - tested - explained} |")
    section = ""
    for b in behaviours:
        if b.section != section:
            section = b.section
            lines += ["", f"## {section}", "", "| id | | behaviour | tests |", "|---|---|---|---|"]
        shown = "<br>".join(f"`{t}`" for t in _short(tests.get(b.name, [])))
        lines.append(f"| {b.name} | {b.priority} | {b.text} | {'<br>'.join(x for x in (shown, b.reason) if x)} |")
    return "\n".join(lines) + "\n"


def _short(tests: list[str], most: int = 4) -> list[str]:
    """The tests without `tests/`, at most `most` of them by name."""
    names = [t.removeprefix("tests/") for t in tests]
    return names if len(names) <= most else [*names[: most - 1], f"{len(names) - most + 1} more"]


def main(arguments: list[str]) -> int:
    """Write the page, or print what is open; returns the exit code."""
    behaviours, tests = read_list((ROOT / _LIST).read_text()), citations(ROOT / "tests")
    if arguments == ["--missing"]:
        left = [b for b in behaviours if b.name not in tests and not b.reason]
        for b in sorted(left, key=lambda b: b.priority):
            print(b.name, b.priority, b.text)
        return 0
    if arguments:
        print(__doc__, file=sys.stderr)
        return 1
    (ROOT / _PAGE).write_text(page(behaviours, tests))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
