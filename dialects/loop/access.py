"""Accesses of `loop`: loads and stores of single elements of tensors and buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from xdsl.dialects.builtin import StringAttr, UnitAttr, i1
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, opt_prop_def, prop_def, result_def, var_operand_def
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from ..expr import IndexMap
from ..expr.syntax import IndexMapAttr
from ..nd.types import compute_type
from ..support.create import QuickOp
from .base import LoopLike, element_type, is_shaped, shaped_dims
from .checks import extent_of, leaves, runs
from .syntax import INDEX, parse_attrs, parse_indices, print_attrs, print_indices, print_types, value_names

STORE_MODES = ("set", "add", "prod", "max", "min")


class AccessOp(QuickOp):
    """Base of loads and stores: `map` takes the index operands (its dimensions) to an index of the tensor."""

    map = prop_def(IndexMapAttr)

    @property
    def index_map(self) -> IndexMap:
        return self.map.data

    @property
    def shaped(self) -> SSAValue:
        """The tensor or buffer that is accessed."""
        raise NotImplementedError

    @property
    def index_operands(self) -> Sequence[SSAValue]:
        raise NotImplementedError

    def _check_access(self) -> None:
        around = self.parent_op()
        while around is not None and not isinstance(around, LoopLike):
            if around.name == "func.func":
                raise VerifyException(f"{self.name} stands in no loop.nest")
            around = around.parent_op()
        t = self.shaped.type
        if not is_shaped(t):
            raise VerifyException(f"{self.name}: can access a tensor or buffer, got {t}")
        if len(self.index_map.results) != len(shaped_dims(t)):
            raise VerifyException(f"{self.name}: {len(self.index_map.results)} indices for a tensor of rank {len(shaped_dims(t))}")
        if len(self.index_operands) != self.index_map.num_dims or any(o.type != INDEX for o in self.index_operands):
            raise VerifyException(f"{self.name}: its map needs {self.index_map.num_dims} operands of type index")

    def _check_bounds(self, conditional: bool) -> None:
        if conditional or not runs(self):
            return
        extents = [extent_of(o) for o in self.index_operands]
        if problem := leaves(self.index_map.results, extents, shaped_dims(self.shaped.type)):
            raise VerifyException(f"{self.name}: {problem}")


@irdl_op_definition
class LoadOp(AccessOp):
    """`loop.load %x[%i, %j + 1] : T -> f32`; with a condition, `loop.load %x[%i - 1] if %c else %v : T -> f32` gives %v and reads nothing
    where %c is false."""

    name = "loop.load"
    source = operand_def()
    args = var_operand_def()
    masked = opt_prop_def(UnitAttr)
    result = result_def()

    @staticmethod
    def new(
        source: SSAValue,
        m: IndexMap,
        indices: Sequence[SSAValue],
        mask: SSAValue | None = None,
        other: SSAValue | None = None,
        location: Attribute | None = None,
    ) -> LoadOp:
        """A load of the element at m(indices), in the compute type of the tensor's dtype."""
        properties: dict[str, Attribute] = {"map": IndexMapAttr.get(m)}
        operands = [source, *indices]
        if mask is not None and other is not None:
            operands += [mask, other]
            properties["masked"] = UnitAttr()
        t = compute_type(element_type(source.type))
        return LoadOp.create(operands=operands, result_types=[t], properties=properties, location=location)  # pyright: ignore[reportArgumentType]

    @property
    def shaped(self) -> SSAValue:
        return self.operands[0]

    @property
    def index_operands(self) -> Sequence[SSAValue]:
        return self.operands[1 : 1 + self.index_map.num_dims]

    @property
    def mask(self) -> SSAValue | None:
        return self.operands[-2] if self.masked is not None else None

    @property
    def other(self) -> SSAValue | None:
        return self.operands[-1] if self.masked is not None else None

    def verify_(self) -> None:
        self._check_access()
        if len(self.operands) != 1 + self.index_map.num_dims + (2 if self.masked is not None else 0):
            raise VerifyException("loop.load: wrong number of operands")
        if self.mask is not None and self.mask.type != i1:
            raise VerifyException("loop.load: the condition must be an i1")
        want = compute_type(element_type(self.source.type))
        if self.result.type != want:
            raise VerifyException(f"loop.load: an element of {element_type(self.source.type)} is held in {want}, got {self.result.type}")
        self._check_bounds(self.masked is not None)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.source)
        print_indices(printer, self.index_map, self.index_operands)
        if self.masked is not None:
            names = value_names(printer, self.operands[-2:])
            printer.print_string(f" if {names[0]} else {names[1]}")
        print_attrs(printer, self, ("map", "masked"))
        printer.print_string(" : ")
        printer.print_attribute(self.source.type)
        printer.print_string(" -> ")
        printer.print_attribute(self.result.type)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        source = parser.parse_unresolved_operand()
        m, indices = parse_indices(parser)
        masked: list[UnresolvedOperand] = []
        if parser.parse_optional_keyword("if"):
            masked.append(parser.parse_unresolved_operand())
            parser.parse_keyword("else")
            masked.append(parser.parse_unresolved_operand())
        properties: dict[str, Attribute] = {"map": IndexMapAttr.get(m)}
        attributes = parse_attrs(parser, cls, properties)
        parser.parse_punctuation(":")
        source_type = parser.parse_type()
        parser.parse_punctuation("->")
        result_type = parser.parse_type()
        operands = [parser.resolve_operand(source, source_type), *indices]
        if masked:
            properties["masked"] = UnitAttr()
            operands += [parser.resolve_operand(masked[0], i1), parser.resolve_operand(masked[1], result_type)]
        return cls.create(operands=operands, result_types=[result_type], properties=properties, attributes=attributes)


