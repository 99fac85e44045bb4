"""The report of `explain` as one page of HTML: no scripts, no fonts, nothing to load."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from ...passes.cost.machine import Machine
from .model import Graph
from .report import Block, Code, Heading, Picture, Table, Text
from .svg import PICTURES

STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1500px; padding: 0 1em; color: #1b1f24; background: #fff }
h1 { font-size: 1.6em } h2 { margin-top: 2.2em; border-bottom: 2px solid #1f5fa8 } h3 { margin: 1.6em 0 .4em }
table { border-collapse: collapse; font-size: 13px; display: block; overflow-x: auto } th, td { padding: .25em .7em; vertical-align: top }
th { text-align: left; border-bottom: 1px solid #888; white-space: nowrap } td { border-bottom: 1px solid #e3e6ea }
td.n { text-align: right; white-space: nowrap } p { margin: .3em 0; white-space: pre-wrap; overflow-wrap: anywhere }
pre { font-size: 12px; overflow-x: auto }
p.step { font-weight: 600; margin-top: 1em } p.detail { padding-left: 2.2em; text-indent: -1.2em } p.there { color: #667 }
.bar { background: #3a8a4d; height: .8em; margin-top: .3em }
details.lines { margin-left: 1em } details { margin: .4em 0 } summary { cursor: pointer }
svg { max-width: 100%; height: auto; margin: 1em 0; display: block }
"""

SHOWN = 12
"""Lines under the title of a step that are not folded away."""

MOST_TEXT = 100_000
"""Characters of the IR of a level; a large model has several times that."""

THERE = "  A scheduler of buffers"

_UNIT = re.compile(r"(?<=\d) (?=([KMG]i)?B\b|[kMG]\b|[um]?s\b|flop)")


def page(blocks: Sequence[Block], graphs: Sequence[Graph], machine: Machine, name: str) -> str:
    """The whole page."""
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f"<title>stepwell: {escape(name)}</title><style>{STYLE}</style></head><body>",
    ]
    for block in blocks:
        if isinstance(block, Heading):
            parts.append(f"<h{block.level}>{escape(block.text)}</h{block.level}>")
        elif isinstance(block, Text):
            parts += _lines(block.lines)
        elif isinstance(block, Table):
            parts.append(_table(block))
        elif isinstance(block, Picture):
            parts.append(PICTURES[block.name](graphs[block.graph], machine))
        elif isinstance(block, Code):
            text = escape(_beginning(block.text), quote=False)
            parts.append(f"<details><summary>{escape(block.title)}</summary><pre>{text}</pre></details>")
    parts.append("</body></html>\n")
    return "\n".join(parts)


def _beginning(text: str) -> str:
    """As much of a text as a page takes, in whole lines, and where the rest is."""
    if len(text) <= MOST_TEXT:
        return text
    begin = text[:MOST_TEXT]
    begin = begin[: begin.rfind("\n") + 1] or begin
    return f"{begin}// ... {text.count(chr(10), len(begin))} lines more: STEPWELL_DEBUG=folder writes the whole\n"


def _lines(lines: Sequence[str]) -> list[str]:
    """Prose: a line that begins with a number is the title of a step, those set in after it say what is done there; many are folded."""
    parts: list[str] = []
    set_in: list[str] = []

    def close() -> None:
        rest = set_in[SHOWN:] if len(set_in) > SHOWN + 2 else []
        parts.extend(set_in[: len(set_in) - len(rest)])
        if rest:
            parts.append(f'<details class="lines"><summary>{len(rest)} more</summary>{"".join(rest)}</details>')
        set_in.clear()

    for line in lines:
        if line.startswith(" "):
            kind = "detail there" if not set_in and line.startswith(THERE) else "detail"
            set_in.append(f'<p class="{kind}">{escape(line.strip())}</p>')
            continue
        close()
        parts.append(f'<p class="step">{escape(line)}</p>' if line[:1].isdigit() and line[1:3] == ". " else f"<p>{escape(line)}</p>")
    close()
    return parts


def _cell(text: str) -> str:
    """What stands in a cell: a bar, or words that keep a number and its unit together."""
    if text and not text.strip("#"):
        return f'<div class="bar" style="width: {6 * len(text)}px"></div>'
    return escape(_UNIT.sub("\u00a0", text))


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(h)}</th>" for h in table.headers)
    rows = []
    for row in table.rows:
        cells = (f"<td{' class=n' if k in table.numbers else ''}>{_cell(cell)}</td>" for k, cell in enumerate(row))
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
