"""Convolutions of bytes as products of integers: those of quantised models, whose image and weight are integers with scales.

    nd.conv ((%q - %y) * %r), (%w * %s)   ->   %p = windows of %q padded with %y ; (nd.matmul %p, %w) - %y * sum(%w) ; times %r * %s

The image has one scale and one zero point, the weight one for each output channel. The product reads its windows from the padded bytes;
where sizes of the image are symbols they are stored, term by term as the channels lie. The sums are exact, and rounded once, as those of
products (nd_narrow_factors.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import IntegerAttr, f32, i8
from xdsl.ir import SSAValue

from ....dialects import nd
from ....dialects.expr import ONE, Expr, IndexMap, as_expr, dim, product
from ....dialects.expr.syntax import IndexMapAttr
from ....dialects.nd.base import ExprsAttr, IntsAttr
from ....dialects.nd.pointwise import OPS
from ....dialects.nd.types import TensorType, tensor_type
from ...analysis.accesses.windows import weight_access, window_access
from ...cost.convolution_cost import has_few_taps
from ..algebra.rewriter import Rewriter
from ..products.nd_small_products import MIN_COMPUTED_ELEMENTS
from .affine_factors import BYTES, AffineFactor, affine_factor
from .integer_sums import as_type, integer_sums, pointwise, scaled


def as_byte_product(rw: Rewriter, op: nd.ConvOp) -> SSAValue | None:
    """A convolution of one group as a product of bytes; None where image or weight is not made of bytes, or the weight is small."""
    t, weight = tensor_type(op.result), tensor_type(op.weight)
    numbers = [n.value for n in weight.dims]
    if op.transposed is not None or op.groups.data != (1,) or t.element_type != f32 or None in numbers or weight.dims[0] is ONE:
        return None
    if prod(n or 0 for n in numbers) < MIN_COMPUTED_ELEMENTS:
        return None
    if (factors := _factors(rw, op)) is None:
        return None
    image, kernel = factors
    out, each, *window = weight.dims
    samples, _, *places = t.dims
    pixels, terms = product((samples, *places)), as_expr(prod(int(n) for n in weight.dims[1:]))
    in_place = all(n.value is not None for n in places) and has_few_taps([int(n) for n in window], op.dilation.data[-1])
    in_place &= any(n is not ONE for n in window) or prod(op.stride.data) > 1
    left = _as_matrix(rw, image, _windows_in_place(rw, op, image) if in_place else _windows(rw, op, image))
    right = _as_matrix(rw, kernel, _terms(rw, kernel.core, terms))
    total = TensorType.get((pixels, out), f32, t.device.data)
    made = scaled(rw, integer_sums(rw, left, right, total, in_place), (*left.scales, *right.scales), total)
    if op.bias is not None:
        made = pointwise(rw, "add", made, as_type(rw, op.bias, f32))
    made = _reshaped(rw, made, samples, *places, out)
    spatial = len(window)
    return rw.new(nd.PermuteOp.new((made,), t, dims=IntsAttr.get((0, 1 + spatial, *range(1, 1 + spatial)))))


def without_scale(rw: Rewriter, image: SSAValue) -> tuple[SSAValue, Sequence[SSAValue]]:
    """An image of bytes without the scales that all of it has, and these: the sums of its windows are fewer than the numbers that these
    windows read. Any other image as it is."""
    t, scales = tensor_type(image), list[SSAValue]()
    factor = affine_factor(rw, image, 1) if t.element_type == f32 else None
    if factor is None or factor.dtype not in BYTES:
        return image, ()
    while isinstance(op := image.owner, OPS["mul"]):
        parts = [(whole, scale) for whole, scale in (tuple(op.operands), tuple(op.operands)[::-1]) if tensor_type(scale).numel is ONE]
        if not parts or tensor_type(parts[0][0]) != t or tensor_type(parts[0][1]).element_type != f32:
            break
        image = parts[0][0]
        scales.append(parts[0][1])
    return image, scales


def _factors(rw: Rewriter, op: nd.ConvOp) -> tuple[AffineFactor, AffineFactor] | None:
    """Image and weight as integers, where scales and zero points vary as a product of all terms lets them."""
    found = affine_factor(rw, op.input, 1), affine_factor(rw, op.weight, 1)
    if any(one is None or one.dtype not in BYTES for one in found):
        return None
    image, kernel = (one for one in found if one is not None)
    out = tensor_type(op.weight).dims[0]
    by_channel = (out, *[ONE] * (tensor_type(op.weight).rank - 1))
    alike = all(tensor_type(x).numel is ONE for x in image.parts[1:])
    alike &= all(tensor_type(x).numel is ONE or tensor_type(x).dims == by_channel for x in kernel.parts[1:])
    return (image, kernel) if alike and i8 in (image.dtype, kernel.dtype) else None


def _as_matrix(rw: Rewriter, factor: AffineFactor, core: SSAValue) -> AffineFactor:
    """A factor of the product: `core`, with one row of scales and zero points."""

    def row(x: SSAValue) -> SSAValue:
        return _reshaped(rw, x, ONE, tensor_type(x).numel)

    return AffineFactor(core, None if factor.zero is None else row(factor.zero), [row(s) for s in factor.scales])


def _windows(rw: Rewriter, op: nd.ConvOp, image: AffineFactor) -> SSAValue:
    """The rows of the product: windows of the padded bytes, [pixels, window x C]. Padding is what stands for 0."""
    _, each, *window = tensor_type(op.weight).dims
    samples, _, *places = tensor_type(op.result).dims
    source, spatial = _padded(rw, op, image), len(window)
    x = tensor_type(source)
    at = [dim(1 + k) * op.stride.data[k] + dim(1 + spatial + k) * op.dilation.data[k] for k in range(spatial)]
    index = IndexMap(2 + 2 * spatial, (dim(0), *at, dim(1 + 2 * spatial)))
    seen = x.with_dims((samples, *places, *window, each))
    made = rw.new(nd.IndexViewOp.new((source,), seen, map=IndexMapAttr.get(index)))
    if any(n is not ONE for n in window) or prod(op.stride.data) > 1:
        made = rw.new(nd.BarrierOp.new((made,), seen))
    return _reshaped(rw, made, product((samples, *places)), product((each, *window)))


def _windows_in_place(rw: Rewriter, op: nd.ConvOp, image: AffineFactor) -> SSAValue:
    """The same rows as a view of the padded bytes, which the product reads."""
    source, weight = _padded(rw, op, image), tensor_type(op.weight).dims
    samples, _, *places = tensor_type(op.result).dims
    sample, channel, *at = window_access(places, weight, op.stride.data, op.dilation.data)
    index = IndexMap(2, (sample, *at, channel))
    seen = tensor_type(source).with_dims((product((samples, *places)), product(weight[1:])))
    return rw.new(nd.IndexViewOp.new((source,), seen, map=IndexMapAttr.get(index)))


def _padded(rw: Rewriter, op: nd.ConvOp, image: AffineFactor) -> SSAValue:
    """The bytes of an image [N, places..., C], each computed once, with its zero point around them."""
    x, pads = tensor_type(image.core), op.padding.data
    order = (0, *range(2, x.rank), 1)
    x = x.with_dims([x.dims[k] for k in order])
    core = rw.new(nd.PermuteOp.new((image.core,), x, dims=IntsAttr.get(order)))
    core = rw.new(nd.BarrierOp.new((core,), x))
    if not any(pads):
        return core
    scalar = x.with_dims(())
    if image.zero is None:
        fill = rw.new(nd.FullOp.new((), scalar, value=IntegerAttr(0, x.element_type)))  # pyright: ignore[reportArgumentType, reportCallIssue]
    else:
        fill = as_type(rw, _reshaped(rw, image.zero), x.element_type)
    low = [as_expr(p) for p in (0, *pads, 0)]
    dims = [length + low[k] + low[k] for k, length in enumerate(x.dims)]
    return rw.new(nd.PadOp.new((core, fill), x.with_dims(dims), low=ExprsAttr.get(low), high=ExprsAttr.get(low)))


def _terms(rw: Rewriter, weight: SSAValue, terms: Expr) -> SSAValue:
    """The columns of the product, [window x C, O] of a weight [O, C, window...]."""
    w = tensor_type(weight)
    index = IndexMap(2, weight_access(w.dims))
    return rw.new(nd.IndexViewOp.new((weight,), w.with_dims((terms, w.dims[0])), map=IndexMapAttr.get(index)))


def _reshaped(rw: Rewriter, x: SSAValue, *dims: Expr) -> SSAValue:
    t = tensor_type(x)
    return x if t.dims == dims else rw.new(nd.ReshapeOp.new((x,), t.with_dims(dims)))
