"""The pages: lines are short, every link and named file is there, the site's contents name every page, measured figures
stand in lab notes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))
PAGES = ("README.md", "CONTRIBUTING.md", *DOCS)
COLUMNS = 120
WRITTEN_BY_TOOLS = ("docs/benchmarks/", "docs/reference/coverage.md", "docs/reference/dialects.md", "docs/reference/operators.md")
FIGURE = re.compile(r"\b\d[\d.,]* (?:ns|us|ms|GB/s|G?FLOP/s|TFLOP/s)\b")
THRESHOLDS = ("100 us (`longest=`)", "5% and 0.5 us", "15% and 2 us", "`GOMP_parallel` above an estimated 8 us")
"""What is no measurement: when a pass acts."""
CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)


def prose(page: str) -> str:
    """The text of a page without fenced code, and without what tools write between marks."""
    text = (ROOT / page).read_text()
    text = re.sub(r"<!-- (\w+): begin -->.*?<!-- \1: end -->", "", text, flags=re.DOTALL)
    return re.sub(r"^( *)```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [page for page in PAGES if not page.startswith(WRITTEN_BY_TOOLS)])
def test_lines_are_short(page):
    tables_and_code = ("|", "    ")
    lines = [line for line in prose(page).splitlines() if not line.lstrip().startswith("|") and not line.startswith(tables_and_code)]
    assert [line for line in lines if len(line) > COLUMNS and "http" not in line] == []


@pytest.mark.parametrize("page", [page for page in DOCS if page.startswith(("docs/explanation/", "docs/howto/"))])
def test_measured_figures_stand_in_lab_notes(page):
    found = [line for line in prose(page).splitlines() if FIGURE.search(line) and not line.startswith("    ")]
    assert [line for line in found if not any(threshold in line for threshold in THRESHOLDS)] == []


@pytest.mark.parametrize("page", PAGES)
def test_named_files_exist(page):
    named = re.findall(r"`((?:dialects|passes|lowering|targets|tools|tests|docs)/[\w./]*)`", prose(page))
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    text = CODE.sub("", (ROOT / page).read_text())
    links = re.findall(r"\]\((?!http)([^)\s]+)\)", text) + re.findall(r'src="(?!http)([^"]+)"', text)
    for link in links:
        name, _, anchor = link.partition("#")
        target = (ROOT / page).parent / name if name else ROOT / page
        assert target.exists(), link
        if anchor:
            titles = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles], link


def test_the_contents_of_the_site_name_every_page_once():
    named = re.findall(r"^ +- (?:[^:\n]+: )?([\w./-]+\.md)$", (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2], re.MULTILINE)
    assert sorted(named) == sorted([page.removeprefix("docs/") for page in DOCS] + ["front-page.md", "contributing.md"])
