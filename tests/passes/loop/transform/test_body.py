"""Index arithmetic in bodies of nests."""

import pytest
from xdsl.dialects import arith
from xdsl.dialects.builtin import i32, i64

from stepwell.dialects import loop
from stepwell.dialects.expr import as_expr, dim, sym
from stepwell.passes.loop.transform.body import Body


@pytest.mark.parametrize(
    ("size", "element", "number", "is_index"),
    [
        (64, i64, 5, True),
        (64, i32, 5, True),
        (64, i32, 1 << 30, False),
        (sym("s0"), i64, 5, True),
        (sym("s0"), i64, -5, True),
        (sym("s0"), i32, 5, False),
        (sym("s0"), i64, 1 << 62, False),
        (sym("s0"), i64, -(1 << 62), False),
    ],
)
def test_sums_of_indices_are_indices_where_they_surely_fit(size, element, number, is_index):
    sizes = [as_expr(size)]
    body = Body(loop.NestOp.build_nest(sizes, []).block, sizes, {}, None)
    place = body.index_value(dim(0), element)
    made = body.emit(arith.AddiOp, (place, body.constant(number, element)), element)
    assert isinstance(made.owner, loop.IndexOp) is is_index
