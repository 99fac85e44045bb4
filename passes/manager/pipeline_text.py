"""The text of a pipeline: ``builtin.module(a,func.func(b{x=1 y=2,3}),c)``, read into a tree and printed from passes.

    pipeline ::= element (`,` element)*
    element  ::= name options? | anchor `(` pipeline? `)`
    options  ::= `{` (key (`=` value (`,` value)*)?)* `}`        separated by white space
    value    ::= "string" | {anything with balanced braces} | characters other than white space , = { } "

This module knows no pass: names are resolved by `passes.manager.pipelines`.  The MLIR counterpart is PassRegistry.cpp.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from xdsl.passes import ModulePass

from .errors import PipelineError, did_you_mean

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")
_SPACE = re.compile(r"\s*")
_BARE = re.compile(r"[^\s,={}\"]+")
_STRING = re.compile(r'"((?:\\.|[^"\\])*)"', re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


@dataclasses.dataclass(frozen=True)
class PipelineValue:
    """One value of an option: its text, whether it was quoted, and where it stands."""

    text: str
    quoted: bool
    start: int
    end: int


@dataclasses.dataclass(frozen=True)
class Option:
    """``key=value,value``; no values for a key alone."""

    key: str
    values: tuple[PipelineValue, ...]
    start: int
    end: int


@dataclasses.dataclass(frozen=True)
class Element:
    """A pass (with options) or, where `children` is not None, an anchor with the pipeline nested under it."""

    name: str
    start: int
    end: int
    options: tuple[Option, ...] = ()
    children: tuple[Element, ...] | None = None


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.pos = 0

    def fail(self, message: str, start: int | None = None, end: int | None = None) -> PipelineError:
        start = self.pos if start is None else start
        return PipelineError(message, self.text, start, start + 1 if end is None else end)

    def skip(self) -> None:
        match = _SPACE.match(self.text, self.pos)
        assert match is not None
        self.pos = match.end()

    def peek(self) -> str:
        return self.text[self.pos : self.pos + 1]

    def found(self) -> str:
        return f"'{self.peek()}'" if self.peek() else "the end of the text"

    def elements(self, closing: str) -> tuple[Element, ...]:
        out: list[Element] = []
        self.skip()
        if self.peek() == closing:
            return ()
        while True:
            self.skip()
            out.append(self.element())
            self.skip()
            if self.peek() != ",":
                return tuple(out)
            self.pos += 1

    def element(self) -> Element:
        match = _NAME.match(self.text, self.pos)
        if match is None:
            raise self.fail(f"expected the name of a pass, found {self.found()}")
        start, self.pos = self.pos, match.end()
        name = match[0]
        self.skip()
        match self.peek():
            case "(":
                opened = self.pos
                self.pos += 1
                children = self.elements(")")
                self.skip()
                if self.peek() != ")":
                    if self.peek():
                        raise self.fail(f"expected ',' or ')' here, found {self.found()}")
                    raise self.fail(f"'(' after '{name}' is never closed", opened)
                self.pos += 1
                return Element(name, start, start + len(name), children=children)
            case "{":
                return Element(name, start, start + len(name), options=self.options(name))
            case "[" if name == "mlir-opt":
                return Element(name, start, start + len(name), options=self.mlir_opt())
            case _:
                return Element(name, start, start + len(name))

    def options(self, name: str) -> tuple[Option, ...]:
        opened = self.pos
        self.pos += 1
        out: list[Option] = []
        while True:
            self.skip()
            if self.peek() == "}":
                self.pos += 1
                return tuple(out)
            if not self.peek():
                raise self.fail(f"'{{' after '{name}' is never closed", opened)
            match = _BARE.match(self.text, self.pos)
            if match is None:
                raise self.fail(f"expected the name of an option of '{name}', found {self.found()}")
            start, self.pos = self.pos, match.end()
            values: list[PipelineValue] = []
            if self.peek() == "=":
                self.pos += 1
                values.append(self.value(match[0]))
                while self.peek() == ",":
                    self.pos += 1
                    values.append(self.value(match[0]))
            elif self.peek() not in ("}", "") and not self.peek().isspace():
                raise self.fail(f"expected '=', white space or '}}' after option '{match[0]}', found {self.found()}")
            out.append(Option(match[0], tuple(values), start, match.end()))

    def value(self, key: str) -> PipelineValue:
        start = self.pos
        if match := _STRING.match(self.text, start):
            self.pos = match.end()
            text = _ESCAPE.sub(lambda m: _ESCAPES.get(m[1], m[1]), match[1])
            return PipelineValue(text, True, start, self.pos)
        if self.peek() == '"':
            raise self.fail("the string is never closed")
        if self.peek() == "{":
            depth = 0
            for at in range(start, len(self.text)):
                depth += {"{": 1, "}": -1}.get(self.text[at], 0)
                if depth == 0:
                    self.pos = at + 1
                    return PipelineValue(self.text[start + 1 : at], True, start, self.pos)
            raise self.fail("'{' is never closed")
        if match := _BARE.match(self.text, start):
            self.pos = match.end()
            return PipelineValue(match[0], False, start, self.pos)
        raise self.fail(f"expected a value for option '{key}', found {self.found()}")

    def mlir_opt(self) -> tuple[Option, ...]:
        """xDSL's ``mlir-opt[...]``: the passes between the brackets, run by the real mlir-opt."""
        start = self.pos
        end = self.text.find("]", start)
        if end < 0:
            raise self.fail("'[' after 'mlir-opt' is never closed")
        self.pos = end + 1
        arguments = (
            "--mlir-print-op-generic",
            "--allow-unregistered-dialect",
            "-p",
            f"builtin.module({self.text[start + 1 : end]})",
        )
        return (Option("arguments", tuple(PipelineValue(a, True, start, end) for a in arguments), start, end),)


