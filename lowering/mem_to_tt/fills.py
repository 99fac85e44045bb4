"""Masked loads give what leaves a reduction as it is, so that nothing need be put in the place of elements behind the end of a row.

    %v = tt.load %p, %mask; %e = extf %v; select %mask, %e, -inf                  ->    tt.load %p, %mask, -inf; extf
    exp (%e - %m), %m the maximum or 0; select %mask, that, 0                     ->    that: exp(-inf - %m) is 0

What an element behind the end is follows from the number that its load gives, by ordinary arithmetic. A comparison and a `select` an
element are saved, for rows whose length is a symbol or no power of two."""

from __future__ import annotations

import math
from collections.abc import Callable

from xdsl.dialects import arith
from xdsl.dialects import math as mlir_math
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, TensorType
from xdsl.ir import Block, SSAValue

from ...dialects.nd.types import is_float
from ...dialects.support.replace import erase_op
from ...dialects.tt.arith import CmpFOp, SelectOp
from ...dialects.tt.compute import ReduceOp
from ...dialects.tt.memory import LoadOp
from ...dialects.tt.shape import BroadcastOp, ExpandDimsOp, SplatOp
from ...passes.analysis.constants import constant_of

_EQUAL = CmpFOp.PREDICATES.index("oeq")


def fill_loads(entry: Block) -> None:
    """Have the masked loads of a kernel give numbers that make selections needless, and take these away."""
    for op in [one for top in entry.ops for one in top.walk() if isinstance(one, SelectOp)]:
        mask, value, start = op.operands
        wanted = constant_of(start)
        if wanted is None or isinstance(mask.owner, Block):
            continue
        for fill in (wanted, 0.0, -math.inf):
            loads: dict[LoadOp, float] = {}
            if _outside(value, mask, fill, loads) == wanted:
                for load, number in loads.items():
                    _fill(entry, load, number)
                op.results[0].replace_all_uses_with(op.operands[1])
                erase_op(op)
                break


def _fill(entry: Block, load: LoadOp, number: float) -> None:
    """Give a load without one a number for where its mask is not set."""
    if load.other is not None:
        return
    kind = load.result.type
    assert isinstance(kind, TensorType) and entry.first_op is not None
    attr = DenseIntOrFPElementsAttr.from_list(kind, [number])  # pyright: ignore[reportArgumentType, reportCallIssue]
    constant = arith.ConstantOp.create(result_types=[kind], properties={"value": attr})
    entry.insert_op_before(constant, entry.first_op)
    filled = LoadOp.make(load.ptr, load.mask, constant.results[0])
    filled.properties = {**load.properties, "operandSegmentSizes": filled.properties["operandSegmentSizes"]}
    filled.attributes = dict(load.attributes)
    filled.location = load.location
    block = load.parent
    assert block is not None
    block.insert_op_before(filled, load)
    load.result.replace_all_uses_with(filled.result)
    erase_op(load)


def _outside(value: SSAValue, mask: SSAValue, fill: float, loads: dict[LoadOp, float]) -> float | None:
    """What every element of a value is where the mask is not set, if loads under it that say nothing else give `fill` there; None where
    that is not known. The loads are noted in `loads`, with what they give."""
    op = value.owner
    if isinstance(op, LoadOp):
        if op.mask is None or not _is_off(op.mask, mask):
            return None
        if not isinstance(op.result.type, TensorType) or not is_float(op.result.type.element_type):
            return None
        number = fill if op.other is None else constant_of(op.other)
        if number is not None:
            loads[op] = number
        return number
    if (known := constant_of(value)) is not None:
        return known
    if isinstance(op, arith.ExtFOp | BroadcastOp):
        return _outside(op.operands[0], mask, fill, loads)
    if isinstance(op, arith.SubfOp) and _outside(op.lhs, mask, fill, loads) == -math.inf and _is_top(op.rhs, loads):
        return -math.inf
    rule = _RULES.get(type(op))
    if rule is None or isinstance(op, Block):
        return None
    given: list[float] = []
    for operand in op.operands:
        found = _outside(operand, mask, fill, loads)
        if found is None:
            return None
        given.append(found)
    number = rule(*given)
    return None if math.isnan(number) else number


def _is_off(inner: SSAValue, mask: SSAValue) -> bool:
    """Whether `inner` is set nowhere but where `mask` is: it is the same, or that and something else (rows behind the last)."""
    inner, mask = _spread(inner), _spread(mask)
    return inner is mask or (isinstance(inner.owner, arith.AndIOp) and any(_is_off(part, mask) for part in inner.owner.operands))


def _spread(value: SSAValue) -> SSAValue:
    """What a value repeats."""
    while isinstance(value.owner, BroadcastOp):
        value = value.owner.operands[0]
    return value


def _exp(x: float) -> float:
    return math.exp(x) if x <= 0 else math.nan


_RULES: dict[type, Callable[..., float]] = {
    arith.AddfOp: lambda a, b: a + b,
    arith.SubfOp: lambda a, b: a - b,
    arith.MulfOp: lambda a, b: a * b,
    mlir_math.FmaOp: lambda a, b, c: a * b + c,
    mlir_math.AbsFOp: lambda x: math.fabs(x),
    mlir_math.ExpOp: _exp,
    mlir_math.Exp2Op: lambda x: 2.0**x if x <= 0 else math.nan,
}
"""Arithmetic on what is known; NaN for what is better not relied upon."""


def _is_top(value: SSAValue, loads: dict[LoadOp, float]) -> bool:
    """Whether a number is no -inf, or the maximum of the row that `loads` load: where that is -inf, what is inside of it is NaN too."""
    op = value.owner
    while isinstance(op, BroadcastOp | SplatOp | ExpandDimsOp):
        value = op.operands[0]
        op = value.owner
    if isinstance(op, SelectOp | arith.SelectOp):
        compared, number = op.operands[0].owner, constant_of(op.operands[1])
        if not isinstance(compared, CmpFOp | arith.CmpfOp) or number is None or not math.isfinite(number):
            return False
        same = compared.predicate.value.data == _EQUAL and compared.lhs is op.operands[2]
        return same and constant_of(compared.rhs) == -math.inf
    if not isinstance(op, ReduceOp) or len(op.operands) != 1 or not isinstance(op.regions[0].block.first_op, arith.MaximumfOp):
        return False
    source = op.operands[0]
    while isinstance(source.owner, SelectOp | arith.ExtFOp):
        source = source.owner.operands[1 if isinstance(source.owner, SelectOp) else 0]
    return source.owner in loads
