"""A parser that keeps where operations stand, and where values are defined and used, as far as it comes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from xdsl.context import Context
from xdsl.ir import Block, Operation, SSAValue
from xdsl.parser.core import UnresolvedOperand
from xdsl.utils.lexer import Span
from xdsl.utils.mlir_lexer import MLIRTokenKind

from ..ir_parser import IRParser


class Place(NamedTuple):
    """Characters of the text, from `start` to before `end`."""

    start: int
    end: int


_SPACE = re.compile(r"\s*")
_NAME = re.compile(r'"?[\w$.]*"?')


@dataclass
class Binding:
    """One name of values (`%x`, or `%x:2` for several), or of a block: where it is defined, and its uses in the order of the text."""

    name: str
    defined: Place
    values: tuple[SSAValue, ...]
    uses: list[Place] = field(default_factory=list)


@dataclass
class Entry:
    """An operation in the text: `start` is where it begins, results included, `name` where its name stands.

    Of one that could not be read to its end `op` is None, and `end` is where the parser stopped."""

    name: Place
    start: int
    end: int = 0
    op: Operation | None = None
    inner: list[Entry] = field(default_factory=list)

    def walk(self) -> Iterator[Entry]:
        """It and those inside of it."""
        yield self
        for entry in self.inner:
            yield from entry.walk()


class RecordingParser(IRParser):
    """`entries` and `bindings` hold what was read so far, after an error too."""

    def __init__(self, ctx: Context, text: str, name: str) -> None:
        super().__init__(ctx, text, name)
        self.entries: list[Entry] = []
        self.bindings: list[Binding] = []
        self._open: list[Entry] = []
        self._bound: dict[SSAValue, Binding] = {}
        self._labels: dict[Block, Binding] = {}
        self._forward: dict[SSAValue, list[Place]] = {}

    def parse_operation(self) -> Operation:
        start = name = self._current_token.span.start
        if self._current_token.kind == MLIRTokenKind.PERCENT_IDENT:
            name = _SPACE.match(self._text, self._text.find("=", start) + 1).end()  # pyright: ignore[reportOptionalMemberAccess]
        entry = Entry(Place(name, _NAME.match(self._text, name).end()), start, len(self._text))  # pyright: ignore[reportOptionalMemberAccess]
        (self._open[-1].inner if self._open else self.entries).append(entry)
        self._open.append(entry)
        entry.op = super().parse_operation()
        entry.end = self.pos
        while self._text[entry.end - 1].isspace():
            entry.end -= 1
        self._open.pop()
        return entry.op

    def resolve_operand(self, operand: UnresolvedOperand, type: Any) -> Any:
        value = super().resolve_operand(operand, type)
        self._use(value, operand.span)
        return value

    def _parse_optional_operand_without_type(self) -> SSAValue | None:
        span = self._current_token.span
        value = super()._parse_optional_operand_without_type()
        if value is not None:
            self._use(value, span)
        return value

    def _use(self, value: SSAValue, span: Span) -> None:
        bound = self._bound.get(value)
        uses = self._forward.setdefault(value, []) if bound is None else bound.uses
        if (place := Place(span.start, span.end)) not in uses[-1:]:
            uses.append(place)

    def _parse_block(self) -> Block:
        span = self._current_token.span
        try:
            return super()._parse_block()
        finally:  # a mistake in the block leaves its label where it is
            if (known := self.blocks.get(span.text[1:])) is not None:
                self._label(known[0], span).defined = Place(span.start, span.end)

    def parse_optional_successor(self) -> Block | None:
        span = self._current_token.span
        block = super().parse_optional_successor()
        if block is not None:
            self._label(block, span).uses.append(Place(span.start, span.end))
        return block

    def _label(self, block: Block, span: Span) -> Binding:
        """The name of a block; its first use counts as its definition until that is read."""
        if (bound := self._labels.get(block)) is None:
            bound = self._labels[block] = Binding(span.text[1:], Place(span.start, span.end), ())
            self.bindings.append(bound)
        return bound

    def _register_ssa_definition(self, name: str, values: Sequence[SSAValue], span: Span) -> None:
        waiting = [*self.forward_ssa_references.get(name, {}).values()]
        super()._register_ssa_definition(name, values, span)
        bound = Binding(name, Place(span.start, span.end), tuple(values))
        self.bindings.append(bound)
        self._bound.update(dict.fromkeys(values, bound))
        bound.uses = sorted(place for value in waiting for place in self._forward.pop(value, ()))
