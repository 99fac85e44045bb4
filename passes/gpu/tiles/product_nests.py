"""Which nests are products of matrices of 16-bit numbers: sums of products (`fastmath<contract>`) of a value along one loop of the nest and
one along another, as `nd-library-products` leaves products that are generated. There may be several: of the same rows
by several matrices. A side may have several loops: the pixels of a convolution, whose windows name each by row and column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, bf16, f16, f32
from xdsl.ir import Attribute, Operation, SSAValue

from ....dialects import loop
from ....dialects.expr import free_dims
from ....dialects.support.float8 import FLOAT8, f8e8m0fnu
from ...analysis.accesses.varying import Varying
from ...analysis.nest_access import Loop, NestAccess, Node

HALVES = frozenset((bf16, f16))
EXACT_BITS = 8
"""Bits of an integer that both 16-bit formats have room for."""


Side = tuple[Loop, ...]
"""Loops of a nest that one factor varies along, and not the other one, in the nest's order."""


@dataclass(frozen=True)
class Factors:
    """The factors of one sum of products: side -> the factor that varies along it; and the type that both are exact in."""

    along: dict[Side, SSAValue]
    element: Attribute


def product_sides(info: NestAccess) -> list[Side]:
    """The two sides of a nest whose reductions are all products of what varies along one of them by what varies along the other, in the
    nest's order; none for another nest."""
    nodes = [n for n in info.root.walk() if n is not info.root]
    found = [factors(info, n) for n in nodes]
    pairs = {frozenset(f.along) for parts in found for f in parts}
    if not all(found) or len(pairs) != 1:
        return []
    (pair,) = pairs
    return sorted(pair, key=lambda side: info.root.loops.index(side[0]))


def factors(info: NestAccess, node: Node, loops: Sequence[Loop] = ()) -> Sequence[Factors]:
    """The factors of each sum that a reduction makes, along the loops of the nest or `loops`; none where one of them is something else."""
    op = node.op
    if not isinstance(op, loop.ReduceOp) or set(op.kind_names) != {"sum"} or not node.loops:
        return ()
    assert op.body.block.last_op is not None
    found = [_factors(info, value, loops or info.root.loops) for value in op.body.block.last_op.operands]
    return [f for f in found if f is not None] if None not in found else ()


def _factors(info: NestAccess, value: SSAValue, loops: Sequence[Loop]) -> Factors | None:
    times = value.owner
    if not isinstance(times, arith.MulfOp) or times.result.type != f32 or times.properties.get("fastmath") != loop.CONTRACTED:
        return None
    types = exact_types(times.lhs) & exact_types(times.rhs)
    if not types or not is_straight(info, times.lhs) or not is_straight(info, times.rhs):
        return None
    left, right = map(Varying(info).of_value, times.operands)
    rows = tuple(one for one in loops if one.dim in left and one.dim not in right)
    columns = tuple(one for one in loops if one.dim in right and one.dim not in left)
    if not rows or not columns:
        return None
    return Factors({rows: times.lhs, columns: times.rhs}, bf16 if bf16 in types else f16)


def exact_types(value: SSAValue) -> frozenset[Attribute]:
    """The 16-bit formats that a number of 32 bits surely is a number of."""
    op = value.owner
    if isinstance(op, loop.LoadOp):
        return _exact_for(loop.element_type(op.source.type))
    if isinstance(op, arith.ExtFOp):
        return _exact_for(op.input.type)
    if isinstance(op, arith.SIToFPOp | arith.UIToFPOp) and isinstance(op.input.type, IntegerType):
        return HALVES if op.input.type.width.data <= EXACT_BITS else frozenset()
    return frozenset()


def _exact_for(kind: Attribute) -> frozenset[Attribute]:
    return HALVES if kind in FLOAT8 and kind != f8e8m0fnu else HALVES & {kind}


def is_straight(info: NestAccess, value: SSAValue) -> bool:
    """Whether a value is computed from loads and indices alone: no loop of the body and no scalar from outside is behind it."""
    seen: set[SSAValue] = set()
    worklist = [value]
    while worklist:
        one = worklist.pop()
        if one in seen:
            continue
        seen.add(one)
        e, op = info.exprs.get(one), one.owner
        if e is not None and e not in info.opaque:
            worklist += [info.opaque[d] for d in free_dims(e) if d in info.opaque]
        elif not isinstance(op, Operation) or op.regions:
            return False
        elif isinstance(op, loop.LoadOp):
            worklist += [v for v in (*op.index_operands, op.mask, op.other) if v is not None]
        else:
            worklist += op.operands
    return True
