"""The words of a text, broken or not: what the parser did not reach is still told apart."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

_PATTERNS = {
    "comment": r"//[^\n]*",
    "string": r'"(?:[^"\\\n]|\\.)*+"?',
    "value": r"%[\w$.]+(?:-[\w$.]+)*+",
    "symbol": r'@(?:[\w$.]+(?:-[\w$.]+)*+|"[^"\n]*")',
    "block": r"\^[\w$.]+(?:-[\w$.]+)*+",
    "alias": r"[#!][A-Za-z_][\w$.]*",
    "name": r"[A-Za-z_][\w$.]*",
}
_WORD = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _PATTERNS.items()))


class Word(NamedTuple):
    """A word from `start` to before `end`; `kind` is a comment, string, value (%x), symbol (@f), block (^bb0), alias
    (!nd.tensor, #map) or name."""

    kind: str
    start: int
    end: int
    text: str


def words_of(text: str) -> list[Word]:
    """The words in their order; sigils belong to them."""
    return [Word(m.lastgroup or "", m.start(), m.end(), m[0]) for m in _WORD.finditer(text)]


def word_at(words: Sequence[Word], offset: int) -> Word | None:
    """The word that a cursor before the character `offset` stands in, or else touches with its end."""
    place = bisect_right(words, offset, key=lambda word: word.start) - 1
    return words[place] if place >= 0 and offset <= words[place].end else None
