"""Records as JSON and back. What is read is checked against the annotations: nothing is taken that does not fit.

A record is a class below Record, or a dataclass."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from ...dialects.support.record import Record
from .errors import PackageError

T = TypeVar("T")
_PLAIN = (bool, int, float, str)


def is_record(value: Any) -> bool:
    """Whether a value is a record, or a class of them."""
    return is_dataclass(value) or issubclass(value if isinstance(value, type) else type(value), Record)


def _defaults(cls: Any) -> dict[str, Any]:
    """The fields of a record that have defaults."""
    if not is_dataclass(cls):
        return {name: getattr(cls, name) for name in cls.record_fields if hasattr(cls, name)}
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
        return _reader(wanted)(value, newer)
    except _MisfitError as error:
        raise PackageError(f"{where}{error.place}{error.text}") from None
    except (ValueError, RecursionError) as error:
        raise PackageError(f"{where} is no JSON: {error}") from None


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is no number")


class _MisfitError(Exception):
    """A value that does not fit its annotation: the text of the message behind its place, which whoever holds the value writes in front."""

    def __init__(self, text: str):
        super().__init__(text)
        self.text = text
        self.place = ""


Reader = Callable[[Any, bool], Any]
"""Makes of a value of JSON what an annotation says; the flag is the `newer` of `load`. _MisfitError."""


@cache
def _reader(wanted: Any) -> Reader:
    """What reads values of a record or of an annotation."""
    if wanted is Any:
        return lambda value, newer: value
    if isinstance(wanted, type) and is_record(wanted):
        return _record_reader(wanted)
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin in (Union, types.UnionType):
        return _union_reader(arguments)
    if origin is Literal:
        return _plain_reader(lambda value: isinstance(value, str) and value in arguments, " or ".join(map(repr, arguments)))
    if origin is tuple:
        return _list_reader(arguments[0]) if arguments[-1] is Ellipsis else _tuple_reader(arguments)
    if origin is not None:
        return _mapping_reader(arguments[1])
    return _plain_reader(lambda value: _fits(wanted, value), getattr(wanted, "__name__", str(wanted)))


def _plain_reader(fits: Callable[[Any], bool], name: str) -> Reader:
    def read(value: Any, newer: bool) -> Any:
        return value if fits(value) else _wrong(name, value)

    return read


def _fits(wanted: Any, value: Any) -> bool:
    if wanted is None or wanted is type(None):
        return value is None
    return type(value) is wanted and wanted in _PLAIN


def _list_reader(wanted: Any) -> Reader:
    """Reads tuples of any length."""
    one = _reader(wanted)

    def read(value: Any, newer: bool) -> Any:
        if not isinstance(value, list):
            return _wrong("a list", value)
        if wanted in _PLAIN and all(type(item) is wanted for item in value):
            return tuple(value)
        found: list[Any] = []
        try:
            for item in value:
                found.append(one(item, newer))  # noqa: PERF401 - its length is the place of the item that does not fit
        except _MisfitError as error:
            error.place = f"[{len(found)}]{error.place}"
            raise
        return tuple(found)

    return read


def _tuple_reader(wanted: tuple[Any, ...]) -> Reader:
    readers = [_reader(one) for one in wanted]

    def read(value: Any, newer: bool) -> Any:
        if not isinstance(value, list) or len(value) != len(readers):
            return _wrong(f"a list of {len(readers)}" if isinstance(value, list) else "a list", value)
        return tuple(_part(one, item, newer, f"[{k}]") for k, (one, item) in enumerate(zip(readers, value, strict=True)))

    return read


def _mapping_reader(wanted: Any) -> Reader:
    """Reads objects with any keys."""
    one = _reader(wanted)

    def read(value: Any, newer: bool) -> Any:
        if not isinstance(value, dict):
            return _wrong("an object", value)
        return {key: _part(one, item, newer, f".{key}") for key, item in value.items()}

    return read


def _part(one: Reader, item: Any, newer: bool, place: str) -> Any:
    """A part of a value, which misfits name by its place."""
    try:
        return one(item, newer)
    except _MisfitError as error:
        error.place = place + error.place
        raise


def _union_reader(wanted: tuple[Any, ...]) -> Reader:
    plain = [one for one in wanted if one in (*_PLAIN, type(None))]
    others = [(_is_object(one), _reader(one)) for one in wanted if one not in plain]
    name = " or ".join(getattr(one, "__name__", str(one)) for one in wanted)

    def read(value: Any, newer: bool) -> Any:
        if any(_fits(one, value) for one in plain):
            return value
        for is_object, one in others:
            if is_object == isinstance(value, dict) and value is not None:
                return one(value, newer)
        return _wrong(name, value)

    return read


def _is_object(wanted: Any) -> bool:
    """Whether JSON has an object for values of an annotation, not a list."""
    return (isinstance(wanted, type) and is_record(wanted)) or get_origin(wanted) not in (None, tuple)


def _record_reader(wanted: Any) -> Reader:
    readers: dict[str, Reader] = {}
    needed: list[str] = []

    def read(value: Any, newer: bool) -> Any:
        if not isinstance(value, dict):
            return _wrong("an object", value)
        if not readers:  # a record may be among its own fields
            known, scope = _defaults(wanted), vars(sys.modules[wanted.__module__])
            readers.update({name: _reader(_annotation(text, scope)) for name, text in wanted.__annotations__.items()})
            needed.extend(name for name in readers if name not in known)
        unknown = value.keys() - readers.keys()
        if unknown and not newer:
            raise _MisfitError(f" has unknown fields: {', '.join(sorted(unknown))}")
        given = {name: _part(readers[name], item, newer, f".{name}") for name, item in value.items() if name in readers}
        if missing := [name for name in needed if name not in given]:
            raise _MisfitError(f" lacks {', '.join(missing)}")
        return wanted(**given)

    return read


def _annotation(text: Any, scope: dict[str, Any]) -> Any:
    """What an annotation means in its module; `get_type_hints` takes a third of the time of a load."""
    return eval(text, scope) if isinstance(text, str) else text


def _wrong(wanted: str, value: Any) -> Any:
    raise _MisfitError(f" should be {wanted}, and is {_shown(value)}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
