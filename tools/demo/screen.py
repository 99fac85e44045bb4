"""What the demo shows on the terminal: through `rich` where it is installed, as plain lines otherwise."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

try:
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table
except ImportError:
    Console = None

BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float]) -> str:
    """`values` as one character each, the lowest as the lowest bar."""
    low, high = min(values), max(values)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((v - low) * scale)] for v in values)


class PlainScreen:
    """Lines on stdout; progress as one rewritten line on a terminal, as a first and a last line elsewhere."""

    def heading(self, text: str) -> None:
        print(f"\n{text}\n{'=' * len(text)}", flush=True)

    def line(self, text: str = "") -> None:
        print(text, flush=True)

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Columns as wide as their widest cell; the last one is left ragged."""
        cells = [list(headers), *(list(row) for row in rows)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(headers))]
        for row in cells:
            print("  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip(), flush=True)

    @contextmanager
    def progress(self, label: str, total: int) -> Iterator[Callable[[], None]]:
        """A counter from 0 to `total`; what it yields adds one."""
        done, rewrite, start = 0, sys.stdout.isatty(), time.perf_counter()

        def advance() -> None:
            nonlocal done
            done += 1
            if rewrite:
                print(f"\r{label}: {done}/{total}", end="", flush=True)

        if not rewrite:
            print(f"{label} ...", flush=True)
        yield advance
        print(f"{chr(13) if rewrite else ''}{label}: {done}/{total}, {time.perf_counter() - start:.1f} s", flush=True)


class RichScreen(PlainScreen):
    """The same through `rich`."""

    def __init__(self) -> None:
        assert Console is not None
        self.console = Console(highlight=False)

    def heading(self, text: str) -> None:
        self.console.print()
        self.console.rule(f"[bold]{escape(text)}", align="left")

    def line(self, text: str = "") -> None:
        self.console.print(escape(text), soft_wrap=True)

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for i, header in enumerate(headers):
            last = i == len(headers) - 1
            table.add_column(header, no_wrap=not last, overflow="fold")
        for row in rows:
            table.add_row(*(escape(cell) for cell in row))
        self.console.print(table)

    @contextmanager
    def progress(self, label: str, total: int) -> Iterator[Callable[[], None]]:
        if not self.console.is_terminal:
            with super().progress(label, total) as advance:
                yield advance
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.console) as bar:
            task = bar.add_task(label, total=total)
            yield lambda: bar.advance(task)


def screen() -> PlainScreen:
    """The best screen that is there."""
    return PlainScreen() if Console is None else RichScreen()
