"""Gradients of pooling by windows of one size: every element of the input gathers from the windows that cover it.

Element h is in the windows o = (h + padding) // stride - j for j = 0, 1, ... as far as windows reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from xdsl.dialects.builtin import i32, i64
from xdsl.ir import SSAValue

from ....dialects.expr import ONE, ZERO, Expr, as_expr, dim, product
from ..core.importer import Importer
from ..core.registry import packet, rule
from .pooling import Window, all_windows_full, flat_position, window_counts, window_starts, windows_of
from .pooling_adaptive import positions, scattered_gradient, scatters

aten = torch.ops.aten

_MOST_COVERING = 32
"""Windows over one element up to which the gradient of a maximum is gathered; beyond it is scattered."""


def _covering(w: Window) -> int:
    """The most windows that one element is in."""
    return (w.size - 1) * w.dilation // w.stride + 1


def _covering_view(b: Importer, x: SSAValue, windows: Sequence[Window], sizes: Sequence[Expr], fill: int | float) -> SSAValue:
    """[..., sizes..., covering...]: what `x` [..., outputs...] has for the windows over each element, the nearest
    first; `fill` where there is no window."""
    rank, count = b.rank(x), len(windows)
    lead = rank - count
    low: list[Expr] = [ZERO] * rank
    high: list[Expr] = [ZERO] * rank
    index: list[Expr] = [dim(k) for k in range(lead)]
    for k, w in enumerate(windows):
        before = _covering(w) - 1
        last = (sizes[k] - 1 + w.padding) // w.stride
        low[lead + k], high[lead + k] = as_expr(before), last + 1 - b.dims(x)[lead + k]
        index.append((dim(lead + k) + w.padding) // w.stride + before - dim(rank + k))
    padded = b.pad(x, low, high, fill)
    return b.view(padded, (*b.dims(x)[:lead], *sizes, *(as_expr(_covering(w)) for w in windows)), index)


def _gathered(b: Importer, view: SSAValue, count: int) -> SSAValue:
    """The sum over the covering windows."""
    rank = b.rank(view) - count
    return b.reduce("sum", view, list(range(rank, rank + count)))


# ---- average


def _average_backward(count: int) -> Any:
    def apply(
        b: Importer,
        grad: SSAValue,
        x: SSAValue,
        size: Any,
        stride: Any,
        padding: Any,
        ceil_mode: bool,
        include_pad: bool,
        divisor: Any,
    ) -> SSAValue:
        windows = windows_of(count, size, stride, padding)
        if windows is None or (divisor is not None and not isinstance(divisor, int)):
            return NotImplemented
        dims, outputs = b.out_dims, b.dims(grad)[-count:]
        if any(d is ZERO for d in dims):
            return b.full(0, b.dtype(x), dims)
        sizes = dims[-count:]
        wide = b.widen(grad)
        if divisor is not None:
            share = b.div(wide, divisor)
        elif all_windows_full(windows, sizes, outputs, include_pad):
            share = b.div(wide, product(as_expr(w.size) for w in windows))
        else:
            share = b.div(wide, window_counts(b, windows, sizes, outputs, include_pad, b.dtype(wide)))
        view = _covering_view(b, share, windows, sizes, 0.0)
        inside = _reaching(b, windows, sizes)
        return _gathered(b, view if inside is None else b.select(inside, view, 0.0), count)

    return apply


def _reaching(b: Importer, windows: Sequence[Window], sizes: Sequence[Expr]) -> SSAValue | None:
    """[sizes..., covering...]: whether window o = (h + padding) // stride - j ends behind h; None when all do."""
    count, found = len(windows), None
    for k, (w, s) in enumerate(zip(windows, sizes, strict=True)):
        if w.size % w.stride == 0:
            continue
        h = b.op("remainder", b.add(b.iota((s,), 0, i64), w.padding), w.stride)
        distance = b.add(b.reshape(h, (s, ONE)), b.mul(b.iota((as_expr(_covering(w)),), 0, i64), w.stride))
        places: list[Expr] = [ONE] * (2 * count)
        places[k], places[count + k] = s, as_expr(_covering(w))
        own = b.reshape(b.cmp("lt", distance, w.size), places)
        found = own if found is None else b.op("and", found, own)
    return found


