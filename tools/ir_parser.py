"""Reading IR files: every operation keeps the line that it was read from, and every mistake has a position."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from xdsl.context import Context
from xdsl.dialects.builtin import (
    UNKNOWN_LOC,
    AnyFloat,
    FileLineColLoc,
    IntAttr,
    LocationAttr,
    ModuleOp,
    StringAttr,
    UnregisteredOp,
)
from xdsl.ir import Attribute, Block, Operation
from xdsl.parser import AttrParser, Parser, ParserState
from xdsl.utils.exceptions import (
    DiagnosticException,
    MultipleSpansParseError,
    ParseError,
    UnregisteredConstructException,
)
from xdsl.utils.lexer import Input
from xdsl.utils.mlir_lexer import MLIRLexer, MLIRTokenKind

from ..errors import StepwellError
from ..passes.manager.errors import did_you_mean


class IRSyntaxError(StepwellError):
    """A file that cannot be read as IR: `file`, `line`, `column` (from 1) and `message`."""

    def __init__(self, file: str, line: int, column: int, message: str) -> None:
        super().__init__(message, place=f"{file}:{line}:{column}")
        self.file = file
        self.line = line
        self.column = column


_LOCATION_ALIAS = re.compile(r"^(#loc\d*) = (loc\(.*\))\s*$", re.MULTILINE)


class _Lexer(MLIRLexer):
    """xDSL's lexer; its pattern for strings takes exponential time on one that is never closed."""

    _unescaped_characters_regex = re.compile(r'"(?:[^"\\\n\v\f]++|\\(?:["nt\\]|[0-9A-Fa-f]{2}))*+"')


class _Bits(AttrParser._TensorLiteralElement):
    """A hexadecimal number in a dense attribute: of a floating point element it is the bits, which xDSL does not know."""

    def to_float(self, parser: AttrParser) -> float:
        raise AssertionError("decoded by to_type")

    def to_type(self, parser: AttrParser, type: Any) -> Any:
        if not isinstance(type, AnyFloat):
            return super().to_type(parser, type)
        try:
            raw = int(self.value).to_bytes(type.compile_time_size, "little")  # pyright: ignore[reportArgumentType]
        except OverflowError:
            parser.raise_error(f"{self.span.text} has more bits than {type}", self.span)
        return next(type.iter_unpack(raw))


