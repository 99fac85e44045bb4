"""The report of `explain` in a terminal: through `rich` where it is installed, as plain text otherwise."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from typing import Any

from .blocks import Block, Heading, Table, Text

MAX_ROWS = 40
"""Rows of a table that a terminal shows."""

MAX_CELL_CHARACTERS = 48
"""Characters that a cell of a plain table may have in one line."""


def show(blocks: Sequence[Block], *, plain: bool = False) -> str:
    """Print the blocks; with `plain` give them as text instead of printing."""
    blocks = [_cut(block) for block in blocks]
    if plain:
        return _plain(blocks)
    try:
        import rich.console
    except ImportError:
        print(_plain(blocks))
        return ""
    _rich(blocks, rich.console.Console(highlight=False, soft_wrap=False))
    return ""


def _cut(block: Block) -> Block:
    """The block with a line instead of the rows that are too many for a terminal."""
    if not isinstance(block, Table) or len(block.rows) <= MAX_ROWS:
        return block
    more = f"... and {len(block.rows) - MAX_ROWS} more (all are on the page and in Explanation.graphs)"
    return Table(block.headers, (*block.rows[:MAX_ROWS], (more, *("" for _ in block.headers[1:]))), block.numbers)


def _rich(blocks: Sequence[Block], console: Any) -> None:
    from rich import box
    from rich.markup import escape
    from rich.padding import Padding
    from rich.table import Table as RichTable

    for block in blocks:
        if isinstance(block, Heading):
            console.print()
            if block.level < 3:
                console.rule(f"[bold]{escape(block.text)}", align="left")
            else:
                console.print(f"[bold]{escape(block.text)}")
        elif isinstance(block, Text):
            for line in block.lines:
                text = line.lstrip(" ")
                # what does not fit in one line goes on below its beginning
                console.print(Padding(escape(text), (0, 0, 0, len(line) - len(text)), expand=False) if text else "")
        elif isinstance(block, Table) and len(block.headers) > 6 and console.width < 180:
            for line in _records(block):
                console.print(escape(line), soft_wrap=True)
        elif isinstance(block, Table):
            table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
            for k, header in enumerate(block.headers):
                table.add_column(header, justify="right" if k in block.numbers else "left", overflow="fold")
            for row in block.rows:
                table.add_row(*map(escape, row))
            console.print(table)


def _plain(blocks: Sequence[Block]) -> str:
    lines: list[str] = []
    for block in blocks:
        if isinstance(block, Heading):
            lines += ["", block.text, {1: "=", 2: "-", 3: ""}[block.level] * len(block.text)]
            if not lines[-1]:
                lines.pop()
        elif isinstance(block, Text):
            lines += block.lines
        elif isinstance(block, Table):
            lines += _records(block) if len(block.headers) > 6 else _table(block)
    return "\n".join(lines).lstrip("\n") + "\n"


def _table(table: Table) -> list[str]:
    """Columns as wide as they need to be, up to MAX_CELL_CHARACTERS; the last one takes the rest of the line."""
    rows = [table.headers, *table.rows]
    last = len(table.headers) - 1
    widths = [min(MAX_CELL_CHARACTERS, max(1, *(len(row[k]) for row in rows if any(row[1:])))) for k in range(last + 1)]
    widths[last] = max(MAX_CELL_CHARACTERS, shutil.get_terminal_size((140, 40)).columns - sum(widths[:last]) - 2 * last - 2)
    lines = []
    for row in rows:
        if not any(row[1:]):
            lines.append(f"  {row[0]}")
            continue
        cells = [textwrap.wrap(cell, widths[k], break_long_words=True) or [""] for k, cell in enumerate(row)]
        for n in range(max(map(len, cells))):
            parts = [cell[n] if n < len(cell) else "" for cell in cells]
            set_out = [p.rjust(widths[k]) if k in table.numbers else p.ljust(widths[k]) for k, p in enumerate(parts)]
            lines.append(("  " + "  ".join(set_out)).rstrip())
    return lines


def _records(table: Table) -> list[str]:
    """A table with many columns as one paragraph a row."""
    wide = max(map(len, table.headers))
    lines = []
    for row in table.rows:
        for header, cell in zip(table.headers, row, strict=True):
            if cell:
                lines.append(f"  {header.ljust(wide)}  {cell}".rstrip())
        lines.append("")
    return lines[:-1]
