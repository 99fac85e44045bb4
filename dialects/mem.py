"""`mem`: the memory level. A value is a buffer: sizes, dtype, strides, offset; nests read and write buffers (loop) and have no results.

`!mem.buffer<8 x 4 x f32>` is row-major at offset 0; `!mem.buffer<8 x 4 x f32, [1, 8]>` names its strides and
`!mem.buffer<8 x 4 x f32, [1, 8], 16>` also the offset, all counted in elements. Strides may be size expressions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import ArrayAttr, LocationAttr, StringAttr, UnitAttr
from xdsl.ir import Attribute, Dialect, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import (
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from .expr import Expr, as_expr, product, strides_contiguous
from .expr.syntax import ExprAttr, parse_expr
from .nd.base import IntsAttr, NdOp, prop
from .nd.call_args import CallAttr, check_call
from .nd.types import element_bytes, parse_shape, print_shape

ALIGNMENT = 64
"""Bytes; every buffer of the arena begins at a multiple of it: a cache line, and the widest vector."""


@irdl_attr_definition
class BufferType(ParametrizedAttribute, TypeAttribute):
    """A strided region of memory, see the module's docstring."""

    name = "mem.buffer"
    shape: ArrayAttr[ExprAttr]
    element_type: Attribute
    strides: ArrayAttr[ExprAttr]
    offset: ExprAttr
    device: StringAttr

    @staticmethod
    def get(
        dims: Sequence[Expr | int],
        element_type: Attribute,
        strides: Sequence[Expr | int] | None = None,
        offset: Expr | int = 0,
        device: str = "cpu",
    ) -> BufferType:
        """The interned type; without strides it is row-major."""
        sizes = tuple(as_expr(d) for d in dims)
        steps = strides_contiguous(sizes) if strides is None else tuple(as_expr(s) for s in strides)
        key = (sizes, element_type, steps, as_expr(offset), device)
        found = _BUFFERS.get(key)
        if found is None:
            found = _BUFFERS[key] = BufferType(
                ArrayAttr([ExprAttr.get(d) for d in sizes]),
                element_type,
                ArrayAttr([ExprAttr.get(s) for s in steps]),
                ExprAttr.get(key[3]),
                StringAttr(device),
            )
        return found

    @property
    def dims(self) -> tuple[Expr, ...]:
        """The sizes as expressions."""
        found = self.__dict__.get("_dims")  # a table by type would hash all of it
        if found is None:
            found = vars(self)["_dims"] = tuple([a.data for a in self.shape.data])
        return found

    @property
    def stride_exprs(self) -> tuple[Expr, ...]:
        found = self.__dict__.get("_strides")
        if found is None:
            found = vars(self)["_strides"] = tuple([a.data for a in self.strides.data])
        return found

    @property
    def offset_expr(self) -> Expr:
        return self.offset.data

    @property
    def rank(self) -> int:
        return len(self.shape.data)

    @property
    def numel(self) -> Expr:
        return product(self.dims)

    @property
    def is_contiguous(self) -> bool:
        """Row-major without holes (the offset does not matter)."""
        return self.stride_exprs == strides_contiguous(self.dims)

    def extent(self) -> Expr:
        """Elements from the start of the buffer's view to one after its last element (0 sizes: an upper bound)."""
        found = self.__dict__.get("_extent")
        if found is None:
            found = as_expr(1)
            for size, stride in zip(self.dims, self.stride_exprs, strict=True):
                found = found + (size - 1) * stride
            vars(self)["_extent"] = found
        return found

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> list[Attribute]:
        with parser.in_angle_brackets():
            dims, dtype = parse_shape(parser)
            strides, offset, device = list(strides_contiguous(dims)), as_expr(0), "cpu"
            while parser.parse_optional_punctuation(","):
                given = parser.parse_optional_comma_separated_list(parser.Delimiter.SQUARE, lambda: parse_expr(parser))
                text = None if given is not None else parser.parse_optional_str_literal()
                if given is not None:
                    if len(given) != len(dims):
                        parser.raise_error(f"{len(given)} strides for {len(dims)} sizes")
                    strides = given
                elif text is not None:
                    device = text
                else:
                    offset = parse_expr(parser)
        attrs = [ArrayAttr([ExprAttr.get(e) for e in es]) for es in (dims, strides)]
        return [attrs[0], dtype, attrs[1], ExprAttr.get(offset), StringAttr(device)]

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            print_shape(printer, self.dims, self.element_type)
            if not self.is_contiguous or self.offset_expr is not as_expr(0):
                printer.print_string(f", [{', '.join(map(str, self.stride_exprs))}]")
            if self.offset_expr is not as_expr(0):
                printer.print_string(f", {self.offset_expr}")
            if self.device.data != "cpu":
                printer.print_string(f', "{self.device.data}"')


_BUFFERS: dict[tuple[object, ...], BufferType] = {}


MEMORY_NEEDS = "mem.memory_needs"
"""Attribute of a function: what a call takes at its peak, as bytes of size symbols, which the host program compares with the bound."""
ARENA_BYTES = "mem.arena_bytes"
"""The attribute of a function: bytes of the block that its buffers of kind "arena" are pieces of."""


