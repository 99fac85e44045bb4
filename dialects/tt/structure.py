"""Operations of `tt` for functions, the grid of programs, and what a kernel says about itself (asserts, prints)."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    DictionaryAttr,
    FlatSymbolRefAttr,
    FunctionType,
    IntegerAttr,
    StringAttr,
    SymbolNameConstraint,
    SymbolRefAttr,
    i32,
)
from xdsl.dialects.utils import parse_func_op_like, print_func_op_like
from xdsl.ir import Attribute, Region, SSAValue
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
from xdsl.traits import (
    HasParent,
    IsolatedFromAbove,
    IsTerminator,
    MemoryWriteEffect,
    Pure,
    SymbolOpInterface,
    SymbolTable,
)
from xdsl.utils.exceptions import VerifyException

from ..support.create import QuickOp
from .base import TTOp, attributes, function_type, integers, print_attributes, print_functional, print_types, resolve
from .types import AXIS, TensorDescType, check_descriptor, check_int, check_same

WARPS = (1, 2, 4, 8, 16, 32)
"""Warps that a program can have."""

# The grid.


class _GridOp(TTOp):
    axis = prop_def(IntegerAttr)
    result = result_def()
    traits = traits_def(Pure())

    @property
    def axis_number(self) -> int:
        """0, 1 or 2."""
        return self.axis.value.data

    @classmethod
    def make(cls, axis: int):
        """`axis` is 0, 1 or 2."""
        return cls.create(result_types=(i32,), properties={"axis": AXIS.attr("xyz"[axis])})

    def check(self) -> None:
        AXIS.check(self.axis)
        check_same(self.result.type, i32, "the result")

    @classmethod
    def parse(cls, parser: Parser):
        axis = AXIS.parse(parser)
        attrs = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        return cls.create(result_types=[parser.parse_type()], properties={"axis": axis}, attributes=attrs)

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {AXIS.keyword(self.axis)}")
        print_attributes(printer, self)
        print_types(printer, [self.result.type])


@irdl_op_definition
class GetProgramIdOp(_GridOp):
    """Which program of the grid this is, along an axis: `%i = tt.get_program_id x : i32`."""

    name = "tt.get_program_id"


@irdl_op_definition
class GetNumProgramsOp(_GridOp):
    """How many programs the grid has along an axis: `%n = tt.get_num_programs x : i32`."""

    name = "tt.get_num_programs"


# Functions.


RARE = "rare"
"""Attribute of a kernel that few launches need, and none may: it is compiled when one does."""
OVERLAPS = "overlaps"
"""Attribute of a kernel that waits itself for those before it: it may be launched while they end."""


@irdl_op_definition
class FuncOp(QuickOp):
    """A function; the public one is the kernel. `tt.divisibility` of an argument says what divides it (or its address).

    tt.func public @k(%x: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %n: i32) attributes {noinline = false} {
      tt.return
    }
    """

    name = "tt.func"
    sym_name = prop_def(SymbolNameConstraint())
    function_type = prop_def(FunctionType)
    sym_visibility = opt_prop_def(StringAttr)
    arg_attrs = opt_prop_def(ArrayAttr[DictionaryAttr])
    res_attrs = opt_prop_def(ArrayAttr[DictionaryAttr])
    body = region_def()
    traits = traits_def(IsolatedFromAbove(), SymbolOpInterface())

    @classmethod
    def make(
        cls,
        name: str,
        body: Region,
        results: Sequence[Attribute] = (),
        *,
        public: bool = True,
        hints: Sequence[dict[str, Attribute]] = (),
    ) -> FuncOp:
        """A function of `body`, whose first block has the arguments; `hints` are the attributes of each argument."""
        inputs = [a.type for a in body.blocks[0].args]
        properties: dict[str, Attribute] = {
            "sym_name": StringAttr(name),
            "function_type": FunctionType.from_lists(inputs, list(results)),
            "sym_visibility": StringAttr("public" if public else "private"),
        }
        if any(hints):
            properties["arg_attrs"] = ArrayAttr([DictionaryAttr(h) for h in hints])
        return cls.create(properties=properties, regions=(body,))

    @property
    def is_kernel(self) -> bool:
        """Whether this is what a launch starts: public, with a body."""
        private = self.sym_visibility is not None and self.sym_visibility.data == "private"
        return not private and bool(self.body.blocks)

    def verify_(self) -> None:
        if not self.body.blocks:
            return
        got = [a.type for a in self.body.blocks[0].args]
        if got != list(self.function_type.inputs):
            raise VerifyException(f"the block takes ({_types(got)}), the type says ({_types(self.function_type.inputs.data)})")
        if self.arg_attrs is not None and len(self.arg_attrs) != len(got):
            raise VerifyException(f"{len(got)} arguments, but attributes of {len(self.arg_attrs)}")
        for k, type in enumerate(got):
            if isinstance(type, TensorDescType):
                check_descriptor(type, f"argument {k}")
        warps = self.attributes.get("num_warps")
        if warps is not None and not (isinstance(warps, IntegerAttr) and warps.value.data in WARPS):
            raise VerifyException(f"num_warps is a power of two up to {WARPS[-1]}, not {warps}")

    @classmethod
    def parse(cls, parser: Parser) -> FuncOp:
        visibility = parser.parse_optional_visibility_keyword()
        name, inputs, outputs, region, extra, arg_attrs, res_attrs = parse_func_op_like(
            parser, reserved_attr_names=("sym_name", "function_type", "sym_visibility")
        )
        properties: dict[str, Attribute] = {
            "sym_name": StringAttr(name),
            "function_type": FunctionType.from_lists(inputs, outputs),
        }
        if visibility is not None:
            properties["sym_visibility"] = visibility
        if arg_attrs is not None:
            properties["arg_attrs"] = arg_attrs
        if res_attrs is not None:
            properties["res_attrs"] = res_attrs
        return cls.create(properties=properties, attributes=extra.data if extra else {}, regions=[region])

    def print(self, printer: Printer) -> None:
        if self.sym_visibility is not None:
            printer.print_string(f" {self.sym_visibility.data}")
        print_func_op_like(
            printer,
            self.sym_name,
            self.function_type,
            self.body,
            self.attributes,
            arg_attrs=self.arg_attrs,
            res_attrs=self.res_attrs,
            reserved_attr_names=(),
            print_empty_outputs=False,
        )


def _types(types: Sequence[Attribute]) -> str:
    return ", ".join(map(str, types))


@irdl_op_definition
class CallOp(QuickOp):
    """A call of a function of the module: `%r = tt.call @f(%a) : (f32) -> f32`."""

    name = "tt.call"
    callee = prop_def(FlatSymbolRefAttr)
    arg_attrs = opt_prop_def(ArrayAttr[DictionaryAttr])
    res_attrs = opt_prop_def(ArrayAttr[DictionaryAttr])
    args = var_operand_def()
    res = var_result_def()

    def verify_(self) -> None:
        callee = SymbolTable.lookup_symbol(self, self.callee)
        if not isinstance(callee, FuncOp):
            raise VerifyException(f"there is no function {self.callee}")
        type = callee.function_type
        if list(self.operand_types) != list(type.inputs) or list(self.result_types) != list(type.outputs):
            raise VerifyException(f"{self.callee} has the type {type}")

    @classmethod
    def parse(cls, parser: Parser) -> CallOp:
        callee = SymbolRefAttr(parser.parse_symbol_name())
        names = parser.parse_comma_separated_list(Parser.Delimiter.PAREN, parser.parse_unresolved_operand)
        properties, attrs = attributes(parser, ("arg_attrs", "res_attrs"))
        type = function_type(parser)
        operands = resolve(parser, names, type.inputs.data)
        properties = {"callee": callee, **properties}
        return cls.create(operands=operands, result_types=type.outputs.data, properties=properties, attributes=attrs)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_symbol_name(self.callee.root_reference.data)
        printer.print_string("(")
        printer.print_list(self.args, printer.print_ssa_value)
        printer.print_string(")")
        print_attributes(printer, self)
        print_functional(printer, self)


@irdl_op_definition
class ReturnOp(QuickOp):
    """The end of a function: `tt.return %r : f32`."""

    name = "tt.return"
    srcs = var_operand_def()
    traits = traits_def(IsTerminator(), HasParent(FuncOp))

    def verify_(self) -> None:
        func = self.parent_op()
        if isinstance(func, FuncOp) and list(self.operand_types) != list(func.function_type.outputs):
            raise VerifyException(
                f"the function returns ({_types(func.function_type.outputs.data)}), got ({_types(self.operand_types)})"
            )

    @classmethod
    def parse(cls, parser: Parser) -> ReturnOp:
        attrs = parser.parse_optional_attr_dict()
        names, types = [], []
        while (name := parser.parse_optional_unresolved_operand()) is not None:
            names.append(name)
            parser.parse_optional_punctuation(",")
        if names:
            parser.parse_punctuation(":")
            types = parser.parse_comma_separated_list(Parser.Delimiter.NONE, parser.parse_type)
        return cls.create(operands=resolve(parser, names, types), attributes=attrs)

    def print(self, printer: Printer) -> None:
        print_attributes(printer, self)
        if self.srcs:
            printer.print_string(" ")
            printer.print_list(self.srcs, printer.print_ssa_value)
            print_types(printer, self.operand_types)


# What is said while running.


@irdl_op_definition
class AssertOp(TTOp):
    """Stop with a message if the condition is not true everywhere.

    tt.assert %ok, "index out of bounds" : tensor<64xi1>
    """

    name = "tt.assert"
    condition = operand_def()
    message = prop_def(StringAttr)
    assembly_format = "$condition `,` $message attr-dict `:` type($condition)"
    traits = traits_def(MemoryWriteEffect())

    def check(self) -> None:
        check_int(self.condition.type, "the condition", 1)


@irdl_op_definition
class PrintOp(TTOp):
    """Print values from the device.

    tt.print "k: " {hex = false, isSigned = array<i32: 1>} : %k : tensor<64xi32>
    """

    name = "tt.print"
    prefix = prop_def(StringAttr)
    hex = prop_def(IntegerAttr)
    isSigned = prop_def(DenseArrayBase)
    args = var_operand_def()
    traits = traits_def(MemoryWriteEffect())

    def check(self) -> None:
        if len(integers(self.isSigned)) != len(self.args):
            raise VerifyException(f"isSigned must say it of {len(self.args)} values, got {self.isSigned}")

    @classmethod
    def parse(cls, parser: Parser) -> PrintOp:
        prefix = StringAttr(parser.parse_str_literal())
        properties, attrs = attributes(parser, ("hex", "isSigned"))
        names, types = [], []
        if parser.parse_optional_punctuation(":"):
            names = parser.parse_comma_separated_list(Parser.Delimiter.NONE, parser.parse_unresolved_operand)
            parser.parse_punctuation(":")
            types = parser.parse_comma_separated_list(Parser.Delimiter.NONE, parser.parse_type)
        operands = resolve(parser, names, types)
        return cls.create(operands=operands, properties={"prefix": prefix, **properties}, attributes=attrs)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_string_literal(self.prefix.data)
        print_attributes(printer, self, ("hex", "isSigned"))
        if self.args:
            printer.print_string(" : ")
            printer.print_list(self.args, printer.print_ssa_value)
            print_types(printer, self.operand_types)


def kernel_arguments(func: FuncOp) -> list[tuple[SSAValue, dict[str, Attribute]]]:
    """The arguments of a function with their attributes (`tt.divisibility`, ...)."""
    args: Sequence[SSAValue] = func.body.blocks[0].args
    if func.arg_attrs is None:
        return [(a, {}) for a in args]
    return [(a, dict(hints.data)) for a, hints in zip(args, func.arg_attrs, strict=True)]


STRUCTURE_OPS = [
    GetProgramIdOp,
    GetNumProgramsOp,
    FuncOp,
    CallOp,
    ReturnOp,
    AssertOp,
    PrintOp,
]
