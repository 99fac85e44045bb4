"""Values of a nest's body in a kernel: scalars where they are the same in the whole block, else tensors of one of the
shapes [rows, 1], [1, columns] and [rows, columns] (or [rows] without inner loops)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from xdsl.dialects import arith
from xdsl.dialects.builtin import Float32Type, FloatAttr, IntegerAttr, IntegerType, i64
from xdsl.ir import Attribute, Block, Operation, SSAValue

from ...dialects.expr import Add, Dim, Expr, FloorDiv, Max, Min, Mod, Mul, Sym
from ...dialects.expr_ranges import prove_ge0, range_of
from ...dialects.tt_arith import TENSOR_OPS, CmpIOp
from ...dialects.tt_shape import BroadcastOp, SplatOp
from ...dialects.tt_types import element_of, like, shape_of
from ...errors import StepwellError
from ...passes.loop.nest_access import NestAccess

I32_MAX = 2**31 - 1


class UnsupportedNest(StepwellError):
    """A nest that there is no Triton kernel for; the message says what it has."""


class Values:
    """The body of a kernel while it is written: operations go to the end of `block`."""

    def __init__(self, info: NestAccess, block: Block):
        self.info = info
        self.block = block
        self.values: dict[SSAValue, SSAValue] = {}
        self.dims: dict[Dim, SSAValue] = {}
        self.syms: dict[Sym, SSAValue] = {}
        self.index: IntegerType = i64
        """The type in which indices are computed."""
        self._memo: dict[object, SSAValue] = {}

    def inside(self, block: Block) -> Values:
        """The same, in the body of a loop: what is computed there is not known outside."""
        inner = Values(self.info, block)
        inner.values, inner.dims, inner.syms = dict(self.values), dict(self.dims), self.syms
        inner.index, inner._memo = self.index, dict(self._memo)
        return inner

    # Operations.

    def add(self, op: Operation) -> SSAValue:
        """Append an operation; its first result."""
        self.block.add_op(op)
        return op.results[0]

    def elementwise(
        self,
        op: type[Operation],
        operands: tuple[SSAValue, ...],
        element: Attribute | None = None,
        properties: Mapping[str, Attribute] | None = None,
    ) -> SSAValue:
        """`op` on operands brought to one shape; the result has elements of type `element` (those of the first)."""
        same = self.same_shape(operands)
        type = like(same[0].type, element or element_of(same[0].type))
        chosen = TENSOR_OPS.get(op.name, op) if shape_of(type) is not None else op
        return self.add(chosen.create(operands=same, result_types=(type,), properties=properties or {}))

    def same_shape(self, operands: tuple[SSAValue, ...]) -> tuple[SSAValue, ...]:
        """Values broadcast to the smallest shape that holds them all."""
        shapes = [shape for v in operands if (shape := shape_of(v.type)) is not None]
        if not shapes:
            return operands
        shape = tuple(map(max, zip(*shapes, strict=True)))
        return tuple(self.broadcast(v, shape) for v in operands)

    def broadcast(self, value: SSAValue, shape: tuple[int, ...]) -> SSAValue:
        """A value in a larger shape."""
        have = shape_of(value.type)
        if have == shape:
            return value
        key = ("broadcast", value, shape)
        if (found := self._memo.get(key)) is None:
            op = SplatOp if have is None else BroadcastOp
            found = self._memo[key] = self.add(op.make(value, shape))
        return found

    def constant(self, attr: IntegerAttr | FloatAttr) -> SSAValue:
        """A scalar constant."""
        if (found := self._memo.get(attr)) is None:
            found = self._memo[attr] = self.add(
                arith.ConstantOp.create(result_types=(attr.type,), properties={"value": attr})
            )
        return found

    def int(self, value: int, dtype: IntegerType | None = None) -> SSAValue:
        """An integer, of the type of indices if none is given."""
        return self.constant(IntegerAttr(value, dtype or self.index))

    def compare(self, predicate: str, a: SSAValue, b: SSAValue) -> SSAValue:
        """Integers compared."""
        return self.add(CmpIOp.make(predicate, *self.same_shape((a, b))))

    def both(self, a: SSAValue | None, b: SSAValue | None) -> SSAValue | None:
        """The conjunction of masks; None is true."""
        if a is None or b is None:
            return b if a is None else a
        return self.elementwise(arith.AndIOp, (a, b))

    def select(self, mask: SSAValue, a: SSAValue, b: SSAValue) -> SSAValue:
        """`a` where the mask is set, else `b`."""
        mask, a, b = self.same_shape((mask, a, b))
        op = TENSOR_OPS["arith.select"] if shape_of(a.type) is not None else arith.SelectOp
        return self.add(op.create(operands=(mask, a, b), result_types=(a.type,)))

    def resize(self, value: SSAValue, dtype: Attribute) -> SSAValue:
        """An integer as another integer type."""
        have = element_of(value.type)
        assert isinstance(have, IntegerType) and isinstance(dtype, IntegerType)
        if have == dtype:
            return value
        wider = dtype.width.data > have.width.data
        return self.elementwise(arith.ExtSIOp if wider else arith.TruncIOp, (value,), dtype)

    # Body values and index expressions.

    def get(self, value: SSAValue) -> SSAValue:
        """What a value of the body has become."""
        found = self.values.get(value)
        if found is not None:
            return found
        if value not in self.info.exprs:
            raise UnsupportedNest(f"a value of type {value.type} comes from nowhere that a kernel can reach")
        wanted = value.type if isinstance(value.type, IntegerType) else self.index
        return self.resize(self.number(self.info.exprs[value]), wanted)

    def number(self, e: Expr) -> SSAValue:
        """The value of an index expression, in the type of indices."""
        if e.value is not None:
            return self.int(e.value)
        if (found := self._memo.get(e)) is None:
            found = self._memo[e] = self._number(e)
        return found

    def _number(self, e: Expr) -> SSAValue:
        if isinstance(e, Dim):
            found = self.dims.get(e)
            return self.resize(self.get(self.info.opaque[e]), self.index) if found is None else found
        if isinstance(e, Sym):
            return self.resize(self.syms[e], self.index)
        if isinstance(e, Add):
            total: SSAValue | None = None
            for term, coefficient in e.terms:
                value = self.number(term)
                if coefficient != 1:
                    value = self.elementwise(arith.MuliOp, (value, self.int(coefficient)), None, _NO_OVERFLOW)
                total = value if total is None else self._sum(total, value)
            assert total is not None
            return self._sum(total, self.int(e.constant)) if e.constant else total
        if isinstance(e, Mul):
            value = self.number(e.factors[0])
            for factor in e.factors[1:]:
                value = self.elementwise(arith.MuliOp, (value, self.number(factor)), None, _NO_OVERFLOW)
            return value
        if isinstance(e, (FloorDiv, Mod)):
            if not (prove_ge0(e.lhs, self.info.ranges) and prove_ge0(e.rhs - 1, self.info.ranges)):
                raise UnsupportedNest(f"the index {e} divides a number that may be negative")
            op = arith.DivSIOp if isinstance(e, FloorDiv) else arith.RemSIOp
            return self.elementwise(op, (self.number(e.lhs), self.number(e.rhs)))
        assert isinstance(e, (Min, Max))
        value = self.number(e.args[0])
        for arg in e.args[1:]:
            op = arith.MinSIOp if isinstance(e, Min) else arith.MaxSIOp
            value = self.elementwise(op, (value, self.number(arg)))
        return value

    def _sum(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.elementwise(arith.AddiOp, (a, b), None, _NO_OVERFLOW)


_NO_OVERFLOW: dict[str, Attribute] = {"overflowFlags": arith.IntegerOverflowAttr("none")}


def float_attr(value: float, type: Attribute) -> FloatAttr:
    """The number as an attribute of a floating point type."""
    return FloatAttr(value, cast(Float32Type, type))


def fits_32_bits(e: Expr, info: NestAccess) -> bool:
    """Whether an expression and all that it is computed from fit 32 bits."""
    if not _in_range(e, info):
        return False
    if isinstance(e, Add):
        return all(_in_range(term * c, info) and fits_32_bits(term, info) for term, c in e.terms)
    if isinstance(e, (FloorDiv, Mod)):
        return fits_32_bits(e.lhs, info) and fits_32_bits(e.rhs, info)
    if isinstance(e, Mul):
        return all(fits_32_bits(f, info) for f in e.factors)
    if isinstance(e, (Min, Max)):
        return all(fits_32_bits(a, info) for a in e.args)
    return True


def _in_range(e: Expr, info: NestAccess) -> bool:
    r = range_of(e, info.ranges)
    return r.lo is not None and r.hi is not None and r.lo >= -I32_MAX and r.hi <= I32_MAX
