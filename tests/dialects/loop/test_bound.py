"""loop.bound of an integer that clamps, or choices after comparing, keep inside needs no check."""

import pytest
from xdsl.dialects import arith, test
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, IntegerType, f32, i1, i64
from xdsl.ir import SSAValue

from stepwell.dialects import loop
from stepwell.dialects.expr import as_expr, sym
from stepwell.dialects.loop.ranges import integer_range

CASES = (
    (("max", 0, "min", 7), 8, True),
    (("min", 7, "max", 0), 8, True),
    (("max", 0, "min", 8), 8, False),
    (("max", -1, "min", 7), 8, False),
    (("max", 9, "min", 3), 8, True),
    (("min", 3, "max", 9), 8, False),
    (("max", 0), 8, False),
    ((), 8, False),
    (("max", 0, "min", 0), sym("s0"), False),
)


@pytest.mark.parametrize("clamps, size, certain", CASES)
def test_clamps(clamps, size, certain):
    value = test.TestOp(result_types=[i64]).results[0]
    for kind, number in zip(clamps[::2], clamps[1::2], strict=True):
        limit = arith.ConstantOp(IntegerAttr(number, i64)).result
        value = (arith.MinSIOp if kind == "min" else arith.MaxSIOp)(value, limit).result
    assert loop.BoundOp.new(value, as_expr(size), "index", wrap=True).is_certain == certain


def guarded(conditions: list[tuple[str, float]], other: int, width: int = 64, flipped: bool = False) -> SSAValue:
    """The integer part of a float where it compares so with numbers, else `other`."""
    x = test.TestOp(result_types=[f32]).results[0]
    together = test.TestOp(result_types=[i1]).results[0]
    for predicate, number in conditions:
        limit = arith.ConstantOp(FloatAttr(number, f32)).result
        compared = arith.CmpfOp(limit, x, predicate) if flipped else arith.CmpfOp(x, limit, predicate)
        together = arith.AndIOp(together, compared.result).result
    whole = arith.FPToSIOp(x, IntegerType(width)).result
    zero = arith.ConstantOp(IntegerAttr(other, IntegerType(width))).result
    return arith.SelectOp(together, whole, zero).result


@pytest.mark.parametrize(
    "conditions, found",
    [
        ([("oge", 0.0), ("olt", 40.0)], (0, 39)),
        ([("ogt", -2.5), ("ole", 7.5)], (-2, 7)),
        ([("oge", 0.0), ("olt", 40.5), ("olt", 10.0)], (0, 9)),
        ([("oge", -3.0), ("olt", -1.0)], (-3, 0)),
        ([("oge", 0.0)], (float("-inf"), float("inf"))),  # a large float has no integer part of the type
        ([("oge", 0.0), ("ult", 40.0)], (float("-inf"), float("inf"))),  # NaN
    ],
)
def test_guarded_integer_parts(conditions, found):
    """What is 0 unless a float lies between two numbers."""
    assert integer_range(guarded(conditions, 0)) == found
    mirrored = {"oge": "ole", "ole": "oge", "ogt": "olt", "olt": "ogt", "ult": "ugt"}
    assert integer_range(guarded([(mirrored[p], n) for p, n in conditions], 0, flipped=True)) == found


def test_guarded_integer_parts_fit_their_type():
    """The integer part of 200 is no i8; the other value of the choice counts."""
    assert integer_range(guarded([("oge", 0.0), ("olt", 300.0)], 0, width=8)) == (float("-inf"), float("inf"))
    assert integer_range(guarded([("oge", 0.0), ("olt", 100.0)], 0, width=8)) == (0, 99)
    assert integer_range(guarded([("oge", 2.0), ("olt", 40.0)], -1)) == (-1, 39)


@pytest.mark.parametrize("predicate, number, found", [("slt", 5, (0, 4)), ("sle", 5, (0, 5)), ("eq", 3, (0, 3))])
def test_guarded_integers(predicate, number, found):
    """`where(i < n, max(i, 0), 0)` too."""
    x = arith.MaxSIOp(test.TestOp(result_types=[i64]).results[0], arith.ConstantOp(IntegerAttr(0, i64)).result).result
    condition = arith.CmpiOp(x, arith.ConstantOp(IntegerAttr(number, i64)).result, predicate).result
    assert integer_range(arith.SelectOp(condition, x, arith.ConstantOp(IntegerAttr(0, i64)).result).result) == found


def test_a_guard_says_nothing_of_other_values():
    """Nor does the other side of the choice."""
    x, y = test.TestOp(result_types=[i64, i64]).results
    low = arith.CmpiOp(x, arith.ConstantOp(IntegerAttr(0, i64)).result, "sge").result
    high = arith.CmpiOp(x, arith.ConstantOp(IntegerAttr(9, i64)).result, "sle").result
    both, zero = arith.AndIOp(low, high).result, arith.ConstantOp(IntegerAttr(0, i64)).result
    assert integer_range(arith.SelectOp(both, x, zero).result) == (0, 9)
    assert integer_range(arith.SelectOp(both, y, zero).result) == (float("-inf"), float("inf"))
    assert integer_range(arith.SelectOp(both, zero, x).result) == (float("-inf"), float("inf"))
