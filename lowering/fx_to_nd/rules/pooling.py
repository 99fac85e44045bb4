"""Pooling: a window view of the padded input and a reduction over the window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from xdsl.dialects.builtin import i8, i64
from xdsl.ir import Attribute, SSAValue

from ....dialects.expr import ZERO, Expr, as_expr, dim, product
from ....dialects.nd.types import FLOATS
from ..core.builder import lowest
from ..core.importer import Importer
from ..core.registry import Rule, packet, rule
from .indexing import in_any_order
from .reductions import arg_reduce

aten = torch.ops.aten


@dataclass(frozen=True)
class Window:
    """One spatial dimension of a pool: all numbers are known."""

    size: int
    stride: int
    padding: int
    dilation: int


def windows_of(count: int, size: Any, stride: Any, padding: Any, dilation: Any = 1) -> list[Window] | None:
    """The windows of the spatial dimensions; None when a number is symbolic."""

    def spread(values: Any) -> list[Any]:
        given = list(values) if isinstance(values, tuple) else [values]
        return given * count if len(given) == 1 else given

    sizes = spread(size)
    lists = [sizes, spread(stride) if stride not in (None, ()) else sizes, spread(padding), spread(dilation)]
    if any(not isinstance(v, int) for values in lists for v in values):
        return None
    return [Window(*numbers) for numbers in zip(*lists, strict=True)]


def windowed(b: Importer, x: SSAValue, windows: Sequence[Window], outputs: Sequence[Expr], fill: Any) -> SSAValue:
    """[..., out sizes..., window sizes...]: every window of the padded input."""
    rank, count = b.rank(x), len(windows)
    lead = rank - count
    low: list[Expr] = [ZERO] * rank
    high: list[Expr] = [ZERO] * rank
    index: list[Expr] = [dim(k) for k in range(lead)]
    for k, (w, out) in enumerate(zip(windows, outputs, strict=True)):
        needed = (out - 1) * w.stride + ((w.size - 1) * w.dilation + 1)  # up to the end of the last window
        low[lead + k], high[lead + k] = as_expr(w.padding), needed - w.padding - b.dims(x)[lead + k]
        index.append(dim(lead + k) * w.stride + dim(rank + k) * w.dilation)
    padded = b.pad(x, low, high, fill)
    sizes = (*b.dims(x)[:lead], *outputs, *(as_expr(w.size) for w in windows))
    return b.view(padded, sizes, index)


# ---- max


def _max_pool(b: Importer, count: int, x: SSAValue, size: Any, stride: Any, padding: Any, dilation: Any) -> Any:
    windows = windows_of(count, size, stride, padding, dilation)
    if windows is None:
        return NotImplemented
    value, inside = _maxima(b, x, windows)
    if inside is None:
        return value, b.full(0, i64, b.dims(value))
    return value, _flat_position(b, inside, windows, b.dims(x)[b.rank(x) - count :])


def _maxima(b: Importer, x: SSAValue, windows: Sequence[Window]) -> tuple[SSAValue, SSAValue | None]:
    """The maximum of each window and, where somebody reads it, its row-major position within the window."""
    rank, count = b.rank(x), len(windows)
    outputs = b.sizes(b.val[0].shape)[-count:]
    view = windowed(b, x, windows, outputs, lowest(b.dtype(x)))
    over = list(range(rank, rank + count))
    return arg_reduce(b, "argmax", view, over) if b.used(1) else (b.reduce("max", view, over), None)


@rule("stepwell::max_pool_with_offsets")
def _max_pool_with_offsets(
    b: Importer, x: SSAValue, size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> tuple[SSAValue, SSAValue]:
    """`max_pool_offsets` writes these. A position in padding is that of a window as low as its padding, and the first of all:
    the first one that is no padding stands for it."""
    windows = windows_of(len(size), size, stride, padding, dilation)
    assert windows is not None
    value, inside = _maxima(b, x, windows)
    if inside is None:
        return value, b.full(0, i8, b.dims(value))
    dims, first = b.dims(value), None
    for k, w in enumerate(windows):
        if w.padding:
            start = b.mul(b.iota(dims, b.rank(x) - len(windows) + k, i64), -w.stride)
            ahead = b.op("maximum", b.add(start, w.padding + w.dilation - 1), 0)
            scale = prod(other.size for other in windows[k + 1 :])
            ahead = b.mul(ahead if w.dilation == 1 else b.op("floor_div", ahead, w.dilation), scale)
            first = ahead if first is None else b.add(first, ahead)
    return value, b.cast(inside if first is None else b.op("maximum", inside, first), i8)


def window_starts(b: Importer, dims: Sequence[Expr], windows: Sequence[Window]) -> list[SSAValue]:
    """Where each window begins, padding being below 0, for each of the last dimensions."""
    lead = len(dims) - len(windows)
    starts = [b.mul(b.iota(dims, lead + k, i64), w.stride) for k, w in enumerate(windows)]
    return [b.add(start, -w.padding) if w.padding else start for w, start in zip(windows, starts, strict=True)]


def _flat_position(b: Importer, inside: SSAValue, windows: Sequence[Window], sizes: Sequence[Expr]) -> SSAValue:
    """The position in the input's spatial dimensions (row-major) of a row-major position within a window."""
    starts = window_starts(b, b.dims(inside), windows)
    first = [
        None if not w.padding else b.op("maximum", start, 0) if w.dilation == 1 else b.op("remainder", start, w.dilation)
        for w, start in zip(windows, starts, strict=True)
    ]
    return flat_position(b, inside, [as_expr(w.size) for w in windows], starts, sizes, [w.dilation for w in windows], first)


