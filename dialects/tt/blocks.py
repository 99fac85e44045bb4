"""Operations of `tt` that reach memory in blocks: block pointers (Triton up to 3.8) and tensor descriptors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, TensorType, i32, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    ParsePropInAttrDict,
    SameVariadicOperandSize,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect, Pure
from xdsl.utils.exceptions import VerifyException

from .base import (
    TTOp,
    attributes,
    function_type,
    integers,
    operand_list,
    parse_bare,
    print_attributes,
    print_functional,
    print_types,
    print_values,
    resolve,
)
from .memory import POLICY, AccessOp, parse_policy, plain_policy
from .types import (
    DESCRIPTOR_REDUCE,
    PADDING,
    PointerType,
    TensorDescType,
    check_int,
    check_same,
    check_tensor,
    element_of,
    loaded,
    shape_of,
    tensor,
)


@irdl_op_definition
class MakeTensorPtrOp(TTOp):
    """A block pointer: the block at `offsets` of a tensor in memory.

    %p = tt.make_tensor_ptr %base, [%m, %n], [%n, %one], [%i, %j] {order = array<i32: 1, 0>} : !tt.ptr<tensor<8x16xf32>>
    """

    name = "tt.make_tensor_ptr"
    base = operand_def()
    shape = var_operand_def()
    strides = var_operand_def()
    offsets = var_operand_def()
    order = prop_def(DenseArrayBase)
    result = result_def()
    irdl_options = (SameVariadicOperandSize(),)
    traits = traits_def(Pure())

    def check(self) -> None:
        result = self.result.type
        block = result.pointee if isinstance(result, PointerType) else None
        if not isinstance(block, TensorType):
            raise VerifyException(f"the result must point to a tensor, got {result}")
        check_same(self.base.type, PointerType(block.element_type), "the base")
        rank = len(block.get_shape())
        if len(self.operands) != 1 + 3 * rank or len(integers(self.order)) != rank:
            raise VerifyException(f"shape, strides, offsets and order must have {rank} entries each")
        _check_types(self.shape, i64, "a size")
        _check_types(self.strides, i64, "a stride")
        _check_types(self.offsets, i32, "an offset")

    @classmethod
    def parse(cls, parser: Parser) -> MakeTensorPtrOp:
        base = parser.parse_unresolved_operand()
        names, types = [base], []
        for type in (i64, i64, i32):
            parser.parse_punctuation(",")
            part = operand_list(parser)
            names += part
            types += [type] * len(part)
        properties, attrs = attributes(parser, ("order",))
        parser.parse_punctuation(":")
        result = parse_bare(parser, PointerType)
        if not isinstance(result, PointerType):
            parser.raise_error(f"expected a block pointer, got {result}")
        types = [PointerType(element_of(result.pointee)), *types]
        operands = resolve(parser, names, types)
        return cls.create(operands=operands, result_types=[result], properties=properties, attributes=attrs)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.base)
        for part in (self.shape, self.strides, self.offsets):
            printer.print_string(", [")
            print_values(printer, part)
            printer.print_string("]")
        print_attributes(printer, self, ("order",))
        print_types(printer, [self.result.type])


def _check_types(values: Sequence[SSAValue], type: Attribute, what: str) -> None:
    for value in values:
        check_same(value.type, type, what)


@irdl_op_definition
class AdvanceOp(TTOp):
    """A block pointer moved: `%q = tt.advance %p, [%i, %j] : !tt.ptr<tensor<8x16xf32>>`."""

    name = "tt.advance"
    ptr = operand_def()
    offsets = var_operand_def()
    result = result_def()
    traits = traits_def(Pure())

    def check(self) -> None:
        pointer = self.ptr.type
        shape = shape_of(pointer.pointee) if isinstance(pointer, PointerType) else None
        if shape is None:
            raise VerifyException(f"the operand must be a block pointer, got {pointer}")
        check_same(self.result.type, pointer, "the result")
        _check_types(self.offsets, i32, "an offset")
        if len(self.offsets) != len(shape):
            raise VerifyException(f"there must be {len(shape)} offsets, got {len(self.offsets)}")

    @classmethod
    def parse(cls, parser: Parser) -> AdvanceOp:
        names = [parser.parse_unresolved_operand()]
        parser.parse_punctuation(",")
        names += operand_list(parser)
        attrs = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type = parse_bare(parser, PointerType)
        operands = resolve(parser, names, [type] + [i32] * (len(names) - 1))
        return cls.create(operands=operands, result_types=[type], attributes=attrs)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.ptr)
        printer.print_string(", [")
        print_values(printer, self.offsets)
        printer.print_string("]")
        print_attributes(printer, self)
        print_types(printer, [self.result.type])


# Descriptors.


@irdl_op_definition
class MakeTensorDescOp(TTOp):
    """A descriptor of a tensor in memory, read and written in blocks; what lies outside reads as zero (or NaN).

    %d = tt.make_tensor_descriptor %base, [%m, %n], [%n64, %one]
        : !tt.ptr<f32>, !tt.tensordesc<tensor<16x32xf32>>
    """

    name = "tt.make_tensor_descriptor"
    base = operand_def()
    shape = var_operand_def()
    strides = var_operand_def()
    padding = opt_prop_def(IntegerAttr)
    result = result_def(TensorDescType)
    irdl_options = (SameVariadicOperandSize(),)
    traits = traits_def(Pure())

    def check(self) -> None:
        block = self.result.type.block
        check_same(element_of(loaded(self.base.type)), block.element_type, "what the base points to")
        if len(self.operands) != 1 + 2 * len(block.get_shape()):
            raise VerifyException(f"there must be {len(block.get_shape())} sizes and as many strides")
        _check_types(self.shape, i32, "a size")
        _check_types(self.strides, i64, "a stride")
        if self.padding is not None:
            PADDING.check(self.padding)

    @classmethod
    def parse(cls, parser: Parser) -> MakeTensorDescOp:
        names, types = [parser.parse_unresolved_operand()], []
        for type in (i32, i64):
            parser.parse_punctuation(",")
            part = operand_list(parser)
            names += part
            types += [type] * len(part)
        properties, attrs = attributes(parser, ("padding",))
        parser.parse_punctuation(":")
        types = [parse_bare(parser, PointerType), *types]
        parser.parse_punctuation(",")
        result = parse_bare(parser, TensorDescType)
        operands = resolve(parser, names, types)
        return cls.create(operands=operands, result_types=[result], properties=properties, attributes=attrs)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.base)
        for part in (self.shape, self.strides):
            printer.print_string(", [")
            print_values(printer, part)
            printer.print_string("]")
        print_attributes(printer, self, ("padding",), {"padding": PADDING.attr("zero")})
        print_types(printer, [self.base.type, self.result.type])


def _descriptor(type: Attribute) -> TensorType:
    if not isinstance(type, TensorDescType):
        raise VerifyException(f"expected a tensor descriptor, got {type}")
    return type.block


def _check_block(desc: Attribute, value: Attribute, indices: Sequence[SSAValue]) -> None:
    """A block may have lost dimensions of size 1, but none of its elements."""
    block = _descriptor(desc)
    check_tensor(value, "the block")
    check_same(element_of(value), block.element_type, "the elements of the block")
    wanted, got = (tuple(n for n in shape_of(t) or () if n != 1) for t in (block, value))
    if wanted != got:
        raise VerifyException(f"the block must have the shape of {block}, got {value}")
    _check_types(indices, i32, "an index")
    if len(indices) != len(block.get_shape()):
        raise VerifyException(f"there must be {len(block.get_shape())} indices, got {len(indices)}")


@irdl_op_definition
class DescriptorLoadOp(AccessOp):
    """Load a block: `%v = tt.descriptor_load %d[%i, %j] : !tt.tensordesc<tensor<16x32xf32>> -> tensor<16x32xf32>`."""

    name = "tt.descriptor_load"
    desc = operand_def()
    indices = var_operand_def()
    result = result_def()
    traits = traits_def(MemoryReadEffect())

    def check(self) -> None:
        _check_block(self.desc.type, self.result.type, self.indices)
        self.check_policy()

    @classmethod
    def parse(cls, parser: Parser) -> DescriptorLoadOp:
        names = [parser.parse_unresolved_operand(), *operand_list(parser)]
        policy = parse_policy(parser)
        properties, attrs = attributes(parser, POLICY)
        parser.parse_punctuation(":")
        desc = parse_bare(parser, TensorDescType)
        parser.parse_punctuation("->")
        result = parser.parse_type()
        operands = resolve(parser, names, [desc] + [i32] * (len(names) - 1))
        properties = plain_policy(properties | policy)
        return cls.create(operands=operands, result_types=[result], properties=properties, attributes=attrs)

    def print(self, printer: Printer) -> None:
        _print_indexed(printer, self.desc, self.indices)
        self.print_policy(printer, (), {})
        print_types(printer, [self.desc.type])
        printer.print_string(" -> ")
        printer.print_attribute(self.result.type)


def _print_indexed(printer: Printer, desc: SSAValue, indices: Sequence[SSAValue]) -> None:
    printer.print_string(" ")
    printer.print_ssa_value(desc)
    printer.print_string("[")
    print_values(printer, indices)
    printer.print_string("]")


@irdl_op_definition
class DescriptorStoreOp(TTOp):
    """Store a block: `tt.descriptor_store %d[%i, %j], %v : !tt.tensordesc<tensor<16x32xf32>>, tensor<16x32xf32>`."""

    name = "tt.descriptor_store"
    desc = operand_def()
    src = operand_def()
    indices = var_operand_def()
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def check(self) -> None:
        _check_block(self.desc.type, self.src.type, self.indices)

    @classmethod
    def parse(cls, parser: Parser) -> DescriptorStoreOp:
        return _parse_block_store(cls, parser, {})

    def print(self, printer: Printer) -> None:
        _print_indexed(printer, self.desc, self.indices)
        _print_block_store(self, printer)


@irdl_op_definition
class DescriptorReduceOp(TTOp):
    """Combine a block with what lies there: `tt.descriptor_reduce add, %d[%i, %j], %v : ...`."""

    name = "tt.descriptor_reduce"
    kind = prop_def(IntegerAttr)
    desc = operand_def()
    src = operand_def()
    indices = var_operand_def()
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def check(self) -> None:
        DESCRIPTOR_REDUCE.check(self.kind)
        _check_block(self.desc.type, self.src.type, self.indices)

    @classmethod
    def parse(cls, parser: Parser) -> DescriptorReduceOp:
        kind = DESCRIPTOR_REDUCE.parse(parser)
        parser.parse_punctuation(",")
        return _parse_block_store(cls, parser, {"kind": kind})

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {DESCRIPTOR_REDUCE.keyword(self.kind)},")
        _print_indexed(printer, self.desc, self.indices)
        _print_block_store(self, printer)


def _parse_block_store(cls: type[Any], parser: Parser, properties: dict[str, Attribute]) -> Any:
    desc, indices = parser.parse_unresolved_operand(), operand_list(parser)
    parser.parse_punctuation(",")
    names = [desc, parser.parse_unresolved_operand(), *indices]
    attrs = parser.parse_optional_attr_dict()
    parser.parse_punctuation(":")
    types = [parse_bare(parser, TensorDescType)]
    parser.parse_punctuation(",")
    types.append(parser.parse_type())
    operands = resolve(parser, names, types + [i32] * len(indices))
    return cls.create(operands=operands, properties=properties, attributes=attrs)


def _print_block_store(op: DescriptorStoreOp | DescriptorReduceOp, printer: Printer) -> None:
    printer.print_string(", ")
    printer.print_ssa_value(op.src)
    print_attributes(printer, op)
    print_types(printer, [op.desc.type, op.src.type])


def _check_rows(desc: Attribute, x_offsets: Attribute, y_offset: Attribute, rows: Attribute) -> None:
    block = _descriptor(desc)
    shape = block.get_shape()
    if len(shape) != 2 or shape[0] != 1:
        raise VerifyException(f"the block of the descriptor must be one row, got {block}")
    check_int(x_offsets, "the rows", 32)
    (count,) = check_tensor(x_offsets, "the rows")
    check_same(y_offset, i32, "the column")
    check_same(rows, tensor((count, shape[1]), block.element_type), "the block")


@irdl_op_definition
class DescriptorGatherOp(TTOp):
    """Load rows of a descriptor: `%v = tt.descriptor_gather %d[%rows, %column] : (...) -> tensor<8x32xf32>`."""

    name = "tt.descriptor_gather"
    desc = operand_def()
    x_offsets = operand_def()
    y_offset = operand_def()
    result = result_def()
    traits = traits_def(MemoryReadEffect())

    def check(self) -> None:
        _check_rows(self.desc.type, self.x_offsets.type, self.y_offset.type, self.result.type)

    @classmethod
    def parse(cls, parser: Parser) -> DescriptorGatherOp:
        names = [parser.parse_unresolved_operand(), *operand_list(parser)]
        attrs = parser.parse_optional_attr_dict()
        type = function_type(parser)
        operands = resolve(parser, names, type.inputs.data)
        return cls.create(operands=operands, result_types=type.outputs.data, attributes=attrs)

    def print(self, printer: Printer) -> None:
        _print_indexed(printer, self.desc, self.operands[1:])
        print_attributes(printer, self)
        print_functional(printer, self)


@irdl_op_definition
class DescriptorScatterOp(TTOp):
    """Store rows of a descriptor: `tt.descriptor_scatter %d[%rows, %column], %v : ...`."""

    name = "tt.descriptor_scatter"
    desc = operand_def()
    x_offsets = operand_def()
    y_offset = operand_def()
    src = operand_def()
    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(MemoryWriteEffect())
    assembly_format = (
        "$desc `[` $x_offsets `,` $y_offset `]` `,` $src attr-dict"
        " `:` type($desc) `,` type($x_offsets) `,` type($y_offset) `,` type($src)"
    )

    def check(self) -> None:
        _check_rows(self.desc.type, self.x_offsets.type, self.y_offset.type, self.src.type)


BLOCK_OPS = [
    MakeTensorPtrOp,
    AdvanceOp,
    MakeTensorDescOp,
    DescriptorLoadOp,
    DescriptorStoreOp,
    DescriptorReduceOp,
    DescriptorGatherOp,
    DescriptorScatterOp,
]