class IRParser(Parser):
    """xDSL's parser that gives operations without a ``loc(...)`` of their own the place in the file, and reads footers.

    `resources` holds what the footer ``{-# external_resources: {...} #-}`` says: group -> key -> value.
    """

    def __init__(self, ctx: Context, text: str, name: str) -> None:
        # Parser.__init__ with another lexer.
        AttrParser.__init__(self, ParserState(_Lexer(Input(text, name))), ctx)
        self.ssa_values = {}
        self.blocks = {}
        self.forward_block_references = defaultdict(list)
        self.forward_ssa_references = {}
        self.resources: dict[str, dict[str, Any]] = {}
        self._text = text
        self._name = StringAttr(name)
        self._op_start = 0
        # Triton and mlir-opt define aliases of locations behind their uses.
        self._locations = {m[1]: m[2] for m in _LOCATION_ALIAS.finditer(text)} if "\n#loc" in text else {}
        self._starts = [0]
        at = text.find("\n")
        while at >= 0:
            self._starts.append(at + 1)
            at = text.find("\n", at + 1)

    def line_and_column(self, position: int) -> tuple[int, int]:
        """Line and column, both from 1, of a position in the text."""
        line = bisect_right(self._starts, position)
        return line, position - self._starts[line - 1] + 1

    def parse_operation(self) -> Operation:
        start = self._current_token.span.start
        if self._current_token.kind == MLIRTokenKind.PERCENT_IDENT:
            # The name of the operation is its place, not the names of its results.
            start = self._text.find("=", start) + 1
            while self._text[start : start + 1].isspace():
                start += 1
        self._op_start = start
        op = super().parse_operation()
        if op.location is UNKNOWN_LOC:  # the default; a `loc(unknown)` that was written is another object
            line, column = self.line_and_column(start)
            op.location = FileLineColLoc(self._name, IntAttr(line), IntAttr(column))
        return op

    def parse_module(self, allow_implicit_module: bool = True) -> ModuleOp:
        """The file as one module; several operations, or one that is no module, get one around them if allowed."""
        ops: list[Operation] = []
        while self._current_token.kind != MLIRTokenKind.EOF:
            if self._current_token.kind in (MLIRTokenKind.HASH_IDENT, MLIRTokenKind.EXCLAMATION_IDENT):
                self._parse_alias_def()
            elif self._current_token.kind == MLIRTokenKind.FILE_METADATA_BEGIN:
                self._parse_file_metadata_dictionary()
            elif (op := self.parse_optional_operation()) is not None:
                ops.append(op)
            else:
                self.raise_error(f"expected an operation, found {self._found()}")
        for name, uses in self.forward_ssa_references.items():
            raise _undefined(self, name, [use.operation for value in uses.values() for use in value.uses])
        if len(ops) == 1 and isinstance(ops[0], ModuleOp):
            return ops[0]
        if not allow_implicit_module:
            self._resume_from(0)
            self.raise_error("expected one builtin.module" if ops else "the file holds no operation")
        module = ModuleOp(ops)
        if ops:
            module.location = ops[0].location
        return module

    def _parse_block(self) -> Block:
        if self._current_token.kind != MLIRTokenKind.CARET_IDENT:
            self.raise_error(f"expected an operation, '}}' or the label of a block, found {self._found()}")
        return super()._parse_block()

    def _found(self) -> str:
        at_end = self._current_token.kind == MLIRTokenKind.EOF
        return "the end of the file" if at_end else f"'{self._current_token.text}'"

    def _parse_alias_def(self) -> None:
        name = self._current_token.text
        if name not in self._locations:
            super()._parse_alias_def()
            return
        self._consume_token()
        self.parse_punctuation("=", "after attribute alias name")
        self._set_location_alias(name, self.parse_attribute())

    def _set_location_alias(self, name: str, value: Attribute) -> None:
        if self.attribute_aliases.setdefault(name, value) != value:
            self.raise_error(f"re-declaration of alias '{name}'")

    def _parse_tensor_literal_element(self) -> AttrParser._TensorLiteralElement:
        bits = self._current_token.text[:2] in ("0x", "0X")
        element = super()._parse_tensor_literal_element()
        return _Bits(element.is_negative, element.value, element.span) if bits else element

    def _parse_location(self) -> LocationAttr:
        name = self._current_token.text
        if name in self._locations and name not in self.attribute_aliases:
            # An alias names only such that stand before it, in this file or another part of it.
            inner = IRParser(self.ctx, self._locations[name], self._name.data)
            inner._locations = self._locations
            inner.attribute_aliases = self.attribute_aliases
            self.attribute_aliases[name] = inner.parse_attribute()
        return super()._parse_location()

    def _get_op_by_name(self, name: str) -> type[Operation]:
        stack = self._parser_state.dialect_stack
        op_type = self.ctx.get_optional_op(name, dialect_stack=stack)
        generic = self._text.startswith('"', self._op_start)
        if op_type is not None and (generic or not issubclass(op_type, UnregisteredOp)):
            return op_type
        dialect, dot, rest = name.partition(".")
        if not dot:
            message = f"'{name}' is no operation{self._near(stack[-1], name) or self._near('func', name)}"
        elif dialect not in self.ctx.registered_dialect_names:
            hint = did_you_mean(dialect, self.ctx.registered_dialect_names)
            message = f"there is no dialect '{dialect}' for operation '{name}'{hint}"
        else:
            message = f"dialect '{dialect}' has no operation '{name}'{self._near(dialect, rest)}"
        self.raise_error(message, self._op_start, self._op_start + len(name))

    def _near(self, dialect: str, name: str) -> str:
        """A hint at operations of `dialect` with names like `name`, which is without the dialect."""
        names = (n.partition(".")[2] for n in self.ctx._loaded_ops if n.startswith(f"{dialect}."))
        return did_you_mean(name, names, prefix=f"{dialect}.")

    def _parse_external_resources(self) -> None:
        def value() -> Any:
            if (text := self.parse_optional_str_literal()) is not None:
                return text
            if (flag := self.parse_optional_boolean()) is not None:
                return flag
            many = self.parse_optional_comma_separated_list(self.Delimiter.SQUARE, value)
            return self.parse_number() if many is None else many

        def entry() -> None:
            key = self.parse_identifier()
            self.parse_punctuation(":")
            group[key] = value()

        def one_group() -> None:
            nonlocal group
            group = self.resources.setdefault(self.parse_identifier(), {})
            self.parse_punctuation(":")
            self.parse_comma_separated_list(self.Delimiter.BRACES, entry)

        group: dict[str, Any] = {}
        self.parse_comma_separated_list(self.Delimiter.BRACES, one_group)


def _undefined(parser: IRParser, name: str, users: list[Operation]) -> IRSyntaxError:
    message = f"value '%{name}' is used but never defined"
    file = parser._name.data
    for user in users:
        if isinstance(user.location, FileLineColLoc) and user.location.filename == parser._name:
            return IRSyntaxError(file, user.location.line.data, user.location.column.data, message)
    return IRSyntaxError(file, *parser.line_and_column(len(parser._text.rstrip())), message)


def parse_file(
    text: str, name: str, ctx: Context, *, implicit_module: bool = True, make: Callable[[Context, str, str], IRParser] = IRParser
) -> tuple[ModuleOp, dict[str, dict[str, Any]]]:
    """The module in `text` (read from file `name`), and the resources of its footer. `make` makes the parser.

    Raises IRSyntaxError with the position for whatever is wrong with the text.
    """
    parser: IRParser | None = None
    try:
        parser = make(ctx, text, name)
        return parser.parse_module(implicit_module), parser.resources
    except IRSyntaxError:
        raise
    except MultipleSpansParseError as error:
        span, message = error.span, error.msg.strip()
        if message.startswith("region ends with missing block"):  # the place of the use says more
            span = error.refs[0][0]
            message = f"block '{span.text}' is used but never defined"
        place = span.get_location()
        raise IRSyntaxError(name, place.line, place.col, message) from error
    except ParseError as error:
        place = error.span.get_location()
        raise IRSyntaxError(name, place.line, place.col, error.msg.strip()) from error
    except Exception as error:
        # The constructor of a type or an operation refused what was read; the parser stands right behind it.
        message = str(error).strip()
        if isinstance(error, RecursionError):
            message = "the file is nested too deeply"
        elif not isinstance(error, (DiagnosticException, StepwellError, UnregisteredConstructException)) or not message:
            message = f"{type(error).__name__}: {message}" if message else type(error).__name__
        line, column = parser.line_and_column(parser.pos) if parser is not None else (1, 1)
        raise IRSyntaxError(name, line, column, message) from error
