"""The table of options in docs/reference/options.md, from the fields of Options.

    python -m stepwell.tools.docs.options_page [--check]
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from ..field_texts import field_texts
from ..options.field import Variable, names_of
from ..options.options import DECLARED, Options, list_options, option_types
from ..options.variables import sets

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "options.md"
BEGIN, END = "<!-- options: written by python -m stepwell.tools.docs.options_page -->", "<!-- options: end -->"

_FILE = re.compile(r"docs/([\w-]+)/([\w-]+)\.md")


def table() -> str:
    """A row for each option, in the order of the fields."""
    texts, defaults = field_texts(Options), list_options()
    rows = []
    for name, one in DECLARED.items():
        takes = ", ".join(f'`"{c}"`' for c in one.choices) if one.choices else names_of(option_types()[name])
        if one.choices and type(None) in option_types()[name]:
            takes += ", None"
        variable = f"`STEPWELL_{name.upper()}`" if sets(name) or one.variable is Variable.READ_ELSEWHERE else ""
        cells = (f"`{name}`", f"`{defaults[name]!r}`", takes, variable, one.effect.value, _linked(texts[name]))
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(["| option | default | takes | variable | in the cache | meaning |", "|---|---|---|---|---|---|", *rows])


def _linked(text: str) -> str:
    """Names of pages as links from this one."""
    return _FILE.sub(lambda m: f"[{m[2]}]({m[2]}.md)" if m[1] == "reference" else f"[{m[2]}](../{m[1]}/{m[2]}.md)", text)


def page(text: str) -> str:
    """The page with the table as it is now."""
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    return f"{text[:begin]}\n\n{table()}\n\n{text[end:]}"


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m stepwell.tools.docs.options_page", description="Writes the table of options.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the table is old")
    given = parser.parse_args(arguments)
    old = PAGE.read_text()
    new = page(old)
    if given.check:
        return int(old != new)
    PAGE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
