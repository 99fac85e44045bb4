"""What may stand at the cursor."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from . import catalog
from .analysis import Analysis

_RUN = re.compile(r"^\s*//\s*RUN:.*?([\w-]*)$")
_PIPELINE_STRING = re.compile(r'pipeline\s*[:=]\s*"[^"]*?([\w-]*)$')
_OPTION = re.compile(r"([\w-]+)\{[^{}]*?([\w-]*)$")
_OPERATION = re.compile(r'^\s*(?:%[\w$.:, %-]+=\s*)?"?([\w.]*)$')
_PROPERTY = re.compile(r'(?:^|[\s="])([a-z_]\w*\.[\w.]+)"?[^\n]*[{,]\s*(\w*)$')
_SIGIL = re.compile(r"([%@!#])[\w$.]*$")


class Completion(NamedTuple):
    """A text that takes the place of what stands from `start` to the cursor; `kind` says what it is."""

    label: str
    kind: str
    start: int
    detail: str = ""


def complete(found: Analysis, offset: int) -> list[Completion]:
    """What may stand at a place and begins as what stands there. In comments only RUN lines are completed."""
    before = found.line(offset)[: found.line_and_column(offset)[1]]
    if match := _RUN.match(before) or _PIPELINE_STRING.search(before):
        return _in_pipeline(before, offset, match[1])
    if "//" in before:
        return []
    if match := _SIGIL.search(before):
        return _begins(_SIGILS[match[1]](found, offset), match[0], offset)
    if match := _OPERATION.match(before):
        return _operations(match[1], offset)
    return _properties(before, offset)


def _begins(options: Iterable[tuple[str, str, str]], prefix: str, offset: int) -> list[Completion]:
    """Completions of (label, kind, detail)."""
    return [Completion(label, kind, offset - len(prefix), detail) for label, kind, detail in options if label.startswith(prefix)]


def _in_pipeline(before: str, offset: int, prefix: str) -> list[Completion]:
    if prefix.startswith("-"):
        return _begins(((flag, "flag", text) for flag, text in catalog.flags().items()), prefix, offset)
    if (match := _OPTION.search(before)) is not None:
        return _begins(((name, "option", kind) for name, kind in catalog.pass_options(match[1])), match[2], offset)
    return _begins(((name, "pass", "") for name in catalog.pass_names()), prefix, offset)


def _operations(prefix: str, offset: int) -> list[Completion]:
    dialect, dot, _ = prefix.partition(".")
    names = catalog.operation_names(dialect if dot else None)
    return _begins(((name, "dialect" if name.endswith(".") else "operation", _summary(name)) for name in names), prefix, offset)


def _summary(name: str) -> str:
    cls = None if name.endswith(".") else catalog.operation_class(name)
    return catalog.summary(cls) if cls is not None else ""


def _properties(before: str, offset: int) -> list[Completion]:
    """The properties of the last operation of the line, where a brace behind it is open."""
    match = _PROPERTY.search(before)
    if match is None or before[match.start(1) :].count("{") <= before[match.start(1) :].count("}"):
        return []
    cls = catalog.operation_class(match[1])
    return _begins(((name, "property", match[1]) for name in catalog.properties(cls)), match[2], offset) if cls is not None else []


def _values(found: Analysis, offset: int) -> Iterable[tuple[str, str, str]]:
    """Values that are defined before the place, in the same function."""
    part = found.part(offset)
    if part is None:
        return []
    top = next((e for e in part.entries if e.start <= offset <= e.end), None)
    if top is None:
        return []
    known = {f"%{b.name}": str(b.values[0].type) for b in part.bindings if top.start <= b.defined.start < offset and b.values}
    return [(name, "value", type) for name, type in known.items()]


def _symbols(found: Analysis, offset: int) -> Iterable[tuple[str, str, str]]:
    texts = {w.text for w in found.words if w.kind == "symbol" and w.end != offset}
    return [(text, "symbol", "") for text in sorted(texts)]


def _attributes(found: Analysis, offset: int) -> Iterable[tuple[str, str, str]]:
    own = {w.text for w in found.words if w.kind == "alias" and w.end != offset and found.line(w.start).startswith(w.text)}
    ours = [(name, "type", catalog.summary(cls)) for name, cls in catalog.our_attributes().items()]
    return [*((name, "type", "") for name in sorted(own)), *ours]


_SIGILS = {"%": _values, "@": _symbols, "!": _attributes, "#": _attributes}
