"""Structure of the `cpu` dialect: kernels, parallel regions, calls, run-time checks and random bits."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    FlatSymbolRefAttrConstr,
    IntegerType,
    StringAttr,
    SymbolRefAttr,
    VectorType,
    i1,
    i32,
    i64,
)
from xdsl.ir import Attribute, Block, Region, SSAValue
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
    MemoryReadEffect,
    MemoryWriteEffect,
    Pure,
    RecursiveMemoryEffect,
    SymbolOpInterface,
)
from xdsl.utils.exceptions import VerifyException

from ..support.arguments import parse_argument
from ..support.create import QuickOp
from ..support.syntax_tail import parse_tail, print_tail
from .types import check_index, check_same, check_value, check_vector, element_of, lanes_of, vec


@irdl_op_definition
class KernelOp(QuickOp):
    """A function without results over pointers and scalars: what the host program launches. Attributes are free-form.
    With `sym_visibility = "private"` it can only be called from the same module.

        cpu.kernel @k0(%x : !cpu.ptr, %y : !cpu.ptr, %n : i64) attributes {reads = [0], writes = [1]} {
          ...
          cpu.return
        }
    """

    name = "cpu.kernel"
    sym_name = prop_def(StringAttr)
    sym_visibility = opt_prop_def(StringAttr)
    body = region_def("single_block")
    traits = traits_def(IsolatedFromAbove(), SymbolOpInterface())

    @classmethod
    def make(
        cls,
        name: str,
        argument_types: Sequence[Attribute],
        attributes: dict[str, Attribute] | None = None,
        private: bool = False,
    ) -> KernelOp:
        """A kernel with an empty body; its arguments are `op.body.block.args`."""
        properties: dict[str, Attribute] = {"sym_name": StringAttr(name)}
        if private:
            properties["sym_visibility"] = StringAttr("private")
        block = Block(arg_types=argument_types)
        return cls.create(regions=[Region(block)], properties=properties, attributes=attributes or {})

    @property
    def is_private(self) -> bool:
        """Whether the kernel can only be called from its own module."""
        return self.sym_visibility is not None and self.sym_visibility.data == "private"

    def verify_(self) -> None:
        if not isinstance(self.body.block.last_op, ReturnOp):
            raise VerifyException("the body must end with cpu.return")
        for i, argument in enumerate(self.body.block.args):
            if isinstance(argument.type, VectorType):
                raise VerifyException(f"argument {i} must be a pointer or a scalar, got {argument.type}")

    def print(self, printer: Printer) -> None:
        if self.sym_visibility is not None:
            printer.print_string(f" {self.sym_visibility.data}")
        printer.print_string(" ")
        printer.print_symbol_name(self.sym_name.data)
        printer.print_string("(")
        printer.print_list(self.body.block.args, printer.print_block_argument)
        printer.print_string(")")
        if self.attributes:
            printer.print_op_attributes(self.attributes, print_keyword=True)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False)

    @classmethod
    def parse(cls, parser: Parser) -> KernelOp:
        properties: dict[str, Attribute] = {}
        for visibility in ("private", "public"):
            if parser.parse_optional_keyword(visibility):
                properties["sym_visibility"] = StringAttr(visibility)
        properties["sym_name"] = parser.parse_symbol_name()
        arguments = parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: parse_argument(parser))
        attributes = parser.parse_optional_attr_dict_with_keyword()
        region = parser.parse_region(arguments)
        if not region.blocks:
            region.add_block(Block(arg_types=[]))
        return cls.create(
            regions=[region], properties=properties, attributes=dict(attributes.data) if attributes else {}
        )


@irdl_op_definition
class ReturnOp(QuickOp):
    """Ends a kernel: `cpu.return`."""

    name = "cpu.return"
    traits = traits_def(IsTerminator(), HasParent(KernelOp))
    assembly_format = "attr-dict"

    @classmethod
    def make(cls) -> ReturnOp:
        """No operands."""
        return cls.create()


@irdl_op_definition
class ParallelOp(QuickOp):
    """Run the body over [0, n) in contiguous chunks on the threads that torch uses (as many as torch.set_num_threads
    says). The body gets the bounds of its chunk, and, when it asks for it, the number of the chunk (below
    `cpu.num_threads`). Chunks hold at least `grain` units, so with n < 2 * grain, with one thread, or inside another
    parallel region it runs once, on [0, n), as chunk 0. With n <= 0 it does not run. Values from outside are used
    freely; nothing is yielded.

        cpu.parallel (%begin, %end) = %n, %grain : i64 {
          ...
        }
    """

    name = "cpu.parallel"
    count = operand_def()
    grain = operand_def()
    body = region_def("single_block")
    traits = traits_def(RecursiveMemoryEffect())

    @classmethod
    def make(cls, count: SSAValue, grain: SSAValue, chunk: bool = False) -> ParallelOp:
        """A parallel region with an empty body; its block arguments are begin, end and, with `chunk`, the chunk's
        number. End it with `YieldOp.make()`."""
        block = Block(arg_types=[count.type] * (3 if chunk else 2))
        return cls.create(operands=(count, grain), regions=[Region(block)])

    def verify_(self) -> None:
        check_index(self.count.type, "the count")
        check_same(self.grain.type, self.count.type, "the grain")
        block = self.body.block
        if len(block.args) not in (2, 3):
            raise VerifyException(
                f"the body takes begin and end (and the chunk's number), got {len(block.args)} arguments"
            )
        for argument in block.args:
            check_same(argument.type, self.count.type, "the arguments of the body")
        if not isinstance(block.last_op, YieldOp):
            raise VerifyException("the body must end with cpu.yield")

    def print(self, printer: Printer) -> None:
        printer.print_string(" (")
        printer.print_list(self.body.block.args, lambda a: printer.print_ssa_value(a) and None)
        printer.print_string(") = ")
        printer.print_list(self.operands, printer.print_ssa_value)
        printer.print_string(" : ")
        printer.print_attribute(self.count.type)
        if self.attributes:
            printer.print_op_attributes(self.attributes, print_keyword=True)
        printer.print_string(" ")
        block = self.body.block
        trivial = isinstance(block.last_op, YieldOp) and not block.last_op.attributes
        printer.print_region(self.body, print_entry_block_args=False, print_block_terminators=not trivial)

    @classmethod
    def parse(cls, parser: Parser) -> ParallelOp:
        arguments = parser.parse_comma_separated_list(
            parser.Delimiter.PAREN, lambda: parser.parse_argument(expect_type=False)
        )
        parser.parse_punctuation("=")
        count = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        grain = parser.parse_unresolved_operand()
        parser.parse_punctuation(":")
        type = parser.parse_type()
        attributes = parser.parse_optional_attr_dict_with_keyword()
        region = parser.parse_region([argument.resolve(type) for argument in arguments])
        if not region.blocks:
            region.add_block(Block(arg_types=[type] * len(arguments)))
        if region.block.last_op is None or not region.block.last_op.has_trait(IsTerminator):
            region.block.add_op(YieldOp.make())
        return cls.create(
            operands=(parser.resolve_operand(count, type), parser.resolve_operand(grain, type)),
            regions=[region],
            attributes=dict(attributes.data) if attributes else {},
        )


@irdl_op_definition
class YieldOp(QuickOp):
    """Ends the body of `cpu.parallel`: `cpu.yield` (may be left out in text)."""

    name = "cpu.yield"
    traits = traits_def(IsTerminator(), HasParent(ParallelOp))
    assembly_format = "attr-dict"

    @classmethod
    def make(cls) -> YieldOp:
        """No operands."""
        return cls.create()


@irdl_op_definition
class NumThreadsOp(QuickOp):
    """The most chunks that a `cpu.parallel` begun here can be cut into: for the size of per-thread partial results.

    %t = cpu.num_threads : i64
    """

    name = "cpu.num_threads"
    res = result_def()
    traits = traits_def(MemoryReadEffect())
    assembly_format = "attr-dict `:` type($res)"

    @classmethod
    def make(cls, type: Attribute = i64) -> NumThreadsOp:
        """`type` is i64 or index."""
        return cls.create(result_types=(type,))

    def verify_(self) -> None:
        check_index(self.res.type, "the result")


@irdl_op_definition
class CallOp(QuickOp):
    """Call a kernel of the module, or an external C function when the module has none of that name.

    cpu.call @gemm(%a, %b, %n) : (!cpu.ptr, !cpu.ptr, i64) -> ()
    """

    name = "cpu.call"
    callee = prop_def(FlatSymbolRefAttrConstr)
    arguments = var_operand_def()
    res = var_result_def()
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "$callee `(` $arguments `)` attr-dict `:` functional-type($arguments, $res)"

    @classmethod
    def make(cls, callee: str, arguments: Sequence[SSAValue], result_types: Sequence[Attribute] = ()) -> CallOp:
        """At most one result."""
        return cls.create(
            operands=tuple(arguments), result_types=tuple(result_types), properties={"callee": SymbolRefAttr(callee)}
        )

    def verify_(self) -> None:
        if len(self.res) > 1:
            raise VerifyException(f"a C function has at most one result, got {len(self.res)}")
        for value in (*self.arguments, *self.res):
            if isinstance(value.type, VectorType):
                raise VerifyException(
                    f"only pointers and scalars are passed to @{self.callee.string_value()}, got {value.type}"
                )


@irdl_op_definition
class AssertOp(QuickOp):
    """Note an error when the condition (or any lane of it) is off, and go on: the first message of a run is kept in
    the module's error slot, which the host program reads after the launches. What follows must be safe all the same
    (clamp the index). With values, at most two integers of 64 bits, the message is a format string (`str.format`) and they are what it
    shows: those of the first lane that is off.

        cpu.assert %ok, "n must be positive" : i1
        cpu.assert %fine, "index {0} of {1}"(%index, %size) : vector<16xi1>, vector<16xi64>, i64
    """

    name = "cpu.assert"
    condition = operand_def()
    values = var_operand_def()
    message = prop_def(StringAttr)
    traits = traits_def(MemoryWriteEffect())
    assembly_format = "$condition `,` $message (`(` $values^ `)`)? attr-dict `:` type($condition) (`,` type($values)^)?"

    @classmethod
    def make(cls, condition: SSAValue, message: str, values: Sequence[SSAValue] = ()) -> AssertOp:
        """`condition` is an i1 or a vector of them, on where all is well; `values` are of i64, with as many lanes or none."""
        return cls.create(operands=(condition, *values), properties={"message": StringAttr(message)})

    def verify_(self) -> None:
        check_value(self.condition.type, "the condition")
        check_same(element_of(self.condition.type), i1, "the condition's lanes")
        if len(self.values) > 2:
            raise VerifyException(f"a message shows at most two values, got {len(self.values)}")
        for value in self.values:
            check_value(value.type, "a value of the message")
            check_same(element_of(value.type), i64, "a value of the message, its lanes")
            if lanes_of(value.type) not in (0, lanes_of(self.condition.type)):
                raise VerifyException(f"a value of the message, {value.type}, has other lanes than the condition, {self.condition.type}")
        if self.values:
            try:
                self.message.data.format(*range(len(self.values)))
            except (IndexError, KeyError, ValueError) as error:
                raise VerifyException(f"{self.message.data!r} is not a format string of {len(self.values)} values: {error}") from None


@irdl_op_definition
class PhiloxOp(QuickOp):
    """Philox4x32-10 random bits (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): one block of
    four 32-bit words for each 64-bit counter. `seed` is the key; a lane's counter is (low word of `offset`, high
    word, low word of `subsequence`, high word).

        %r:4 = cpu.philox %seed, %offset, %subsequence : vector<16xi64>
    """

    name = "cpu.philox"
    seed = operand_def(IntegerType(64))
    offset = operand_def()
    subsequence = operand_def()
    words = var_result_def()
    traits = traits_def(Pure())

    @classmethod
    def make(cls, seed: SSAValue, offset: SSAValue, subsequence: SSAValue) -> PhiloxOp:
        """`offset` and `subsequence` are i64 or vectors of i64; four i32 (vectors) result."""
        type = _words_type(offset.type)
        return cls.create(operands=(seed, offset, subsequence), result_types=(type,) * 4)

    def verify_(self) -> None:
        type = self.offset.type
        check_value(type, "the offset")
        check_same(element_of(type), i64, "the offset's lanes")
        check_same(self.subsequence.type, type, "the subsequence")
        if len(self.words) != 4:
            raise VerifyException(f"four words result, got {len(self.words)}")
        for word in self.words:
            check_same(word.type, _words_type(type), "a word")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_ssa_value)
        print_tail(printer, self, self.offset.type)

    @classmethod
    def parse(cls, parser: Parser) -> PhiloxOp:
        seed = parser.resolve_operand(parser.parse_unresolved_operand(), i64)
        parser.parse_punctuation(",")
        offset = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        subsequence = parser.parse_unresolved_operand()
        attributes, type = parse_tail(parser)
        op = cls.make(seed, parser.resolve_operand(offset, type), parser.resolve_operand(subsequence, type))
        op.attributes.update(attributes)
        return op


def _words_type(type: Attribute) -> Attribute:
    return vec(check_vector(type, "the offset"), i32) if isinstance(type, VectorType) else i32
