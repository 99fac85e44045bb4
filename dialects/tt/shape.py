"""Operations of `tt` that move elements: making, reshaping, broadcasting, joining and gathering tensors."""

from __future__ import annotations

from math import prod

from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, TensorType, UnitAttr, i32
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import NoMemoryEffect, Pure
from xdsl.utils.exceptions import VerifyException

from .base import TTOp, attributes, function_type, integers, number, print_attributes, print_functional, print_types, resolve
from .types import check_axis, check_int, check_same, check_tensor, element_of, int32, like, mask_of, shape_of, tensor


@irdl_op_definition
class MakeRangeOp(TTOp):
    """The integers from `start` to `end` (exclusive).

    %r = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
    """

    name = "tt.make_range"
    start = prop_def(IntegerAttr)
    end = prop_def(IntegerAttr)
    result = result_def()
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "attr-dict `:` type($result)"
    traits = traits_def(Pure())

    @classmethod
    def make(cls, size: int, start: int = 0) -> MakeRangeOp:
        """`size` numbers from `start`."""
        return cls.create(
            result_types=(tensor((size,), i32),), properties={"end": int32(start + size), "start": int32(start)}
        )

    def check(self) -> None:
        size = number(self.end) - number(self.start)
        if size < 1:
            raise VerifyException(f"the end must lie behind the start, got {number(self.start)} to {number(self.end)}")
        check_same(self.result.type, tensor((size,), i32), "the result")


