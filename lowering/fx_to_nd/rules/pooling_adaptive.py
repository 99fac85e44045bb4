"""Adaptive and fractional pooling, forward and backward.

Output o of an adaptive pool from S to O elements covers floor(o * S / O) to ceil((o + 1) * S / O), the end left out.
Element h is then in the windows floor(h * O / S) to ceil((h + 1) * O / S): the same rule with S and O exchanged, so
that gradients are gathered by the windows of the pool from O to S.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue

from ....dialects.expr import ONE, ZERO, Expr, as_expr, ceildiv, dim, minimum, product
from ....dialects.nd.types import FLOATS
from ..core.builder import lowest
from ..core.importer import Importer
from ..core.registry import packet, rule
from .pooling import flat_position
from .reductions import arg_reduce

aten = torch.ops.aten


# ---- adaptive windows


def _longest(size: Expr, count: Expr) -> Expr:
    """The length of the longest of `count` windows over `size` elements (at least 1 each); an upper bound when a size
    is symbolic."""
    if size.is_const and count.is_const:
        s, o = int(size), int(count)
        return as_expr(max(_ceiling((i + 1) * s, o) - i * s // o for i in range(o)))
    return ceildiv(size, count) + 1


def _ceiling(a: int, d: int) -> int:
    """a / d, rounded up."""
    return -(-a // d)


def _even(sizes: Sequence[Expr], counts: Sequence[Expr]) -> bool:
    """Whether it is known that the windows of a dimension are equal parts of it."""
    return all(s.is_const and o.is_const and int(s) % int(o) == 0 for s, o in zip(sizes, counts, strict=True))


def _full(sizes: Sequence[Expr], counts: Sequence[Expr]) -> bool:
    """Whether it is known that the windows of a dimension are of one length: equal parts, or single elements."""
    return all(_even((s,), (o,)) or _even((o,), (s,)) for s, o in zip(sizes, counts, strict=True))


def _starts(b: Importer, size: Expr, count: Expr) -> SSAValue:
    """[count]: where each window begins."""
    return b.op("floor_div", b.mul(b.iota((count,), 0, i64), b.scalar(size, i64)), b.scalar(count, i64))


def _lengths(b: Importer, size: Expr, count: Expr) -> SSAValue:
    """[count]: how long each window is."""
    position = b.mul(b.iota((count,), 0, i64), b.scalar(size, i64))
    end = b.op("floor_div", b.add(position, b.scalar(size + count - 1, i64)), b.scalar(count, i64))
    return b.sub(end, _starts(b, size, count))


def _aligned(b: Importer, value: SSAValue, k: int, count: int) -> SSAValue:
    """[n] or [n, m] of spatial dimension k as [.., n, .., m, ..], broadcastable to outputs (and windows)."""
    dims = b.dims(value)
    places: list[Expr] = [ONE] * (count * len(dims))
    for part, size in enumerate(dims):
        places[part * count + k] = size
    return b.reshape(value, places)


def _views(
    b: Importer, values: Sequence[SSAValue], counts: Sequence[Expr]
) -> tuple[list[SSAValue], SSAValue | None, list[Expr]]:
    """For tensors [..., sizes...]: their windows [..., counts..., longest...], which elements of those are inside of
    their window (None: all), and the longest lengths."""
    spatial = len(counts)
    dims = b.dims(values[0])
    lead = len(dims) - spatial
    sizes = dims[lead:]
    longest = [_longest(s, o) for s, o in zip(sizes, counts, strict=True)]
    index: list[Expr] = [dim(k) for k in range(lead)]
    for k, (s, o) in enumerate(zip(sizes, counts, strict=True)):
        at, step = dim(lead + k), dim(len(dims) + k)
        if _even((s,), (o,)):
            index.append(at * (int(s) // int(o)) + step)
        elif _even((o,), (s,)):
            index.append(at // (int(o) // int(s)))
        else:
            index.append(minimum((at * s) // o + step, s - 1))
    shape = (*dims[:lead], *counts, *longest)
    views = [b.view(x, shape, index) for x in values]
    if _full(sizes, counts):
        return views, None, longest
    inside: SSAValue | None = None
    for k, (s, o) in enumerate(zip(sizes, counts, strict=True)):
        own = b.cmp("lt", b.iota((o, longest[k]), 1, i64), b.reshape(_lengths(b, s, o), (o, ONE)))
        own = _aligned(b, own, k, spatial)
        inside = own if inside is None else b.op("and", inside, own)
    return views, inside, longest


def _windowed_sum(b: Importer, x: SSAValue, counts: Sequence[Expr]) -> SSAValue:
    """The sum of each window. In rows, windows of unlike length are added up one dimension after the other, the last one
    first, so that the most is done where the least is left."""
    spatial, rank = len(counts), b.rank(x)
    sizes = b.dims(x)[rank - spatial :]
    if _full(sizes, counts) or not _rows_are_vectors(b):
        (view,), inside, _ = _views(b, (x,), counts)
        if inside is not None:
            view = b.select(inside, view, 0)
        return b.reduce("sum", view, list(range(rank, rank + spatial)))
    for d in reversed(range(rank - spatial, rank)):
        order = [*(k for k in range(rank) if k != d), d]
        (view,), inside, _ = _views(b, (b.permute(x, order),), counts[d - rank + spatial :][:1])
        if inside is not None:
            view = b.select(inside, view, 0)
        x = b.permute(b.reduce("sum", view, [rank]), [order.index(k) for k in range(rank)])
    return x


def _element_counts(b: Importer, like: SSAValue, sizes: Sequence[Expr], counts: Sequence[Expr]) -> SSAValue:
    """[counts...]: how many elements each window has, in the element type of `like`."""
    if _full(sizes, counts):
        return b.scalar(product(_longest(s, o) for s, o in zip(sizes, counts, strict=True)), b.dtype(like))
    total: SSAValue | None = None
    for k, (s, o) in enumerate(zip(sizes, counts, strict=True)):
        own = _aligned(b, b.cast(_lengths(b, s, o), b.dtype(like)), k, len(counts))
        total = own if total is None else b.mul(total, own)
    assert total is not None
    return total


def _has_zero(dims: Sequence[Expr]) -> bool:
    return any(d is ZERO for d in dims)


# ---- averages


def _average(spatial: int) -> Any:
    def apply(b: Importer, x: SSAValue, size: Any) -> SSAValue:
        if b.dtype(x) not in FLOATS:
            return NotImplemented
        sizes, counts = b.dims(x)[-spatial:], b.out_dims[-spatial:]
        wide = b.widen(x)
        if _has_zero((*sizes, *counts)):
            return b.full(0, b.dtype(x), b.out_dims)
        return b.div(_windowed_sum(b, wide, counts), _element_counts(b, wide, sizes, counts))

    return apply


def _average_backward(spatial: int) -> Any:
    def apply(b: Importer, grad: SSAValue, x: SSAValue) -> SSAValue:
        sizes, counts = b.out_dims[-spatial:], b.dims(grad)[-spatial:]
        wide = b.widen(grad)
        if _has_zero((*sizes, *counts)):
            return b.full(0, b.dtype(x), b.out_dims)
        return _windowed_sum(b, b.div(wide, _element_counts(b, wide, sizes, counts)), sizes)

    return apply


rule(packet(aten, "_adaptive_avg_pool2d"))(_average(2))
rule(packet(aten, "_adaptive_avg_pool3d"))(_average(3))
rule(packet(aten, "_adaptive_avg_pool2d_backward"))(_average_backward(2))
rule(packet(aten, "_adaptive_avg_pool3d_backward"))(_average_backward(3))


# ---- maxima


def _maximum(spatial: int) -> Any:
    def apply(b: Importer, x: SSAValue, size: Any) -> Any:
        outputs = b.sizes(b.val[0].shape)
        counts, sizes = outputs[-spatial:], b.dims(x)[-spatial:]
        if _has_zero((*sizes, *counts)):
            return b.full(0, b.dtype(x), outputs), b.full(0, i64, outputs)
        (view,), inside, longest = _views(b, (x,), counts)
        if inside is not None:
            view = b.select(inside, view, lowest(b.dtype(x)))
        rank = b.rank(x)
        over = list(range(rank, rank + spatial))
        if not b.used(1):
            value = b.reduce("max", view, over)
            return value, b.full(0, i64, b.dims(value))
        value, within = arg_reduce(b, "argmax", view, over)
        starts = [
            _aligned(b, _starts(b, s, o), k, spatial) for k, (s, o) in enumerate(zip(sizes, counts, strict=True))
        ]
        return value, flat_position(b, within, longest, starts, sizes)

    return apply


def positions(b: Importer, dims: Sequence[Expr], spatial: int) -> SSAValue:
    """[spatial dims..., 1...]: the row-major position of each element in the last `spatial` dims, with as many
    dimensions of size 1 behind them."""
    own = tuple(dims[-spatial:])
    flat = b.iota((product(own),), 0, i64)
    return b.reshape(flat, (*own, *((ONE,) * spatial)))


def _maximum_backward(spatial: int) -> Any:
    def apply(b: Importer, grad: SSAValue, x: SSAValue, indices: SSAValue) -> SSAValue:
        dims = b.out_dims
        sizes, counts = dims[-spatial:], b.dims(grad)[-spatial:]
        wide = b.widen(grad)
        if _has_zero((*dims, *counts)):
            return b.full(0, b.dtype(x), dims)
        if scatters(b):
            return scattered_gradient(b, grad, indices, spatial)
        (view, chosen), inside, _ = _views(b, (wide, indices), sizes)
        taken = b.cmp("eq", chosen, positions(b, dims, spatial))
        if inside is not None:
            taken = b.op("and", taken, inside)
        rank = len(dims)
        return b.reduce("sum", b.select(taken, view, 0.0), list(range(rank, rank + spatial)))

    return apply


for _spatial in (2, 3):
    rule(packet(aten, f"adaptive_max_pool{_spatial}d"))(_maximum(_spatial))
    rule(packet(aten, f"adaptive_max_pool{_spatial}d_backward"))(_maximum_backward(_spatial))


# ---- fractional


def _fractional_starts(b: Importer, sample: SSAValue, size: Expr, count: Expr, window: int) -> SSAValue:
    """[N, C, count]: where the windows begin for a random number [N, C] in [0, 1): floor((i + u) * a) - floor(u * a)
    with a = (size - window) / (count - 1); the last one ends at the end."""
    last = b.scalar(size - window, i64)
    dims = (*b.dims(sample), count)
    if count is ONE:
        return b.expand(last, dims)
    dtype = b.dtype(sample)
    alpha = b.div(b.scalar(size - window, dtype), b.scalar(count - 1, dtype))
    u = b.unsqueeze(sample, b.rank(sample))
    i = b.iota((count,), 0, i64)
    first = b.cast(b.mul(u, alpha), i64)
    start = b.sub(b.cast(b.mul(b.add(b.cast(i, dtype), u), alpha), i64), first)
    return b.select(b.cmp("eq", i, b.scalar(count - 1, i64)), last, start)


def _fractional(spatial: int) -> Any:
    def apply(b: Importer, x: SSAValue, kernel: Any, size: Any, samples: SSAValue) -> Any:
        if any(not isinstance(k, int) for k in kernel):
            return NotImplemented
        outputs = b.sizes(b.val[0].shape)
        counts, dims = outputs[-spatial:], b.dims(x)
        sizes, planes = dims[-spatial:], (dims[0] if len(dims) > spatial + 1 else ONE, dims[-spatial - 1])
        samples = b.slice_dim(samples, 0, 0, planes[0])  # torch takes numbers of more batches than there are
        rank = 2 + 2 * spatial
        places, starts = [], []
        for k in range(spatial):
            # the numbers of a plane are in the order width, height; depth, height, width
            column = k if spatial == 3 else 1 - k
            u = b.select_dim(samples, 2, column)
            start = _fractional_starts(b, b.widen(u), sizes[k], counts[k], kernel[k])
            shape: list[Expr] = [*planes, *((ONE,) * (2 * spatial))]
            shape[2 + k] = counts[k]
            start = b.reshape(start, shape)
            starts.append(b.reshape(start, shape[: 2 + spatial]))
            step: list[Expr] = [ONE] * rank
            step[2 + spatial + k] = as_expr(kernel[k])
            places.append(b.add(start, b.reshape(b.iota((as_expr(kernel[k]),), 0, i64), step)))
        flat = places[0]
        for k in range(1, spatial):
            flat = b.add(b.mul(flat, b.scalar(sizes[k], i64)), places[k])
        windows = (*planes, *counts, *map(as_expr, kernel))
        flat = b.reshape(b.expand(flat, windows), (*planes, product(windows[2:])))
        values = b.reshape(b.gather(b.reshape(x, (*planes, product(sizes))), 2, flat), windows)
        value, within = arg_reduce(b, "argmax", values, list(range(2 + spatial, rank)))
        position = flat_position(b, within, list(map(as_expr, kernel)), starts, sizes)
        return b.reshape(value, outputs), b.reshape(position, outputs)

    return apply


def _fractional_backward(spatial: int) -> Any:
    def apply(b: Importer, grad: SSAValue, x: SSAValue, kernel: Any, size: Any, indices: SSAValue) -> SSAValue:
        return scattered_gradient(b, grad, indices, spatial)

    return apply


def _rows_are_vectors(b: Importer) -> bool:
    """Whether the elements of a row lie side by side in the node's (first) result; else channels do."""
    stride = (b.val[0] if isinstance(b.val, (list, tuple)) else b.val).stride(-1)
    return isinstance(stride, int) and stride == 1


def scatters(b: Importer) -> bool:
    """Whether a maximum's gradient is scattered rather than gathered: on a CPU where a plane lies in rows, as few
    elements of it take part. Gathered are channels, which are vectors, and what other devices had to add atomically."""
    return b.on_cpu and _rows_are_vectors(b)


def scattered_gradient(b: Importer, grad: SSAValue, indices: SSAValue, spatial: int) -> SSAValue:
    """Zeros of the node's sizes with each element of `grad` added at its flat position in the last `spatial` dims."""
    dims, lead = b.out_dims, b.rank(grad) - spatial
    wide = b.widen(grad)
    flat = (*dims[:lead], product(dims[lead:]))
    shape = (*dims[:lead], product(b.dims(grad)[lead:]))
    zeros = b.full(0, b.dtype(wide), flat)
    return b.reshape(b.scatter(zeros, lead, b.reshape(indices, shape), b.reshape(wide, shape), "add"), dims)


for _spatial in (2, 3):
    rule(packet(aten, f"fractional_max_pool{_spatial}d"))(_fractional(_spatial))
    rule(packet(aten, f"fractional_max_pool{_spatial}d_backward"))(_fractional_backward(_spatial))
