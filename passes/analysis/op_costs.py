"""What body ops cost on a CPU, in vector operations: for schedules and for deciding what is computed once and kept."""

from __future__ import annotations

from xdsl.dialects import arith, math
from xdsl.ir import Operation

from ...dialects import loop
from ...dialects.nd.types import LOW_PRECISION
from ...dialects.support.special import ORTHOGONAL_POLYNOMIALS

OP_COST_UNITS: dict[type[Operation], float] = {
    arith.DivfOp: 5.0,
    arith.DivSIOp: 15.0,
    arith.RemSIOp: 15.0,
    arith.FloorDivSIOp: 15.0,
    math.SqrtOp: 6.0,
    math.RsqrtOp: 10.0,
    math.AbsFOp: 1.0,
    math.FmaOp: 1.0,
    math.FloorOp: 1.0,
    math.CeilOp: 1.0,
    math.RoundEvenOp: 1.0,
    math.TruncOp: 1.0,
    loop.RandomOp: 40.0,
    loop.MathOp: 15.0,
    loop.IndexOp: 0.0,
    loop.BoundOp: 2.0,
    loop.YieldOp: 0.0,
    arith.ConstantOp: 0.0,
    arith.ExtFOp: 0.5,
}
"""What is not here costs 1, functions of `math` FUNCTION_COST."""
FUNCTION_COST = 12.0

_LOOPED_FUNCTION_UNITS: dict[str, float] = {"igamma": 400.0, "igammac": 400.0, "zeta": 300.0, **dict.fromkeys(ORTHOGONAL_POLYNOMIALS, 80.0)}
"""Functions of `loop.math` that go through loops."""


def op_cost(op: Operation) -> float:
    """Vector operations that a body op takes, about; a load of a 16-bit float is also a conversion."""
    if isinstance(op, loop.LoadOp):
        return 2.5 if loop.element_type(op.source.type) in LOW_PRECISION else 1.0
    if isinstance(op, loop.MathOp) and op.fn.data in _LOOPED_FUNCTION_UNITS:
        return _LOOPED_FUNCTION_UNITS[op.fn.data]
    found = OP_COST_UNITS.get(type(op))
    if found is not None:
        return found
    return FUNCTION_COST if op.name.startswith("math.") else 1.0


_DIVISIONS = (arith.DivSIOp, arith.RemSIOp, arith.FloorDivSIOp, arith.DivUIOp, arith.RemUIOp)


def may_trap(op: Operation) -> bool:
    """Whether a pure op fails for some operands: a division of integers by what is not a constant."""
    return isinstance(op, _DIVISIONS) and not isinstance(op.operands[1].owner, arith.ConstantOp)


def has_effect(op: Operation) -> bool:
    """Whether a loop does something: a reduction gives results, other loops store."""
    return isinstance(op, loop.ReduceOp) or any(
        isinstance(o, (loop.StoreOp, loop.BoundOp)) for o in loop.walk_bodies(op)
    )