def parse_text(text: str) -> tuple[Element, ...]:
    """The elements of `text`, the outermost ``builtin.module(...)`` included.  Raises PipelineError."""
    reader = _Reader(text)
    elements = reader.elements("")
    reader.skip()
    if reader.pos < len(text):
        raise reader.fail(f"expected ',' or the end of the text, found {reader.found()}")
    return elements


# From options as text to the typed fields of a pass.


@cache
def option_types(cls: type[ModulePass]) -> dict[str, Any]:
    """Option name (field name) -> type of the options of a pass, in order."""
    try:
        hints = get_type_hints(cls)
    except NameError:  # a class of a user's with types that only a type checker sees
        hints = {f.name: f.type for f in dataclasses.fields(cls)}
    return {f.name: hints[f.name] for f in dataclasses.fields(cls) if f.init and f.name != "name"}


def type_text(hint: Any) -> str:
    """How the type of an option is written in help and errors: ``int``, ``list of int``, ``"a" | "b"``."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return " or ".join(type_text(a) for a in get_args(hint) if a is not NoneType)
    if origin is Literal:
        return " | ".join(str(a) or '""' for a in get_args(hint))
    if origin in (tuple, list):
        return f"list of {type_text(get_args(hint)[0])}"
    return {str: "string", bool: "bool"}.get(hint, getattr(hint, "__name__", str(hint)))


def can_be_said(hint: Any) -> bool:
    """Whether text can say the values of an option of this type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return all(a is NoneType or can_be_said(a) for a in arguments)
    if origin in (tuple, list):
        kinds = {a for a in arguments if a is not Ellipsis}
        return len(kinds) == 1 and _is_scalar(*kinds)
    return _is_scalar(hint)


def _is_scalar(hint: Any) -> bool:
    return hint in (int, float, bool, str) or (get_origin(hint) is Literal and all(isinstance(a, (int, str)) for a in get_args(hint)))


def is_name(text: str) -> bool:
    """Whether text of pipelines can name a pass so."""
    return _NAME.fullmatch(text) is not None


class _NoMatch(Exception):
    pass


def _scalar(value: PipelineValue, hint: Any) -> Any:
    if hint is bool:
        if value.quoted or value.text.lower() not in ("true", "false", "0", "1"):
            raise _NoMatch
        return value.text.lower() in ("true", "1")
    if hint in (int, float):
        try:
            return int(value.text, 0) if hint is int else float(value.text)
        except ValueError:
            raise _NoMatch from None
    if hint is str:
        return value.text
    if get_origin(hint) is Literal:
        for choice in get_args(hint):
            if str(choice) == value.text:
                return choice
    raise _NoMatch


