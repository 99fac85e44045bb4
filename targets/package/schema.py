"""Dataclasses as JSON and back. What is read is checked against the annotations: nothing is taken that does not fit."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import PackageError

T = TypeVar("T")
_PLAIN = (bool, int, float, str)


def to_json(value: Any) -> Any:
    """A dataclass, tuple, mapping or plain value as what `json` writes; fields that hold their default are left out."""
    if is_dataclass(value):
        return {f.name: to_json(getattr(value, f.name)) for f in fields(value) if not _is_default(f, getattr(value, f.name))}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    return value


def _is_default(one: Any, value: Any) -> bool:
    default = one.default_factory() if one.default_factory is not MISSING else one.default
    return default is not MISSING and type(default) is type(value) and default == value


def dump(value: Any) -> bytes:
    """The text of a dataclass: the same for the same value."""
    return json.dumps(to_json(value), sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode()


def load(wanted: type[T], data: bytes | memoryview, where: str) -> T:
    """The dataclass that a text holds. PackageError names `where` and the field that does not fit."""
    try:
        value = json.loads(bytes(data), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise PackageError(f"{where} is no JSON: {error}") from None
    return from_json(wanted, value, where)


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is no number")


def from_json(wanted: Any, value: Any, where: str) -> Any:
    """`value` as a `wanted`, which is a dataclass or an annotation of a field. PackageError."""
    if wanted is Any:
        return value
    if is_dataclass(wanted):
        return _record(wanted, value, where)
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin in (Union, types.UnionType):
        return _one_of(arguments, value, where)
    if origin is Literal:
        return value if value in arguments and isinstance(value, str) else _wrong(where, " or ".join(map(repr, arguments)), value)
    if origin is tuple:
        if not isinstance(value, list):
            return _wrong(where, "a list", value)
        if arguments[-1] is Ellipsis:
            return tuple(from_json(arguments[0], item, f"{where}[{k}]") for k, item in enumerate(value))
        if len(value) != len(arguments):
            return _wrong(where, f"a list of {len(arguments)}", value)
        return tuple(from_json(one, item, f"{where}[{k}]") for k, (one, item) in enumerate(zip(arguments, value, strict=True)))
    if origin is not None:  # a mapping with keys of text
        if not isinstance(value, dict):
            return _wrong(where, "an object", value)
        return {key: from_json(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    return value if _fits(wanted, value) else _wrong(where, getattr(wanted, "__name__", str(wanted)), value)


def _fits(wanted: Any, value: Any) -> bool:
    if wanted is None or wanted is type(None):
        return value is None
    return type(value) is wanted and wanted in _PLAIN


def _one_of(arguments: tuple[Any, ...], value: Any, where: str) -> Any:
    for one in arguments:
        if one in (*_PLAIN, type(None)):
            if _fits(one, value):
                return value
        elif (is_dataclass(one) or get_origin(one) not in (None, tuple)) == isinstance(value, dict) and value is not None:
            return from_json(one, value, where)
    return _wrong(where, " or ".join(getattr(one, "__name__", str(one)) for one in arguments), value)


@cache
def _hints(wanted: type) -> dict[str, Any]:
    return get_type_hints(wanted)


def _record(wanted: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        return _wrong(where, "an object", value)
    hints = _hints(wanted)
    unknown = value.keys() - hints.keys()
    if unknown:
        raise PackageError(f"{where} has unknown fields: {', '.join(sorted(unknown))}")
    given = {name: from_json(hints[name], item, f"{where}.{name}") for name, item in value.items()}
    missing = [f.name for f in fields(wanted) if f.name not in given and f.default is MISSING and f.default_factory is MISSING]
    if missing:
        raise PackageError(f"{where} lacks {', '.join(missing)}")
    return wanted(**given)


def _wrong(where: str, wanted: str, value: Any) -> Any:
    raise PackageError(f"{where} should be {wanted}, and is {_shown(value)}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
