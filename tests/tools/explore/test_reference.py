"""docs/reference/explorer-json.md lists every field of the document, of answers and of comparisons, and none that there is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import stepwell
from stepwell.tools.explore.compare import compare

PAGE = Path(stepwell.__file__).parent / "docs/reference/explorer-json.md"
RARE = {
    "call": {"target", "args", "gpu"}, "eager part": {"place", "what", "why", "hints"}, "pass": {"before", "after", "changed", "diff"},
    "step": {"resources"}, "resources": {"registers", "spills", "shared", "warps", "programs", "occupancy", "limit"},
}  # fmt: skip
"""Fields that the programs of these tests need not have: of a GPU, of the command line, of what Dynamo leaves to eager."""


def documented():
    """What a table is about -> its fields."""
    found: dict[str, set[str]] = {}
    for table in re.findall(r"^\| field of .*\n(?:\|.*\n)+", PAGE.read_text(), re.MULTILINE):
        head, _, *rows = table.splitlines()
        about = re.sub(r"^(?:the|an?) ", "", head.split("|")[1].strip().removeprefix("field of "))
        found[about] = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    return found


def objects(data):
    """(what it is, an object of the document)."""
    yield "document", data
    yield from (("call", data["call"]), ("machine", data["machine"]))
    yield from (("eager part", one) for one in data["eager"])
    yield from (("source", one) for one in data["sources"])
    yield from (("block", one) for one in data["report"])
    for graph in data["graphs"]:
        yield from (("graph", graph), ("plan", graph["plan"]), ("memory", graph["memory"]))
        yield from (("level", one) for one in graph["levels"])
        yield from (("operation", one) for level in graph["levels"] for one in level["operations"])
        yield from (("origin", one) for one in graph["origins"])
        yield from (("nest", one) for one in graph["plan"]["loops"])
        yield from (("group", one) for one in graph["plan"]["groups"])
        yield from (("pair", one) for one in graph["plan"]["pairs"])
        yield from (("step", one) for one in graph["kernels"])
        yield from (("resources", one["resources"]) for one in graph["kernels"] if "resources" in one)
        yield from (("buffer", one) for one in graph["memory"]["buffers"])
        for one in graph["passes"]:
            yield "pass", one
            yield from (("rewrite", rule) for rule in one.get("rewrites", ()))
            yield from (("remark", said) for said in one.get("remarks", ()))


@pytest.fixture(scope="module")
def found(scores):
    """What it is -> the fields that some have."""
    known: dict[str, set[str]] = {}
    mentioned = [("answer", one) for one in scores.about("gelu")] + [("comparison", one) for one in compare(scores.data, scores.data)]
    for about, one in (*objects(scores.data), *mentioned):
        known.setdefault(about, set()).update(one)
    return known


def test_every_field_is_documented(found):
    tables = documented()
    assert {about: extra for about, fields in found.items() if (extra := fields - tables.get(about, set()))} == {}


def test_every_documented_field_is_there(found):
    known = {about: found.get(about, set()) | RARE.get(about, set()) for about in documented()}
    assert {about: gone for about, fields in documented().items() if (gone := fields - known[about])} == {}
