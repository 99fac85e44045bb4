"""The `host` dialect: the launch program of one graph, as a straight line of ops.

A program takes what the graph takes (tensors and numbers), checks and binds sizes, allocates, launches kernels, calls
library operators and returns. Sizes are expressions over symbols (`s0`, `u0`; see expr.py); a symbol is defined once,
by `host.bind`, before any expression names it. A value is a tensor of torch (`!host.tensor<f32>`), raw memory of the
arena (`!host.ptr`), a number (`i64`, `f64`, `i1`) or any other Python object (`!host.object`).

    host.program @forward(%x: !host.tensor<f32>, %n: i64) arena s0 * 256 {
      host.bind s0 = value %n
      host.check %x [s0, 64] strides [64, 1] {name = "x"} : !host.tensor<f32>
      %a = host.arena_ptr 0
      %y = host.empty_output [s0, 64] strides [64, 1] : !host.tensor<f32>
      host.launch @k0(%x : !host.tensor<f32>, %a : !host.ptr) [s0]
      %t = host.from_arena %a [s0, 64] strides [64, 1] : !host.tensor<f32>
      host.extern #nd.call<"aten.relu_.default", [arg(0)]>(%t) : (!host.tensor<f32>) -> ()
      host.return(%y : !host.tensor<f32>) [arg(0), size(s0), none]
    }
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

from xdsl.dialects.builtin import (
    Float64Type,
    IndexType,
    IntAttr,
    IntegerType,
    NoneAttr,
    StringAttr,
    SymbolNameConstraint,
    SymbolRefAttr,
    UnitAttr,
)
from xdsl.ir import Attribute, Block, Dialect, Operation, ParametrizedAttribute, Region, SSAValue, TypeAttribute
from xdsl.irdl import (
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.traits import IsolatedFromAbove, IsTerminator, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from .call_args import Arg, Call, CallAttr, format_leaf, parse_leaf
from .create import QuickOp
from .expr import Expr, as_expr, free_dims, free_syms
from .expr_syntax import ExprAttr, parse_expr
from .nd_base import ExprsAttr, IntsAttr


@irdl_attr_definition
class TensorType(ParametrizedAttribute, TypeAttribute):
    """A tensor of torch with a known element type: `!host.tensor<f32>`, `!host.tensor<f32, "cuda:0">` when it is not on the CPU,
    `!host.tensor<f32, "any">` where that does not matter; `!host.tensor<none>` when the element type is not ours."""

    name = "host.tensor"
    element_type: Attribute
    device: StringAttr

    @staticmethod
    def get(element_type: Attribute | None = None, device: str = "cpu") -> TensorType:
        """The interned type."""
        key = element_type or NoneAttr(), device
        found = _TENSORS.get(key)
        if found is None:
            found = _TENSORS[key] = TensorType(key[0], StringAttr(device))
        return found

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> list[Attribute]:
        with parser.in_angle_brackets():
            element = NoneAttr() if parser.parse_optional_keyword("none") else parser.parse_type()
            device = parser.parse_str_literal() if parser.parse_optional_punctuation(",") else "cpu"
        return [element, StringAttr(device)]

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            if isinstance(self.element_type, NoneAttr):
                printer.print_string("none")
            else:
                printer.print_attribute(self.element_type)
            if self.device.data != "cpu":
                printer.print_string(f', "{self.device.data}"')


_TENSORS: dict[tuple[Attribute, str], TensorType] = {}


@irdl_attr_definition
class PtrType(ParametrizedAttribute, TypeAttribute):
    """Raw memory of the arena."""

    name = "host.ptr"


@irdl_attr_definition
class ObjectType(ParametrizedAttribute, TypeAttribute):
    """Any other Python object (a generator, a list of tensors of unknown length, an opaque result)."""

    name = "host.object"


ptr = PtrType()
obj = ObjectType()


def is_number(type: Attribute) -> bool:
    """Whether a value of `type` is a Python number: i64/index (int), f64 (float) or i1 (bool)."""
    return isinstance(type, (Float64Type, IndexType)) or (isinstance(type, IntegerType) and type.width.data in (1, 64))


def _exprs_text(values: Sequence[Expr]) -> str:
    return f"[{', '.join(map(str, values))}]"


def _parse_exprs(parser: Parser) -> ExprsAttr:
    return ExprsAttr.get(
        parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: parse_expr(parser), " in a list of sizes")
    )


def _print_typed(printer: Printer, values: Sequence[SSAValue]) -> None:
    def one(value: SSAValue) -> None:
        printer.print_ssa_value(value)
        printer.print_string(" : ")
        printer.print_attribute(value.type)

    printer.print_string("(")
    printer.print_list(values, one)
    printer.print_string(")")


def _parse_typed_value(parser: Parser) -> SSAValue:
    unresolved = parser.parse_unresolved_operand()
    parser.parse_punctuation(":", " before the type of a value")
    return parser.resolve_operand(unresolved, parser.parse_type())


def _parse_typed(parser: Parser) -> list[SSAValue]:
    return parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: _parse_typed_value(parser))


def _parse_value_type(parser: Parser, name: Any) -> SSAValue:
    parser.parse_punctuation(":", " before the type")
    return parser.resolve_operand(name, parser.parse_type())


class HostOp(QuickOp):
    """Base of the ops of `host`: which expressions an op names (for the check that every symbol is bound)."""

    def exprs(self) -> list[Expr]:
        """Every size expression that the op evaluates."""
        found: list[Expr] = []
        for value in self.properties.values():
            if isinstance(value, ExprAttr):
                found.append(value.data)
            elif isinstance(value, ExprsAttr):
                found.extend(value.data)
            elif isinstance(value, CallAttr):
                found.extend(leaf for leaf in value.data.leaves() if isinstance(leaf, Expr))
        return found


@irdl_op_definition
class ProgramOp(HostOp):
    """The launch program of one graph: `host.program @forward(%x: !host.tensor<f32>) arena 4096 { ... host.return }`.

    `arena` is the size in bytes of the memory for intermediates."""

    name = "host.program"
    sym_name = prop_def(SymbolNameConstraint())
    arena = opt_prop_def(ExprAttr)
    body = region_def("single_block")
    traits = traits_def(SymbolOpInterface(), IsolatedFromAbove())

    @classmethod
    def build_program(cls, name: str, arg_types: Sequence[Attribute], arena: Expr | int | None = None) -> ProgramOp:
        """An empty program; fill `op.body.block`."""
        props: dict[str, Attribute] = {"sym_name": StringAttr(name)}
        if arena is not None:
            props["arena"] = ExprAttr.get(as_expr(arena))
        return cls.create(properties=props, regions=[Region(Block(arg_types=arg_types))])

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_symbol_name(self.sym_name.data)
        printer.print_string("(")
        printer.print_list(self.body.block.args, printer.print_block_argument)
        printer.print_string(")")
        if self.arena is not None:
            printer.print_string(f" arena {self.arena.data}")
        if self.attributes:
            printer.print_string(" attributes ")
            printer.print_attr_dict(self.attributes)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False)

    @classmethod
    def parse(cls, parser: Parser) -> ProgramOp:
        props: dict[str, Attribute] = {"sym_name": parser.parse_symbol_name()}
        args = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_argument)
        if parser.parse_optional_keyword("arena"):
            props["arena"] = ExprAttr.get(parse_expr(parser))
        attributes = parser.parse_optional_attr_dict() if parser.parse_optional_keyword("attributes") else {}
        body = parser.parse_region(args)
        return cls.create(properties=props, attributes=attributes, regions=[body])

    def verify_(self) -> None:
        bound: set[Expr] = set()
        released: dict[SSAValue, str] = {}
        ops = list(self.body.block.ops)
        if not ops or not isinstance(ops[-1], ReturnOp):
            raise VerifyException(f"host.program @{self.sym_name.data}: the body must end with host.return")
        for op in ops:
            if not isinstance(op, HostOp):
                raise VerifyException(
                    f"host.program @{self.sym_name.data}: holds {op.name}, which is not an op of host"
                )
            self._verify_exprs(op.exprs(), op.name, bound)
            for operand in op.operands:
                if operand in released:
                    raise VerifyException(f"{op.name}: uses a value that host.release dropped before")
            if isinstance(op, BindOp):
                if op.symbol_expr in bound:
                    raise VerifyException(f"host.bind: symbol {op.symbol_expr} is bound twice")
                bound.add(op.symbol_expr)
            elif isinstance(op, ReleaseOp):
                released.update((v, "") for v in op.operands)
        if self.arena is not None:
            self._verify_exprs([self.arena.data], "arena", bound)

    def _verify_exprs(self, exprs: Sequence[Expr], where: str, bound: set[Expr]) -> None:
        for expr in exprs:
            if free_dims(expr):
                raise VerifyException(
                    f"{where}: {expr} names a loop dimension; only size symbols are known in a program"
                )
            missing = free_syms(expr) - bound
            if missing:
                names = ", ".join(sorted(map(str, missing)))
                raise VerifyException(f"{where}: {expr} names {names}, which no host.bind defines before")


_BIND_KINDS = ("value", "size", "stride", "item")


@irdl_op_definition
class BindOp(HostOp):
    """Defines a size symbol: `host.bind s0 = value %n : i64`, `host.bind s1 = size %x 0 : !host.tensor<f32>` (also
    `stride`), or `host.bind u0 = item %t : !host.tensor<i64>` (the number in a one-element tensor)."""

    name = "host.bind"
    symbol = prop_def(ExprAttr)
    kind = prop_def(StringAttr)
    dim = opt_prop_def(IntAttr)
    source = operand_def()

    @classmethod
    def make(cls, symbol: Expr, kind: str, source: SSAValue, dim: int | None = None) -> BindOp:
        props: dict[str, Attribute] = {"symbol": ExprAttr.get(symbol), "kind": StringAttr(kind)}
        if dim is not None:
            props["dim"] = IntAttr(dim)
        return cls.create(operands=(source,), properties=props)

    @property
    def symbol_expr(self) -> Expr:
        return self.symbol.data

    def exprs(self) -> list[Expr]:
        return []

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {self.symbol.data} = {self.kind.data} ")
        printer.print_ssa_value(self.source)
        if self.dim is not None:
            printer.print_string(f" {self.dim.data}")
        printer.print_string(" : ")
        printer.print_attribute(self.source.type)

    @classmethod
    def parse(cls, parser: Parser) -> BindOp:
        symbol = parse_expr(parser)
        parser.parse_punctuation("=", " after the symbol")
        pos = parser.pos
        kind = parser.parse_identifier(" (how the symbol is defined)")
        if kind not in _BIND_KINDS:
            parser.raise_error(f"host.bind: unknown kind '{kind}'; known: {', '.join(_BIND_KINDS)}", pos)
        name = parser.parse_unresolved_operand()
        dim = parser.parse_optional_integer(allow_boolean=False, allow_negative=False)
        return cls.make(symbol, kind, _parse_value_type(parser, name), dim)

    def verify_(self) -> None:
        if free_syms(self.symbol.data) != {self.symbol.data}:
            raise VerifyException(f"host.bind: {self.symbol.data} is not a symbol")
        kind, type = self.kind.data, self.source.type
        if kind not in _BIND_KINDS:
            raise VerifyException(f"host.bind: unknown kind '{kind}'; known: {', '.join(_BIND_KINDS)}")
        if (kind in ("size", "stride")) != (self.dim is not None):
            raise VerifyException(
                f"host.bind: a dimension belongs to kinds size and stride, and only to them (kind is {kind})"
            )
        if kind == "value" and not (is_number(type) and not isinstance(type, Float64Type)):
            raise VerifyException(f"host.bind: an integer value is needed, the operand is {type}")
        if kind != "value" and not isinstance(type, TensorType):
            raise VerifyException(f"host.bind: kind {kind} needs a tensor, the operand is {type}")


@irdl_op_definition
class AssertOp(HostOp):
    """Raises AssertionError unless a relation of sizes holds: `host.assert s0 * 2 == s1, "s0 * 2 must be s1"`."""

    name = "host.assert"
    PREDICATES: ClassVar = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le"}
    left = prop_def(ExprAttr)
    predicate = prop_def(StringAttr)
    right = prop_def(ExprAttr)
    message = prop_def(StringAttr)

    @classmethod
    def make(cls, left: Expr | int, predicate: str, right: Expr | int, message: str) -> AssertOp:
        """`predicate` is one of eq, ne, lt, le."""
        return cls.create(
            properties={
                "left": ExprAttr.get(as_expr(left)),
                "predicate": StringAttr(predicate),
                "right": ExprAttr.get(as_expr(right)),
                "message": StringAttr(message),
            }
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {self.predicate.data} ({self.left.data}, {self.right.data}), ")
        printer.print_string_literal(self.message.data)

    @classmethod
    def parse(cls, parser: Parser) -> AssertOp:
        predicate = parser.parse_identifier(" (eq, ne, lt or le)")
        with parser.in_parens():
            left = parse_expr(parser)
            parser.parse_punctuation(",")
            right = parse_expr(parser)
        parser.parse_punctuation(",", " before the message")
        return cls.make(left, predicate, right, parser.parse_str_literal())

    def verify_(self) -> None:
        if self.predicate.data not in self.PREDICATES.values():
            raise VerifyException(f"host.assert: unknown predicate '{self.predicate.data}'; known: eq, ne, lt, le")


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
        printer.print_string(f" {_exprs_text(self.sizes.data)} strides {_exprs_text(self.strides.data)}")
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
        props: dict[str, Attribute] = {"sizes": _parse_exprs(parser)}
        parser.parse_keyword("strides", " after the sizes")
        props["strides"] = _parse_exprs(parser)
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


@irdl_op_definition
class ArenaPtrOp(HostOp):
    """The address of a byte of the arena: `%p = host.arena_ptr 4096`."""

    name = "host.arena_ptr"
    offset = prop_def(ExprAttr)
    result = result_def(PtrType)

    @classmethod
    def make(cls, offset: Expr | int) -> ArenaPtrOp:
        return cls.create(result_types=(ptr,), properties={"offset": ExprAttr.get(as_expr(offset))})

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {self.offset.data}")

    @classmethod
    def parse(cls, parser: Parser) -> ArenaPtrOp:
        return cls.make(parse_expr(parser))


@irdl_op_definition
class ConstantOp(HostOp):
    """Entry k of the list of tensors that belong to the program: `%c = host.constant 0 : !host.tensor<f32>`."""

    name = "host.constant"
    index = prop_def(IntAttr)
    result = result_def(TensorType)

    @classmethod
    def make(cls, index: int, element_type: Attribute, device: str = "cpu") -> ConstantOp:
        return cls.create(result_types=(TensorType.get(element_type, device),), properties={"index": IntAttr(index)})

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {self.index.data} : ")
        printer.print_attribute(self.result.type)

    @classmethod
    def parse(cls, parser: Parser) -> ConstantOp:
        index = parser.parse_integer(allow_boolean=False, allow_negative=False)
        parser.parse_punctuation(":", " before the type")
        return cls.create(result_types=(parser.parse_type(),), properties={"index": IntAttr(index)})


@irdl_op_definition
class LaunchOp(HostOp):
    """Runs a kernel of the module: `host.launch @k0(%x : !host.tensor<f32>, %p : !host.ptr) [s0] offsets [0, 128]
    bytes 4096`.

    The kernel gets the memory operands in order (of a tensor the address of its first element plus the operand's
    offset in bytes), then the sizes as i64, then the numbers among the operands. `bytes` estimates the memory
    traffic: it decides whether other Python threads may run meanwhile. Before to-host the operands are buffers of
    `mem`.

    With `entries n` the kernel walks over a list of n entries: operands and sizes are those of one entry after the
    other, and the kernel gets two tables, with a row of addresses (then of numbers, 8 bytes each) and a row of sizes
    for each entry, and n. A kernel of a GPU has a `grid`, the numbers of its programs."""

    name = "host.launch"
    kernel = prop_def(SymbolRefAttr)
    sizes = prop_def(ExprsAttr)
    offsets = opt_prop_def(ExprsAttr)
    bytes = opt_prop_def(ExprAttr)
    entries = opt_prop_def(IntAttr)
    grid = opt_prop_def(ExprsAttr)
    inputs = var_operand_def()
    traits = traits_def()

    @classmethod
    def make(
        cls,
        kernel: str,
        inputs: Sequence[SSAValue],
        sizes: Sequence[Expr | int] = (),
        offsets: Sequence[Expr | int] = (),
        bytes: Expr | int | None = None,
        entries: int | None = None,
        grid: Sequence[Expr | int] = (),
    ) -> LaunchOp:
        props: dict[str, Attribute] = {"kernel": SymbolRefAttr(kernel), "sizes": ExprsAttr.get(sizes)}
        if any(as_expr(o) is not as_expr(0) for o in offsets):
            props["offsets"] = ExprsAttr.get(offsets)
        if bytes is not None:
            props["bytes"] = ExprAttr.get(as_expr(bytes))
        if entries is not None:
            props["entries"] = IntAttr(entries)
        if grid:
            props["grid"] = ExprsAttr.get(grid)
        return cls.create(operands=inputs, properties=props)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_symbol_name(self.kernel.root_reference.data)
        _print_typed(printer, self.operands)
        printer.print_string(f" {_exprs_text(self.sizes.data)}")
        if self.offsets is not None:
            printer.print_string(f" offsets {_exprs_text(self.offsets.data)}")
        if self.bytes is not None:
            printer.print_string(f" bytes {self.bytes.data}")
        if self.entries is not None:
            printer.print_string(f" entries {self.entries.data}")
        if self.grid is not None:
            printer.print_string(f" grid {_exprs_text(self.grid.data)}")

    @classmethod
    def parse(cls, parser: Parser) -> LaunchOp:
        kernel = parser.parse_symbol_name()
        operands = _parse_typed(parser)
        props: dict[str, Attribute] = {"kernel": SymbolRefAttr(kernel.data), "sizes": _parse_exprs(parser)}
        if parser.parse_optional_keyword("offsets"):
            props["offsets"] = _parse_exprs(parser)
        if parser.parse_optional_keyword("bytes"):
            props["bytes"] = ExprAttr.get(parse_expr(parser))
        if parser.parse_optional_keyword("entries"):
            props["entries"] = IntAttr(parser.parse_integer(allow_boolean=False, allow_negative=False))
        if parser.parse_optional_keyword("grid"):
            props["grid"] = _parse_exprs(parser)
        return cls.create(operands=operands, properties=props)

    def verify_(self) -> None:
        kernel = self.kernel.root_reference.data
        count = 1 if self.entries is None else self.entries.data
        if count < 1 or len(self.operands) % count or len(self.sizes.data) % count:
            raise VerifyException(
                f"host.launch @{kernel}: {len(self.operands)} operands and {len(self.sizes.data)} sizes for {count} entries"
            )
        for value in self.operands:
            if isinstance(value.type, ObjectType):
                raise VerifyException(f"host.launch @{kernel}: a kernel takes memory and numbers, not {value.type}")
        if self.offsets is not None and len(self.offsets.data) != len(self.operands):
            raise VerifyException(
                f"host.launch @{kernel}: {len(self.offsets.data)} offsets for {len(self.operands)} operands"
            )


@irdl_op_definition
class PollOp(HostOp):
    """Raises the error that a kernel reported since the last poll (an index out of range, a failed assertion), if
    any."""

    name = "host.poll"

    def print(self, printer: Printer) -> None:
        printer.print_op_attributes(self.attributes)

    @classmethod
    def parse(cls, parser: Parser) -> PollOp:
        return cls.create(attributes=parser.parse_optional_attr_dict())


@irdl_op_definition
class ExternOp(HostOp):
    """Calls a library operator: `%y = host.extern #nd.call<"aten.mm.default", [arg(0), arg(1)]>(%a, %b) : (..) ->
    !host.tensor<f32>`.

    The template (call_args.py) says where the operands go. A result that the program never uses may be None.
    `mutates` lists operands whose contents change, `kept` is that of nd.extern, `fallback` marks a call that stands for an
    operator without a lowering."""

    name = "host.extern"
    call = prop_def(CallAttr)
    mutates = opt_prop_def(IntsAttr)
    fallback = opt_prop_def(UnitAttr)
    kept = opt_prop_def(IntsAttr)
    inputs = var_operand_def()
    outputs = var_result_def()

    @classmethod
    def make(
        cls, call: Call, inputs: Sequence[SSAValue], result_types: Sequence[Attribute], mutates: Sequence[int] = ()
    ) -> ExternOp:
        props: dict[str, Attribute] = {"call": CallAttr(call)}
        if mutates:
            props["mutates"] = IntsAttr.get(mutates)
        return cls.create(operands=inputs, result_types=result_types, properties=props)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_attribute(self.call)
        printer.print_string("(")
        printer.print_list(self.operands, printer.print_ssa_value)
        printer.print_string(")")
        shown = {k: v for k, v in self.properties.items() if k != "call"}
        if shown:
            printer.print_string(" ")
            printer.print_attr_dict(shown)
        printer.print_string(" : (")
        printer.print_list([o.type for o in self.operands], printer.print_attribute)
        printer.print_string(") -> (")
        printer.print_list([r.type for r in self.results], printer.print_attribute)
        printer.print_string(")")

    @classmethod
    def parse(cls, parser: Parser) -> ExternOp:
        pos = parser.pos
        call = parser.parse_attribute()
        if not isinstance(call, CallAttr):
            parser.raise_error("host.extern: expected a call template #nd.call<...>", pos)
        pos = parser.pos
        names = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)
        props = dict(parser.parse_optional_attr_dict())
        props["call"] = call
        parser.parse_punctuation(":", " before the types")
        types = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
        parser.parse_punctuation("->")
        results = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
        return cls.create(operands=parser.resolve_operands(names, types, pos), result_types=results, properties=props)

    def verify_(self) -> None:
        _verify_leaves(self.name, self.call.data, len(self.operands))
        for k in self.mutates.data if self.mutates is not None else ():
            if not 0 <= k < len(self.operands):
                raise VerifyException(f"host.extern: mutates operand {k}, there are {len(self.operands)} operands")
        for value in self.operands:
            if isinstance(value.type, PtrType):
                raise VerifyException(
                    f"host.extern {self.call.data.target}: an operator takes tensors, not pointers (host.from_arena)"
                )


def _verify_leaves(where: str, call: Call, operands: int) -> None:
    for leaf in call.leaves():
        if isinstance(leaf, Arg) and leaf.index >= operands:
            raise VerifyException(f"{where} {call.target}: names arg({leaf.index}), there are {operands} operands")


@irdl_op_definition
class ReleaseOp(HostOp):
    """Drops values as soon as they are dead, so that their memory is free for what follows: `host.release %x, %t`."""

    name = "host.release"
    values = var_operand_def()

    def print(self, printer: Printer) -> None:
        _print_typed(printer, self.operands)

    @classmethod
    def parse(cls, parser: Parser) -> ReleaseOp:
        return cls.create(operands=_parse_typed(parser))


@irdl_op_definition
class ReturnOp(HostOp):
    """Ends the program; the template lists what the caller gets: `host.return(%y : !host.tensor<f32>) [arg(0),
    size(s0), none]`."""

    name = "host.return"
    template = prop_def(CallAttr)
    values = var_operand_def()
    traits = traits_def(IsTerminator())

    @classmethod
    def make(cls, values: Sequence[SSAValue], template: Sequence[Any] | None = None) -> ReturnOp:
        """`template` is a list of call_args leaves; by default every value in order."""
        leaves = tuple(Arg(k) for k in range(len(values))) if template is None else tuple(template)
        return cls.create(operands=values, properties={"template": CallAttr(Call("return", leaves))})

    def print(self, printer: Printer) -> None:
        _print_typed(printer, self.operands)
        printer.print_string(f" {format_leaf(self.template.data.args)}")

    @classmethod
    def parse(cls, parser: Parser) -> ReturnOp:
        values = _parse_typed(parser)
        leaves = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: parse_leaf(parser))
        return cls.make(values, leaves)

    def verify_(self) -> None:
        _verify_leaves(self.name, self.template.data, len(self.operands))
        for leaf in self.template.data.args:
            if isinstance(leaf, tuple):
                raise VerifyException("host.return: the outputs of a graph are flat, there is a list among them")


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


def program_of(module: Operation) -> ProgramOp:
    """The only host.program of a module; ValueError when there is none or more than one."""
    found = [op for op in module.regions[0].block.ops if isinstance(op, ProgramOp)]
    if len(found) != 1:
        raise ValueError(f"expected one host.program in the module, found {len(found)}")
    return found[0]


OPS: list[type[HostOp]] = [
    ProgramOp, BindOp, AssertOp, CheckOp, EnsureOp, EmptyOutputOp, ViewOp, FromArenaOp, ArenaPtrOp, ConstantOp,
    LaunchOp, PollOp, ExternOp, ReleaseOp, ReturnOp,
]  # fmt: skip

Host = Dialect("host", [*OPS], [TensorType, PtrType, ObjectType])

__all__ = [
    "ArenaPtrOp", "AssertOp", "BindOp", "CheckOp", "ConstantOp", "EmptyOutputOp", "EnsureOp", "ExternOp",
    "FromArenaOp", "Host", "HostOp", "LaunchOp", "LayoutOp", "ObjectType", "PollOp", "ProgramOp", "PtrType",
    "ReleaseOp", "ReturnOp", "TensorType", "ViewOp", "is_number", "layout", "program_of",
]  # fmt: skip