def buffer_bytes(t: BufferType) -> Expr:
    """Bytes from the start of an allocation of type `t` to the end of its last element (0 for an empty one)."""
    if any(d.value == 0 for d in t.dims):
        return as_expr(0)
    return (t.extent() + t.offset_expr) * element_bytes(t.element_type)


@irdl_op_definition
class AllocOp(NdOp):
    """Memory for a buffer: `mem.alloc {kind = "arena", at = 4096} : !mem.buffer<8 x f32>`. Kind "arena": a piece of the graph's one
    block, `at` bytes from its start (absent until mem-plan ran); kind "output": a fresh tensor that the caller gets; kind "pooled": memory
    of its own that goes back to the pool after the last use. With the operand
    `inside` (an output that is written when this buffer is dead) `at` counts from the start of its memory. A `workspace` of the
    arena may as well be memory that stays from call to call, zero at first: what uses it leaves it ready for the next time."""

    name = "mem.alloc"
    SYNTAX: ClassVar = {"kind": "str", "at": "expr", "workspace": "unit"}
    inside = opt_operand_def(BufferType)
    kind = prop_def(StringAttr)
    at = opt_prop_def(ExprAttr)
    workspace = opt_prop_def(UnitAttr)
    result = result_def(BufferType)

    @staticmethod
    def arena(
        dims: Sequence[Expr],
        dtype: Attribute,
        device: str = "cpu",
        *,
        strides: Sequence[Expr] | None = None,
        location: LocationAttr | None = None,
    ) -> AllocOp:
        """Memory of the arena, contiguous without `strides`, whose place mem-plan chooses."""
        kind = BufferType.get(dims, dtype, strides, 0, device)
        return AllocOp.create(result_types=[kind], properties={"kind": StringAttr("arena")}, location=location)

    def verify_(self) -> None:
        if self.kind.data not in ("arena", "pooled", "output"):
            raise VerifyException(f"mem.alloc: unknown kind '{self.kind.data}', known: arena, pooled, output")
        if self.workspace is not None:
            self._verify_workspace()
        if self.inside is not None and (self.at is None or self.kind.data != "arena"):
            raise VerifyException('mem.alloc: a buffer in the memory of another one has kind "arena" and a place `at`')
        if self.at is not None:
            self._verify_place(self.at.data)

    def _verify_workspace(self) -> None:
        if self.kind.data != "arena" or self.inside is not None:
            raise VerifyException("mem.alloc: a workspace is a piece of the arena")
        if isinstance(self.result.type, BufferType) and buffer_bytes(self.result.type).value is None:
            raise VerifyException(f"mem.alloc: the size of a workspace is a number, not {buffer_bytes(self.result.type)} bytes")

    def _verify_place(self, at: Expr) -> None:
        """`at` is in the buffer around it, or in the block of the function, as far as can be said without the values of size symbols."""
        if (at.value or 0) < 0:
            raise VerifyException(f"mem.alloc: the place {at} is before the start of the memory")
        parent = self.parent_op()
        room = parent.attributes.get(ARENA_BYTES) if parent is not None else None
        where = f"the function's block ({ARENA_BYTES})"
        if self.inside is not None and isinstance(self.inside.type, BufferType):
            room, where = ExprAttr.get(buffer_bytes(self.inside.type)), "the buffer around it"
        if isinstance(room, ExprAttr):
            end = at + buffer_bytes(self.result.type)
            if ((end - room.data).value or 0) > 0:
                raise VerifyException(f"mem.alloc: reaches byte {end}, {where} has {room.data}")


@irdl_op_definition
class ViewOp(NdOp):
    """The same memory with the sizes, strides and offset of the result's type (offset counted from the start of the storage)."""

    name = "mem.view"
    input = operand_def(BufferType)
    result = result_def(BufferType)
    traits = traits_def(Pure())


@irdl_op_definition
class ExternOp(NdOp):
    """A call of a library operator on buffers; see nd.extern for the template. Results are buffers that the operator allocates (their
    types say with which strides), or Python numbers. `mutates` lists operands that it writes; `aliases` and `kept` as in nd.extern.
    With `out`, the operands of these numbers are the destinations and there is no result: the operator's out variant is called where it has
    one, else the results are copied there. `schedule` as in nd.extern."""

    name = "mem.extern"
    SYNTAX: ClassVar = {
        "call": "attr", "mutates": "ints", "aliases": "ints", "out": "ints", "binds": "str", "fallback": "unit", "kept": "ints",
        "schedule": "str",
    }  # fmt: skip
    inputs = var_operand_def()
    call = prop_def(CallAttr)
    mutates = opt_prop_def(IntsAttr)
    aliases = opt_prop_def(IntsAttr)
    out = opt_prop_def(IntsAttr)
    binds = opt_prop_def(StringAttr)
    fallback = opt_prop_def(UnitAttr)
    kept = opt_prop_def(IntsAttr)
    schedule = opt_prop_def(StringAttr)
    outputs = var_result_def()

    def verify_(self) -> None:
        named = {"mutates": prop(self, "mutates") or (), "writes": prop(self, "out") or ()}
        check_call(self, self.call.data, named, self.schedule)


Mem = Dialect("mem", [AllocOp, ViewOp, ExternOp], [BufferType])
