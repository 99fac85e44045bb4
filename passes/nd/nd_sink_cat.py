"""Computing behind a concatenation before it: f(cat(a, b), c) becomes cat(f(a, c[..]), f(b, c[..])).

Each piece is then computed straight into its place in the result, without masks: rotary embeddings, padded activations, skip connections.
With `merged`, through a reshape that joins the concatenated dimension with its neighbours too, f(reshape(cat(a, b)), c) becoming
reshape(cat(f(a, c[..]), f(b, c[..]))): pieces side by side, as unpacked nibbles or interleaved channels. Only for a concatenation that
nothing else needs.
"""

from __future__ import annotations

from collections.abc import Sequence
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
            return _sunk(rw, op, op.operands, k, cat)
    return None


def _sunk(rw: Rewriter, op: PointwiseOp, given: Sequence[SSAValue], at: int, cat: nd.CatOp) -> SSAValue:
    """`op` of the operands `given`, of which `cat` is the one at `at`, as the concatenation of its pieces."""
    t = tensor_type(op.result).with_dims(tensor_type(cat.result).dims)
    (axis,) = cat.dim.data
    from_end = t.rank - axis
    pieces: list[SSAValue] = []
    start = ZERO
    for piece in cat.operands:
        size = tensor_type(piece).dims[axis]
        operands = [piece if k == at else _part(rw, x, from_end, start, size) for k, x in enumerate(given)]
        dims = tensor_type(piece).dims
        pieces.append(rw.new(type(op).create(operands=operands, result_types=[t.with_dims(dims)], properties=op.properties)))
        start = start + size
    return rw.new(nd.CatOp.new(pieces, t, dim=cat.dim))


def sink_merged(rw: Rewriter, op: PointwiseOp) -> SSAValue | None:
    """Move one pointwise op in front of a reshape that joins dimensions of the concatenation that it reads, and of that."""
    t = tensor_type(op.result)
    for k, x in enumerate(op.operands):
        reshape = x.owner
        if not isinstance(reshape, nd.ReshapeOp) or len(list(x.uses)) != 1 or tensor_type(x).dims != t.dims:
            continue
        cat = reshape.input.owner
        if not isinstance(cat, nd.CatOp) or len(list(cat.result.uses)) != 1 or len(cat.operands) > MAX_PIECES:
            continue
        joined = _joined(tensor_type(cat.result).dims, t.dims)
        if joined is None:
            continue
        operands = [cat.result if j == k else _apart(rw, y, joined) for j, y in enumerate(op.operands)]
        return rw.new(nd.ReshapeOp.new((_sunk(rw, op, operands, k, cat),), t))
    return None


def _joined(dims: Sequence[Expr], result: Sequence[Expr]) -> list[tuple[Expr, ...]] | None:
    """For each dimension of `result` those of `dims`, in order, whose product it is; None where it is not such products."""
    groups: list[tuple[Expr, ...]] = []
    at = 0
    for size in result:
        first, found = at, ONE
        while at < len(dims) and (found is not size or at == first or dims[at] is ONE):
            found = found * dims[at]
            at += 1
        if found is not size:
            return None
        groups.append(tuple(dims[first:at]))
    return groups if at == len(dims) else None


def _apart(rw: Rewriter, x: SSAValue, joined: Sequence[tuple[Expr, ...]]) -> SSAValue:
    """A broadcasting operand with the dimensions that the reshape joined."""
    t = tensor_type(x)
    if t.rank == 0:
        return x
    parts = [(ONE,) * len(group) if d is ONE else group for d, group in zip(t.dims, joined[-t.rank :], strict=True)]
    return rw.new(nd.ReshapeOp.new((x,), t.with_dims([d for part in parts for d in part])))


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
    merged: bool = False
    """Through reshapes that join the concatenated dimension with others too."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        symbols = nd.symbol_ranges(op)
        rules = {cls: [sink, sink_merged] if self.merged else [sink] for cls in nd.POINTWISE}
        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            if any(isinstance(o, nd.CatOp) for o in func.body.block.ops):
                rewriter = Rewriter(func, rules, symbols)  # pyright: ignore[reportArgumentType]
                rewriter.run()
                self.statistic("sunk", rewriter.changed.get("sink", 0) + rewriter.changed.get("sink_merged", 0))
