"""Joining and padding: cat, stack, cross products, pads, and the functional forms of writing to a part (slice_scatter and its kin)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue

from ....dialects.expr import ONE, ZERO, Expr, as_expr, dim, maximum, minimum
from ..core.importer import Importer
from ..core.registry import packet, rule
from .views import front_index, slice_start

aten = torch.ops.aten


@rule(aten.cat, packet(aten, "concat"), packet(aten, "concatenate"))
def _cat(b: Importer, tensors: Sequence[SSAValue], axis: int = 0) -> SSAValue:
    out = b.out_dims
    # torch lets an empty 1-d tensor stand anywhere
    parts = [t for t in tensors if not (b.rank(t) == 1 and len(out) > 1) and b.dims(t)[axis % len(out)] is not ZERO]
    if not parts:
        return b.full(0, b.out_dtype, out)
    return b.cat([b.cast(t, b.out_dtype) for t in parts], axis % len(out))


@rule(aten.stack)
def _stack(b: Importer, tensors: Sequence[SSAValue], axis: int = 0) -> SSAValue:
    axis %= len(b.out_dims)
    return b.cat([b.unsqueeze(b.cast(t, b.out_dtype), axis) for t in tensors], axis)


def cross_product(x: Any, y: Any, part: Callable[[Any, int], Any], multiply: Callable[..., Any], subtract: Callable[..., Any]) -> list[Any]:
    """(x1 y2 - x2 y1, x2 y0 - x0 y2, x0 y1 - x1 y0), of any numbers: `part(x, k)` is x_k."""

    def product(k: int, other: int) -> Any:
        return multiply(part(x, k % 3), part(y, other % 3))

    return [subtract(product(k + 1, k + 2), product(k + 2, k + 1)) for k in range(3)]


@rule(aten.linalg_cross)
def _cross(b: Importer, x: SSAValue, y: SSAValue, *, dim: int = -1) -> SSAValue:
    """Along dimensions of 3, side by side: torch's decomposition gathers by index tensors."""
    axis = dim % b.rank(x)
    parts = cross_product(b.widen(x), b.widen(y), lambda v, k: b.slice_dim(v, axis, k, ONE), b.mul, b.sub)
    return b.cat([b.cast(p, b.out_dtype) for p in parts], axis)


# ---- pads


