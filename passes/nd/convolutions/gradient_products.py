"""Gradients of convolutions whose channels lie side by side: of windows of one pixel as products, of depthwise ones by the weight as sums.

    %dx, %dw = aten.convolution_backward %g, %x, %w   ->   %dx = %g [N x places, O] times %w [O, C] ; %dw = [O, N x places] of %g times %x
    %dw = aten.convolution_backward %g, %x, %w, groups of one channel   ->   nd.reduce "sum", over samples and places, of %g times windows

The gradient by the image of windows that step over pixels, and of depthwise ones, stays a call. That by the bias is a sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.ir import Attribute, SSAValue

from ....dialects import nd
from ....dialects.expr import ONE, Expr, IndexMap, dim, product
from ....dialects.expr.syntax import IndexMapAttr
from ....dialects.nd.base import IntsAttr
from ....dialects.nd.call_args import Arg, Call, CallAttr
from ....dialects.nd.pointwise import OPS
from ....dialects.nd.types import FLOATS, LayoutAttr, TensorType, element_bytes, tensor_type
from ...cost.convolution_cost import Convolution, computed_here, weight_gradient_here
from ...cost.library_cost import size
from ..algebra.rewriter import Rewriter
from ..products.convolutions.nests import padded_windows
from ..products.pixel_products import BACKWARD


def is_last(layouts: ArrayAttr | None, k: int) -> bool:
    """Whether the channels of operand `k` lie side by side, as it is laid out."""
    layout = layouts.data[k] if isinstance(layouts, ArrayAttr) and k < len(layouts.data) else None
    return isinstance(layout, LayoutAttr) and len(layout.stride_exprs) > 1 and layout.stride_exprs[1] is ONE


def computes_gradients(op: nd.ExternOp, hints: Mapping[str, int]) -> bool:
    """Whether a call computes such gradients, of channels side by side, and code of ours costs less."""
    if op.call.data.target != BACKWARD or op.call.data.kwargs or op.schedule is not None:
        return False
    g, x, w, _, stride, padding, dilation, transposed, _, groups, wanted = op.call.data.args
    if transposed or len(op.results) != sum(map(bool, wanted)) or not all(isinstance(a, Arg) for a in (g, x, w)):
        return False
    if not all(is_last(op.operand_layouts, a.index) for a in (g, x)):
        return False
    gradient, image, weight = (tensor_type(op.operands[a.index]) for a in (g, x, w))
    if any(n.value is None for n in weight.dims):
        return False
    samples, out, *places = (size(n, hints) for n in gradient.dims)
    width = element_bytes(image.element_type) if image.element_type in FLOATS else 0
    source, window, result = (tuple(size(n, hints) for n in t.dims) for t in (image, weight, gradient))
    if groups == 1 and prod(window[2:]) == 1 and not any(padding):
        back = (samples, out, *places), (source[1], out, *[1] * len(places)), (samples, source[1], *places)
        return computed_here(Convolution(*back, 1, False, True, True, width))
    spelled = all(len(n) == len(places) for n in (stride, padding, dilation))
    return spelled and bool(wanted[1]) and weight_gradient_here(Convolution(source, window, result, groups, False, True, True, width))


def gradients_as_products(rw: Rewriter, op: nd.ExternOp) -> SSAValue | None:
    """What such a call gives, as products and sums: the first result; the others are replaced here."""
    g, x, w, _, stride, padding, dilation, _, _, groups, wanted = op.call.data.args
    gradient, image, weight = (op.operands[a.index] for a in (g, x, w))
    steps = [int(n) for n in stride] * (1 if len(stride) > 1 else tensor_type(image).rank - 2)
    stays = prod(steps) > 1 or groups > 1

    def by_weight() -> SSAValue:
        if groups > 1:
            return _by_depthwise_weight(rw, gradient, image, tensor_type(weight), (stride, dilation, padding))
        return _by_weight(rw, gradient, image, tensor_type(weight), steps)

    makers: tuple[Callable[[], SSAValue], ...] = (
        lambda: _call_by_image(rw, op) if stays else _by_image(rw, gradient, weight, tensor_type(image)),
        by_weight,
        lambda: _by_bias(rw, gradient),
    )
    made = [make() for make, is_wanted in zip(makers, wanted, strict=True) if is_wanted]
    for old, new in zip(op.results[1:], made[1:], strict=True):
        old.replace_all_uses_with(new)
    return made[0] if made else None


def _by_depthwise_weight(
    rw: Rewriter, gradient: SSAValue, image: SSAValue, weight: TensorType, steps: tuple[Sequence[int], Sequence[int], Sequence[int]]
) -> SSAValue:
    """Sums over [window, C, N, places] of the gradient times the image at each place of the window."""
    (samples, channels, *places), window = tensor_type(gradient).dims, weight.dims[2:]
    stride, dilation, _ = steps
    source, spatial = padded_windows(rw, image, places, window, *steps), len(places)
    sizes = *window, channels, samples, *places
    at = [dim(2 + spatial + k) * int(stride[k]) + dim(k) * int(dilation[k]) for k in range(spatial)]
    windows = IndexMap(len(sizes), (dim(1 + spatial), dim(spatial), *at))
    spread = IndexMap(len(sizes), (dim(1 + spatial), dim(spatial), *(dim(2 + spatial + k) for k in range(spatial))))
    seen = TensorType.get(sizes, weight.element_type, weight.device.data)
    factors = [rw.new(nd.IndexViewOp.new((v,), seen, map=IndexMapAttr.get(m))) for v, m in ((source, windows), (gradient, spread))]
    terms = rw.new(OPS["mul"].new(factors, seen))
    over = IntsAttr.get(range(1 + spatial, len(sizes)))
    total = rw.new(nd.ReduceOp.new((terms,), weight.with_dims((*window, channels)), kind=StringAttr("sum"), dims=over))
    total = rw.new(nd.PermuteOp.new((total,), weight.with_dims((channels, *window)), dims=IntsAttr.get((spatial, *range(spatial)))))
    return rw.new(nd.ReshapeOp.new((total,), weight))


def _pixels(rw: Rewriter, x: SSAValue, places: Sequence[Expr], steps: Sequence[int], turned: bool = False) -> SSAValue:
    """An image as [pixels, channels], or `turned`, at each so many steps."""
    t = tensor_type(x)
    row, channel = (dim(1), dim(0)) if turned else (dim(0), dim(1))
    at = [row // product(places[k + 1 :]) % places[k] * steps[k] for k in range(len(places))]
    sizes = product((t.dims[0], *places)), t.dims[1]
    seen = IndexMap(2, (row // product(places), channel, *at))
    result = TensorType.get(sizes[::-1] if turned else sizes, t.element_type, t.device.data)
    return rw.new(nd.IndexViewOp.new((x,), result, map=IndexMapAttr.get(seen)))


def _times(rw: Rewriter, lhs: SSAValue, rhs: SSAValue) -> SSAValue:
    a, b = tensor_type(lhs), tensor_type(rhs)
    return rw.new(nd.MatmulOp.new((lhs, rhs), a.with_dims((a.dims[0], b.dims[1]))))


def _by_weight(rw: Rewriter, gradient: SSAValue, image: SSAValue, weight: TensorType, steps: Sequence[int]) -> SSAValue:
    places = tensor_type(gradient).dims[2:]
    lhs = _pixels(rw, gradient, places, [1] * len(places), turned=True)
    return rw.new(nd.ReshapeOp.new((_times(rw, lhs, _pixels(rw, image, places, steps)),), weight))


def _by_bias(rw: Rewriter, gradient: SSAValue) -> SSAValue:
    t = tensor_type(gradient)
    over = [0, *range(2, t.rank)]
    return rw.new(nd.ReduceOp.new((gradient,), t.with_dims((t.dims[1],)), kind=StringAttr("sum"), dims=IntsAttr.get(over)))


def _call_by_image(rw: Rewriter, op: nd.ExternOp) -> SSAValue:
    """The call with nothing but its first result."""
    *arguments, _ = op.call.data.args
    properties: dict[str, Attribute] = dict(op.properties)
    properties["call"] = CallAttr(Call(op.call.data.target, (*arguments, (True, False, False))))
    properties["kept"] = IntsAttr.get([0])
    if op.result_layouts is not None:
        properties["result_layouts"] = ArrayAttr(op.result_layouts.data[:1])
    return rw.new(nd.ExternOp.create(operands=op.operands, result_types=[op.results[0].type], properties=properties))


def _by_image(rw: Rewriter, gradient: SSAValue, weight: SSAValue, image: TensorType) -> SSAValue:
    places = tensor_type(gradient).dims[2:]
    samples, channels, spatial = image.dims[0], image.dims[1], len(places)
    t = tensor_type(weight)
    matrix = rw.new(nd.ReshapeOp.new((weight,), t.with_dims(t.dims[:2])))
    made = _times(rw, _pixels(rw, gradient, places, [1] * spatial), matrix)
    made = rw.new(nd.ReshapeOp.new((made,), image.with_dims((samples, *places, channels))))
    return rw.new(nd.PermuteOp.new((made,), image, dims=IntsAttr.get((0, 1 + spatial, *range(1, 1 + spatial)))))
