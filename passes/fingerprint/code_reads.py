"""What the code of a function reads: globals, attributes, modules that it imports."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType

_GLOBALS = frozenset(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"))
_ATTRIBUTES = frozenset(("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"))
_SETS = frozenset(("STORE_GLOBAL", "DELETE_GLOBAL"))


@dataclass(frozen=True)
class Reads:
    """names: globals, each with whether it is used by itself (and not only attributes of it); attributes: the names of all attributes that
    are read; imports: modules, with a dot for each level where they are relative, and the names that are taken from each; written: globals
    that are set."""

    names: tuple[tuple[str, bool], ...]
    attributes: tuple[str, ...]
    imports: tuple[tuple[str, tuple[str, ...]], ...]
    written: tuple[str, ...]


@lru_cache(4096)
def reads(code: CodeType) -> Reads:
    """What a function's code reads, with the functions and classes inside of it."""
    names: dict[str, bool] = {}
    attributes: set[str] = set()
    imports: set[tuple[str, tuple[str, ...]]] = set()
    written: set[str] = set()
    for part in _codes(code):
        shown = [i for i in dis.get_instructions(part) if i.opname != "EXTENDED_ARG"]
        for k, instruction in enumerate(shown):
            name = instruction.argval
            if instruction.opname in _GLOBALS:
                after = shown[k + 1].opname if k + 1 < len(shown) else ""
                names[name] = names.get(name, False) or after not in _ATTRIBUTES
            elif instruction.opname in _ATTRIBUTES:
                attributes.add(name)
            elif instruction.opname == "IMPORT_NAME":
                level, taken = shown[k - 2].argval, shown[k - 1].argval  # pushed before
                imports.add(("." * level + name, taken or ()))
            elif instruction.opname in _SETS:
                written.add(name)
    return Reads(tuple(sorted(names.items())), tuple(sorted(attributes)), tuple(sorted(imports)), tuple(sorted(written)))


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