def flat_position(
    b: Importer,
    inside: SSAValue,
    extents: Sequence[Expr],
    starts: Sequence[SSAValue],
    sizes: Sequence[Expr],
    dilations: Sequence[int] | None = None,
    first: Sequence[SSAValue | None] = (),
) -> SSAValue:
    """The row-major position in spatial dimensions of `sizes` of a row-major position `inside` a window of `extents`
    that begins at `starts` (a tensor a dimension, broadcastable to `inside`). `first`: the first position that is not padding, for
    dimensions that have some; it is meant where all of a window is as low as its padding."""
    total: SSAValue | None = None
    left = inside
    for k, start in enumerate(starts):
        rest = product(extents[k + 1 :])
        step = left if rest == 1 else b.op("floor_div", left, rest)
        if rest != 1:
            left = b.op("remainder", left, rest)
        if dilations is not None and dilations[k] != 1:
            step = b.mul(step, dilations[k])
        place = b.add(start, step)
        if first and (bound := first[k]) is not None:
            place = b.op("maximum", place, bound)
        total = place if total is None else b.add(b.mul(total, b.scalar(sizes[k], i64)), place)
    assert total is not None
    return total


@rule(aten.max_pool2d_with_indices.default)
def _max_pool2d(b: Importer, x: SSAValue, size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False) -> Any:
    return _max_pool(b, 2, x, size, stride, padding, dilation)


@rule(aten.max_pool3d_with_indices.default)
def _max_pool3d(b: Importer, x: SSAValue, size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False) -> Any:
    return _max_pool(b, 3, x, size, stride, padding, dilation)


def _unpool(b: Importer, x: SSAValue, indices: SSAValue, output_size: Any, *_windows: Any) -> SSAValue:
    """Zeros with each element of `x` at its position in its own plane or volume; a position outside of that is an error."""
    if in_any_order(b):
        return NotImplemented
    dims, lead = b.out_dims, b.rank(x) - len(output_size)
    if any(d is ZERO for d in (*dims, *b.dims(x))):
        return b.full(0, b.dtype(x), dims)
    zeros = b.full(0, b.dtype(x), (*dims[:lead], product(dims[lead:])))
    places = (*dims[:lead], product(b.dims(x)[lead:]))
    return b.reshape(b.scatter(zeros, lead, b.reshape(indices, places), b.reshape(x, places), "set"), dims)


rule(packet(aten, "max_unpool2d"))(_unpool)
rule(packet(aten, "max_unpool3d"))(_unpool)


# ---- average


def _avg_pool(b: Importer, count: int, x: SSAValue, size: Any, stride: Any, padding: Any, include_pad: bool, divisor: Any) -> SSAValue:
    windows = windows_of(count, size, stride, padding)
    if windows is None or (divisor is not None and not isinstance(divisor, int)):
        return NotImplemented
    rank = b.rank(x)
    outputs = b.out_dims[-count:]
    wide = b.widen(x)
    total = b.reduce("sum", windowed(b, wide, windows, outputs, 0), list(range(rank, rank + count)))
    quotient = "div" if b.dtype(total) in FLOATS else "trunc_div"
    if divisor is not None:
        return b.op(quotient, total, divisor)
    sizes = b.dims(x)[rank - count :]
    if all_windows_full(windows, sizes, outputs, include_pad):
        return b.op(quotient, total, product(as_expr(w.size) for w in windows))
    return b.op(quotient, total, window_counts(b, windows, sizes, outputs, include_pad, b.dtype(total)))


def window_counts(
    b: Importer,
    windows: Sequence[Window],
    sizes: Sequence[Expr],
    outputs: Sequence[Expr],
    include_pad: bool,
    dtype: Attribute,
) -> SSAValue:
    """[outputs...]: how many elements an average divides each window's sum by."""
    counts: SSAValue | None = None
    for k, (w, s, o) in enumerate(zip(windows, sizes, outputs, strict=True)):
        counted = _window_count(b, w, s, o, include_pad)
        counted = b.reshape(b.cast(counted, dtype), (o, *((1,) * (len(windows) - 1 - k))))
        counts = counted if counts is None else b.mul(counts, counted)
    assert counts is not None
    return counts


def all_windows_full(windows: Sequence[Window], sizes: Sequence[Expr], outputs: Sequence[Expr], include_pad: bool) -> bool:
    """Whether it is known that every window has all of its elements to count."""
    return all(
        (include_pad or w.padding == 0) and s.is_const and o.is_const and _inside(w, int(s), int(o))
        for w, s, o in zip(windows, sizes, outputs, strict=True)
    )


def _inside(w: Window, size: int, out: int) -> bool:
    """Whether the last window ends within the padded input (ceil_mode can push it over)."""
    return (out - 1) * w.stride + w.size <= size + 2 * w.padding


def _window_count(b: Importer, w: Window, size: Expr, out: Expr, include_pad: bool) -> SSAValue:
    """[out]: how many positions of each window count, in i64."""
    start = b.add(b.mul(b.iota((out,), 0, i64), w.stride), -w.padding)
    limit = size + w.padding if include_pad else size
    end = b.op("minimum", b.add(start, w.size), b.scalar(limit, i64))
    if not include_pad:
        start = b.op("maximum", start, 0)
    return b.sub(end, start)


def _average(n: int) -> Rule:
    """The rule of the average over windows of `n` dimensions."""

    def apply(
        b: Importer,
        x: SSAValue,
        size: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: Any = None,
    ) -> SSAValue:
        return _avg_pool(b, n, x, size, stride, padding, count_include_pad, divisor_override)

    return apply


rule(packet(aten, "avg_pool1d"))(_average(1))
rule(aten.avg_pool2d.default)(_average(2))
rule(aten.avg_pool3d.default)(_average(3))