class _UnaryOp(TTOp):
    src = operand_def()
    result = result_def()
    assembly_format = "$src attr-dict `:` type($src) `->` type($result)"
    traits = traits_def(Pure())

    def check_elements(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Verify that both are tensors of the same elements; their shapes."""
        before = check_tensor(self.src.type, "the operand")
        after = check_tensor(self.result.type, "the result")
        check_same(element_of(self.result.type), element_of(self.src.type), "the elements of the result")
        return before, after


@irdl_op_definition
class SplatOp(_UnaryOp):
    """A tensor with the same value everywhere: `%t = tt.splat %s : f32 -> tensor<64xf32>`."""

    name = "tt.splat"

    @classmethod
    def make(cls, value: SSAValue, shape: tuple[int, ...]) -> SplatOp:
        """`value`, a scalar, in every element of a tensor of this shape."""
        return cls.create(operands=(value,), result_types=(tensor(shape, value.type),))

    def check(self) -> None:
        check_tensor(self.result.type, "the result")
        check_same(self.src.type, element_of(self.result.type), "the value")


@irdl_op_definition
class UnsplatOp(TTOp):
    """The value of a tensor of one element: `%s = tt.unsplat %t : tensor<1xf32>`."""

    name = "tt.unsplat"
    src = operand_def()
    result = result_def()
    traits = traits_def(Pure())

    def check(self) -> None:
        if prod(check_tensor(self.src.type, "the operand")) != 1:
            raise VerifyException(f"the operand must have one element, got {self.src.type}")
        check_same(self.result.type, element_of(self.src.type), "the result")

    @classmethod
    def parse(cls, parser: Parser) -> UnsplatOp:
        name = parser.parse_unresolved_operand()
        attrs = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type = parser.parse_type()
        return cls.create(
            operands=[parser.resolve_operand(name, type)], result_types=[element_of(type)], attributes=attrs
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.src)
        print_attributes(printer, self)
        print_types(printer, [self.src.type])


@irdl_op_definition
class ExpandDimsOp(_UnaryOp):
    """A new dimension of size 1: `%e = tt.expand_dims %t {axis = 1 : i32} : tensor<4xf32> -> tensor<4x1xf32>`."""

    name = "tt.expand_dims"
    axis = prop_def(IntegerAttr)
    irdl_options = (ParsePropInAttrDict(),)

    @classmethod
    def make(cls, value: SSAValue, axis: int) -> ExpandDimsOp:
        """A dimension of size 1 in front of dimension `axis` of `value`."""
        shape = shape_of(value.type)
        assert shape is not None
        type = tensor((*shape[:axis], 1, *shape[axis:]), element_of(value.type))
        return cls.create(operands=(value,), result_types=(type,), properties={"axis": int32(axis)})

    def check(self) -> None:
        before, after = self.check_elements()
        axis = number(self.axis)
        check_axis(axis, len(before) + 1)
        if after != (*before[:axis], 1, *before[axis:]):
            raise VerifyException(f"axis {axis} of size 1 in {self.src.type} does not give {self.result.type}")


@irdl_op_definition
class BroadcastOp(_UnaryOp):
    """Dimensions of size 1 repeated: `%b = tt.broadcast %t : tensor<4x1xf32> -> tensor<4x64xf32>`."""

    name = "tt.broadcast"

    @classmethod
    def make(cls, value: SSAValue, shape: tuple[int, ...]) -> BroadcastOp:
        """`value` with dimensions of size 1 repeated to `shape`."""
        return cls.create(operands=(value,), result_types=(tensor(shape, element_of(value.type)),))

    def check(self) -> None:
        before, after = self.check_elements()
        if len(before) != len(after) or any(a not in (1, b) for a, b in zip(before, after, strict=True)):
            raise VerifyException(f"{self.src.type} cannot be broadcast to {self.result.type}: only sizes of 1 change")


@irdl_op_definition
class ReshapeOp(_UnaryOp):
    """The same elements in another shape; with `allow_reorder` in any order.

    %r = tt.reshape %t : tensor<32x2xf32> -> tensor<64xf32>
    """

    name = "tt.reshape"
    allow_reorder = opt_prop_def(UnitAttr)
    efficient_layout = opt_prop_def(UnitAttr)
    assembly_format = (
        "$src (`allow_reorder` $allow_reorder^)? (`efficient_layout` $efficient_layout^)? attr-dict"
        " `:` type($src) `->` type($result)"
    )

    @classmethod
    def make(cls, value: SSAValue, shape: tuple[int, ...]) -> ReshapeOp:
        """`value` in another shape, row-major order kept."""
        return cls.create(operands=(value,), result_types=(tensor(shape, element_of(value.type)),))

    def check(self) -> None:
        before, after = self.check_elements()
        if prod(before) != prod(after):
            raise VerifyException(f"{self.src.type} and {self.result.type} have different numbers of elements")


@irdl_op_definition
class TransOp(_UnaryOp):
    """Dimensions in another order; dimension i of the result is dimension order[i] of the operand.

    %r = tt.trans %t {order = array<i32: 1, 0>} : tensor<16x4xf32> -> tensor<4x16xf32>
    """

    name = "tt.trans"
    order = prop_def(DenseArrayBase)
    irdl_options = (ParsePropInAttrDict(),)

    def check(self) -> None:
        before, after = self.check_elements()
        order = integers(self.order)
        if sorted(order) != list(range(len(before))):
            raise VerifyException(f"the order {list(order)} is no permutation of {len(before)} dimensions")
        if after != tuple(before[int(i)] for i in order):
            raise VerifyException(f"the order {list(order)} of {self.src.type} does not give {self.result.type}")


class _BinaryOp(TTOp):
    lhs = operand_def()
    rhs = operand_def()
    result = result_def()
    traits = traits_def(NoMemoryEffect())

    def check_operands(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Verify that the operands have one type and the result has its elements; shapes of operand and result."""
        before = check_tensor(self.lhs.type, "the operands")
        check_same(self.rhs.type, self.lhs.type, "the second operand")
        after = check_tensor(self.result.type, "the result")
        check_same(element_of(self.result.type), element_of(self.lhs.type), "the elements of the result")
        return before, after

    @classmethod
    def parse(cls, parser: Parser):
        names = [parser.parse_unresolved_operand()]
        parser.parse_punctuation(",")
        names.append(parser.parse_unresolved_operand())
        attrs = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type = parser.parse_type()
        parser.parse_punctuation("->")
        result = parser.parse_type()
        return cls.create(operands=resolve(parser, names, [type, type]), result_types=[result], attributes=attrs)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_ssa_value)
        print_attributes(printer, self)
        print_types(printer, [self.lhs.type])
        printer.print_string(" -> ")
        printer.print_attribute(self.result.type)


@irdl_op_definition
class CatOp(_BinaryOp):
    """Two 1-D tensors behind each other, elements in any order.

    %c = tt.cat %a, %b : tensor<64xf32> -> tensor<128xf32>
    """

    name = "tt.cat"

    def check(self) -> None:
        before, after = self.check_operands()
        if prod(after) != 2 * prod(before):
            raise VerifyException(f"{self.result.type} does not hold two of {self.lhs.type}")


@irdl_op_definition
class JoinOp(_BinaryOp):
    """Two tensors as the entries of a new last dimension: `%j = tt.join %a, %b : tensor<8xf32> -> tensor<8x2xf32>`."""

    name = "tt.join"

    def check(self) -> None:
        before, after = self.check_operands()
        if after != (*before, 2):
            raise VerifyException(f"two of {self.lhs.type} join to a last dimension of 2, got {self.result.type}")


