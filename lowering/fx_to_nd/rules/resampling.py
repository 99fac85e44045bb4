"""Nearest-neighbour resampling: a view for factors that are a power of two, indices computed in f32 as torch does
else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from xdsl.dialects.builtin import f32, f64, i64
from xdsl.ir import SSAValue

from ....dialects.expr import ONE, ZERO, Expr, as_expr, dim
from ..core.importer import Importer
from ..core.registry import packet, rule

aten = torch.ops.aten


def _power_of_two(inner: Expr, outer: Expr) -> int | None:
    """The factor from `inner` to `outer` when it is 1 or a power of two."""
    for factor in (1, 2, 4, 8, 16, 32):
        if inner * factor is outer:
            return factor
    return None


def _scales(spatial: int, arguments: Sequence[Any]) -> list[Any]:
    """The factors that the caller gave for each dimension: a list (overload vec) or one argument a dimension."""
    given = list(arguments[0]) if arguments and isinstance(arguments[0], tuple) else list(arguments)
    return given if len(given) == spatial else [None] * spatial


def _nearest(spatial: int, shift: float) -> Any:
    def apply(b: Importer, x: SSAValue, size: Any, *scales: Any) -> SSAValue:
        lead = b.rank(x) - spatial
        out = b.out_dims
        index: list[Expr] = [dim(k) for k in range(len(out))]
        view_dims = list(b.dims(x))
        gathered: dict[int, SSAValue] = {}
        for k, scale in enumerate(_scales(spatial, scales)):
            d = lead + k
            inner, outer = b.dims(x)[d], out[d]
            factor = _power_of_two(inner, outer)
            if factor is not None and (scale is None or scale == factor):
                index[d], view_dims[d] = dim(d) // factor, outer
            else:
                gathered[d] = _source_index(b, inner, outer, scale, shift)
        if any(d is not e for d, e in zip(view_dims, b.dims(x), strict=True)):
            x = b.view(x, view_dims, index)
        for d, source in gathered.items():
            x = b.index(x, [d], [source], wrap=False)
        return x

    return apply


def _source_index(b: Importer, inner: Expr, outer: Expr, scale: Any, shift: float) -> SSAValue:
    """[outer]: the nearest source of each place, min(floor((i + shift) * step), inner - 1), in f32."""
    if isinstance(scale, (int, float)):
        step = b.full(1.0 / scale, f32)
    else:
        step = b.div(b.size(inner, f32), b.size(outer, f32))
    place = b.cast(b.iota((outer,), 0, i64), f32)
    source = b.cast(b.mul(b.add(place, shift) if shift else place, step), i64)
    return b.op("minimum", source, b.scalar(inner - 1, i64))


for _spatial in (1, 2, 3):
    rule(packet(aten, f"upsample_nearest{_spatial}d"))(_nearest(_spatial, 0.0))
    rule(packet(aten, f"_upsample_nearest_exact{_spatial}d"))(_nearest(_spatial, 0.5))


def _nearest_backward(spatial: int, shift: float) -> Any:
    def apply(b: Importer, grad: SSAValue, size: Any, input_size: Any, *scales: Any) -> SSAValue:
        """The sum over the places that show the same source."""
        out, lead = b.out_dims, b.rank(grad) - spatial
        given = _scales(spatial, scales)
        factors = [_power_of_two(out[d], b.dims(grad)[d]) for d in range(lead, len(out))]
        if all(f is not None and s in (None, f) for f, s in zip(factors, given, strict=True)):
            split: list[Any] = list(out[:lead])
            over: list[int] = []
            for d, factor in zip(range(lead, len(out)), factors, strict=True):
                split += [out[d], factor]
                over.append(len(split) - 1)
            return b.reduce("sum", b.reshape(b.widen(grad), split), over)
        total = b.widen(grad)
        if any(s is ZERO for s in (*out, *b.dims(grad))):
            return b.full(0, b.dtype(grad), out)
        for d, scale in reversed(list(zip(range(lead, len(out)), given, strict=True))):
            total = _summed_by_source(b, total, d, out[d], scale, shift)
            if total is NotImplemented:
                return NotImplemented
        return total

    return apply


def _summed_by_source(b: Importer, grad: SSAValue, d: int, inner: Expr, scale: Any, shift: float) -> SSAValue:
    """[..., inner, ...]: for each source along `d` the sum over the places that show it. They stand side by side, from
    about source * scale on, so a few candidates are looked at."""
    outer = b.dims(grad)[d]
    if not (inner.is_const and outer.is_const) or not (scale is None or isinstance(scale, (int, float))):
        return NotImplemented
    ratio = int(outer) / int(inner) if scale is None else float(scale)
    candidates = as_expr(min(int(outer), math.ceil(ratio) + 4))
    source = _source_index(b, inner, outer, scale, shift)
    first = b.cast(b.op("floor", b.mul(b.cast(b.iota((inner,), 0, i64), f64), ratio)), i64)
    first = b.op("minimum", b.op("maximum", b.sub(first, 2), 0), int(outer - candidates))
    place = b.add(b.reshape(first, (inner, ONE)), b.iota((candidates,), 0, i64))
    shown = b.cmp("eq", b.index(source, [0], [place], wrap=False), b.reshape(b.iota((inner,), 0, i64), (inner, ONE)))
    behind = b.rank(grad) - 1 - d
    shown = b.reshape(shown, (inner, candidates, *((ONE,) * behind)))
    value = b.index(grad, [d], [place], wrap=False)
    return b.reduce("sum", b.select(shown, value, 0.0), [d + 1])


for _spatial in (1, 2, 3):
    rule(packet(aten, f"upsample_nearest{_spatial}d_backward"))(_nearest_backward(_spatial, 0.0))
    rule(packet(aten, f"_upsample_nearest_exact{_spatial}d_backward"))(_nearest_backward(_spatial, 0.5))
