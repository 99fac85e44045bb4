"""Linear and cubic interpolation, with and without antialiasing, and their gradients.

Along each dimension an output is a weighted sum of a few neighbouring inputs ("taps"): `first` says where they begin,
`weights` how much each counts. Both are small tables, and dimensions are done one after the other, so that only the
pass along the last dimension has to gather. A gradient gathers too: an input sums over the outputs that it is a tap of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from xdsl.dialects.builtin import f32, f64, i64
from xdsl.ir import Attribute, SSAValue

from ....dialects import nd
from ....dialects.expr import ONE, Expr, as_expr
from ....dialects.nd.types import FLOATS
from ..core.importer import Importer
from ..core.registry import REGISTRY, packet, rule
from .resampling import _scales

aten = torch.ops.aten


@dataclass(frozen=True)
class Filter:
    """A kernel: how far it reaches on either side (inputs), its weights for the distance of an output from the first
    of its 2 * reach taps, and its value at a distance (used where it is widened against aliasing)."""

    reach: int
    weights: Callable[[Importer, SSAValue], list[SSAValue]]
    value: Callable[[Importer, SSAValue], SSAValue]
    clamps: bool
    """Whether places before the first input are moved to it."""


def _linear_weights(b: Importer, t: SSAValue) -> list[SSAValue]:
    return [b.sub(b.scalar(1.0, b.dtype(t)), t), t]


def _linear_value(b: Importer, x: SSAValue) -> SSAValue:
    """The triangle max(0, 1 - |x|)."""
    return b.op("maximum", b.sub(b.scalar(1.0, b.dtype(x)), b.op("abs", x)), 0.0)


def _near(b: Importer, x: SSAValue, a: float) -> SSAValue:
    """The cubic convolution kernel at 0 <= x <= 1."""
    return b.add(b.mul(b.mul(b.sub(b.mul(x, a + 2), a + 3), x), x), 1.0)


def _far(b: Importer, x: SSAValue, a: float) -> SSAValue:
    """The cubic convolution kernel at 1 <= x <= 2."""
    return b.sub(b.mul(b.add(b.mul(b.sub(b.mul(x, a), 5 * a), x), 8 * a), x), 4 * a)


def _cubic_weights(b: Importer, t: SSAValue) -> list[SSAValue]:
    a, rest = -0.75, b.sub(b.scalar(1.0, b.dtype(t)), t)
    return [_far(b, b.add(t, 1.0), a), _near(b, t, a), _near(b, rest, a), _far(b, b.add(rest, 1.0), a)]


def _cubic_value(b: Importer, x: SSAValue) -> SSAValue:
    x, a = b.op("abs", x), -0.5
    outside = b.select(b.cmp("lt", x, 2.0), _far(b, x, a), 0.0)
    return b.select(b.cmp("lt", x, 1.0), _near(b, x, a), outside)


LINEAR = Filter(1, _linear_weights, _linear_value, True)
CUBIC = Filter(2, _cubic_weights, _cubic_value, False)


@dataclass(frozen=True)
class Axis:
    """One dimension of an interpolation. scale: the factor that the caller gave, else None."""

    inner: Expr
    outer: Expr
    align: bool
    scale: Any

    @property
    def number(self) -> float | None:
        """Inputs an output, where it is known."""
        if not self.align and isinstance(self.scale, (int, float)) and self.scale > 0:
            return 1.0 / self.scale
        if not (self.inner.is_const and self.outer.is_const and (self.align or self.scale is None)):
            return None
        if self.align:
            return (int(self.inner) - 1) / (int(self.outer) - 1) if int(self.outer) > 1 else 0.0
        return int(self.inner) / int(self.outer)

    def step(self, b: Importer, dtype: Attribute) -> SSAValue:
        """Inputs an output, computed as torch does: in the element type of the arithmetic."""
        if not self.align and self.scale is not None:
            if isinstance(self.scale, (int, float)):
                return b.full(1.0 / self.scale, dtype)
            return b.div(b.full(1.0, dtype), b.scalar(self.scale, dtype))
        if not self.align:
            return b.div(b.size(self.inner, dtype), b.size(self.outer, dtype))
        if self.outer is ONE:
            return b.full(0.0, dtype)
        return b.div(b.size(self.inner - 1, dtype), b.size(self.outer - 1, dtype))


@dataclass(frozen=True)
class Taps:
    """first: [outer], the input of the first tap (may lie outside: such taps read the nearest input). weights:
    [count, outer], so that neighbouring outputs find theirs side by side."""

    first: SSAValue
    weights: SSAValue
    count: Expr


def _kept(b: Importer, table: SSAValue) -> SSAValue:
    """A small table as memory of its own on the CPU, where each use would compute it again; a GPU computes it in place
    for less than a launch costs."""
    return b.emit(nd.BarrierOp, (table,), b.dims(table), b.dtype(table)) if b.on_cpu else table


def _places_and_weights(b: Importer, axis: Axis, kernel: Filter, dtype: Attribute) -> tuple[SSAValue, list[SSAValue]]:
    """The first tap of each output and the weights of its taps, [outer] each."""
    place = b.cast(b.iota((axis.outer,), 0, i64), dtype)
    step = axis.step(b, dtype)
    source = b.mul(place, step) if axis.align else b.sub(b.mul(b.add(place, 0.5), step), 0.5)
    if kernel.clamps:
        source = b.op("maximum", source, 0.0)
    floor = b.op("floor", source)
    distance = b.op("minimum", b.op("maximum", b.sub(source, floor), 0.0), 1.0)
    return b.sub(b.cast(floor, i64), kernel.reach - 1), kernel.weights(b, distance)


def _plain_taps(b: Importer, axis: Axis, kernel: Filter, dtype: Attribute) -> Taps:
    first, weights = _places_and_weights(b, axis, kernel, dtype)
    table = b.cat([b.unsqueeze(w, 0) for w in weights], 0)
    return Taps(_kept(b, first), _kept(b, table), as_expr(2 * kernel.reach))


def _wide_taps(b: Importer, axis: Axis, kernel: Filter, dtype: Attribute) -> Taps:
    """Against aliasing the kernel is widened where there are fewer outputs than inputs, and its weights divided by their sum."""
    step = axis.step(b, dtype)
    width = b.op("maximum", step, 1.0)
    support = b.mul(width, float(kernel.reach))
    centre = b.mul(b.add(b.cast(b.iota((axis.outer,), 0, i64), dtype), 0.5), step)
    first = b.cast(b.op("trunc", b.add(b.sub(centre, support), 0.5)), i64)
    first = b.op("maximum", first, 0)
    end = b.cast(b.op("trunc", b.add(b.add(centre, support), 0.5)), i64)
    end = b.op("minimum", end, b.scalar(axis.inner, i64))
    count = _wide_count(axis, kernel)
    places = b.add(first, b.iota((count, ONE), 0, i64))
    at = b.add(b.sub(b.cast(places, dtype), centre), 0.5)
    weights = b.select(b.cmp("lt", places, end), kernel.value(b, b.div(at, width)), 0.0)
    weights = b.div(weights, b.reduce("sum", weights, [0]))
    return Taps(_kept(b, first), _kept(b, weights), count)


def _wide_count(axis: Axis, kernel: Filter) -> Expr:
    """At least as many taps as a widened kernel has."""
    if axis.number is not None:
        count = 2 * math.ceil(kernel.reach * max(axis.number, 1.0)) + 1
        return as_expr(min(count, int(axis.inner)) if axis.inner.is_const else count)
    # (inner - 1) / (outer - 1) <= 2 inner / outer
    return (2 * kernel.reach * (2 if axis.align else 1) * axis.inner) // axis.outer + (2 * kernel.reach + 3)


def _taps(b: Importer, axis: Axis, kernel: Filter, wide: bool, dtype: Attribute) -> Taps:
    return (_wide_taps if wide else _plain_taps)(b, axis, kernel, dtype)


def _within(b: Importer, places: SSAValue, size: Expr) -> SSAValue:
    """Places moved into [0, size)."""
    return b.op("minimum", b.op("maximum", places, 0), b.scalar(size - 1, i64))


def _pass(b: Importer, x: SSAValue, d: int, first: SSAValue, weights: SSAValue, count: Expr) -> SSAValue:
    """Along `d`: the sum over k of weights[k, o] * x[first[o] + k], places outside read the nearest element."""
    size, outer = b.dims(x)[d], b.dims(first)[0]
    behind = b.rank(x) - 1 - d
    if count.is_const and int(count) <= _UNROLLED:
        total: SSAValue | None = None
        for k in range(int(count)):
            value = b.index(x, [d], [_within(b, b.add(first, k), size)], wrap=False)
            weight = b.reshape(b.slice_dim(weights, 0, k, ONE), (outer, *((ONE,) * behind)))
            total = b.mul(value, weight) if total is None else b.fma(value, weight, total)
        assert total is not None
        return total
    places = _within(b, b.add(first, b.iota((count, ONE), 0, i64)), size)
    value = b.index(x, [d], [places], wrap=False)
    weights = b.reshape(weights, (count, outer, *((ONE,) * behind)))
    return b.reduce("sum", b.mul(value, weights), [d])


_UNROLLED = 16
"""Taps up to which a sum is written out."""


def _in_order(b: Importer, value: SSAValue, axes: Sequence[Axis], lead: int, step: Callable[[SSAValue, int], SSAValue]) -> SSAValue:
    """`step` along each dimension: the last, which gathers, before others make the tensor larger and after they made it smaller (as in
    the example, where sizes are symbols)."""
    spatial = list(range(len(axes)))
    outer, inner = b.dims(value)[lead:], [a.outer for a in axes]
    if outer == tuple(inner):
        inner = [a.inner for a in axes]
    pairs = [(b.example(s), b.example(t)) for s, t in zip(outer[:-1], inner[:-1], strict=True)]
    grows = all(s is not None and t is not None and t >= s for s, t in pairs)
    order = reversed(spatial) if grows else spatial
    for k in order:
        value = step(value, k)
    return value


def _interpolate(spatial: int, kernel: Filter, wide: bool) -> Any:
    def apply(b: Importer, x: SSAValue, size: Any, align: bool, *scales: Any) -> SSAValue:
        if b.dtype(x) not in FLOATS:
            return NotImplemented
        lead = b.rank(x) - spatial
        sizes, given = b.dims(x), _scales(spatial, scales)
        axes = [Axis(sizes[lead + k], b.out_dims[lead + k], align, given[k]) for k in range(spatial)]
        dtype = f64 if b.dtype(x) == f64 else f32
        if not b.on_cpu and not wide:
            return _corners(b, b.cast(x, dtype), axes, lead, kernel)

        def step(value: SSAValue, k: int) -> SSAValue:
            taps = _taps(b, axes[k], kernel, wide, dtype)
            return _pass(b, value, lead + k, taps.first, taps.weights, taps.count)

        return _in_order(b, b.cast(x, dtype), axes, lead, step)

    return apply


def _corners(b: Importer, x: SSAValue, axes: Sequence[Axis], lead: int, kernel: Filter) -> SSAValue:
    """All dimensions at once, every output by itself: one kernel, where the launch of another costs more than the arithmetic."""
    count = len(axes)
    places: list[list[SSAValue]] = []
    weights: list[list[SSAValue]] = []
    for k, axis in enumerate(axes):
        first, own = _places_and_weights(b, axis, kernel, b.dtype(x))
        column = (axis.outer, *((ONE,) * (count - 1 - k)))
        places.append([b.reshape(_within(b, b.add(first, t), axis.inner), column) for t in range(len(own))])
        weights.append([b.reshape(w, column) for w in own])

    def along(k: int, chosen: tuple[SSAValue, ...]) -> SSAValue:
        if k == count:
            return b.index(x, list(range(lead, lead + count)), chosen, wrap=False)
        total: SSAValue | None = None
        for place, weight in zip(places[k], weights[k], strict=True):
            value = along(k + 1, (*chosen, place))
            total = b.mul(value, weight) if total is None else b.fma(value, weight, total)
        assert total is not None
        return total

    return along(0, ())


# ---- gradients


def _covering(axis: Axis, kernel: Filter, wide: bool) -> Expr | None:
    """At least as many outputs as an input is a tap of, counted from what `_first_covering` gives; None when the sizes
    do not say."""
    inner, outer = axis.inner, axis.outer
    if inner is ONE:
        return outer
    reach, extra = (kernel.reach + 1, 4) if wide else (kernel.reach, 3)
    number = axis.number
    if number is not None:
        if number == 0.0:
            return outer
        # a widened kernel reaches `reach * step` inputs
        distance = kernel.reach * max(number, 1.0) + 1 if wide else reach
        count = math.floor(2 * distance / number) + extra
        return as_expr(min(count, int(outer)) if outer.is_const else count)
    if axis.scale is not None and not axis.align and not isinstance(axis.scale, (int, float)):
        return None
    ratio = (2 * reach * outer) // inner if not axis.align else (2 * reach * (outer - 1)) // (inner - 1)
    return ratio + extra + (2 * kernel.reach if wide else 0)


def _first_covering(b: Importer, axis: Axis, kernel: Filter, wide: bool) -> SSAValue:
    """[inner]: an output at or before the first that each input is a tap of, in i64."""
    place = b.cast(b.iota((axis.inner,), 0, i64), f64)
    step = axis.step(b, f64)
    reach: Any = float(kernel.reach)
    if wide:
        reach = b.add(b.mul(b.op("maximum", step, 1.0), reach), 1.0)
    if axis.align and not wide:
        low = b.div(b.sub(place, reach), step)
    else:
        low = b.sub(b.div(b.sub(b.add(place, 0.5), reach), step), 0.5)
    low = b.op("minimum", b.op("maximum", low, 0.0), b.scalar(axis.outer, f64))
    return b.cast(b.op("floor", low), i64)


def _transposed(b: Importer, axis: Axis, kernel: Filter, wide: bool, count: Expr, dtype: Attribute) -> tuple[SSAValue, SSAValue]:
    """The first output that each input is a tap of, [inner], and how much it counts in each of `count` from there on,
    [count, inner]."""
    taps = _taps(b, axis, kernel, wide, dtype)
    inner, outer = axis.inner, axis.outer
    if count == outer:
        first = b.full(0, i64, (inner,))
    else:
        first = _first_covering(b, axis, kernel, wide)
        if count.is_const and outer.is_const:
            first = b.op("minimum", first, int(outer) - int(count))
    outputs = b.add(first, b.iota((count, ONE), 0, i64))
    shown = _within(b, outputs, outer)
    places = _within(b, b.add(taps.first, b.iota((taps.count, ONE), 0, i64)), inner)
    own = b.cmp("eq", b.index(places, [1], [shown], wrap=False), b.iota((inner,), 0, i64))
    weights = b.reduce("sum", b.select(own, b.index(taps.weights, [1], [shown], wrap=False), 0.0), [0])
    if not (count.is_const and outer.is_const):
        weights = b.select(b.cmp("lt", outputs, b.scalar(outer, i64)), weights, 0.0)
    return _kept(b, first), _kept(b, weights)


def _interpolate_backward(spatial: int, kernel: Filter, wide: bool) -> Any:
    def apply(b: Importer, grad: SSAValue, size: Any, input_size: Any, align: bool, *scales: Any) -> SSAValue:
        lead = b.rank(grad) - spatial
        sizes, given = b.dims(grad), _scales(spatial, scales)
        axes = [Axis(b.out_dims[lead + k], sizes[lead + k], align, given[k]) for k in range(spatial)]
        counts = [_covering(a, kernel, wide) for a in axes]
        if b.dtype(grad) not in FLOATS or None in counts or not all(map(_consistent, axes)):
            return NotImplemented
        dtype = f64 if b.dtype(grad) == f64 else f32

        def step(value: SSAValue, k: int) -> SSAValue:
            count = counts[k]
            assert count is not None
            first, weights = _transposed(b, axes[k], kernel, wide, count, dtype)
            return _pass(b, value, lead + k, first, weights, count)

        return _in_order(b, b.cast(grad, dtype), axes, lead, step)

    return apply


def _consistent(axis: Axis) -> bool:
    """Whether the factor that the caller gave leads to the size of the output: else inputs at the border may be read by
    any number of outputs."""
    if axis.align or not isinstance(axis.scale, (int, float)) or not (axis.inner.is_const and axis.outer.is_const):
        return True
    return int(axis.outer) <= int(axis.inner) * axis.scale + 1


for _name, _spatial, _kernel, _wide in (
    ("upsample_linear1d", 1, LINEAR, False),
    ("upsample_bilinear2d", 2, LINEAR, False),
    ("upsample_trilinear3d", 3, LINEAR, False),
    ("upsample_bicubic2d", 2, CUBIC, False),
    ("_upsample_bilinear2d_aa", 2, LINEAR, True),
    ("_upsample_bicubic2d_aa", 2, CUBIC, True),
):
    rule(packet(aten, _name))(_interpolate(_spatial, _kernel, _wide))
    rule(packet(aten, f"{_name}_backward"))(_interpolate_backward(_spatial, _kernel, _wide))


@rule("stepwell::interpolate_backward")
def _any_backward(
    b: Importer, grad: SSAValue, name: str, size: Any, input_size: Any, align: bool, scales: Sequence[Any]
) -> SSAValue:
    """lowering/fx/pre_grad/whole_operators.py writes these."""
    return REGISTRY[packet(aten, f"{name}_backward")](b, grad, size, input_size, align, *scales)
