"""Attention of one query whose sums have an order of their own (`stepwell.order = "fixed"`): all of it is computed as of two rows.

    %s = nd.matmul %q, %k : [1, 64] x [64, 512] ; %p = softmax(%s) ; %o = nd.matmul %p, %v : [1, 512] x [512, 64]
        ->     %s = nd.matmul (nd.pad %q to 2 rows), %k ; %p = softmax(%s) ; %o = nd.slice (nd.matmul %p, %v)

Each product by itself would be padded (`ordered_products.py`), with a slice in between: its scores would be in memory, those of several
queries on chip. What broadcasts along the rows stays as it is.
"""

from __future__ import annotations

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ....dialects import nd
from ....dialects.expr import ONE, as_expr
from ....dialects.expr.ranges import RangeEnv
from ....dialects.nd.pointwise import CastOp, PointwiseOp
from ....dialects.nd.types import tensor_type
from ..algebra.rewriter import Rewriter
from .carried_scores import exact_factors, is_of_products, softmax_of, without_cast
from .ordered_products import first_row, padded


def widen_rows(func: FuncOp, symbols: RangeEnv) -> int:
    """Have two rows in each product of one row by a softmax of products; gives how many there are."""

    def two_rows(rw: Rewriter, op: Operation) -> SSAValue | None:
        assert isinstance(op, nd.MatmulOp)
        t = tensor_type(op.result)
        if t.rank < 2 or t.dims[-2] is not ONE or (found := softmax_of(op.lhs)) is None or not is_of_products(found.scores):
            return None
        lhs = _Rows(rw).wide(op.lhs, tensor_type(op.lhs).rank - 2)
        if lhs is op.lhs:
            return None
        made = nd.MatmulOp.new((lhs, op.rhs), t.with_dims((*t.dims[:-2], as_expr(2), t.dims[-1])), **op.properties)
        return first_row(rw, rw.new(made), t)

    rewriter = Rewriter(func, {nd.MatmulOp: [two_rows]}, symbols)
    rewriter.run()
    return rewriter.changed.get("two_rows", 0)


class _Rows:
    """Values of one row with two of them; each is looked at once."""

    def __init__(self, rw: Rewriter):
        self.rw = rw
        self.known: dict[tuple[SSAValue, int], SSAValue] = {}

    def wide(self, value: SSAValue, axis: int) -> SSAValue:
        """A value with two rows along an axis if it is computed from a product; else as it is, with one."""
        key = value, axis
        if key not in self.known:
            t = tensor_type(value)
            one = 0 <= axis < t.rank and t.dims[axis] is ONE
            made = self._made(value, axis) if one else None
            self.known[key] = value if made is None else made
        return self.known[key]

    def _made(self, value: SSAValue, axis: int) -> SSAValue | None:
        op, t = value.owner, tensor_type(value)
        if isinstance(op, nd.MatmulOp):
            return self._product(op) if axis == t.rank - 2 else None
        if isinstance(op, PointwiseOp):
            new = [self.wide(v, axis - t.rank + tensor_type(v).rank) for v in op.operands]
        elif isinstance(op, nd.ReduceOp) and min(op.dims.data, default=0) > axis:
            new = [self.wide(op.input, axis)]
        elif isinstance(op, nd.ReshapeOp) and tensor_type(op.input).dims[: axis + 1] == t.dims[: axis + 1]:
            new = [self.wide(op.input, axis)]
        else:
            return None
        assert isinstance(op, Operation)
        if all(a is b for a, b in zip(new, op.operands, strict=True)):
            return None
        wide = t.with_dims((*t.dims[:axis], as_expr(2), *t.dims[axis + 1 :]))
        return self.rw.new(type(op).create(operands=new, result_types=[wide], properties=op.properties, attributes=op.attributes))

    def _product(self, op: nd.MatmulOp) -> SSAValue:
        """A product whose first factor has a row of zeros more, in front of the cast that makes it."""
        t, casts = tensor_type(op.result), exact_factors(op)
        if casts is None:
            lhs = padded(self.rw, op.lhs, -2)
        else:
            narrow = padded(self.rw, without_cast(self.rw, op.lhs, casts[0]), -2)
            kind = tensor_type(op.lhs).element_type
            lhs = self.rw.new(CastOp.new((narrow,), tensor_type(narrow).with_dtype(kind)))
        return self.rw.new(nd.MatmulOp.new((lhs, op.rhs), t.with_dims((*t.dims[:-2], as_expr(2), t.dims[-1])), **op.properties))
