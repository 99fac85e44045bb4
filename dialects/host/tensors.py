"""Operations of the `host` dialect on tensors and memory: checks of what comes in, allocation, views of the arena, release."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

from xdsl.dialects.builtin import IntAttr, NoneAttr, StringAttr
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from ..expr import Expr, as_expr
from ..expr.syntax import ExprAttr, parse_expr
from ..nd.base import ExprsAttr
from ..nd.types import element_bytes
from .base import HostOp, PtrType, TensorType, exprs_text, parse_exprs, parse_typed, print_typed, ptr


class LayoutOp(HostOp):
    """Base of the ops that name sizes and strides: `host.x %v [sizes] strides [strides] offset e {..} : type`."""

    sizes = prop_def(ExprsAttr)
    strides = prop_def(ExprsAttr)
    HAS_OFFSET: ClassVar[bool] = False
    HAS_SOURCE: ClassVar[bool] = True
    HAS_RESULT: ClassVar[bool] = True

    def layout_type(self) -> Attribute:
        """The type whose element type the sizes and strides count."""
        return self.results[0].type if self.HAS_RESULT else self.operands[0].type

    def print(self, printer: Printer) -> None:
        if self.HAS_SOURCE:
            printer.print_string(" ")
            printer.print_ssa_value(self.operands[0])
        printer.print_string(f" {exprs_text(self.sizes.data)} strides {exprs_text(self.strides.data)}")
        offset = self.properties.get("offset")
        if isinstance(offset, ExprAttr):
            printer.print_string(f" offset {offset.data}")
        label = self.properties.get("label")
        if isinstance(label, StringAttr):
            printer.print_string(" ")
            printer.print_string_literal(label.data)
        printer.print_string(" : ")
        if self.HAS_SOURCE and self.HAS_RESULT:
            printer.print_attribute(self.operands[0].type)
            printer.print_string(" -> ")
        printer.print_attribute(self.layout_type())

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        name = parser.parse_unresolved_operand() if cls.HAS_SOURCE else None
        props: dict[str, Attribute] = {"sizes": parse_exprs(parser)}
        parser.parse_keyword("strides", " after the sizes")
        props["strides"] = parse_exprs(parser)
        if cls.HAS_OFFSET and parser.parse_optional_keyword("offset"):
            props["offset"] = ExprAttr.get(parse_expr(parser))
        label = parser.parse_optional_str_literal()
        if label is not None:
            props["label"] = StringAttr(label)
        parser.parse_punctuation(":", " before the type")
        operands: list[SSAValue] = []
        if name is not None:
            operands.append(parser.resolve_operand(name, parser.parse_type()))
            if cls.HAS_RESULT:
                parser.parse_punctuation("->", " before the type of the result")
        types = [parser.parse_type()] if cls.HAS_RESULT else []
        return cls.create(operands=operands, result_types=types, properties=props)

    def verify_(self) -> None:
        if len(self.sizes.data) != len(self.strides.data):
            raise VerifyException(f"{self.name}: {len(self.sizes.data)} sizes but {len(self.strides.data)} strides")
        if self.HAS_RESULT and (negative := [e for e in self.strides.data if e.is_const and int(e) < 0]):
            raise VerifyException(f"{self.name}: stride {negative[0]}: tensors of torch cannot have negative strides")
        for value in (*self.operands, *self.results):
            if not isinstance(value.type, (TensorType, PtrType)):
                raise VerifyException(f"{self.name}: expected a tensor or a pointer, got {value.type}")
        if not isinstance(self.layout_type(), TensorType):
            raise VerifyException(f"{self.name}: needs a tensor type, got {self.layout_type()}")


@irdl_op_definition
class CheckOp(LayoutOp):
    """Raises AssertionError unless a tensor has this element type, these sizes and strides (those of dimensions of
    size 1 or 0 do not matter): `host.check %x [s0, 64] strides [64, 1] "x" : !host.tensor<f32>`. The label names it
    in the message."""

    name = "host.check"
    HAS_RESULT: ClassVar[bool] = False
    source = operand_def(TensorType)
    label = opt_prop_def(StringAttr)


@irdl_op_definition
class EnsureOp(LayoutOp):
    """The tensor itself when it has these strides, a copy that has them otherwise; AssertionError when the sizes
    differ: `%b = host.ensure %a [4] strides [1] "aten.foo" : !host.tensor<f32> -> !host.tensor<f32>`."""

    name = "host.ensure"
    source = operand_def(TensorType)
    label = opt_prop_def(StringAttr)
    result = result_def(TensorType)


@irdl_op_definition
class EmptyOutputOp(LayoutOp):
    """A new tensor of torch, not initialised: `%y = host.empty_output [4, s0] strides [s0, 1] : !host.tensor<f32>`."""

    name = "host.empty_output"
    HAS_SOURCE: ClassVar[bool] = False
    result = result_def(TensorType)


@irdl_op_definition
class ViewOp(LayoutOp):
    """A tensor over the storage of another; `offset` counts elements from the first element of the source:
    `%v = host.view %x [4] strides [2] offset 1 : !host.tensor<f32> -> !host.tensor<f32>`."""

    name = "host.view"
    HAS_OFFSET: ClassVar[bool] = True
    source = operand_def(TensorType)
    offset = opt_prop_def(ExprAttr)
    result = result_def(TensorType)


@irdl_op_definition
class FromArenaOp(LayoutOp):
    """A tensor of torch over memory of the arena, valid until the program returns (for the arguments of library
    operators): `%t = host.from_arena %p [4] strides [1] offset 2 : !host.ptr -> !host.tensor<f32>`. `offset` counts
    elements."""

    name = "host.from_arena"
    HAS_OFFSET: ClassVar[bool] = True
    source = operand_def(PtrType)
    offset = opt_prop_def(ExprAttr)
    result = result_def(TensorType)

    def end(self) -> Expr | None:
        """The byte of the arena behind the last element; None where that is not known or there are no elements."""
        start, kind = self.source.owner, self.result.type.element_type
        if not isinstance(start, ArenaPtrOp) or isinstance(kind, NoneAttr) or any(size.value == 0 for size in self.sizes.data):
            return None
        elements = as_expr(1) if self.offset is None else self.offset.data + 1
        for size, stride in zip(self.sizes.data, self.strides.data, strict=True):
            elements = elements + (size - 1) * stride
        return start.offset.data + elements * element_bytes(kind)


@irdl_op_definition
class ArenaPtrOp(HostOp):
    """The address of a byte of the arena: `%p = host.arena_ptr 4096`."""

    name = "host.arena_ptr"
    offset = prop_def(ExprAttr)
    result = result_def(PtrType)

    def end(self) -> Expr:
        """The byte that this is the address of: not behind the end of the arena."""
        return self.offset.data

    def verify_(self) -> None:
        if (self.offset.data.value or 0) < 0:
            raise VerifyException(f"host.arena_ptr: {self.offset.data} is before the arena")

    @classmethod
    def make(cls, offset: Expr | int) -> ArenaPtrOp:
        return cls.create(result_types=(ptr,), properties={"offset": ExprAttr.get(as_expr(offset))})

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {self.offset.data}")

    @classmethod
    def parse(cls, parser: Parser) -> ArenaPtrOp:
        return cls.make(parse_expr(parser))


@irdl_op_definition
class WorkspaceOp(HostOp):
    """Memory that kernels of a GPU leave as the next launch of the same kernel needs it, zero at first: `%w = host.workspace 4112 else %p`.

    On the default stream (handle 0, where launches never overlap, and which cannot be captured) it is that many bytes of memory
    that stays with the program, a piece of its own for each of these operations. On any other it is memory of the call, the operand:
    launches that `clears` fill it with zeros then."""

    name = "host.workspace"
    bytes = prop_def(IntAttr)
    other = operand_def(PtrType)
    result = result_def(PtrType)

    @classmethod
    def make(cls, bytes: int, other: SSAValue) -> WorkspaceOp:
        return cls.create(operands=(other,), result_types=(ptr,), properties={"bytes": IntAttr(bytes)})

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {self.bytes.data} else ")
        printer.print_ssa_value(self.other)

    @classmethod
    def parse(cls, parser: Parser) -> WorkspaceOp:
        bytes = parser.parse_integer(allow_boolean=False, allow_negative=False)
        parser.parse_keyword("else", " before the memory of other streams")
        return cls.make(bytes, parser.resolve_operand(parser.parse_unresolved_operand(), ptr))

    def verify_(self) -> None:
        if self.bytes.data < 1:
            raise VerifyException("host.workspace: it has no bytes")
        for use in self.result.uses:
            if use.operation.name != "host.launch":
                raise VerifyException(f"host.workspace: only kernels take a workspace, not {use.operation.name}")


@irdl_op_definition
class ReleaseOp(HostOp):
    """Drops values as soon as they are dead, so that their memory is free for what follows: `host.release %x, %t`."""

    name = "host.release"
    values = var_operand_def()

    def print(self, printer: Printer) -> None:
        print_typed(printer, self.operands)

    @classmethod
    def parse(cls, parser: Parser) -> ReleaseOp:
        return cls.create(operands=parse_typed(parser))


def layout(
    op: type[LayoutOp],
    source: SSAValue | None,
    sizes: Sequence[Expr | int],
    strides: Sequence[Expr | int],
    element_type: Attribute,
    offset: Expr | int | None = None,
    label: str | None = None,
    device: str = "cpu",
) -> Any:
    """Builds one of the ops with sizes and strides (check, ensure, empty_output, view, from_arena) the fast way."""
    props: dict[str, Attribute] = {"sizes": ExprsAttr.get(sizes), "strides": ExprsAttr.get(strides)}
    if offset is not None and as_expr(offset) is not as_expr(0):
        props["offset"] = ExprAttr.get(as_expr(offset))
    if label is not None:
        props["label"] = StringAttr(label)
    return op.create(
        operands=() if source is None else (source,),
        result_types=(TensorType.get(element_type, device),) if op.HAS_RESULT else (),
        properties=props,
    )
