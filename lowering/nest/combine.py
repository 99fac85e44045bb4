"""Two partial results as one: accumulators of reductions, and stores that combine with what is in memory."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.ir import Attribute, SSAValue

from ...dialects.nd.types import UNSIGNED, is_float
from ...passes.analysis.reduction_kinds import simple_op
from .builder import NO_FLAGS, NO_OVERFLOW_FLAGS, PLAIN, ValueBuilder


def combine(b: ValueBuilder, kind: str, x: SSAValue, y: SSAValue, element: Attribute, is_unsigned: bool = False) -> SSAValue:
    """Two values of `element`, as a simple kind of reduction has it."""
    cls = simple_op(kind, element, is_unsigned)
    flags = NO_FLAGS if is_float(element) else NO_OVERFLOW_FLAGS if cls in (arith.AddiOp, arith.MuliOp) else PLAIN
    return b.elementwise(cls, (x, y), flags)


def combine_stored(b: ValueBuilder, mode: str, old: SSAValue, new: SSAValue, element: Attribute, dtype: Attribute) -> SSAValue:
    """What a store of a mode leaves in memory of `dtype`, of values that are `element` while they are computed with."""
    return combine(b, "sum" if mode == "add" else mode, old, new, element, dtype in UNSIGNED)