def _convert(values: tuple[PipelineValue, ...], hint: Any) -> Any:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        choices = get_args(hint)
        if not values and NoneType in choices:
            return None
        for choice in choices:
            if choice is not NoneType:
                try:
                    return _convert(values, choice)
                except _NoMatch:
                    continue
        raise _NoMatch
    if origin in (tuple, list):
        return origin(_scalar(v, get_args(hint)[0]) for v in values)
    if not values and hint is bool:
        return True
    if len(values) != 1:
        raise _NoMatch
    return _scalar(values[0], hint)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return dataclasses.MISSING


def build_pass(cls: type[ModulePass], element: Element, text: str) -> ModulePass:
    """An instance of `cls` with the options of `element`.

    Raises PipelineError for an option that the pass has not, one given twice, a value of the wrong type, and a
    required option that is missing.
    """
    types = option_types(cls)
    given: dict[str, Any] = {}
    for option in element.options:
        name = option.key.replace("-", "_")
        if name not in types:
            known = [t.replace("_", "-") for t in types]
            hint = did_you_mean(option.key, known)
            if not hint:
                hint = f"; its options are: {', '.join(known)}" if known else "; it has none"
            raise PipelineError(f"pass '{element.name}' has no option '{option.key}'{hint}", text, option.start, option.end)
        if name in given:
            raise PipelineError(f"option '{option.key}' of pass '{element.name}' is given twice", text, option.start, option.end)
        try:
            given[name] = _convert(option.values, types[name])
        except _NoMatch:
            got = ",".join(v.text for v in option.values)
            start, end = option.start, option.end
            if option.values:
                start, end = option.values[0].start, option.values[-1].end
            raise PipelineError(
                f"option '{option.key}' of pass '{element.name}' takes {type_text(types[name])}, "
                + (f"not '{got}'" if option.values else "and needs a value"),
                text,
                start,
                end,
            ) from None
    for field in dataclasses.fields(cls):
        if field.name in given or field.name not in types or _default(field) is not dataclasses.MISSING:
            continue
        if NoneType in get_args(types[field.name]):
            given[field.name] = None  # xDSL's rule: an option that may be absent needs no default
            continue
        key = field.name.replace("_", "-")
        raise PipelineError(f"pass '{element.name}' needs option '{key}'", text, element.start, element.end)
    try:
        return cls(**given)
    except (TypeError, ValueError) as error:
        raise PipelineError(f"pass '{element.name}': {error}", text, element.start, element.end) from error


# From passes to text.


def _value_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        if _BARE.fullmatch(value):
            return value
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    return str(value)


def pass_text(p: ModulePass, *, defaults: bool = False) -> str:
    """``name{option=value ...}``; options at their default are left out unless `defaults`."""
    parts: list[str] = []
    types = option_types(type(p))
    for field in dataclasses.fields(p):
        if field.name not in types:
            continue
        value = getattr(p, field.name)
        default = _default(field)
        if not defaults and (value == default or (default is dataclasses.MISSING and value is None)):
            continue
        key = field.name.replace("_", "-")
        if value is None or value == () or value == []:
            if value is None and defaults:
                continue
            parts.append(key)
        elif isinstance(value, (tuple, list)):
            parts.append(f"{key}={','.join(map(_value_text, value))}")
        else:
            parts.append(f"{key}={_value_text(value)}")
    return f"{p.name}{{{' '.join(parts)}}}" if parts else p.name


def option_lines(cls: type[ModulePass]) -> Iterable[tuple[str, str, str]]:
    """(name, type, default or ``required``) of each option of a pass, for help."""
    types = option_types(cls)
    for field in dataclasses.fields(cls):
        if field.name not in types:
            continue
        default = _default(field)
        if default is dataclasses.MISSING:
            shown = "optional" if NoneType in get_args(types[field.name]) else "required"
        elif default is None:
            shown = "optional"
        elif isinstance(default, (tuple, list)):
            shown = "default: " + (",".join(map(_value_text, default)) or "empty")
        else:
            shown = f"default: {_value_text(default)}"
        yield field.name.replace("_", "-"), type_text(types[field.name]), shown
