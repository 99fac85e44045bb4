"""What is said about the word under the cursor, in Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import FixedBitwidthType
from xdsl.ir import Attribute, Block, SSAValue

from ...passes.manager.locations import source_location
from . import catalog
from .analysis import Analysis
from .navigation import definition, uses
from .recorder import Binding, Place
from .words import Word

_UNITS = ("bytes", "KiB", "MiB", "GiB")
_RUN = re.compile(r"\s*//\s*RUN:")


def hover(found: Analysis, offset: int) -> tuple[str, Place] | None:
    """What there is to say about a place, and the word that it is about."""
    word = found.word(offset)
    if word is None:
        return None
    if word.kind in ("comment", "string"):
        return _in_run_line(found, word, offset)
    about = _ABOUT.get(word.kind)
    text = about(found, word) if about is not None else None
    return (text, Place(word.start, word.end)) if text else None


def _in_run_line(found: Analysis, word: Word, offset: int) -> tuple[str, Place] | None:
    """Passes and flags in a RUN line, and passes in a pipeline that stands in a string."""
    if word.kind == "comment" and not _RUN.match(word.text):
        return None
    part = next((m for m in re.finditer(r"[\w-]+", word.text) if word.start + m.start() <= offset <= word.start + m.end()), None)
    if part is None:
        return None
    flag = catalog.flags().get(part[0]) if word.kind == "comment" else None
    text = f"`{part[0]}`: {flag}" if flag else catalog.about_pass(part[0])
    return (text, Place(word.start + part.start(), word.start + part.end())) if text else None


def _name(found: Analysis, word: Word) -> str | None:
    """An operation, by its whole name or as it is written inside of its dialect."""
    entry = found.entry(word.start)
    op = entry.op if entry is not None and word.start == entry.name.start else None
    if entry is None or op is None:
        cls = catalog.operation_class(word.text)
        return catalog.about_operation(cls) if cls is not None else None
    origin = source_location(op.location) if "loc(" in found.text[entry.start : entry.end] else None
    return catalog.about_operation(type(op)) + (f"\n\nFrom {origin}" if origin is not None else "")


def _value(found: Analysis, word: Word) -> str | None:
    bound = found.binding(word.start)
    if bound is None:
        return None
    rows = [f"{word.text}{_index(bound, k)} : {value.type}" for k, value in enumerate(bound.values)]
    line = found.line_and_column(bound.defined.start)[0] + 1
    said = [f"```mlir\n{chr(10).join(rows)}\n```", *_sizes(bound.values)]
    said.append(f"{_origin(bound.values[0])}, line {line}; {len(bound.uses)} use{'' if len(bound.uses) == 1 else 's'}")
    return "\n\n".join(said)


def _index(bound: Binding, k: int) -> str:
    return f"#{k}" if len(bound.values) > 1 else ""


def _origin(value: SSAValue) -> str:
    owner = value.owner
    if not isinstance(owner, Block):
        return f"Result of `{owner.name}`"
    parent = owner.parent_op()
    return f"Argument of `{parent.name}`" if parent is not None else "Argument of a block"


def _sizes(values: Sequence[SSAValue]) -> list[str]:
    return list(dict.fromkeys(text for value in values if (text := size_text(value.type))))


def size_text(type: Attribute) -> str:
    """Elements and bytes of a type with sizes; empty for others."""
    dims = getattr(type, "dims", None)
    element = getattr(type, "element_type", None)
    if dims is None or element is None:
        return ""
    sizes = [str(d) for d in dims]
    shape = " x ".join(sizes) or "one"
    if not all(size.isdigit() for size in sizes) or not isinstance(element, FixedBitwidthType):
        return f"{shape} elements of {element}"
    return f"{shape} elements of {element}, {bytes_text(-(-prod(map(int, sizes)) * element.bitwidth // 8))}"


def bytes_text(count: int) -> str:
    """A number of bytes in the largest unit of which there is one at least."""
    power = min(len(_UNITS) - 1, (max(count, 1).bit_length() - 1) // 10)
    return f"{count / 1024**power:.4g} {_UNITS[power]}"


def _symbol(found: Analysis, word: Word) -> str | None:
    place = definition(found, word.start)
    if place is None:
        return None
    count = len(uses(found, word.start))
    line = found.line(place.start).strip()
    return f"```mlir\n{line}\n```\n\nLine {found.line_and_column(place.start)[0] + 1}; {count} use{'' if count == 1 else 's'}"


def _alias(found: Analysis, word: Word) -> str | None:
    place = definition(found, word.start)
    return f"```mlir\n{found.line(place.start)}\n```" if place is not None else catalog.about_attribute(word.text)


_ABOUT = {"name": _name, "value": _value, "symbol": _symbol, "alias": _alias}
