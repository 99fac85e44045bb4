"""Transposed convolutions on a GPU as products, without the zeros between elements of the image: a product for each phase of the result.

    %y[m] = sum over l and k with stride * l + dilation * k - padding = m   of %x[l] times %w[k]

    %y[stride * q + f]  ->  sum over j of %x[q + shift(f) - j * dilation / g] times %w[first(f) + j * stride / g]

with g = gcd(stride, dilation).

Elements of the result whose places are equal modulo the stride (a phase f) read the same places of the window, and their neighbours the
image's neighbours. So each phase is a convolution of stride 1 by a part of the window. The phases are a batch. Where the padding is a
multiple of the stride and the window no longer than it, they all read one element, and are columns of one product. The weight is put in
order before: rows of terms for each phase, 0 where a phase has fewer places than another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product as every
from math import gcd, prod

from xdsl.dialects.builtin import FloatAttr
from xdsl.ir import SSAValue

from .....dialects import nd
from .....dialects.expr import ZERO, Expr, IndexMap, as_expr, dim, product
from .....dialects.expr.syntax import IndexMapAttr
from .....dialects.nd.base import ExprsAttr, IntsAttr
from .....dialects.nd.types import TensorType, tensor_type
from ....cost.library_cost import size
from ...algebra.rewriter import Rewriter
from ..product_terms import rounded_operand
from .nests import channels_first, in_order, kept, out_of_order, summed


@dataclass(frozen=True)
class Phases:
    """A spatial dimension of a transposed convolution: the window's `reach` in places, the numbers of the operator."""

    reach: int
    stride: int
    dilation: int
    padding: int

    @property
    def common(self) -> int:
        return gcd(self.stride, self.dilation)

    @property
    def step(self) -> int:
        """From one place of the window to the next one of a phase."""
        return self.stride // self.common

    @property
    def places(self) -> int:
        """Places of the window that a phase reads at most."""
        return -(-self.reach // self.step)

    @property
    def end(self) -> int:
        """The places of the window with those behind it that count as 0."""
        return self.places * self.step

    def tap(self, phase: Expr, j: Expr) -> Expr:
        """The place of the window that is the j-th one of a phase; from `end` on where the phase has none."""
        rest = (phase + self.padding) % self.stride
        none = (rest % self.common + self.common - 1) // self.common
        return self._first(rest) + j * self.step + none * self.end

    def shift(self, phase: Expr) -> Expr:
        """From an element's number in its phase to the element of the image that the first place of the window meets."""
        at = phase + self.padding
        return at // self.stride - (self._first(at % self.stride) * self.dilation - at % self.stride) // self.stride

    def offsets(self) -> Sequence[int]:
        """All of shift(f) - j * dilation / g, in which an element of the image may be apart from the element's number."""
        firsts = [self.shift(as_expr(f)).value or 0 for f in range(self.stride)]
        return [a - j * self.dilation // self.common for a, j in every(firsts, range(self.places))]

    def _first(self, rest: Expr) -> Expr:
        inverse = pow(self.dilation // self.common, -1, self.step) if self.step > 1 else 0
        return rest // self.common * inverse % self.step


def phases_of(op: nd.ConvOp) -> Sequence[Phases]:
    """The spatial dimensions of a transposed convolution whose window is known."""
    window = (int(n) for n in tensor_type(op.weight).dims[2:])
    return [Phases(*numbers) for numbers in zip(window, op.stride.data, op.dilation.data, op.padding.data, strict=True)]


def transposed_sizes(op: nd.ConvOp, hints: Mapping[str, int]) -> tuple[int, int, int, int]:
    """Rows, columns, terms and batches of the product."""
    (samples, *_), (taken, each, *_) = tensor_type(op.result).dims, tensor_type(op.weight).dims
    phases, groups = phases_of(op), op.groups.data[0]
    rows = size(product((samples, *_counts(op, phases))), hints)
    return rows, int(each), int(taken) // groups * prod(p.places for p in phases), groups * prod(p.stride for p in phases)


def phases_are_whole(op: nd.ConvOp) -> bool:
    """Whether all phases are known to have as many elements, so that the result is all of them."""
    phases = phases_of(op)
    return _whole(_counts(op, phases), phases) == [*tensor_type(op.result).dims[2:]]


def lies_across(op: nd.ConvOp) -> bool:
    """Whether the result lies by rows, of which a phase has every other place: a kernel of its own puts it in order, with what follows."""
    return 0 in out_of_order(op) and op.stride.data[-1] > 1


def as_phases(rw: Rewriter, op: nd.ConvOp) -> SSAValue:
    """A transposed convolution as multiplications and a sum, as `as_product` of a convolution."""
    weight, t, phases, groups = tensor_type(op.weight), tensor_type(op.result), phases_of(op), op.groups.data[0]
    samples, out, *places = t.dims
    taken, columns = weight.dims[:2]
    each, counts = as_expr(int(taken) // groups), _counts(op, phases)
    batch: tuple[Expr, ...] = (*((as_expr(groups),) if groups > 1 else ()), *(as_expr(p.stride) for p in phases if p.stride > 1))
    rows, taps = (samples, *counts), [as_expr(p.places) for p in phases]
    sizes, first, spatial = (*batch, *rows, columns, *taps, each), len(batch), len(phases)
    column = first + 1 + spatial
    group: Expr = dim(0) if groups > 1 else ZERO
    phase = _phases(phases, groups > 1)
    low = [max(0, -min(p.offsets())) for p in phases]
    at = [
        dim(first + 1 + k) + p.shift(phase[k]) - dim(column + 1 + k) * (p.dilation // p.common) + low[k]
        for k, p in enumerate(phases)
    ]  # fmt: skip
    of_image = IndexMap(len(sizes), (dim(first), group * each + dim(len(sizes) - 1), *at))
    of_weight = IndexMap(len(sizes), tuple(dim(k) for k in (*range(first), *range(column, len(sizes)))))
    image, kernel = _padded(rw, op, phases, counts, low), _ordered(rw, op, phases, (*batch, columns, *taps, each))
    made = summed(rw, op, ((image, of_image), (kernel, of_weight)), sizes, (*batch, *rows, columns))
    made = _joined(rw, made, t, phases, counts, groups)
    return channels_first(rw, kept(rw, made) if lies_across(op) else made, t)


def _counts(op: nd.ConvOp, phases: Sequence[Phases]) -> list[Expr]:
    """The elements of a phase along each spatial dimension."""
    return [(n + (p.stride - 1)) // p.stride for n, p in zip(tensor_type(op.result).dims[2:], phases, strict=True)]


def _whole(counts: Sequence[Expr], phases: Sequence[Phases]) -> list[Expr]:
    """The elements of all phases along each spatial dimension."""
    return [n * p.stride for n, p in zip(counts, phases, strict=True)]


def _phases(phases: Sequence[Phases], grouped: bool) -> list[Expr]:
    """The phase along each spatial dimension: a loop of the batch, 0 where there is one."""
    at, found = int(grouped), list[Expr]()
    for p in phases:
        found.append(dim(at) if p.stride > 1 else ZERO)
        at += p.stride > 1
    return found


def _padded(rw: Rewriter, op: nd.ConvOp, phases: Sequence[Phases], counts: Sequence[Expr], low: Sequence[int]) -> SSAValue:
    """The image with zeros around it, as far as any phase reads."""
    x = tensor_type(op.input)
    high = [n - 1 + max(p.offsets()) + 1 - length for n, p, length in zip(counts, phases, x.dims[2:], strict=True)]
    image = in_order(rw, op.input) if 0 in out_of_order(op) else rounded_operand(rw, op.input)
    return _zeros_around(rw, image, (0, 0, *low), (0, 0, *high))


def _ordered(rw: Rewriter, op: nd.ConvOp, phases: Sequence[Phases], sizes: Sequence[Expr]) -> SSAValue:
    """The weight [C, O / groups, window] as [groups, phases, O / groups, places of a phase, C / groups], in memory."""
    w, grouped, spatial = tensor_type(op.weight), op.groups.data[0] > 1, len(phases)
    behind = [p.end * (2 if p.common > 1 else 1) - p.reach for p in phases]
    weight = _zeros_around(rw, rounded_operand(rw, op.weight), [0] * w.rank, (0, 0, *behind))
    column = len(sizes) - spatial - 2
    j = [dim(column + 1 + k) for k in range(spatial)]
    group: Expr = dim(0) if grouped else ZERO
    channel = group * sizes[-1] + dim(len(sizes) - 1)
    taps = [p.tap(f, j[k]) for k, (p, f) in enumerate(zip(phases, _phases(phases, grouped), strict=True))]
    t = TensorType.get(sizes, w.element_type, w.device.data)
    index = IndexMapAttr.get(IndexMap(len(sizes), (channel, dim(column), *taps)))
    return rw.new(nd.BarrierOp.new((rw.new(nd.IndexViewOp.new((weight,), t, map=index)),), t))


def _zeros_around(rw: Rewriter, x: SSAValue, low: Sequence[Expr | int], high: Sequence[Expr | int]) -> SSAValue:
    if all(e == 0 for e in (*low, *high)):
        return x
    t = tensor_type(x)
    zero = rw.new(nd.FullOp.new((), t.with_dims(()), value=FloatAttr(0.0, t.element_type)))  # pyright: ignore[reportArgumentType, reportCallIssue]
    dims = [a + length + b for a, length, b in zip(low, t.dims, high, strict=True)]
    return rw.new(nd.PadOp.new((x, zero), t.with_dims(dims), low=ExprsAttr.get(low), high=ExprsAttr.get(high)))


def _joined(rw: Rewriter, made: SSAValue, t: TensorType, phases: Sequence[Phases], counts: Sequence[Expr], groups: int) -> SSAValue:
    """[groups, phases, pixels of a phase, O / groups] as [N, places..., O]."""
    samples, out, *places = t.dims
    apart = tensor_type(made)
    first = apart.rank - len(phases) - 2
    order, at = [first], int(groups > 1)
    for k, p in enumerate(phases):
        order += [first + 1 + k, *([at] if p.stride > 1 else [])]
        at += p.stride > 1
    order += [*([0] if groups > 1 else []), first + 1 + len(phases)]
    made = rw.new(nd.PermuteOp.new((made,), apart.with_dims([apart.dims[k] for k in order]), dims=IntsAttr.get(order)))
    whole = _whole(counts, phases)
    made = rw.new(nd.ReshapeOp.new((made,), t.with_dims((samples, *whole, out))))
    if whole == places:
        return made
    ends = t.with_dims((samples, *places, out))
    starts, steps = ExprsAttr.get([0] * t.rank), ExprsAttr.get([1] * t.rank)
    return rw.new(nd.SliceOp.new((made,), ends, starts=starts, steps=steps))
