"""Records as JSON and back. What is read is checked against the annotations: nothing is taken that does not fit.

A record is a dataclass, or a class below Record, which is made in a tenth of the time: programs begin by making all of these classes."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

from .errors import PackageError

T = TypeVar("T")
R = TypeVar("R", bound="Record")
_PLAIN = (bool, int, float, str)


@dataclass_transform(frozen_default=True)
class Record:
    """A class whose annotations are its fields, in the order of its arguments, and whose attributes are their defaults. Its objects are not
    changed."""

    def __init__(self, *values: Any, **named: Any):
        cls, names = type(self), names_of(type(self))
        given = dict(zip(names, values, strict=False))
        if len(values) > len(names) or given.keys() & named.keys() or named.keys() - set(names):
            raise TypeError(f"{cls.__name__} takes {', '.join(names)}")
        given.update(named)
        for name in names:
            if name not in given:
                try:
                    given[name] = getattr(cls, name)
                except AttributeError:
                    raise TypeError(f"{cls.__name__} lacks {name}") from None
        self.__dict__.update(given)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


def changed(record: R, **values: Any) -> R:
    """A record with other values of some fields."""
    return type(record)(**{**vars(record), **values})


def names_of(cls: type) -> list[str]:
    """The fields of a record."""
    return list(cls.__annotations__)


def is_record(value: Any) -> bool:
    """Whether a value is a record, or a class of them."""
    return is_dataclass(value) or issubclass(value if isinstance(value, type) else type(value), Record)


def _defaults(cls: type) -> dict[str, Any]:
    """The fields of a record that have defaults."""
    if not is_dataclass(cls):
        return {name: getattr(cls, name) for name in names_of(cls) if hasattr(cls, name)}
    found = {f.name: f.default_factory() if f.default_factory is not MISSING else f.default for f in fields(cls)}
    return {name: value for name, value in found.items() if value is not MISSING}


def to_json(value: Any) -> Any:
    """A record, tuple, mapping or plain value as what `json` writes; fields that hold their default are left out."""
    if is_record(value):
        defaults = _defaults(type(value))
        return {name: to_json(one) for name, one in vars(value).items() if not _is_default(name, one, defaults)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    return value


def _is_default(name: str, value: Any, defaults: Mapping[str, Any]) -> bool:
    return name in defaults and type(defaults[name]) is type(value) and defaults[name] == value


def dump(value: Any) -> bytes:
    """The text of a record: the same for the same value."""
    return json.dumps(to_json(value), sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode()


def load(wanted: type[T], data: bytes | memoryview, where: str, newer: bool = False) -> T:
    """The record that a text holds. PackageError names `where` and the field that does not fit. `newer`: a later release may have written
    it, and fields that are not known are left out."""
    try:
        value = json.loads(bytes(data), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise PackageError(f"{where} is no JSON: {error}") from None
    return from_json(wanted, value, where, newer)


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is no number")


def from_json(wanted: Any, value: Any, where: str, newer: bool = False) -> Any:
    """`value` as a `wanted`, which is a record or an annotation of a field; `newer` as of `load`. PackageError."""
    if wanted is Any:
        return value
    if isinstance(wanted, type) and is_record(wanted):
        return _record(wanted, value, where, newer)
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin in (Union, types.UnionType):
        return _one_of(arguments, value, where, newer)
    if origin is Literal:
        return value if value in arguments and isinstance(value, str) else _wrong(where, " or ".join(map(repr, arguments)), value)
    if origin is tuple:
        if not isinstance(value, list):
            return _wrong(where, "a list", value)
        if arguments[-1] is Ellipsis:
            return tuple(from_json(arguments[0], item, f"{where}[{k}]", newer) for k, item in enumerate(value))
        if len(value) != len(arguments):
            return _wrong(where, f"a list of {len(arguments)}", value)
        return tuple(from_json(one, item, f"{where}[{k}]", newer) for k, (one, item) in enumerate(zip(arguments, value, strict=True)))
    if origin is not None:  # a mapping with keys of text
        if not isinstance(value, dict):
            return _wrong(where, "an object", value)
        return {key: from_json(arguments[1], item, f"{where}.{key}", newer) for key, item in value.items()}
    return value if _fits(wanted, value) else _wrong(where, getattr(wanted, "__name__", str(wanted)), value)


def _fits(wanted: Any, value: Any) -> bool:
    if wanted is None or wanted is type(None):
        return value is None
    return type(value) is wanted and wanted in _PLAIN


def _one_of(arguments: tuple[Any, ...], value: Any, where: str, newer: bool) -> Any:
    for one in arguments:
        if one in (*_PLAIN, type(None)):
            if _fits(one, value):
                return value
        elif _is_object(one) == isinstance(value, dict) and value is not None:
            return from_json(one, value, where, newer)
    return _wrong(where, " or ".join(getattr(one, "__name__", str(one)) for one in arguments), value)


def _is_object(wanted: Any) -> bool:
    """Whether JSON has an object for values of an annotation, not a list."""
    return (isinstance(wanted, type) and is_record(wanted)) or get_origin(wanted) not in (None, tuple)


@cache
def _hints(wanted: type) -> dict[str, Any]:
    return get_type_hints(wanted)


def _record(wanted: Any, value: Any, where: str, newer: bool) -> Any:
    if not isinstance(value, dict):
        return _wrong(where, "an object", value)
    hints = _hints(wanted)
    unknown = value.keys() - hints.keys()
    if unknown and not newer:
        raise PackageError(f"{where} has unknown fields: {', '.join(sorted(unknown))}")
    given = {name: from_json(hints[name], item, f"{where}.{name}", newer) for name, item in value.items() if name in hints}
    missing = [name for name in hints if name not in given and name not in _defaults(wanted)]
    if missing:
        raise PackageError(f"{where} lacks {', '.join(missing)}")
    return wanted(**given)


def _wrong(where: str, wanted: str, value: Any) -> Any:
    raise PackageError(f"{where} should be {wanted}, and is {_shown(value)}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
