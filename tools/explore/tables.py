"""What a document keeps once: texts, types, files, and the origins of operations (name of the FX node, file, line)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

from xdsl.ir import Attribute, Operation

from ...passes.analysis.origins import origins


class Pool:
    """A list in which equal things have one place."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._places: dict[Hashable, int] = {}

    def __contains__(self, item: Hashable) -> bool:
        return item in self._places

    def place(self, item: Hashable) -> int:
        """Where an item is, put at the end if it is new."""
        found = self._places.setdefault(item, len(self.items))
        if found == len(self.items):
            self.items.append(item)
        return found


class Tables:
    """The pools of one document, and what the operations in it mean."""

    def __init__(self) -> None:
        self.texts = Pool()
        self.files = Pool()
        self.types = Pool()
        self.operations: dict[str, str] = {}
        """Operation -> the first sentences of its docstring."""
        self._types: dict[Attribute, int] = {}

    def type(self, attribute: Attribute) -> int:
        """The place of a type's text."""
        found = self._types.get(attribute)
        if found is None:
            found = self._types[attribute] = self.types.place(str(attribute))
        return found

    def describe(self, op: Operation) -> None:
        """Note what an operation means."""
        if op.name not in self.operations:
            self.operations[op.name] = " ".join((type(op).__doc__ or "").strip().partition("\n\n")[0].split())

    def sources(self) -> list[dict[str, Any]]:
        """The files that origins name, each with its text where that can be read."""
        return [{"file": file, "text": self.texts.place(_read(file))} for file in self.files.items]


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):  # a line of an interactive session, a file that has gone
        return ""


class Origins:
    """The origins of one graph: what links its levels."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.pool = Pool()
        self._known: dict[Attribute, list[int]] = {}
        self.named: dict[str, list[int]] = {}
        """Name -> its origins."""

    def of(self, location: Attribute) -> list[int]:
        """The origins that a location names."""
        found = self._known.get(location)
        if found is None:
            found = self._known[location] = [self.place(*one) for one in dict.fromkeys(origins(location))]
        return found

    def place(self, name: str, file: str, line: int) -> int:
        """The number of an origin."""
        found = self.pool.place((name, self.tables.files.place(file) if file else -1, line))
        if name and found not in (known := self.named.setdefault(name, [])):
            known.append(found)
        return found

    def data(self, levels: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Every origin, with the operations of each level that have it."""
        found: list[dict[str, Any]] = []
        for name, file, line in self.pool.items:
            found.append({"name": name, "file": file if file >= 0 else None, "line": line, "operations": {}})
        for level in levels:
            for number, op in enumerate(level["operations"]):
                for k in op.get("at", ()):
                    found[k]["operations"].setdefault(level["name"], []).append(number)
        return found
