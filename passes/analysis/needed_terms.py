"""Which terms of a reduction change its result, as far as conditions on indices say: the others are its identity.

    loop.reduce (%j) max { yield select(%j <= %i, %x, -inf) }     ->     %i - %j >= 0

A loop over the terms may leave out those for which one of the expressions is negative (a causal mask, a window, documents, a triangle).
Where a condition is nothing but such expressions, none of which is negative, it need not be computed.

Expressions may have numbers in them that the nest loads (`NestAccess.loaded`), if these are the same for all terms. So a loop whose bounds
are in memory is said by what it leaves out, and any target that knows nothing of it computes the same (rows of unequal length, groups):

    loop.reduce (%j) sum { yield select(%j < %end[%i], %x, 0) }     ->     %end[%i] - %j - 1 >= 0
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace

from xdsl.dialects import arith
from xdsl.dialects import math as mlir_math
from xdsl.dialects.builtin import FloatAttr, IndexType, IntegerAttr, IntegerType, i1, i64
from xdsl.ir import Attribute, Operation, SSAValue

from ...dialects import loop
from ...dialects.expr import Dim, Expr, FloorDiv, Max, as_expr, floordiv, free_dims, maximum
from ...dialects.expr.ranges import range_of
from .accesses.varying import Varying, is_straight
from .dependences import memory_of
from .nest_access import NestAccess, Node
from .reduction_kinds import identity

NEUTRAL = {"sum": "sum", "max": "max", "min": "min", "softmax": "max", "softmax_dot": "max"}
"""Kinds that a term may leave as they are -> the kind whose identity the first value of such a term is."""

OPPOSITE = {"slt": "sge", "sle": "sgt", "sgt": "sle", "sge": "slt"}
"""Signed predicates of arith.cmpi."""


@dataclass(frozen=True)
class Guard:
    """A choice between a reduction's identity and another value."""

    choice: SSAValue
    value: SSAValue
    """The other value."""
    condition: SSAValue
    holds: bool
    """What the condition is where it is the other value."""
    needed: tuple[Expr, ...]
    """Expressions, none of which is negative where it is the other value."""
    is_exact: bool
    """Whether there are such, and it is the other value wherever none of them is negative."""


def needed_terms(info: NestAccess, node: Node) -> list[Expr]:
    """Expressions in the loops' indices and in symbols, none of which is negative where a term of a reduction is not its identity."""
    found: list[Expr] | None = None
    for guards in guards_by_kind(info, node):
        here = [e for guard in guards for e in guard.needed]
        found = here if found is None else [e for e in found if e in here]
    for bound in [op for op in loop.walk_bodies(node.op) if isinstance(op, loop.BoundOp)] if found else []:
        checked = _checked_terms(info, bound)  # of the others it is certain that their index is valid
        found = [e for e in found or [] if e in checked]
    return list(dict.fromkeys(found or []))


def solved_for(e: Expr, d: Dim) -> tuple[int, Expr] | None:
    """(sign, rest) where e >= 0 says sign * d + rest >= 0; None where it says something else."""
    if isinstance(e, Max):
        found = [solved_for(one, d) for one in e.args]
        signs = {0 if one is None else one[0] for one in found}
        return (signs.pop(), maximum(*(one[1] for one in found if one))) if signs in ({1}, {-1}) else None
    terms = [(term, sign) for term, sign in e.terms if d in free_dims(term)]
    if len(terms) != 1 or abs(terms[0][1]) != 1:
        return None
    (term, sign), rest = terms[0], e - terms[0][0] * terms[0][1]
    if term is d:
        return sign, rest
    if not isinstance(term, FloorDiv) or (by := term.rhs.value) is None or by <= 0:
        return None
    # x // by <= rest: x <= by * rest + by - 1; x // by >= -rest: x >= -by * rest
    return solved_for(term.lhs * sign + rest * by + (by - 1 if sign < 0 else 0), d)


def _checked_terms(info: NestAccess, op: loop.BoundOp) -> list[Expr]:
    """Expressions none of which is negative where an index may be out of bounds: elsewhere it is the first one."""
    choice = op.input.owner
    if not isinstance(choice, arith.SelectOp):
        return []
    return [
        e for other, holds in ((choice.rhs, True), (choice.lhs, False)) if _is(other, 0) for e in _of_condition(info, choice.cond, holds)[0]
    ]


def guards_of(info: NestAccess, node: Node) -> list[Guard]:
    """The choices in a reduction's terms, the last one first."""
    return list(dict.fromkeys(guard for guards in guards_by_kind(info, node) for guard in guards))


