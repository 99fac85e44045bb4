"""The methods of a builder that write pointwise ops."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import f32, i1
from xdsl.ir import Attribute, SSAValue

from ....dialects.nd.pointwise import OPS, BitcastOp, CmpOp, FmaOp, PointwiseOp, PredicateOp, SelectOp, computes
from ....dialects.nd.types import LOW_PRECISION
from .view_builder import ViewBuilder
from .writing import _PREDICATES, Operand, Uncovered


class PointwiseBuilder(ViewBuilder):
    """Writes ops on elements."""

    def op(self, name: str, *operands: Operand) -> SSAValue:
        """The pointwise op nd.`name`; numbers take the element type of the first tensor, which the result has (see `predicate`)."""
        assert not issubclass(OPS[name], PredicateOp), name
        return self._pointwise(OPS[name], operands, None)

    def predicate(self, name: str, value: SSAValue) -> SSAValue:
        """isnan, isinf, isfinite, signbit or logical_not."""
        return self._pointwise(OPS[name], (value,), i1)

    def cmp(self, predicate: str, lhs: Operand, rhs: Operand) -> SSAValue:
        """nd.cmp with predicate eq, ne, lt, le, gt or ge."""
        return self._pointwise(CmpOp, (lhs, rhs), i1, predicate=_PREDICATES[predicate])

    def fma(self, a: Operand, b: Operand, c: Operand) -> SSAValue:
        """a * b + c"""
        return self._pointwise(FmaOp, (a, b, c), None)

    def _pointwise(
        self, cls: type[PointwiseOp], operands: Sequence[Operand], dtype: Attribute | None, /, **properties: Attribute
    ) -> SSAValue:
        values = [v for v in operands if isinstance(v, SSAValue)]
        element = self.dtype(values[0])
        if not computes(cls, element):
            raise Uncovered(f"{cls.name} does not compute {element}")
        if len(values) != len(operands):
            number = self.scalar if cls is CmpOp else self.factor
            values = [v if isinstance(v, SSAValue) else number(v, element) for v in operands]
        values, dims = self.broadcast(values)
        return self.emit(cls, values, dims, dtype or element, **properties)

    def select(self, condition: SSAValue, then: Operand, otherwise: Operand) -> SSAValue:
        """torch.where; at least one of the two values is a tensor."""
        dtype = self.dtype(then if isinstance(then, SSAValue) else otherwise)
        values = [condition, self.scalar(then, dtype), self.scalar(otherwise, dtype)]
        values, dims = self.broadcast(values)
        return self.emit(SelectOp, values, dims, dtype)

    def bitcast(self, value: SSAValue, dtype: Attribute) -> SSAValue:
        """The same bits as another element type of the same width."""
        return value if self.dtype(value) == dtype else self.emit(BitcastOp, (value,), self.dims(value), dtype)

    def widen(self, value: SSAValue) -> SSAValue:
        """f16 and bf16 as f32: the precision in which torch's own composite kernels compute."""
        return self.cast(value, f32) if self.dtype(value) in LOW_PRECISION else value

    # short names for the arithmetic that rules are full of

    def add(self, a: Operand, b: Operand) -> SSAValue:
        return self.op("add", a, b)

    def sub(self, a: Operand, b: Operand) -> SSAValue:
        return self.op("sub", a, b)

    def mul(self, a: Operand, b: Operand) -> SSAValue:
        return self.op("mul", a, b)

    def div(self, a: Operand, b: Operand) -> SSAValue:
        return self.op("div", a, b)
