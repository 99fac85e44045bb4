"""1x1 convolutions of a GPU, and their gradients, as matrix products of channels and pixels: where they are small and of float32.

    %y = nd.conv %x, %w                              ->   %w [O, C] times %x [N, C, pixels], for each sample
    %dx, %dw = aten.convolution_backward %g, %x, %w  ->   %w transposed times %g ; the sum over samples of %g times %x transposed

cuDNN may round the operands of float32 convolutions to TF32, and its call takes the host longer than such a convolution computes, and
longer than the call of a product. Products keep float32, so that gradients come closer to those of float64. Larger convolutions are faster
with TF32 (docs/lab/constants.md).
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import ArrayAttr, StringAttr, f32
from xdsl.ir import Attribute, SSAValue

from ....dialects import nd
from ....dialects.expr import ONE, Expr, is_row_major, product
from ....dialects.nd.base import IntsAttr
from ....dialects.nd.call_args import Arg
from ....dialects.nd.types import LayoutAttr, tensor_type
from ...cost.library_cost import size
from ..algebra.rewriter import Rewriter

BACKWARD = "aten.convolution_backward.default"


def convolution_as_product(rw: Rewriter, op: nd.ConvOp, hints: Mapping[str, int], most: int) -> SSAValue | None:
    """A 1x1 convolution without bias, of fewer than `most` numbers, as a product; None for any other."""
    if op.bias is not None or op.transposed is not None or op.groups.data != (1,) or op.schedule is not None:
        return None
    layouts = op.attributes.get("operand_layouts")
    rows = _by_rows(op.input, _item(layouts, 0)) and _by_rows(op.result, op.layout)
    if not rows or not _fits(op.input, op.weight, op.result, (op.stride.data, op.padding.data), hints, most):
        return None
    t = tensor_type(op.result)
    return rw.new(nd.ReshapeOp.new((_times_pixels(rw, _matrix(rw, op.weight), op.input),), t))


def gradients_as_products(rw: Rewriter, op: nd.ExternOp, hints: Mapping[str, int], most: int) -> SSAValue | None:
    """The gradients of such a convolution (by its input, its weight or both) as products: the first result, the second one is replaced
    here."""
    if op.call.data.target != BACKWARD or op.call.data.kwargs or op.schedule is not None:
        return None
    g, x, w, _, stride, padding, _, transposed, _, groups, wanted = op.call.data.args
    operands = [op.operands[a.index] if isinstance(a, Arg) else None for a in (g, x, w)]
    by_input, by_weight, by_bias = wanted
    if None in operands or transposed or groups != 1 or by_bias or len(op.results) != by_input + by_weight:
        return None
    gradient, source, weight = (v for v in operands if v is not None)
    rows = _by_rows(source, _item(op.operand_layouts, x.index)) and _by_rows(gradient, _item(op.operand_layouts, g.index))
    if not rows or not _fits(source, weight, gradient, (stride, padding), hints, most):
        return None
    made: list[SSAValue] = []
    if by_input:
        turned = _turned(rw, _matrix(rw, weight))
        made.append(rw.new(nd.ReshapeOp.new((_times_pixels(rw, turned, gradient),), tensor_type(source))))
    if by_weight:
        made.append(rw.new(nd.ReshapeOp.new((_summed(rw, gradient, source),), tensor_type(weight))))
    for old, new in zip(op.results[1:], made[1:], strict=True):
        old.replace_all_uses_with(new)
    return made[0] if made else None


def _fits(
    x: SSAValue, weight: SSAValue, y: SSAValue, steps: tuple[tuple[int, ...], tuple[int, ...]], hints: Mapping[str, int], most: int
) -> bool:
    """Whether the window is one pixel, and the numbers are few and of float32, those of a weight for each sample too. `steps` are stride
    and padding."""
    a, b, t = tensor_type(x), tensor_type(weight), tensor_type(y)
    stride, padding = steps
    if t.element_type != f32 or a.rank != b.rank or any(n is not ONE for n in b.dims[2:]):
        return False
    if any(s != 1 for s in stride) or any(p != 0 for p in padding):
        return False
    alone = ONE in (a.dims[0], product(a.dims[2:]))
    return size(a.numel, hints) + size(t.numel, hints) < most and (alone or size(a.dims[0] * b.numel, hints) < most)


def _item(layouts: Attribute | None, k: int) -> Attribute | None:
    return layouts.data[k] if isinstance(layouts, ArrayAttr) and k < len(layouts.data) else None


def _by_rows(x: SSAValue, layout: Attribute | None) -> bool:
    """Whether a tensor lies by rows where its layout is given."""
    return not isinstance(layout, LayoutAttr) or is_row_major(tensor_type(x).dims, layout.stride_exprs)


def _reshaped(rw: Rewriter, x: SSAValue, *dims: Expr) -> SSAValue:
    return rw.new(nd.ReshapeOp.new((x,), tensor_type(x).with_dims(dims)))


def _matrix(rw: Rewriter, weight: SSAValue) -> SSAValue:
    return _reshaped(rw, weight, *tensor_type(weight).dims[:2])


def _turned(rw: Rewriter, x: SSAValue) -> SSAValue:
    """The last two dimensions the other way round."""
    t = tensor_type(x)
    *batch, rows, columns = t.dims
    order = [*range(len(batch)), len(batch) + 1, len(batch)]
    return rw.new(nd.PermuteOp.new((x,), t.with_dims((*batch, columns, rows)), dims=IntsAttr.get(order)))


def _times(rw: Rewriter, lhs: SSAValue, rhs: SSAValue) -> SSAValue:
    a, b = tensor_type(lhs), tensor_type(rhs)
    return rw.new(nd.MatmulOp.new((lhs, rhs), a.with_dims((*a.dims[:-1], b.dims[-1]))))


def _times_pixels(rw: Rewriter, matrix: SSAValue, x: SSAValue) -> SSAValue:
    """matrix [O, C] times x [N, C, pixels...], for each sample; one product where there is one sample, or one pixel."""
    samples, channels, *places = tensor_type(x).dims
    pixels = product(places)
    if pixels is ONE:
        return _times(rw, _reshaped(rw, x, samples, channels), _turned(rw, matrix))
    if samples is ONE:
        return _times(rw, matrix, _reshaped(rw, x, channels, pixels))
    t = tensor_type(matrix)
    each = rw.new(nd.ExpandOp.new((matrix,), t.with_dims((samples, *t.dims))))
    return _times(rw, each, _reshaped(rw, x, samples, channels, pixels))


def _summed(rw: Rewriter, g: SSAValue, x: SSAValue) -> SSAValue:
    """The sum over samples and pixels of g [N, O, pixels...] times x [N, C, pixels...]: [O, C]."""
    (samples, out, *places), channels = tensor_type(g).dims, tensor_type(x).dims[1]
    pixels = product(places)
    if pixels is ONE:
        return _times(rw, _turned(rw, _reshaped(rw, g, samples, out)), _reshaped(rw, x, samples, channels))
    if samples is ONE:
        return _times(rw, _reshaped(rw, g, out, pixels), _turned(rw, _reshaped(rw, x, channels, pixels)))
    each = _times(rw, _reshaped(rw, g, samples, out, pixels), _turned(rw, _reshaped(rw, x, samples, channels, pixels)))
    total = tensor_type(each).with_dims((out, channels))
    return rw.new(nd.ReduceOp.new((each,), total, kind=StringAttr("sum"), dims=IntsAttr.get([0])))