def guards_by_kind(info: NestAccess, node: Node) -> list[list[Guard]]:
    """For each kind of a reduction the choices that its first value is made of."""
    op = node.op
    if not isinstance(op, loop.ReduceOp) or any(kind not in NEUTRAL for kind in op.kind_names) or op.block.last_op is None:
        return []
    if any(a.is_store for a in node.all_accesses()):
        return []  # each term does something
    found: list[list[Guard]] = []
    for kind, (value, *_), _ in op.each():
        try:
            neutral = identity(NEUTRAL[kind], value.type)
        except KeyError:
            return []
        found.append([_of_all_terms(info, node, guard) for guard in _guards(info, value, neutral)])
    return found


def guards_of_value(info: NestAccess, value: SSAValue, neutral: float) -> list[Guard]:
    """The choices between a number and another value that a value is made of."""
    return _guards(info, value, neutral)


def _of_all_terms(info: NestAccess, node: Node, guard: Guard) -> Guard:
    """A choice without the expressions in which a loaded number varies from term to term."""
    own = {one.dim for inner in node.walk() for one in inner.loops}
    varying = Varying(info)

    def is_same(e: Expr) -> bool:
        values = [info.opaque[d] for d in free_dims(e) if d in info.opaque]
        return all(own.isdisjoint(varying.of_value(v)) and _is_known_before(info, v) for v in values)

    needed = tuple(e for e in guard.needed if is_same(e))
    return guard if len(needed) == len(guard.needed) else replace(guard, needed=needed, is_exact=False)


def _is_known_before(info: NestAccess, value: SSAValue) -> bool:
    """Whether a number is computed from loads alone, of memory that the nest does not write."""
    stored = {memory_of(a.buffer) for a in info.root.all_accesses() if a.is_store}
    worklist, seen = [value], {value}
    while worklist:
        op = worklist.pop().owner
        if not isinstance(op, Operation) or op.regions:
            return False
        if isinstance(op, loop.LoadOp) and (memory_of(info.access[op].buffer) in stored or info.access[op].buffer in info.local):
            return False
        used = op.operands[1:] if isinstance(op, loop.LoadOp) else op.operands
        new = [v for v in used if (v not in info.exprs or info.exprs[v] in info.opaque) and v not in seen]
        seen.update(new)
        worklist += new
    return True


def _guards(info: NestAccess, value: SSAValue, neutral: float, above: frozenset[Hashable] = frozenset()) -> list[Guard]:
    """The choices between `neutral` and another value that a value is made of. `above`: values that are not -inf where it counts."""
    op = value.owner
    if isinstance(op, arith.ExtFOp | arith.TruncFOp) and neutral in (0.0, math.inf, -math.inf):
        return _guards(info, op.operands[0], neutral, above)  # rounding may make others neutral, too
    if isinstance(op, mlir_math.ExpOp) and neutral == 0.0:
        return _guards(info, op.operand, -math.inf, above)
    if isinstance(op, arith.SubfOp) and neutral == -math.inf and _same(info, op.rhs) in above:
        return _guards(info, op.lhs, neutral, above)
    if isinstance(op, arith.MulfOp) and neutral == 0.0:
        sides = op.operands, op.operands[::-1]
        return [guard for one, other in sides if _keeps_zero(info, op, one, other) for guard in _guards(info, one, neutral, above)]
    if not isinstance(op, arith.SelectOp):
        return []
    for neutral_one, other, holds in ((op.lhs, op.rhs, False), (op.rhs, op.lhs, True)):
        if _is(neutral_one, neutral):
            needed, exact = _of_condition(info, op.cond, holds)
            guard = Guard(value, other, op.cond, holds, tuple(needed), exact)
            return [guard, *_guards(info, other, neutral, above | _not_lowest(info, op.cond, holds))]
    return []


def _keeps_zero(info: NestAccess, op: arith.MulfOp, one: SSAValue, other: SSAValue) -> bool:
    """Whether a product counts as 0 where one of its factors is: the other one is a finite number, or a row that it weighs. A weight is
    computed from a loop inside: what a mask leaves out of such products is left out even of a row that is not finite."""
    constant = other.owner.value if isinstance(other.owner, arith.ConstantOp) else None
    if isinstance(constant, FloatAttr):
        return math.isfinite(constant.value.data)
    return op.properties.get("fastmath") == loop.CONTRACTED and is_straight(info, other) and not is_straight(info, one)


def _same(info: NestAccess, value: SSAValue) -> Hashable:
    """What says that two values are one: the place that they are loaded from, of memory that the nest does not write."""
    op = value.owner
    if not isinstance(op, loop.LoadOp) or op.mask is not None or not _is_known_before(info, value):
        return value
    access = info.access[op]
    return access.buffer, access.offset


