"""Operations of a body that mean the same in the kernels of every target, by a table from op class to function.

A target adds to `RULES` what it has in its own way: accesses, named functions, quotients, what is rounded to 16 or 8 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from xdsl.dialects import arith
from xdsl.dialects.builtin import FloatAttr, IndexType, IntegerAttr, i1, i64
from xdsl.ir import Operation, SSAValue

from ...dialects import loop
from ...dialects.expr import ZERO, Expr, as_expr, free_dims
from ...dialects.expr.ranges import prove_le, prove_lt
from ...dialects.nd.types import compute_type
from ...passes.analysis.nest_access import Access
from .values import Condition, NestValues

S = TypeVar("S", bound=NestValues)
Rule = Callable[[NestValues, Operation], None]
Nested = Mapping[type[Operation], Callable[[Any], None]]
"""What lowers the loops in a body, and whatever else the kernel does by itself, by op class."""


def elementwise(s: NestValues, op: Operation) -> None:
    """An op that works number by number: the same op on what its operands have become."""
    result = op.results[0]
    operands = [s.get(v) for v in op.operands]
    s.values[result] = s.b.elementwise(type(op), operands, op.properties, s.scalar_type(result.type))


def constant(s: NestValues, op: Operation) -> None:
    """arith.constant; an integer is an index expression until somebody wants the number."""
    assert isinstance(op, arith.ConstantOp)
    attr = op.value
    if op.result.type == i1:
        assert isinstance(attr, IntegerAttr)
        s.values[op.result] = bool(attr.value.data)
    elif isinstance(attr, FloatAttr):
        s.values[op.result] = s.b.constant(attr.value.data, op.result.type)
    elif op.result not in s.info.exprs:
        assert isinstance(attr, IntegerAttr)
        s.values[op.result] = s.b.constant(attr.value.data, s.scalar_type(op.result.type))


def logic(s: NestValues, op: Operation) -> None:
    """andi, ori, xori: decided where conditions are known."""
    a, b = op.operands
    x, y = s.known(a), s.known(b)
    if x is None and y is None:
        return elementwise(s, op)
    fixed, rest = (x, s.found(b)) if x is not None else (y, s.found(a))
    if isinstance(op, arith.AndIOp):
        s.values[op.results[0]] = rest if fixed else False
    elif isinstance(op, arith.OrIOp):
        s.values[op.results[0]] = True if fixed else rest
    else:
        s.values[op.results[0]] = s.invert(rest) if fixed else rest


def compared_indices(s: NestValues, op: arith.CmpiOp) -> Condition | None:
    """A comparison of index expressions, by their difference; None for one of other values."""
    predicate = arith.CMPI_COMPARISON_OPERATIONS[op.predicate.value.data]
    if predicate[0] == "u" or not s.is_index(op.lhs) or not s.is_index(op.rhs):
        return None
    x, y = s.expr(op.lhs), s.expr(op.rhs)
    if predicate in ("eq", "ne"):
        found = s.is_zero(x - y)
        return s.invert(found) if predicate == "ne" else found
    found = s.negative(x - y if predicate in ("slt", "sge") else y - x)
    return s.invert(found) if predicate in ("sge", "sle") else found


def compare_integers(s: NestValues, op: Operation) -> None:
    """arith.cmpi; of index expressions by their ranges."""
    assert isinstance(op, arith.CmpiOp)
    found = compared_indices(s, op)
    if found is None:
        found = s.b.cmpi(arith.CMPI_COMPARISON_OPERATIONS[op.predicate.value.data], s.get(op.lhs), s.get(op.rhs))
    s.values[op.result] = found


def compare_floats(s: NestValues, op: Operation) -> None:
    """arith.cmpf."""
    assert isinstance(op, arith.CmpfOp)
    predicate = arith.CMPF_COMPARISON_OPERATIONS[op.predicate.value.data]
    s.values[op.result] = s.b.cmpf(predicate, s.get(op.lhs), s.get(op.rhs))


def select(s: NestValues, op: Operation) -> None:
    """arith.select."""
    condition, a, b = op.operands
    known = s.known(condition)
    if known is None:
        s.values[op.results[0]] = s.b.select(*s.b.together(s.get(condition), s.get(a), s.get(b)))
    else:
        s.values[op.results[0]] = s.found(a if known else b)


def cast(s: NestValues, op: Operation) -> None:
    """A cast of numbers."""
    result = op.results[0]
    s.values[result] = s.b.convert(type(op), s.get(op.operands[0]), s.scalar_type(result.type))


def index_cast(s: NestValues, op: Operation) -> None:
    """arith.index_cast: an index is an i64."""
    source, result = op.operands[0], op.results[0]
    if isinstance(result.type, IndexType):
        s.define(result, s.b.resize(s.get(source), i64))
    else:
        s.values[result] = s.b.resize(s.get(source), result.type)


def index(s: NestValues, op: Operation) -> None:
    """loop.index: stays an expression."""


def bound(s: NestValues, op: Operation) -> None:
    """loop.bound: report what is out of range; it counts as 0 from there on."""
    assert isinstance(op, loop.BoundOp)
    b = s.b
    given = b.resize(s.get(op.input), i64)
    if op.is_certain or _is_clamped_to(s, op.input, s.fix(op.size.data)):
        return s.define(op.result, given)
    size = s.integer(s.fix(op.size.data), i64)
    value, extent, zero = b.together(given, size, b.int(0, i64))
    if op.wrap is not None:
        value = b.select(b.cmpi("slt", value, zero), b.add(value, extent), value)
    fine = b.cmpi("ult", value, extent)
    s.check_bound(op, fine, given, size)
    s.define(op.result, b.select(fine, value, zero))


def shared_index(s: NestValues, value: SSAValue) -> Expr | None:
    """An integer that is the same in all iterations that run at once, if it is known as an expression."""
    owner = value.owner
    if isinstance(owner, arith.ConstantOp) and isinstance(owner.value, IntegerAttr):
        return as_expr(owner.value.value.data)
    return e if s.is_index(value) and not free_dims(e := s.expr(value)) else None


def _is_clamped_to(s: NestValues, value: SSAValue, size: Expr) -> bool:
    """Whether an integer was clamped to [0, size), where the size is a symbol."""
    ends: dict[type[Operation], Expr] = {}
    while isinstance(owner := value.owner, arith.MaxSIOp | arith.MinSIOp) and type(owner) not in ends:
        pair = next(((x, e) for x, y in (owner.operands, reversed(owner.operands)) if (e := shared_index(s, y)) is not None), None)
        if pair is None:
            return False
        value, ends[type(owner)] = pair
    if len(ends) < 2:
        return False
    low, high, ranges = ends[arith.MaxSIOp], ends[arith.MinSIOp], s.info.ranges
    return prove_le(0, low, ranges) and prove_le(low, high, ranges) and prove_lt(high, size, ranges)


def reads(s: NestValues, op: loop.LoadOp) -> tuple[Access, SSAValue | None] | None:
    """The access of a load and where it is made (None: everywhere). None for one that reads nothing, whose result is there then: its mask
    is off, or its buffer has no element, whose address may be null. (Without a mask, this is only reached with an index that is reported
    as out of range.)"""
    access, condition = s.info.access[op], s.condition(op.mask)
    if condition is False or any(size is ZERO for size in loop.shaped_dims(access.buffer.type)):
        other = op.other
        s.values[op.result] = s.b.constant(0, s.scalar_type(compute_type(access.dtype))) if other is None else s.get(other)
        return None
    assert not isinstance(condition, bool)
    return access, condition


RULES: dict[type[Operation], Rule] = {
    arith.ConstantOp: constant,
    arith.AndIOp: logic,
    arith.OrIOp: logic,
    arith.XOrIOp: logic,
    arith.CmpiOp: compare_integers,
    arith.CmpfOp: compare_floats,
    arith.SelectOp: select,
    **dict.fromkeys(
        (
            arith.ExtFOp, arith.TruncFOp, arith.SIToFPOp, arith.UIToFPOp, arith.FPToSIOp, arith.FPToUIOp,
            arith.ExtSIOp, arith.ExtUIOp, arith.TruncIOp, arith.BitcastOp,
        ),
        cast,
    ),
    arith.IndexCastOp: index_cast,
    loop.IndexOp: index,
    loop.BoundOp: bound,
}  # fmt: skip


def lower_op(
    s: S,
    op: Operation,
    nested: Nested,
    rules: Mapping[type[Operation], Callable[[S, Operation], None]],
    other: Callable[[S, Operation], None],
) -> None:
    """Lower an op of a body by `nested` or `rules`, and by `other` what neither has."""
    kind = type(op)
    rule = nested.get(kind)
    if rule is not None:
        rule(op)
        return
    own = rules.get(kind)
    if own is not None:
        own(s, op)
    elif kind is not loop.YieldOp:
        other(s, op)