rule(packet(aten, "avg_pool2d_backward"))(_average_backward(2))
rule(packet(aten, "avg_pool3d_backward"))(_average_backward(3))


# ---- max


def _maximum_backward(count: int) -> Any:
    def apply(
        b: Importer,
        grad: SSAValue,
        x: SSAValue,
        size: Any,
        stride: Any,
        padding: Any,
        dilation: Any,
        ceil_mode: bool,
        indices: SSAValue,
    ) -> SSAValue:
        windows = windows_of(count, size, stride, padding, dilation)
        dims = b.out_dims
        if any(d is ZERO for d in dims):
            return b.full(0, b.dtype(x), dims)
        if windows is None or scatters(b) or prod(map(_covering, windows)) > _MOST_COVERING:
            return scattered_gradient(b, grad, indices, count)
        sizes = dims[-count:]
        chosen = _covering_view(b, indices, windows, sizes, -1)
        view = _covering_view(b, b.widen(grad), windows, sizes, 0.0)
        return _gathered(b, b.select(b.cmp("eq", chosen, positions(b, dims, count)), view, 0.0), count)

    return apply


rule(packet(aten, "max_pool2d_with_indices_backward"))(_maximum_backward(2))
rule(packet(aten, "max_pool3d_with_indices_backward"))(_maximum_backward(3))


_NOWHERE = 1 << 12
"""Added to the position in a window that an element is not in: above all that are in one byte."""


@rule("stepwell::max_pool_offsets_backward")
def _offsets_backward(
    b: Importer,
    grad: SSAValue,
    offsets: SSAValue,
    input_size: Any,
    size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    channels_last: bool,
) -> SSAValue:
    """lowering/fx/joint/max_pool_offsets.py writes these."""
    count = len(size)
    windows = windows_of(count, size, stride, padding, dilation)
    assert windows is not None
    dims = b.out_dims
    if any(d is ZERO for d in dims):
        return b.full(0, b.dtype(grad), dims)
    sizes = dims[-count:]
    if scatters(b) or prod(map(_covering, windows)) > _MOST_COVERING:
        starts, extents = window_starts(b, b.dims(grad), windows), [as_expr(w.size) for w in windows]
        flat = flat_position(b, b.cast(offsets, i64), extents, starts, sizes, [w.dilation for w in windows])
        return scattered_gradient(b, grad, flat, count)
    chosen = b.cast(_covering_view(b, offsets, windows, sizes, -1), i32)
    view = _covering_view(b, b.widen(grad), windows, sizes, 0.0)
    return _gathered(b, b.select(b.cmp("eq", chosen, _places(b, windows, sizes)), view, 0.0), count)


def _places(b: Importer, windows: Sequence[Window], sizes: Sequence[Expr]) -> SSAValue:
    """[sizes..., covering...]: the row-major position of each element in each of the windows over it, at least _NOWHERE in those that
    reach it between or before their elements. (Window (h + padding) // stride - j has h at (h + padding) % stride + j * stride.)"""
    count, found = len(windows), None
    for k, (w, s) in enumerate(zip(windows, sizes, strict=True)):
        h = b.op("remainder", b.add(b.iota((s,), 0, i32), w.padding), w.stride)
        distance = b.add(b.reshape(h, (s, ONE)), b.mul(b.iota((as_expr(_covering(w)),), 0, i32), w.stride))
        place = distance if w.dilation == 1 else b.op("floor_div", distance, w.dilation)
        if w.size * w.dilation % w.stride or w.dilation != 1:
            there = b.cmp("lt", place, w.size)
            if w.dilation != 1:
                there = b.op("and", there, b.cmp("eq", b.op("remainder", distance, w.dilation), 0))
            place = b.select(there, place, _NOWHERE)
        axes: list[Expr] = [ONE] * (2 * count)
        axes[k], axes[count + k] = s, as_expr(_covering(w))
        own = b.mul(b.reshape(place, axes), prod(other.size for other in windows[k + 1 :]))
        found = own if found is None else b.add(found, own)
    assert found is not None
    return found
