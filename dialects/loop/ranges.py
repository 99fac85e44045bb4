"""What a body says about the size of an integer: clamps by numbers, and choices that were made by comparing with numbers.

`arith.select %inside, %place, %zero` with `%inside` the conjunction of `%x >= 0.0` and `%x < 40.0` and `%place` the integer part of `%x`
is in [0, 39]: resampling and other guarded gathers look like that.
"""

from __future__ import annotations

from math import ceil, floor, inf

from xdsl.dialects import arith
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, IntegerType
from xdsl.ir import SSAValue

Range = tuple[float, float]
"""The least and the greatest value, both possible."""

ANY: Range = (-inf, inf)
_FLIPPED = {">": "<", ">=": "<=", "<": ">", "<=": ">=", "==": "=="}
_FLOAT = {1: "==", 2: ">", 3: ">=", 4: "<", 5: "<="}
"""Ordered predicates of arith.cmpf: false for NaN."""
_INT = {0: "==", 2: "<", 3: "<=", 4: ">", 5: ">="}
"""Signed predicates of arith.cmpi."""


def integer_range(value: SSAValue) -> Range:
    """What an integer can be, as far as constants, clamps by numbers and guarded choices tell."""
    owner = value.owner
    if isinstance(owner, arith.ConstantOp):
        n = _number(value)
        return ANY if n is None else (n, n)
    if isinstance(owner, (arith.MinSIOp, arith.MaxSIOp)):
        limit = _number(owner.operands[1])
        if limit is not None:
            low, high = integer_range(owner.operands[0])
            return (min(low, limit), min(high, limit)) if isinstance(owner, arith.MinSIOp) else (max(low, limit), max(high, limit))
    if isinstance(owner, arith.SelectOp):
        condition, chosen, other = owner.operands
        a, b = _where(chosen, condition), integer_range(other)
        return min(a[0], b[0]), max(a[1], b[1])
    return ANY


def _where(value: SSAValue, condition: SSAValue) -> Range:
    """What an integer can be where a condition holds."""
    low, high = integer_range(value)
    whole = isinstance(value.owner, arith.FPToSIOp)
    compared = value.owner.operands[0] if isinstance(value.owner, arith.FPToSIOp) else value
    at_least, at_most = -inf, inf
    for relation, limit in _limits(condition, compared):
        if relation in (">=", "==", ">"):
            at_least = max(at_least, limit if relation != ">" or whole else limit + 1)
        if relation in ("<=", "=="):
            at_most = min(at_most, limit)
        if relation == "<":
            at_most = min(at_most, ceil(limit) - 1 if limit > 0 or not whole else ceil(limit))
    if whole:  # the integer part: towards zero
        at_least, at_most = _integer_part(at_least), _integer_part(at_most)
        assert isinstance(value.type, IntegerType)
        room = 1 << (value.type.width.data - 1)
        if at_least < -room or at_most >= room:  # what a float outside of the type's range becomes is the machine's matter
            return low, high
    return max(low, at_least), min(high, at_most)


def _integer_part(x: float) -> float:
    return x if abs(x) == inf else ceil(x) if x < 0 else floor(x)


def _limits(condition: SSAValue, value: SSAValue) -> list[tuple[str, float]]:
    """(relation, number) for each comparison of `value` with a number that a condition implies."""
    found: list[tuple[str, float]] = []
    worklist, seen = [condition], set[SSAValue]()
    while worklist:
        one = worklist.pop()
        if one in seen:
            continue
        seen.add(one)
        owner = one.owner
        if isinstance(owner, arith.AndIOp):
            worklist += owner.operands
        elif isinstance(owner, (arith.CmpfOp, arith.CmpiOp)):
            relation = (_FLOAT if isinstance(owner, arith.CmpfOp) else _INT).get(owner.predicate.value.data)
            lhs, rhs = owner.operands
            if lhs is not value:
                lhs, rhs, relation = rhs, lhs, _FLIPPED.get(relation or "")
            limit = _number(rhs)
            if lhs is value and relation is not None and limit is not None:
                found.append((relation, limit))
    return found


def _number(value: SSAValue) -> float | None:
    """The number that a constant is."""
    owner = value.owner
    if not isinstance(owner, arith.ConstantOp):
        return None
    if isinstance(owner.value, (IntegerAttr, FloatAttr)):
        return owner.value.value.data
    return None
