"""Parts of SVG pictures: text that fits, labels that do not overlap, lines, the picture around them."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

INK, GRID, BLUE, ORANGE, GREEN, GREY, VIOLET, PAPER = (
    f"var(--{name})" for name in ("ink", "grid", "blue", "orange", "green", "grey", "violet", "paper")
)
"""Colours as the page defines them, once for light and once for dark."""

LINE = 13.0
"""Pixels from one line of text of the usual size to the next."""

_NARROW, _WIDE = frozenset("ijl.,:;|'`!()[]{}tfrI -"), frozenset("mwMW@%#+=<>_")


def width(words: str, bold: bool = False) -> float:
    """Pixels that words take at most, in the usual sans-serif fonts at 12 pixels."""
    total = sum(4.6 if c in _NARROW else 11.2 if c in _WIDE else 8.8 if c.isupper() else 7.3 for c in words)
    return total * 1.08 if bold else total


def fit(words: str, pixels: float, bold: bool = False) -> str:
    """As much of some words as fits in a number of pixels."""
    if width(words, bold) <= pixels:
        return words
    while words and width(words + "...", bold) > pixels:
        words = words[:-1]
    return words.rstrip(", ") + "..."


def picture(wide: float, high: float, title: str, parts: Iterable[str]) -> str:
    """An SVG picture of a size in pixels."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {high:.0f}" width="{wide:.0f}" '
        f'height="{high:.0f}" role="img" font-family="system-ui, sans-serif" font-size="12"><title>{escape(title)}</title>'
        f"{''.join(parts)}</svg>"
    )


def scrolling(drawn: str) -> str:
    """A picture in a box that scrolls where the page is narrower."""
    return f'<div class="picture">{drawn}</div>'


def text(x: float, y: float, words: str, anchor: str = "start", colour: str = INK, extra: str = "") -> str:
    """Words at a place; `anchor` is start, middle or end."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" {extra}>{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str = GRID, extra: str = "") -> str:
    """A straight line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" {extra}/>'


class Labels:
    """Puts words beside points so that no two overlap; a label without a free place is left out (its point has a tooltip)."""

    def __init__(self, left: float, right: float) -> None:
        """No label goes beyond `left` and `right`."""
        self.left, self.right = left, right
        self.taken: list[tuple[float, float, float, float]] = []

    def keep_free(self, x: float, y: float, radius: float) -> None:
        """No label covers a point."""
        self.taken.append((x - radius, y - radius, x + radius, y + radius))

    def place(self, x: float, y: float, words: str, colour: str = INK, extra: str = "", gap: float = 7.0) -> str:
        """The words to the right of a point, else to its left, above or below; "" where there is no place."""
        wide = width(words)
        for left, base in ((x + gap, y + 4), (x - gap - wide, y + 4), (x - wide / 2, y - gap - 1), (x - wide / 2, y + gap + 10)):
            box = (left, base - LINE + 2, left + wide, base + 3)
            if left >= self.left and box[2] <= self.right and not any(_overlap(box, other) for other in self.taken):
                self.taken.append(box)
                return text(left, base, words, colour=colour, extra=extra)
        return ""


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
