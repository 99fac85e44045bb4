"""Parts of SVG pictures: text, lines, the picture around them."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

INK, GRID, BLUE, ORANGE, GREY = "#1b1f24", "#d5dae0", "#1f5fa8", "#c9651b", "#77808a"
"""Colours on white."""


def picture(wide: float, high: float, title: str, parts: Iterable[str]) -> str:
    """An SVG picture of a size in pixels."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {high:.0f}" width="{wide:.0f}" '
        f'height="{high:.0f}" role="img" font-family="system-ui, sans-serif" font-size="12"><title>{escape(title)}</title>'
        f"{''.join(parts)}</svg>"
    )


def text(x: float, y: float, words: str, anchor: str = "start", colour: str = INK, extra: str = "") -> str:
    """Words at a place; `anchor` is start, middle or end."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" {extra}>{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str = GRID, extra: str = "") -> str:
    """A straight line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" {extra}/>'
