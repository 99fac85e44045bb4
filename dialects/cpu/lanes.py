"""Operations of the `cpu` dialect that move lanes within and between vectors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Self, cast

from xdsl.dialects.builtin import (
    DenseArrayBase,
    IntegerAttr,
    VectorType,
    i64,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from ..support.create import QuickOp
from ..support.syntax_tail import parse_tail, print_tail
from .types import check_same, check_vector, element_of, lanes_of, vec


@cache
def _index_property(value: int) -> dict[str, Attribute]:
    return {"index": IntegerAttr(value, i64)}


@irdl_op_definition
class ShuffleOp(QuickOp):
    """Lanes chosen by constant indices from one vector or from two laid end to end; -1 is any value.

    %v = cpu.shuffle %a, %b [0, 16, 1, 17] : vector<16xf32>
    """

    name = "cpu.shuffle"
    lhs = operand_def(VectorType)
    rhs = opt_operand_def(VectorType)
    indices = prop_def(DenseArrayBase)
    res = result_def(VectorType)
    traits = traits_def(Pure())

    @property
    def lanes(self) -> list[int]:
        """The lanes that are chosen."""
        return [int(i) for i in cast(Any, self.indices).iter_values()]

    @classmethod
    def make(cls, indices: Sequence[int], lhs: SSAValue, rhs: SSAValue | None = None) -> ShuffleOp:
        """The result has as many lanes as there are indices."""
        return cls.create(
            operands=(lhs,) if rhs is None else (lhs, rhs),
            result_types=(vec(len(indices), element_of(lhs.type)),),
            properties={"indices": DenseArrayBase.from_list(i64, list(indices))},
        )

    def verify_(self) -> None:
        limit = check_vector(self.lhs.type, "the operand")
        if self.rhs is not None:
            check_same(self.rhs.type, self.lhs.type, "the second operand")
            limit *= 2
        indices = self.lanes
        for i in indices:
            if not -1 <= i < limit:
                raise VerifyException(f"lane {i} is out of range: there are {limit} lanes")
        check_same(self.res.type, vec(len(indices), element_of(self.lhs.type)), "the result")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_ssa_value)
        printer.print_string(" [" + ", ".join(map(str, self.lanes)) + "]")
        print_tail(printer, self, self.lhs.type)

    @classmethod
    def parse(cls, parser: Parser) -> ShuffleOp:
        operands = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
        indices = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)
        attributes, type = parse_tail(parser)
        op = cls.make(indices, *(parser.resolve_operand(v, type) for v in operands))
        op.attributes.update(attributes)
        return op


@irdl_op_definition
class ExtractOp(QuickOp):
    """One lane as a scalar; the lane is a constant.

    %s = cpu.extract %v[3] : vector<16xf32>
    """

    name = "cpu.extract"
    vector = operand_def(VectorType)
    index = prop_def(IntegerAttr)
    res = result_def()
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)

    @classmethod
    def make(cls, vector: SSAValue, index: int) -> ExtractOp:
        """The scalar in lane `index`."""
        return cls.create(
            operands=(vector,), result_types=(element_of(vector.type),), properties=_index_property(index)
        )

    def verify_(self) -> None:
        _check_lane(self.index.value.data, self.vector.type)
        check_same(self.res.type, element_of(self.vector.type), "the result")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.vector)
        printer.print_string(f"[{self.index.value.data}]")
        print_tail(printer, self, self.vector.type)

    @classmethod
    def parse(cls, parser: Parser) -> ExtractOp:
        vector = parser.parse_unresolved_operand()
        parser.parse_punctuation("[")
        index = parser.parse_integer()
        parser.parse_punctuation("]")
        attributes, type = parse_tail(parser)
        op = cls.make(parser.resolve_operand(vector, type), index)
        op.attributes.update(attributes)
        return op


@irdl_op_definition
class InsertOp(QuickOp):
    """The vector with one lane replaced; the lane is a constant.

    %w = cpu.insert %s, %v[3] : vector<16xf32>
    """

    name = "cpu.insert"
    value = operand_def()
    vector = operand_def(VectorType)
    index = prop_def(IntegerAttr)
    res = result_def(VectorType)
    traits = traits_def(Pure())

    @classmethod
    def make(cls, value: SSAValue, vector: SSAValue, index: int) -> InsertOp:
        """`value` goes to lane `index`."""
        return cls.create(operands=(value, vector), result_types=(vector.type,), properties=_index_property(index))

    def verify_(self) -> None:
        _check_lane(self.index.value.data, self.vector.type)
        check_same(self.value.type, element_of(self.vector.type), "the scalar")
        check_same(self.res.type, self.vector.type, "the result")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_ssa_value)
        printer.print_string(f"[{self.index.value.data}]")
        print_tail(printer, self, self.vector.type)

    @classmethod
    def parse(cls, parser: Parser) -> InsertOp:
        value = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        vector = parser.parse_unresolved_operand()
        parser.parse_punctuation("[")
        index = parser.parse_integer()
        parser.parse_punctuation("]")
        attributes, type = parse_tail(parser)
        op = cls.make(parser.resolve_operand(value, element_of(type)), parser.resolve_operand(vector, type), index)
        op.attributes.update(attributes)
        return op


def _check_lane(lane: int, type: Attribute) -> None:
    lanes = check_vector(type, "the operand")
    if not 0 <= lane < lanes:
        raise VerifyException(f"lane {lane} is out of range: there are {lanes} lanes")


@irdl_op_definition
class SliceOp(QuickOp):
    """Consecutive lanes of a vector, from a constant lane on.

    %v = cpu.slice %w {start = 16 : i64} : vector<64xf32> to vector<16xf32>
    """

    name = "cpu.slice"
    vector = operand_def(VectorType)
    start = prop_def(IntegerAttr)
    res = result_def(VectorType)
    traits = traits_def(Pure())
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "$vector attr-dict `:` type($vector) `to` type($res)"

    @classmethod
    def make(cls, vector: SSAValue, start: int, lanes: int) -> SliceOp:
        """`lanes` lanes from lane `start` on."""
        type = vec(lanes, element_of(vector.type))
        return cls.create(operands=(vector,), result_types=(type,), properties={"start": IntegerAttr(start, i64)})

    def verify_(self) -> None:
        lanes = check_vector(self.vector.type, "the operand")
        count = check_vector(self.res.type, "the result")
        check_same(element_of(self.res.type), element_of(self.vector.type), "the result's element type")
        start = self.start.value.data
        if start < 0 or start + count > lanes:
            raise VerifyException(f"lanes {start} to {start + count - 1} are out of range: there are {lanes} lanes")


class _VectorsOp(QuickOp):
    """Base of the ops on a power of two of vectors of one type: `cpu.x %a, %b : type`."""

    @classmethod
    def make(cls, *vectors: SSAValue) -> Self:
        """The op on these vectors."""
        raise NotImplementedError

    def check_count(self, what: str) -> int:
        """The number of operands. Raises VerifyException if it is no power of two."""
        count = len(self.operands)
        if count < 1 or count & (count - 1):
            raise VerifyException(f"the number of {what} must be a power of two, got {count}")
        return count

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_ssa_value)
        print_tail(printer, self, self.operands[0].type)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        vectors = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
        attributes, type = parse_tail(parser)
        op = cls.make(*(parser.resolve_operand(v, type) for v in vectors))
        op.attributes.update(attributes)
        return op


@irdl_op_definition
class ConcatOp(_VectorsOp):
    """Vectors of one type laid end to end; the number of vectors is a power of two.

    %w = cpu.concat %a, %b, %c, %d : vector<16xf32>
    """

    name = "cpu.concat"
    vectors = var_operand_def(VectorType)
    res = result_def(VectorType)
    traits = traits_def(Pure())

    @classmethod
    def make(cls, *vectors: SSAValue) -> ConcatOp:
        """1, 2, 4, ... vectors of the same type."""
        first = vectors[0].type
        return cls.create(operands=vectors, result_types=(vec(lanes_of(first) * len(vectors), element_of(first)),))

    def verify_(self) -> None:
        count = self.check_count("vectors")
        first = self.vectors[0].type
        lanes = check_vector(first, "the operand")
        for vector in self.vectors:
            check_same(vector.type, first, "every operand")
        check_same(self.res.type, vec(lanes * count, element_of(first)), "the result")


@irdl_op_definition
class TransposeOp(_VectorsOp):
    """n vectors of n lanes, seen as the rows of a matrix, transposed in registers (butterflies of shuffles): result i
    holds lane i of every operand. n is a power of two; 16 is meant for f32, 8 for f64.

        %c:16 = cpu.transpose %r0, ..., %r15 : vector<16xf32>
    """

    name = "cpu.transpose"
    rows = var_operand_def(VectorType)
    columns = var_result_def(VectorType)
    traits = traits_def(Pure())

    @classmethod
    def make(cls, *rows: SSAValue) -> TransposeOp:
        """As many rows as each has lanes."""
        return cls.create(operands=rows, result_types=tuple(row.type for row in rows))

    def verify_(self) -> None:
        count = self.check_count("rows")
        first = self.rows[0].type
        lanes = check_vector(first, "the operand")
        if lanes != count:
            raise VerifyException(f"a square is transposed: {count} rows need {count} lanes, got {first}")
        for value in (*self.rows, *self.columns):
            check_same(value.type, first, "every row and column")
        if len(self.columns) != count:
            raise VerifyException(f"{count} rows give {count} columns, got {len(self.columns)}")
