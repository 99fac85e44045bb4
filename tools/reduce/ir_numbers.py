"""Sizes, strides and other numbers of a module become small, and size symbols become numbers: everywhere in its text at once."""

from __future__ import annotations

import re
from collections.abc import Sequence

from xdsl.context import Context

from ...dialects import load_dialects
from ..ir_parser import IRSyntaxError, parse_file
from .drafts import Draft, is_valid

NUMBER = re.compile(r'(?<![\w.%@#"\-!])(\d+)(?=x|[^\w.]|$)')
"""A whole number that is a size, a stride, a bound or an integer constant, and no part of a name or of another number."""
SMALL_NUMBERS = (1, 2, 3)


class Numbers:
    """One number, with its multiples or alone, becomes 1, 2 or 3; one size symbol becomes a number.

    A size occurs in types, layouts, loops and maps, and in products of it; all of them change together, or the IR is not valid."""

    name = "numbers"
    chunks = False

    def __init__(self, verify: bool = True) -> None:
        self.verify = verify

    def places(self, best: Draft) -> Sequence[tuple[str, int, bool]]:
        numbers = {int(n) for n in NUMBER.findall(best.text)}
        table = best.module.attributes.get("nd.symbols")
        symbols = sorted(getattr(table, "data", ()), reverse=True)
        found = [(name, new, False) for name in symbols for new in SMALL_NUMBERS]
        for old in sorted(numbers, reverse=True):
            smaller = [new for new in (*SMALL_NUMBERS, old // 2) if 0 < new < old]
            found += [(str(old), new, multiples) for new in smaller for multiples in (True, False)]
        return list(dict.fromkeys(found))

    def apply(self, best: Draft, chosen: Sequence[tuple[str, int, bool]]) -> Draft | None:
        text = best.text
        for old, new, multiples in chosen:
            text = _renamed(text, old, new) if not old.isdecimal() else _changed(text, int(old), new, multiples)
        try:
            module, _ = parse_file(text, "<reduced>", load_dialects(Context(allow_unregistered=True)))
        except IRSyntaxError:
            return None
        return None if self.verify and not is_valid(module) else Draft(module)


def _changed(text: str, old: int, new: int, multiples: bool) -> str:
    def one(match: re.Match[str]) -> str:
        number = int(match[1])
        if number == old or (multiples and number and number % old == 0):
            return str(number // old * new)
        return match[1]

    return NUMBER.sub(one, text)


def _renamed(text: str, symbol: str, value: int) -> str:
    text = re.sub(rf"\b{symbol} = #nd\.range<[^>]*>(, )?", "", text, count=1)
    text = re.sub(r", \}", "}", text.replace("attributes {nd.symbols = {}} ", ""), count=1)
    return re.sub(rf"(?<![%@\w.]){symbol}\b", str(value), text)
