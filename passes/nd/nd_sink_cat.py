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
from ...dialects.expr import ONE, ZERO, Expr, exact_quotient
from ...dialects.nd.base import ExprsAttr, IntsAttr
from ...dialects.nd.pointwise import ALL as POINTWISE
from ...dialects.nd.pointwise import PointwiseOp
from ...dialects.nd.types import tensor_type
from ..manager.pass_manager import Pass
from .algebra.rewriter import Rewriter

MAX_JOINED_TENSORS = 8


def sink(rw: Rewriter, op: PointwiseOp) -> SSAValue | None:
    """Move one pointwise op in front of the concatenation that it reads."""
    t = tensor_type(op.result)
    for k, x in enumerate(op.operands):
        cat = x.owner
        if not isinstance(cat, nd.CatOp) or len(cat.operands) > MAX_JOINED_TENSORS:
            continue
        if len(list(x.uses)) == 1 and tensor_type(x).dims == t.dims:
            (axis,) = cat.dim.data
            return _sunk(rw, op, op.operands, k, cat.operands, t.dims, axis)
    return None


def _sunk(
    rw: Rewriter, op: PointwiseOp, given: Sequence[SSAValue], at: int, parts: Sequence[SSAValue], dims: Sequence[Expr], axis: int
) -> SSAValue:
    """`op` of the operands `given`, of which that at `at` consists of `parts` along `axis`, as the concatenation of its own; `dims` are
    those of its result."""
    t = tensor_type(op.result).with_dims(dims)
    from_end = t.rank - axis
    pieces: list[SSAValue] = []
    start = ZERO
    for piece in parts:
        size = tensor_type(piece).dims[axis]
        operands = [piece if k == at else _part(rw, x, from_end, start, size) for k, x in enumerate(given)]
        own = tensor_type(piece).dims
        pieces.append(rw.new(type(op).create(operands=operands, result_types=[t.with_dims(own)], properties=op.properties)))
        start = start + size
    return rw.new(nd.CatOp.new(pieces, t, dim=IntsAttr.get([axis])))


def sink_merged(rw: Rewriter, op: PointwiseOp) -> SSAValue | None:
    """Move one pointwise op in front of a reshape that joins dimensions of the concatenation that it reads, and of that."""
    t = tensor_type(op.result)
    for k, x in enumerate(op.operands):
        if not isinstance(x.owner, nd.ReshapeOp) or tensor_type(x).dims != t.dims:
            continue
        source = x
        while isinstance(source.owner, nd.ReshapeOp) and len(list(source.uses)) == 1:
            source = source.owner.input
        cat = source.owner
        if not isinstance(cat, nd.CatOp) or len(list(source.uses)) != 1 or len(cat.operands) > MAX_JOINED_TENSORS:
            continue
        joined = joined_dims(tensor_type(cat.result).dims, t.dims, cat.dim.data[0])
        if joined is None:
            continue
        groups, axis = joined
        dims = [d for group in groups for d in group]
        sizes = [tensor_type(piece).dims[cat.dim.data[0]] for piece in cat.operands]
        own = [[n if k == axis else d for k, d in enumerate(dims)] for n in sizes]
        parts = [reshaped(rw, piece, shape) for piece, shape in zip(cat.operands, own, strict=True)]
        operands = [x if j == k else _apart(rw, y, groups) for j, y in enumerate(op.operands)]
        return rw.new(nd.ReshapeOp.new((_sunk(rw, op, operands, k, parts, dims, axis),), t))
    return None


def joined_dims(dims: Sequence[Expr], result: Sequence[Expr], axis: int) -> tuple[list[tuple[Expr, ...]], int] | None:
    """For each dimension of `result` those of `dims`, in order, whose product it is, and where dimension `axis` is among these; others
    than that may be taken for several. None where it is not such products."""
    groups: list[tuple[Expr, ...]] = []
    left = [(d, k == axis) for k, d in enumerate(dims)]
    place = count = 0
    for size in result:
        group: list[Expr] = []
        found = ONE
        while left and (found is not size or not group or left[0][0] is ONE):
            d, is_axis = left.pop(0)
            missing = exact_quotient(size, found)
            if is_axis:
                place = count + len(group)
            elif missing is not None and (more := exact_quotient(d, missing)) is not None and more is not ONE:
                left.insert(0, (more, False))
                d = missing
            group.append(d)
            found = found * d
        if found is not size:
            return None
        groups.append(tuple(group))
        count += len(group)
    return None if left else (groups, place)


def reshaped(rw: Rewriter, x: SSAValue, dims: Sequence[Expr]) -> SSAValue:
    """A tensor with other dimensions, row-major."""
    t = tensor_type(x)
    return x if tuple(dims) == t.dims else rw.new(nd.ReshapeOp.new((x,), t.with_dims(dims)))


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
        rules = {cls: [sink, sink_merged] if self.merged else [sink] for cls in POINTWISE}
        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            if any(isinstance(o, nd.CatOp) for o in func.body.block.ops):
                rewriter = Rewriter(func, rules, symbols)  # pyright: ignore[reportArgumentType]
                rewriter.run()
                self.statistic("sunk", rewriter.changed.get("sink", 0) + rewriter.changed.get("sink_merged", 0))
