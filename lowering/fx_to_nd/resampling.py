"""Nearest-neighbour resampling: a view for factors that are a power of two, indices computed in f32 as torch does
else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from xdsl.dialects.builtin import f32, i64
from xdsl.ir import SSAValue

from ...dialects.expr import Expr, dim
from .importer import Importer
from .registry import packet, rule

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


def _nearest_backward(spatial: int) -> Any:
    def apply(b: Importer, grad: SSAValue, size: Any, input_size: Any, *scales: Any) -> SSAValue:
        """The sum over the places that show the same source, when the factors are powers of two."""
        out, lead = b.out_dims, b.rank(grad) - spatial
        split: list[Any] = list(out[:lead])
        over: list[int] = []
        for d, scale in zip(range(lead, len(out)), _scales(spatial, scales), strict=True):
            factor = _power_of_two(out[d], b.dims(grad)[d])
            if factor is None or not (scale is None or scale == factor):
                return NotImplemented
            split += [out[d], factor]
            over.append(len(split) - 1)
        return b.reduce("sum", b.reshape(b.widen(grad), split), over)

    return apply


for _spatial in (1, 2, 3):
    rule(packet(aten, f"upsample_nearest{_spatial}d_backward"))(_nearest_backward(_spatial))
    rule(packet(aten, f"_upsample_nearest_exact{_spatial}d_backward"))(_nearest_backward(_spatial))
