"""Computing behind a concatenation before it: f(cat(a, b), c) becomes cat(f(a, c[..]), f(b, c[..])).

Each piece is then computed straight into its place in the result, without masks: rotary embeddings, padded activations, skip connections.
With `merged`, through a reshape that joins the concatenated dimension with its neighbours too, f(reshape(cat(a, b)), c) becoming
reshape(cat(f(a, c[..]), f(b, c[..]))): pieces side by side, as unpacked nibbles or interleaved channels. Only for a concatenation that
nothing else needs, or, behind a reshape, nothing but such operations. Elements of a table that are looked up are computed so, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

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
            return _sunk(rw, op, op.operands, k, cat.operands, axis)
    return None


def _sunk(rw: Rewriter, op: PointwiseOp, given: Sequence[SSAValue], at: int, parts: Sequence[SSAValue], axis: int) -> SSAValue:
    """`op` of the operands `given`, of which that at `at` consists of `parts` along `axis`, as the concatenation of its own."""
    t = tensor_type(op.result)
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


@dataclass(frozen=True)
class _Merged:
    """A concatenation whose dimensions a reshape joined: `groups` are those of each dimension that it has now, `axis` is the concatenated
    one among all of these, `sizes` are those of the pieces along it."""

    cat: nd.CatOp
    groups: tuple[tuple[Expr, ...], ...]
    axis: int
    sizes: tuple[Expr, ...]

    @staticmethod
    def of(x: SSAValue) -> _Merged | None:
        """What a tensor is; None where it is no such concatenation, or where something else than elementwise operations needs it."""
        if not isinstance(x.owner, nd.ReshapeOp) or not all(_reads_by_element(use.operation, x) for use in x.uses):
            return None
        source: SSAValue = x.owner.input
        while isinstance(source.owner, nd.ReshapeOp) and len(list(source.uses)) == 1:
            source = source.owner.input
        cat = source.owner
        if not isinstance(cat, nd.CatOp) or len(list(source.uses)) != 1 or len(cat.operands) > MAX_JOINED_TENSORS:
            return None
        (along,) = cat.dim.data
        joined = joined_dims(tensor_type(source).dims, tensor_type(x).dims, along)
        if joined is None:
            return None
        groups, axis = joined
        return _Merged(cat, tuple(groups), axis, tuple(tensor_type(piece).dims[along] for piece in cat.operands))

    @property
    def dims(self) -> list[Expr]:
        """The dimensions before they were joined."""
        return [d for group in self.groups for d in group]

    def pieces(self, rw: Rewriter) -> list[SSAValue]:
        """The parts, with these dimensions."""
        own = [[n if k == self.axis else d for k, d in enumerate(self.dims)] for n in self.sizes]
        return [reshaped(rw, piece, shape) for piece, shape in zip(self.cat.operands, own, strict=True)]

    def fits(self, other: _Merged) -> bool:
        """Whether pieces of another one meet those of this one."""
        return (self.groups, self.axis, self.sizes) == (other.groups, other.axis, other.sizes)


def _reads_by_element(op: Operation, x: SSAValue) -> bool:
    """Whether an operation makes one element of each of a tensor's."""
    is_lookup = isinstance(op, nd.IndexOp) and op.operands[0] is not x and _is_lookup(op)
    return (is_lookup or isinstance(op, PointwiseOp)) and tensor_type(op.results[0]).dims == tensor_type(x).dims


def _is_lookup(op: nd.IndexOp) -> bool:
    """Whether an operation takes elements of a table, one for each index."""
    return tensor_type(op.input).rank == 1 and len(op.indices) == 1


def sink_merged(rw: Rewriter, op: PointwiseOp) -> SSAValue | None:
    """Move one pointwise op in front of a reshape that joins dimensions of the concatenation that it reads, and of that."""
    t = tensor_type(op.result)
    found = [_Merged.of(x) if tensor_type(x).dims == t.dims else None for x in op.operands]
    first = next((one for one in found if one is not None), None)
    if first is None:
        return None
    starts = [ZERO, *accumulate(first.sizes)]
    from_end = len(first.dims) - first.axis
    operands: list[list[SSAValue]] = []
    for x, one in zip(op.operands, found, strict=True):
        if one is not None and one.fits(first):
            operands.append(one.pieces(rw))
        else:
            apart = _apart(rw, x, first.groups)
            operands.append([_part(rw, apart, from_end, start, n) for start, n in zip(starts, first.sizes, strict=False)])
    return _joined(rw, op, first, zip(*operands, strict=True))


def sink_lookup(rw: Rewriter, op: nd.IndexOp) -> SSAValue | None:
    """Look up the elements of each piece of a concatenation by itself."""
    found = _Merged.of(op.indices[0]) if _is_lookup(op) else None
    return None if found is None else _joined(rw, op, found, ((op.input, piece) for piece in found.pieces(rw)))


def _joined(rw: Rewriter, op: PointwiseOp | nd.IndexOp, of: _Merged, operands: Iterable[Sequence[SSAValue]]) -> SSAValue:
    """An operation on each piece, and the results as the operation had them."""
    t = tensor_type(op.result)
    own = [[n if k == of.axis else d for k, d in enumerate(of.dims)] for n in of.sizes]
    made = [
        rw.new(type(op).create(operands=some, result_types=[t.with_dims(dims)], properties=op.properties))
        for some, dims in zip(operands, own, strict=True)
    ]
    cat = rw.new(nd.CatOp.new(made, t.with_dims(of.dims), dim=IntsAttr.get([of.axis])))
    return rw.new(nd.ReshapeOp.new((cat,), t))


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
        rules: dict[type[Operation], list[Any]] = {cls: [sink, sink_merged] if self.merged else [sink] for cls in POINTWISE}
        if self.merged:
            rules[nd.IndexOp] = [sink_lookup]
        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            if any(isinstance(o, nd.CatOp) for o in func.body.block.ops):
                rewriter = Rewriter(func, rules, symbols)  # pyright: ignore[reportArgumentType]
                rewriter.run()
                self.statistic("sunk", sum(rewriter.changed.get(name, 0) for name in ("sink", "sink_merged", "sink_lookup")))
