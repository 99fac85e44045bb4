"""loop.bound of an integer that clamps keep inside needs no check."""

import pytest
from xdsl.dialects import arith, test
from xdsl.dialects.builtin import IntegerAttr, i64

from stepwell.dialects import loop
from stepwell.dialects.expr import as_expr, sym

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
