"""How an option is declared: once, as a field of Options, whose annotation is its type and whose docstring its document.

    numerics: str = option("default", choices=("default", "eager"))
    \"\"\"What it means.\"\"\"

From that follow the check of a value, the variable of the environment, the key of the cache and the table of docs/reference/options.md."""

from __future__ import annotations

import difflib
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

from ...errors import UserError

_DECLARED = "stepwell"


class OptionError(UserError):
    """An unknown mode or option, or a value of the wrong type."""


class Effect(Enum):
    """What an option changes, as far as caches are concerned. Its text is that of the page of options."""

    KEYED = "part of the key"
    """Another value makes another program."""
    CODE = "part of the key by what its code does"
    """Code of the user's that is part of the compiler, see extensions/cache_keys.py."""
    UNTRACED = "traced in each process"
    """Acts before a graph has its key, or around its program: compiled graphs are kept, traces are not."""
    OUTSIDE = "not in the key"
    """Acts when a graph is compiled or called, not on what is kept of it."""
    UNKEPT = "nothing is kept"
    """What it names is found in this process alone."""
    SHOWN = "always compiles"
    """Changes nothing that is made: it shows the making."""
    QUIET = "not in the key; how the cache is used"
    """Changes nothing that is made."""


class Variable(Enum):
    """What STEPWELL_<OPTION> does."""

    SETS = "sets it, where it is a word or yes or no"
    READ_ELSEWHERE = "holds for the whole process, and is read where it is used"
    NONE = "nothing"


@dataclass(frozen=True)
class Declared:
    """What `option` says of a field.

    choices: the values that it takes, None for any of its type; words: what its variable takes, where that is known later; check: called
    with name and value, raises OptionError."""

    effect: Effect
    choices: tuple[str, ...] | None
    words: Callable[[], Iterable[str]] | None
    check: Callable[[str, Any], None] | None
    variable: Variable


def option(
    default: Any,
    *,
    effect: Effect = Effect.KEYED,
    choices: tuple[str, ...] | None = None,
    words: Callable[[], Iterable[str]] | None = None,
    check: Callable[[str, Any], None] | None = None,
    variable: Variable = Variable.SETS,
) -> Any:
    """A field of Options. A dict as default is made anew for each."""
    metadata = {_DECLARED: Declared(effect, choices, words, check, variable)}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def declared(cls: type) -> dict[str, Declared]:
    """The declarations of a class of options, by name."""
    return {f.name: f.metadata[_DECLARED] for f in fields(cls)}


def types_of(cls: type) -> dict[str, tuple[type, ...]]:
    """The types of values that each option takes, from its annotation: a sequence is a list or a tuple, not a string."""
    return {name: tuple(_runtime_types(hint)) for name, hint in get_type_hints(cls).items()}


def _runtime_types(hint: Any) -> list[Any]:
    if get_origin(hint) in (Union, types.UnionType):
        return [t for part in get_args(hint) for t in _runtime_types(part)]
    plain = get_origin(hint) or hint
    return [list, tuple] if plain is Sequence else [plain]


def names_of(kinds: Sequence[type]) -> str:
    """Types in messages: `str or None`."""
    return " or ".join(t.__name__ for t in kinds).replace("NoneType", "None")


def near(name: Any, known: Iterable[Any], listed: bool = False) -> str:
    """The end of a message about a name that is not `known`: names like it, else all of them, unless the message has `listed` them."""
    known = list(known)
    found = difflib.get_close_matches(str(name), known, n=2, cutoff=0.5)
    if not found:
        return "" if listed else f"; known: {', '.join(known)}"
    return f"; did you mean {' or '.join(repr(f) for f in found)}?"
