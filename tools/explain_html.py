"""The report of `explain` as one page of HTML: no scripts, no fonts, nothing to load."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ..passes.loop.machine import Machine
from .explain_model import Graph
from .explain_report import Block, Code, Heading, Picture, Table, Text
from .explain_svg import PICTURES

STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1200px; padding: 0 1em; color: #1b1f24; background: #fff }
h1 { font-size: 1.6em } h2 { margin-top: 2.2em; border-bottom: 2px solid #1f5fa8 } h3 { margin: 1.6em 0 .4em }
table { border-collapse: collapse; font-size: 13px; display: block; overflow-x: auto } th, td { padding: .25em .7em; vertical-align: top }
th { text-align: left; border-bottom: 1px solid #888; white-space: nowrap } td { border-bottom: 1px solid #e3e6ea }
td.n { text-align: right; white-space: nowrap } p { margin: .3em 0; white-space: pre-wrap } pre { font-size: 12px; overflow-x: auto }
details { margin: .4em 0 } summary { cursor: pointer } svg { max-width: 100%; height: auto; margin: 1em 0; display: block }
"""


def page(blocks: Sequence[Block], graphs: Sequence[Graph], machine: Machine, name: str) -> str:
    """The whole page."""
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        f"<title>stepwell: {escape(name)}</title><style>{STYLE}</style></head><body>",
    ]
    for block in blocks:
        if isinstance(block, Heading):
            parts.append(f"<h{block.level}>{escape(block.text)}</h{block.level}>")
        elif isinstance(block, Text):
            parts += [f"<p>{escape(line)}</p>" for line in block.lines]
        elif isinstance(block, Table):
            parts.append(_table(block))
        elif isinstance(block, Picture):
            parts.append(PICTURES[block.name](graphs[block.graph], machine))
        elif isinstance(block, Code):
            parts.append(f"<details><summary>{escape(block.title)}</summary><pre>{escape(block.text)}</pre></details>")
    parts.append("</body></html>\n")
    return "\n".join(parts)


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(h)}</th>" for h in table.headers)
    rows = []
    for row in table.rows:
        cells = (f"<td{' class=n' if k in table.numbers else ''}>{escape(cell)}</td>" for k, cell in enumerate(row))
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
