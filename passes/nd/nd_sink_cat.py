"""Computing behind a concatenation before it: f(cat(a, b), c) becomes cat(f(a, c[..]), f(b, c[..])).

Each piece is then computed straight into its place in the result, without masks: rotary embeddings, padded activations, skip connections.
Only for a concatenation that nothing else needs.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from ...dialects import nd
from ...dialects.expr import Expr, as_expr
from ...dialects.nd_base import ExprsAttr
from ...dialects.nd_pointwise import PointwiseOp
from ...dialects.nd_types import tensor_type
from ..manager import Pass
from .rewriter import Rewriter

ZERO, ONE = as_expr(0), as_expr(1)
MAX_PIECES = 8


def sink(rw: Rewriter, op: PointwiseOp) -> SSAValue | None:
    """Move one pointwise op in front of the concatenation that it reads."""
    t = tensor_type(op.result)
    for k, x in enumerate(op.operands):
        cat = x.owner
        if isinstance(cat, nd.CatOp) and len(list(x.uses)) == 1 and tensor_type(x).dims == t.dims and len(cat.operands) <= MAX_PIECES:
            return _sunk(rw, op, k, cat)
    return None


def _sunk(rw: Rewriter, op: PointwiseOp, at: int, cat: nd.CatOp) -> SSAValue:
    t = tensor_type(op.result)
    (axis,) = cat.dim.data
    from_end = t.rank - axis
    pieces: list[SSAValue] = []
    start = ZERO
    for piece in cat.operands:
        size = tensor_type(piece).dims[axis]
        operands = [piece if k == at else _part(rw, x, from_end, start, size) for k, x in enumerate(op.operands)]
        dims = tensor_type(piece).dims
        pieces.append(rw.new(type(op).create(operands=operands, result_types=[t.with_dims(dims)], properties=op.properties)))
        start = start + size
    return rw.new(nd.CatOp.new(pieces, t, dim=cat.dim))


def _part(rw: Rewriter, x: SSAValue, from_end: int, start: Expr, size: Expr) -> SSAValue:
    """The part of a broadcasting operand that meets elements start .. start + size of the axis."""
    t = tensor_type(x)
    axis = t.rank - from_end
    if axis < 0 or t.dims[axis] is ONE:
        return x
    starts = [start if k == axis else ZERO for k in range(t.rank)]
    dims = [size if k == axis else d for k, d in enumerate(t.dims)]
    part = nd.SliceOp.new((x,), t.with_dims(dims), starts=ExprsAttr.get(starts), steps=ExprsAttr.get([ONE] * t.rank))
    return rw.new(part)


@dataclass(frozen=True)
class NdSinkCat(Pass):
    """Moves pointwise ops in front of the concatenation that they read."""

    name = "nd-sink-cat"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        symbols = nd.symbol_ranges(op)
        rules = {cls: [sink] for cls in nd.POINTWISE}
        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            if any(isinstance(o, nd.CatOp) for o in func.body.block.ops):
                rewriter = Rewriter(func, rules, symbols)  # pyright: ignore[reportArgumentType]
                rewriter.run()
                self.statistic("sunk", rewriter.changed.get("sink", 0))