def _not_lowest(info: NestAccess, value: SSAValue, holds: bool) -> frozenset[Hashable]:
    """What is not -inf where a condition holds, or does not."""
    op = value.owner
    if not isinstance(op, arith.CmpfOp):
        return frozenset()
    equal, different = (arith.CMPF_COMPARISON_OPERATIONS.index(name) for name in ("oeq", "une"))
    wanted = different if holds else equal
    sides = (op.operands, op.operands[::-1]) if op.predicate.value.data == wanted else ()
    return frozenset(_same(info, one) for one, other in sides if _is(other, -math.inf))


def _is(value: SSAValue, number: float) -> bool:
    while isinstance(value.owner, arith.ExtFOp | arith.TruncFOp):
        value = value.owner.operands[0]
    constant = value.owner.value if isinstance(value.owner, arith.ConstantOp) else None
    return isinstance(constant, FloatAttr | IntegerAttr) and constant.value.data == number


def first_iterations(info: NestAccess, condition: SSAValue) -> list[Dim] | None:
    """The loops that a condition holds in the first iteration of, where it says nothing else; None for another condition."""
    needed, exact = _of_condition(info, condition, True)
    found = [e for e in needed if isinstance(e, Dim) and e not in info.opaque]
    return found if exact and set(needed) == {*found, *(e * -1 for e in found)} else None


def condition_bounds(info: NestAccess, value: SSAValue, holds: bool = True) -> list[Expr]:
    """Expressions none of which is negative where a condition holds, or does not."""
    return _of_condition(info, value, holds)[0]


def _of_condition(info: NestAccess, value: SSAValue, holds: bool) -> tuple[list[Expr], bool]:
    """What is not negative where a condition holds, or does not; and whether that is all that it says."""
    op = value.owner
    if isinstance(op, arith.XOrIOp) and value.type == i1:
        for one, other in (op.operands, reversed(op.operands)):
            constant = other.owner.value if isinstance(other.owner, arith.ConstantOp) else None
            if isinstance(constant, IntegerAttr):
                return _of_condition(info, one, holds == (constant.value.data == 0))
    if isinstance(op, arith.AndIOp | arith.OrIOp):
        (left, left_is_all), (right, right_is_all) = (_of_condition(info, v, holds) for v in op.operands)
        both = holds == isinstance(op, arith.AndIOp)
        return [*left, *right] if both else [maximum(a, b) for a in left for b in right], left_is_all and right_is_all
    found = _of_comparison(info, op, holds) if isinstance(op, arith.CmpiOp) else []
    return found, bool(found)


def _of_comparison(info: NestAccess, op: arith.CmpiOp, holds: bool) -> list[Expr]:
    left, right = (_index(info, v) for v in op.operands)
    predicate = arith.CMPI_COMPARISON_OPERATIONS[op.predicate.value.data]
    if left is None or right is None:
        return []
    if predicate == "eq" and holds:
        return [left - right, right - left]
    if predicate not in OPPOSITE:
        return []
    predicate = predicate if holds else OPPOSITE[predicate]
    more, less = (left, right) if predicate in ("sgt", "sge") else (right, left)
    return [more - less - (1 if predicate in ("sgt", "slt") else 0)]


def _index(info: NestAccess, value: SSAValue) -> Expr | None:
    """A number as an expression in indices, and in numbers that are the same for all terms; None for another one."""
    op = value.owner
    if isinstance(op, arith.ConstantOp):
        return as_expr(op.value.value.data) if isinstance(op.value, IntegerAttr) else None
    if isinstance(op, arith.ExtSIOp) or (isinstance(op, arith.IndexCastOp) and value.type in (i64, loop.INDEX)):
        return _index(info, op.operands[0])
    if isinstance(op, arith.TruncIOp) and (source := info.exprs.get(op.input)) is not None and source not in info.opaque:
        return source if _fits(info, source, value.type) else None
    if isinstance(op, arith.FloorDivSIOp):
        left, right = (_index(info, v) for v in op.operands)
        positive = left is not None and right is not None and right.value is not None and right.value > 0
        return floordiv(left, right) if positive and left is not None and right is not None else None
    if isinstance(op, arith.AddiOp | arith.SubiOp) and value.type in (i64, loop.INDEX):  # sums of shorter numbers may wrap
        left, right = (_index(info, v) for v in op.operands)
        if left is None or right is None:
            return None
        return left + right if isinstance(op, arith.AddiOp) else left - right
    found = info.exprs.get(value)
    if found is None or any(d in info.opaque for d in free_dims(found)):
        return info.loaded(value) if isinstance(value.type, IntegerType | IndexType) and value.type != i1 else None
    return found if isinstance(op, Operation) else None


def _fits(info: NestAccess, e: Expr, kind: Attribute) -> bool:
    """Whether an index expression surely is a number of an integer type."""
    ends, most = range_of(e, info.ranges), 1 << (kind.width.data - 1) if isinstance(kind, IntegerType) else 0
    return ends.lo is not None and ends.hi is not None and -most <= ends.lo and ends.hi < most
