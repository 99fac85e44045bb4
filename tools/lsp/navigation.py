"""Where values, symbols and aliases are defined and used, and the outline of a text."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .analysis import Analysis, symbol_of
from .recorder import Entry, Place
from .words import Word

_BEHIND = re.compile(r'\s*(?:private\s+|public\s+)?@([\w$.-]+|"[^"\n]*")')


def definition(found: Analysis, offset: int) -> Place | None:
    """Where the name at a place is defined; None where there is no name, or no definition."""
    places = occurrences(found, offset)
    return places[0] if places and places[0] is not None else None


def uses(found: Analysis, offset: int) -> list[Place]:
    """Where the name at a place is used, without its definition."""
    return [place for place in occurrences(found, offset)[1:] if place is not None]


def occurrences(found: Analysis, offset: int) -> list[Place | None]:
    """The definition of the name at a place (None where there is none), then its uses; empty where no name stands."""
    word = found.word(offset)
    if word is None or word.kind not in _FINDERS:
        return []
    return _FINDERS[word.kind](found, word)


def _value(found: Analysis, word: Word) -> list[Place | None]:
    """Values and blocks: as the parser read them. Where it did not come so far, the same name in the same top operation; the first one
    defines it."""
    bound = found.binding(word.start)
    if bound is not None:
        return [bound.defined, *bound.uses]
    part = found.part(word.start)
    entry = next((e for e in part.entries if e.start <= word.start <= e.end), None) if part is not None else None
    start, end = (entry.start, entry.end) if entry is not None else part.place if part is not None else (0, len(found.text))
    places = [Place(w.start, w.end) for w in found.words if start <= w.start <= end and (w.kind, w.text) == (word.kind, word.text)]
    return [*places] if len(places) > 1 else [None, *places]


def _symbol(found: Analysis, word: Word) -> list[Place | None]:
    """The symbols of one module; the one that an operation defines is its first one."""
    part = found.part(word.start)
    if part is None:
        return []
    within = [w for w in found.words if w.kind == "symbol" and w.text == word.text and part.place.start <= w.start < part.place.end]
    name = word.text[1:].strip('"')
    home = next((e for top in part.entries for e in top.walk() if _own_symbol(found, e) == name), None)
    defined = next((w for w in within if home is not None and w.start >= home.name.start), None)
    return _listed(defined, within)


def _own_symbol(found: Analysis, entry: Entry) -> str | None:
    """The symbol that an operation defines; of one that was not read to its end, the one right behind its name."""
    if entry.op is not None:
        return symbol_of(entry.op)
    match = _BEHIND.match(found.text, entry.name.end)
    return match[1].strip('"') if match else None


def _alias(found: Analysis, word: Word) -> list[Place | None]:
    """Aliases of attributes and types, which begin a line and have `=` behind them."""
    same = [w for w in found.words if w.kind == "alias" and w.text == word.text]
    defined = next((w for w in same if found.line(w.start).startswith(w.text) and found.text[w.end :][:3].lstrip().startswith("=")), None)
    return _listed(defined, same) if defined is not None else []


def _listed(defined: Word | None, words: list[Word]) -> list[Place | None]:
    """The definition, then the other words."""
    first = Place(defined.start, defined.end) if defined is not None else None
    return [first, *(Place(word.start, word.end) for word in words if word is not defined)]


_FINDERS = {"value": _value, "block": _value, "symbol": _symbol, "alias": _alias}


@dataclass
class Item:
    """A line of the outline: an operation with a symbol, or with operations inside of it."""

    name: str
    detail: str
    whole: Place
    named: Place
    is_function: bool
    inner: list[Item] = field(default_factory=list)


def outline(found: Analysis) -> list[Item]:
    """Functions, kernels, and nests in them. A module without a name is passed over."""
    return [item for part in found.parts for entry in part.entries for item in _items(found, entry)]


def _items(found: Analysis, entry: Entry) -> list[Item]:
    inner = [item for one in entry.inner for item in _items(found, one)]
    symbol = _own_symbol(found, entry)
    op = found.text[entry.name.start : entry.name.end].strip('"')
    if symbol is None and (not entry.inner or op in ("builtin.module", "module")):
        return inner
    results = found.text[entry.start : entry.name.start].rpartition("=")[0].strip()
    name = f"@{symbol}" if symbol is not None else results or op
    return [Item(name, "" if name == op else op, Place(entry.start, entry.end), entry.name, symbol is not None, inner)]