@irdl_op_definition
class SplitOp(TTOp):
    """The two entries of a last dimension: `%a, %b = tt.split %j : tensor<8x2xf32> -> tensor<8xf32>`."""

    name = "tt.split"
    src = operand_def()
    outLHS = result_def()
    outRHS = result_def()
    traits = traits_def(NoMemoryEffect())

    def check(self) -> None:
        shape = check_tensor(self.src.type, "the operand")
        if not shape or shape[-1] != 2:
            raise VerifyException(f"the last dimension must have size 2, got {self.src.type}")
        for result in self.results:
            check_same(result.type, tensor(shape[:-1], element_of(self.src.type)), "a result")

    @classmethod
    def parse(cls, parser: Parser) -> SplitOp:
        name = parser.parse_unresolved_operand()
        attrs = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type = parser.parse_type()
        parser.parse_punctuation("->")
        result = parser.parse_type()
        operands = [parser.resolve_operand(name, type)]
        return cls.create(operands=operands, result_types=[result, result], attributes=attrs)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.src)
        print_attributes(printer, self)
        print_types(printer, [self.src.type])
        printer.print_string(" -> ")
        printer.print_attribute(self.outLHS.type)


@irdl_op_definition
class GatherOp(TTOp):
    """Elements of a tensor found by indices along one axis.

    %g = tt.gather %t[%i] {axis = 0 : i32} : (tensor<64xf32>, tensor<64xi32>) -> tensor<64xf32>
    """

    name = "tt.gather"
    src = operand_def()
    indices = operand_def()
    axis = prop_def(IntegerAttr)
    efficient_layout = opt_prop_def(UnitAttr)
    result = result_def()
    traits = traits_def(Pure())

    def check(self) -> None:
        source = check_tensor(self.src.type, "the operand")
        wanted = check_tensor(self.indices.type, "the indices")
        check_int(self.indices.type, "the indices")
        axis = number(self.axis)
        check_axis(axis, len(source))
        check_same(self.result.type, tensor(wanted, element_of(self.src.type)), "the result")
        if len(source) != len(wanted):
            raise VerifyException(f"{self.indices.type} and {self.src.type} have different numbers of dimensions")
        if any(i != axis and w > s for i, (s, w) in enumerate(zip(source, wanted, strict=True))):
            raise VerifyException(f"{self.indices.type} is larger than {self.src.type} apart from axis {axis}")

    @classmethod
    def parse(cls, parser: Parser) -> GatherOp:
        names = [parser.parse_unresolved_operand()]
        parser.parse_punctuation("[")
        names.append(parser.parse_unresolved_operand())
        parser.parse_punctuation("]")
        properties, attrs = attributes(parser, ("axis", "efficient_layout"))
        type = function_type(parser)
        operands = resolve(parser, names, type.inputs.data)
        return cls.create(
            operands=operands, result_types=type.outputs.data, properties=properties, attributes=attrs
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.src)
        printer.print_string("[")
        printer.print_ssa_value(self.indices)
        printer.print_string("]")
        print_attributes(printer, self, ("axis", "efficient_layout"))
        print_functional(printer, self)


@irdl_op_definition
class HistogramOp(TTOp):
    """How often each number from 0 to the size of the result occurs among the elements (where the mask is set).

    %h = tt.histogram %t, %mask : tensor<64xi32> -> tensor<16xi32>
    """

    name = "tt.histogram"
    src = operand_def()
    mask = opt_operand_def()
    result = result_def()
    traits = traits_def(Pure())

    def check(self) -> None:
        if len(check_tensor(self.src.type, "the operand")) != 1 or len(check_tensor(self.result.type, "the result")) != 1:
            raise VerifyException(f"a histogram is one-dimensional, got {self.src.type} -> {self.result.type}")
        check_int(self.src.type, "the operand")
        check_int(self.result.type, "the result")
        if self.mask is not None:
            check_same(self.mask.type, mask_of(self.src.type), "the mask")

    @classmethod
    def parse(cls, parser: Parser) -> HistogramOp:
        names = parser.parse_comma_separated_list(Parser.Delimiter.NONE, parser.parse_unresolved_operand)
        attrs = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type: Attribute = parser.parse_type()
        parser.parse_punctuation("->")
        result = parser.parse_type()
        if not isinstance(type, TensorType):
            parser.raise_error(f"expected a tensor, got {type}")
        operands = resolve(parser, names, [type, like(type, mask_of(element_of(type)))][: len(names)])
        return cls.create(operands=operands, result_types=[result], attributes=attrs)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_ssa_value)
        print_attributes(printer, self)
        print_types(printer, [self.src.type])
        printer.print_string(" -> ")
        printer.print_attribute(self.result.type)


SHAPE_OPS = [
    MakeRangeOp,
    SplatOp,
    UnsplatOp,
    ExpandDimsOp,
    BroadcastOp,
    ReshapeOp,
    TransOp,
    CatOp,
    JoinOp,
    SplitOp,
    GatherOp,
    HistogramOp,
]
