"""The `host` dialect: the launch program of one graph, as a straight line of ops.

A program takes what the graph takes (tensors and numbers), checks and binds sizes, allocates, launches kernels, calls
library operators and returns. Sizes are expressions over symbols (`s0`, `u0`; see expr/maps.py); a symbol is defined once,
by `host.bind`, before any expression names it. A value is a tensor of torch (`!host.tensor<f32>`), raw memory of the
arena (`!host.ptr`), a number (`i64`, `f64`, `i1`) or any other Python object (`!host.object`). The types are in base.py, the
operations on tensors and memory in tensors.py.

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
from typing import Any, ClassVar

from xdsl.dialects.builtin import (
    Float64Type,
    IntAttr,
    StringAttr,
    SymbolNameConstraint,
    SymbolRefAttr,
    UnitAttr,
)
from xdsl.ir import Attribute, Block, Dialect, Operation, Region, SSAValue
from xdsl.irdl import (
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
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import IsolatedFromAbove, IsTerminator, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from ..expr import Expr, as_expr, free_dims, free_syms
from ..expr.syntax import ExprAttr, parse_expr
from ..nd.base import ExprsAttr, IntsAttr
from ..nd.call_args import Arg, Call, CallAttr, format_leaf, parse_leaf
from ..support.arguments import parse_argument
from .base import HostOp, ObjectType, PtrType, TensorType, exprs_text, is_number, parse_exprs, parse_typed, parse_value_type, print_typed
from .descriptors import Descriptor, DescriptorsAttr, descriptors_text, parse_descriptors
from .tensors import ArenaPtrOp, CheckOp, EmptyOutputOp, EnsureOp, FromArenaOp, ReleaseOp, ViewOp, WorkspaceOp


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
        args = parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: parse_argument(parser))
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
            elif isinstance(op, (ArenaPtrOp, FromArenaOp)):
                self._verify_place(op)
        if self.arena is not None:
            self._verify_exprs([self.arena.data], "arena", bound)

    def _verify_place(self, op: ArenaPtrOp | FromArenaOp) -> None:
        if self.arena is None:
            raise VerifyException(f"{op.name}: host.program @{self.sym_name.data} has no arena")
        end = op.end()
        if end is not None and ((over := (end - self.arena.data).value) or 0) > 0:
            raise VerifyException(f"{op.name}: reaches byte {end}, the arena has {self.arena.data} ({over} too few)")

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
        return cls.make(symbol, kind, parse_value_type(parser, name), dim)

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
    for each entry, and n. A kernel of a GPU has a `grid`, the numbers of its programs. One that `clears` fills workspaces
    with zeros, and is not launched where they are memory that stays (host.workspace). `descriptors` (descriptors.py) come
    behind all other arguments."""

    name = "host.launch"
    kernel = prop_def(SymbolRefAttr)
    sizes = prop_def(ExprsAttr)
    offsets = opt_prop_def(ExprsAttr)
    bytes = opt_prop_def(ExprAttr)
    entries = opt_prop_def(IntAttr)
    grid = opt_prop_def(ExprsAttr)
    clears = opt_prop_def(UnitAttr)
    descriptors = opt_prop_def(DescriptorsAttr)
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
        clears: bool = False,
        descriptors: Sequence[Descriptor] = (),
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
        if clears:
            props["clears"] = UnitAttr()
        if descriptors:
            props["descriptors"] = DescriptorsAttr(tuple(descriptors))
        return cls.create(operands=inputs, properties=props)

    @property
    def described(self) -> tuple[Descriptor, ...]:
        """The descriptors that the kernel takes."""
        return () if self.descriptors is None else self.descriptors.data

    def exprs(self) -> list[Expr]:
        return [*super().exprs(), *(e for one in self.described for e in one.exprs)]

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_symbol_name(self.kernel.root_reference.data)
        print_typed(printer, self.operands)
        printer.print_string(f" {exprs_text(self.sizes.data)}")
        if self.offsets is not None:
            printer.print_string(f" offsets {exprs_text(self.offsets.data)}")
        if self.bytes is not None:
            printer.print_string(f" bytes {self.bytes.data}")
        if self.entries is not None:
            printer.print_string(f" entries {self.entries.data}")
        if self.grid is not None:
            printer.print_string(f" grid {exprs_text(self.grid.data)}")
        if self.clears is not None:
            printer.print_string(" clears")
        if self.descriptors is not None:
            printer.print_string(f" descriptors {descriptors_text(self.descriptors.data)}")

    @classmethod
    def parse(cls, parser: Parser) -> LaunchOp:
        kernel = parser.parse_symbol_name()
        operands = parse_typed(parser)
        props: dict[str, Attribute] = {"kernel": SymbolRefAttr(kernel.data), "sizes": parse_exprs(parser)}
        if parser.parse_optional_keyword("offsets"):
            props["offsets"] = parse_exprs(parser)
        if parser.parse_optional_keyword("bytes"):
            props["bytes"] = ExprAttr.get(parse_expr(parser))
        if parser.parse_optional_keyword("entries"):
            props["entries"] = IntAttr(parser.parse_integer(allow_boolean=False, allow_negative=False))
        if parser.parse_optional_keyword("grid"):
            props["grid"] = parse_exprs(parser)
        if parser.parse_optional_keyword("clears"):
            props["clears"] = UnitAttr()
        if parser.parse_optional_keyword("descriptors"):
            props["descriptors"] = DescriptorsAttr(parse_descriptors(parser))
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
        if self.clears is not None:
            self._verify_clears(kernel)
        if self.described:
            self._verify_descriptors(kernel)

    def _verify_descriptors(self, kernel: str) -> None:
        if self.grid is None or self.entries is not None:
            raise VerifyException(f"host.launch @{kernel}: descriptors are for one launch of a kernel with a grid")
        for one in self.described:
            try:
                one.check(len(self.operands))
            except VerifyException as error:
                raise VerifyException(f"host.launch @{kernel}: {error}") from error
            if is_number(type := self.operands[one.operand].type):
                raise VerifyException(f"host.launch @{kernel}: a descriptor of operand {one.operand}, which is no memory but {type}")

    def _verify_clears(self, kernel: str) -> None:
        if self.grid is None or self.sizes.data:
            raise VerifyException(f"host.launch @{kernel}: what clears workspaces is a kernel with a grid, and takes no sizes")
        for value in self.operands:
            if isinstance(value.type, (TensorType, PtrType)) and not isinstance(value.owner, WorkspaceOp):
                raise VerifyException(f"host.launch @{kernel}: it clears memory that is no host.workspace")

    def check_kernel(self, kernel: Operation) -> None:
        """VerifyException unless `kernel`, which this launches, takes as many arguments as are given."""
        takes = len(kernel.regions[0].blocks[0].args)
        gives = 3 if self.entries is not None else len(self.operands) + len(self.sizes.data) + sum(one.takes for one in self.described)
        if takes != gives:
            name = self.kernel.root_reference.data
            raise VerifyException(f"host.launch @{name}: the kernel takes {takes} arguments, {gives} are given")


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
        print_typed(printer, self.operands)
        printer.print_string(f" {format_leaf(self.template.data.args)}")

    @classmethod
    def parse(cls, parser: Parser) -> ReturnOp:
        values = parse_typed(parser)
        leaves = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: parse_leaf(parser))
        return cls.make(values, leaves)

    def verify_(self) -> None:
        _verify_leaves(self.name, self.template.data, len(self.operands))
        for leaf in self.template.data.args:
            if isinstance(leaf, tuple):
                raise VerifyException("host.return: the outputs of a graph are flat, there is a list among them")


def program_of(module: Operation) -> ProgramOp:
    """The only host.program of a module; ValueError when there is none or more than one."""
    found = [op for op in module.regions[0].block.ops if isinstance(op, ProgramOp)]
    if len(found) != 1:
        raise ValueError(f"expected one host.program in the module, found {len(found)}")
    return found[0]


OPS: list[type[HostOp]] = [
    ProgramOp, BindOp, AssertOp, CheckOp, EnsureOp, EmptyOutputOp, ViewOp, FromArenaOp, ArenaPtrOp, ConstantOp,
    WorkspaceOp, LaunchOp, PollOp, ExternOp, ReleaseOp, ReturnOp,
]  # fmt: skip

Host = Dialect("host", [*OPS], [TensorType, PtrType, ObjectType, DescriptorsAttr])