@irdl_op_definition
class StoreOp(AccessOp):
    """`loop.store %v, %o[%i, %j] : f32, T`; `mode` set, or combining with what is there: add, prod, max, min. With a condition
    (`if %c`) nothing is written where it is false."""

    name = "loop.store"
    value = operand_def()
    target = operand_def()
    args = var_operand_def()
    mode = opt_prop_def(StringAttr)
    masked = opt_prop_def(UnitAttr)

    @staticmethod
    def new(
        value: SSAValue,
        target: SSAValue,
        m: IndexMap,
        indices: Sequence[SSAValue],
        mode: str = "set",
        mask: SSAValue | None = None,
    ) -> StoreOp:
        properties: dict[str, Attribute] = {"map": IndexMapAttr.get(m)}
        if mode != "set":
            properties["mode"] = StringAttr(mode)
        operands = [value, target, *indices]
        if mask is not None:
            operands.append(mask)
            properties["masked"] = UnitAttr()
        return StoreOp.create(operands=operands, properties=properties)

    @property
    def shaped(self) -> SSAValue:
        return self.operands[1]

    @property
    def index_operands(self) -> Sequence[SSAValue]:
        return self.operands[2 : 2 + self.index_map.num_dims]

    @property
    def mask(self) -> SSAValue | None:
        return self.operands[-1] if self.masked is not None else None

    @property
    def store_mode(self) -> str:
        return "set" if self.mode is None else self.mode.data

    def verify_(self) -> None:
        self._check_access()
        if self.store_mode not in STORE_MODES:
            raise VerifyException(f"loop.store: unknown mode '{self.store_mode}', known: {', '.join(STORE_MODES)}")
        want = compute_type(element_type(self.target.type))
        if self.value.type != want:
            raise VerifyException(f"loop.store: an element of {element_type(self.target.type)} is held in {want}, got {self.value.type}")
        self._check_bounds(self.masked is not None)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.value)
        printer.print_string(", ")
        printer.print_ssa_value(self.target)
        print_indices(printer, self.index_map, self.index_operands)
        if self.mode is not None:
            printer.print_string(f" {self.mode.data}")
        if self.masked is not None:
            printer.print_string(f" if {value_names(printer, self.operands[-1:])[0]}")
        print_attrs(printer, self, ("map", "masked", "mode"))
        printer.print_string(" : ")
        print_types(printer, [self.value.type, self.target.type])

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        value = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        target = parser.parse_unresolved_operand()
        m, indices = parse_indices(parser)
        properties: dict[str, Attribute] = {"map": IndexMapAttr.get(m)}
        pos = parser.pos
        mode = parser.parse_optional_identifier()
        mask = None
        if mode not in (None, "if", "attributes"):
            if mode not in STORE_MODES:
                parser.raise_error(f"unknown store mode '{mode}', known: {', '.join(STORE_MODES)}", pos)
            properties["mode"] = StringAttr(mode)
            mode = "if" if parser.parse_optional_keyword("if") else None
        if mode == "if":
            mask = parser.parse_unresolved_operand()
            properties["masked"] = UnitAttr()
            mode = None
        attributes: dict[str, Attribute] = {}
        if mode == "attributes":
            attributes = parser.parse_optional_attr_dict()
        else:
            attributes = parse_attrs(parser, cls, properties)
        parser.parse_punctuation(":")
        value_type = parser.parse_type()
        parser.parse_punctuation(",")
        target_type = parser.parse_type()
        operands = [parser.resolve_operand(value, value_type), parser.resolve_operand(target, target_type), *indices]
        if mask is not None:
            operands.append(parser.resolve_operand(mask, i1))
        return cls.create(operands=operands, properties=properties, attributes=attributes)
