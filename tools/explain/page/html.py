"""The report of `explain` as one page of HTML: no scripts, no fonts, nothing to load."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from ....passes.cost.machine import Machine
from ..blocks import Block, Code, Heading, Picture, Table, Text, box_id
from ..model import Graph
from .style import STYLE
from .svg import MAX_STEPS, PICTURES

SHOWN = 12
"""Lines under the title of a step that are not folded away."""

MAX_TEXT_CHARACTERS = 100_000
"""Characters of the IR of a level; a large model has several times that."""

THERE = "  A scheduler of buffers"

_UNIT = re.compile(r"(?<=\d) (?=([KMG]i)?B\b|[kMG]\b|[um]?s\b|flop)")


def page(blocks: Sequence[Block], graphs: Sequence[Graph], machine: Machine, name: str) -> str:
    """The whole page."""
    known = _targets(blocks, graphs)
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>stepwell: {escape(name)}</title><style>{STYLE}</style></head><body>{_contents(blocks)}<main>",
    ]
    for block in blocks:
        if isinstance(block, Heading):
            parts.append(f"<h{block.level}{_id(block.id)}>{escape(block.text)}</h{block.level}>")
        elif isinstance(block, Text):
            parts += _lines(block.lines)
        elif isinstance(block, Table):
            parts.append(_table(block, known))
        elif isinstance(block, Picture):
            parts.append(PICTURES[block.name](graphs[block.graph], machine, block.graph))
        elif isinstance(block, Code):
            parts.append(_code(block, known))
    parts.append("</main></body></html>\n")
    return "\n".join(parts)


def _targets(blocks: Sequence[Block], graphs: Sequence[Graph]) -> set[str]:
    """Every id that a link may go to: long texts and pictures are cut, and what is cut has none."""
    known: set[str] = set()
    for block in blocks:
        if isinstance(block, Table):
            known.update(block.ids)
        elif isinstance(block, Picture) and block.name == "nests":
            known.update(box_id(block.graph, step.number) for step in graphs[block.graph].steps[:MAX_STEPS])
        elif isinstance(block, Code):
            lines = _beginning(block.text).count("\n")
            known.update(name for line, (name, _) in block.marks.items() if line < lines)
    return known


def _contents(blocks: Sequence[Block]) -> str:
    """Links to the graphs and their parts."""
    entries: list[tuple[Heading, list[Heading]]] = []
    for block in blocks:
        if isinstance(block, Heading) and block.id and block.level == 2:
            entries.append((block, []))
        elif isinstance(block, Heading) and block.id and block.level == 3 and entries:
            entries[-1][1].append(block)
    items = "".join(f"<li>{_entry(top)}{_sublist(parts)}</li>" for top, parts in entries)
    return f"<nav><b>Contents</b><ul>{items}</ul></nav>"


def _sublist(parts: Sequence[Heading]) -> str:
    return f"<ul>{''.join(f'<li>{_entry(part)}</li>' for part in parts)}</ul>" if parts else ""


def _entry(heading: Heading) -> str:
    return f'<a href="#{heading.id}">{escape(heading.text)}</a>'


def _id(name: str) -> str:
    return f' id="{name}"' if name else ""


def _code(block: Code, known: set[str]) -> str:
    """The IR of a level, folded away; a line at which a step begins links to the step (a browser unfolds what is linked to)."""
    lines = escape(_beginning(block.text), quote=False).split("\n")
    for at, (name, target) in block.marks.items():
        if name in known:
            lines[at] = f'<a id="{name}" href="#{target}">{lines[at]}</a>' if target in known else f'<a id="{name}">{lines[at]}</a>'
    text = "\n".join(lines)
    return f"<details><summary>{escape(block.title)}</summary><pre>{text}</pre></details>"


def _beginning(text: str) -> str:
    """As much of a text as a page takes, in whole lines, and where the rest is."""
    if len(text) <= MAX_TEXT_CHARACTERS:
        return text
    begin = text[:MAX_TEXT_CHARACTERS]
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


def _table(table: Table, known: set[str]) -> str:
    head = "".join(f"<th>{escape(h)}</th>" for h in table.headers)
    rows = []
    for n, row in enumerate(table.rows):
        links = table.links[n] if n < len(table.links) else {}
        cells = []
        for k, cell in enumerate(row):
            target = links.get(k)
            words = f'<a href="#{target}">{_cell(cell)}</a>' if target in known else _cell(cell)
            cells.append(f"<td{' class=n' if k in table.numbers else ''}>{words}</td>")
        rows.append(f"<tr{_id(table.ids[n]) if n < len(table.ids) else ''}>{''.join(cells)}</tr>")
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