@rule(aten.constant_pad_nd)
def _constant_pad(b: Importer, x: SSAValue, pad: Sequence[Any], value: Any = 0) -> SSAValue:
    rank = b.rank(x)
    low: list[Expr] = [ZERO] * rank
    high: list[Expr] = [ZERO] * rank
    for k in range(len(pad) // 2):
        low[rank - 1 - k], high[rank - 1 - k] = as_expr(pad[2 * k]), as_expr(pad[2 * k + 1])
    left = (size + minimum(a, ZERO) + minimum(z, ZERO) for size, a, z in zip(b.dims(x), low, high, strict=True))
    if any(e.is_const and int(e) < 0 for e in left):
        return NotImplemented  # more is cut off than there is: the library says so
    return b.pad(x, low, high, value)


def _padded_view(b: Importer, x: SSAValue, pad: Sequence[Any], place: Any) -> SSAValue:
    """A view whose last dimensions are indexed by place(position before padding, size)."""
    dims = b.dims(x)
    if any(d is ZERO for d in b.out_dims):
        return b.full(0, b.dtype(x), b.out_dims)
    index: list[Expr] = [dim(k) for k in range(len(dims))]
    for k in range(len(pad) // 2):
        at = len(dims) - 1 - k
        if any(not (isinstance(p, int) and p == 0) for p in pad[2 * k : 2 * k + 2]):
            index[at] = place(dim(at) - pad[2 * k], dims[at])
    return b.view(x, b.out_dims, index)


def _reflected(position: Expr, size: Expr) -> Expr:
    """The index that a mirror at 0 and at size - 1 shows."""
    front = maximum(position, -position)
    return minimum(front, (size - 1) * 2 - front)


def _nearest(position: Expr, size: Expr) -> Expr:
    return minimum(maximum(position, 0), size - 1)


@rule(aten.reflection_pad1d, aten.reflection_pad2d, aten.reflection_pad3d)
def _reflection_pad(b: Importer, x: SSAValue, pad: Sequence[Any]) -> SSAValue:
    return _padded_view(b, x, pad, _reflected)


@rule(aten.replication_pad1d, aten.replication_pad2d, aten.replication_pad3d)
def _replication_pad(b: Importer, x: SSAValue, pad: Sequence[Any]) -> SSAValue:
    return _padded_view(b, x, pad, _nearest)


def _pad_backward(edges: Callable[..., list[tuple[Expr, SSAValue]]]) -> Any:
    """The gradient of a padded view: what lies inside of the pads, and on some places of it what `edges` gives of the pads."""

    def apply(b: Importer, grad: SSAValue, x: SSAValue, pad: Sequence[Any]) -> SSAValue:
        dims = b.out_dims
        if any(d is ZERO for d in (*dims, *b.dims(grad))):
            return b.full(0, b.out_dtype, dims)
        pads = [as_expr(p) for p in pad]
        if any(not b.nonnegative(p) and not b.nonnegative(-p) for p in pads):
            return NotImplemented  # added or cut off, that is not known
        total = b.widen(grad)
        for k in reversed(range(len(pad) // 2)):
            at = len(dims) - 1 - k
            total = _fold_pads(b, total, at, dims[at], pads[2 * k], pads[2 * k + 1], edges)
        return b.cast(total, b.out_dtype)

    return apply


def _fold_pads(b: Importer, grad: SSAValue, at: int, size: Expr, before: Expr, behind: Expr, edges: Callable[..., Any]) -> SSAValue:
    """Dimension `at` of `grad` without its pads, which are added to its ends: on a CPU to the few places that they reach, elsewhere in
    one go."""
    low: list[Expr] = [ZERO] * b.rank(grad)
    high = list(low)
    low[at], high[at] = -before, -behind
    inside = total = b.pad(grad, low, high, 0)
    parts = []
    if before is not ZERO and b.nonnegative(before):
        parts += edges(b, b.slice_dim(grad, at, 0, before), at, size, before, True)
    if behind is not ZERO and b.nonnegative(behind):
        parts += edges(b, b.slice_dim(grad, at, size + before, behind), at, size, behind, False)
    ends = [place + b.dims(part)[at] for place, part in parts]
    apart = len(parts) == 2 and b.nonnegative(parts[1][0] - ends[0])
    for (place, part), end in zip(parts, ends, strict=True):
        if b.on_cpu:
            starts: list[Expr | int] = [0] * len(low)
            starts[at] = place
            sums = b.add(b.slice_dim(inside if apart else total, at, place, end - place), part)
            total = b.slice_scatter(total, sums, starts, [1] * len(low))
        else:
            low[at], high[at] = place, size - end
            total = b.add(total, b.pad(part, low, high, 0))
    return total


def _mirrored(b: Importer, part: SSAValue, at: int, size: Expr, length: Expr, before: bool) -> list[tuple[Expr, SSAValue]]:
    return [(ONE if before else size - 1 - length, b.flip(part, [at]))]


def _summed(b: Importer, part: SSAValue, at: int, size: Expr, length: Expr, before: bool) -> list[tuple[Expr, SSAValue]]:
    return [(ZERO if before else size - 1, b.reduce("sum", part, [at], keepdim=True))]


for _spatial in (1, 2, 3):
    rule(packet(aten, f"reflection_pad{_spatial}d_backward"))(_pad_backward(_mirrored))
    rule(packet(aten, f"replication_pad{_spatial}d_backward"))(_pad_backward(_summed))


# ---- a part replaced


@rule(aten.slice_scatter)
def slice_scatter(
    b: Importer, x: SSAValue, source: SSAValue, d: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> SSAValue:
    """x with x[..., start:end:step, ...] = source."""
    dims = b.dims(x)
    d %= len(dims)
    first = slice_start(b, dims[d], start)
    if first is None:
        return NotImplemented
    starts: list[Expr | int] = [0] * len(dims)
    steps: list[Expr | int] = [1] * len(dims)
    starts[d], steps[d] = first, step
    last = dims[d] if end is None else slice_start(b, dims[d], end)
    if last is not None and first.is_const and last.is_const and b.dims(source)[d].is_const:
        if int(b.dims(source)[d]) != len(range(int(first), int(last), step)):
            return NotImplemented  # torch's call says what is wrong
    source = b.cast(source, b.dtype(x))
    source = b.same_sizes(source, [b.dims(source)[k] if k == d else s for k, s in enumerate(dims)])
    if b.dims(source) == dims:
        return source
    return b.slice_scatter(x, source, starts, steps)


@rule(aten.select_scatter)
def select_scatter(b: Importer, x: SSAValue, source: SSAValue, d: int, index: Any) -> SSAValue:
    """x with x.select(d, index) = source."""
    dims = b.dims(x)
    d %= len(dims)
    place = front_index(b, dims[d], index)
    if place is None:
        return NotImplemented
    source = b.reshape(b.cast(source, b.dtype(x)), (*dims[:d], ONE, *dims[d + 1 :]))
    starts: list[Expr | int] = [0] * len(dims)
    starts[d] = place
    return b.slice_scatter(x, source, starts, [1] * len(dims))


@rule(aten.diagonal_scatter)
def diagonal_scatter(
    b: Importer, x: SSAValue, source: SSAValue, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> SSAValue:
    """x with x.diagonal(offset, dim1, dim2) = source."""
    dims = b.dims(x)
    first, second = dim1 % len(dims), dim2 % len(dims)
    length = b.dims(source)[-1]
    if length is ZERO:
        return x
    distance = b.sub(b.iota(dims, second, i64), b.iota(dims, first, i64))
    along = dim(first) - max(0, -offset)
    index = [dim(k) for k in range(len(dims)) if k not in (first, second)]
    spread = b.view(b.cast(source, b.dtype(x)), dims, [*index, _nearest(along, length)])
    return b.select(b.cmp("eq", distance, offset), spread, x)


@rule(packet(aten, "select_backward"))
def _select_backward(b: Importer, grad: SSAValue, sizes: Any, d: int, index: Any) -> SSAValue:
    return select_scatter(b, b.full(0, b.dtype(grad), b.out_dims), grad, d, index)


@rule(packet(aten, "slice_backward"))
def _slice_backward(b: Importer, grad: SSAValue, sizes: Any, d: int, start: Any, end: Any, step: Any) -> SSAValue:
    dims = b.out_dims
    d %= len(dims)
    if isinstance(step, int) and step == 1:
        first = slice_start(b, dims[d], start)
        if first is None:
            return NotImplemented
        low: list[Expr] = [ZERO] * len(dims)
        high: list[Expr] = [ZERO] * len(dims)
        low[d], high[d] = first, dims[d] - first - b.dims(grad)[d]
        return b.pad(grad, low, high, 0)
    return slice_scatter(b, b.full(0, b.dtype(grad), dims), grad, d, start, end, step)


@rule(packet(aten, "diagonal_backward"))
def _diagonal_backward(b: Importer, grad: SSAValue, sizes: Any, offset: int, dim1: int, dim2: int) -> SSAValue:
    return diagonal_scatter(b, b.full(0, b.dtype(grad), b.out_dims), grad, offset, dim1, dim2)
