"""Convolutions of 16-bit numbers on a GPU as products: pixels of the result by output channels, the terms are the window's input channels.
What may be one, and which depthwise ones may be sums of windows (nd_small_convolutions.py).

    %y = nd.conv %x, %w  ->  sum over (kh, kw, c) of %x[n, h + kh, w + kw, c] (0 outside) times %w[o, kh, kw, c], for each (n, h, w) and o

No matrix of windows is in memory: the nest reads the image once for each place of the window, from the cache. A group of channels is one
product of a batch. The result is rows of channels in whatever layout what follows stores.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FloatAttr, StringAttr, UnitAttr, f32, f64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, BlockArgument, SSAValue

from .....dialects import nd
from .....dialects.expr import ONE, Expr, IndexMap, as_expr, dim, product
from .....dialects.expr.syntax import IndexMapAttr
from .....dialects.nd.base import ExprsAttr, IntsAttr
from .....dialects.nd.pointwise import CONTRACT, OPS, CastOp
from .....dialects.nd.types import LayoutAttr, TensorType, compute_type, tensor_type
from ....cost.library_cost import bytes_of, size
from ....cost.machine.gpu import VECTOR_HALVES
from ...algebra.rewriter import Rewriter
from ..product_terms import rounded_operand

IMAGE_RANK = 4
"""Dimensions of tensors whose order loop-layout chooses."""

WINDOW_STRIP_FACTORS = (2, 3, 5, 7)
"""What divides the number of windows that a thread of a GPU sums up at once."""


def is_depthwise(op: nd.ConvOp) -> bool:
    """Whether each output channel has an input channel of its own."""
    weight = tensor_type(op.weight)
    return op.groups.data[0] > 1 and weight.dims[1] is ONE and weight.dims[0].value == op.groups.data[0]


def no_windows(op: nd.ConvOp) -> str:
    """Why windows of a depthwise convolution are not summed up side by side; "" if they are."""
    if op.transposed is not None:
        return "it is transposed"
    if any(n.value is None for n in tensor_type(op.weight).dims):
        return "the weight has a symbol for a size"
    return ""


def no_product(op: nd.ConvOp) -> str:
    """Why a convolution is no product; "" if it is one."""
    first, each, *window = (n.value for n in tensor_type(op.weight).dims)
    if first is None or each is None or None in window:
        return "the weight has a symbol for a size"
    of_group = first // op.groups.data[0]
    taken, made = (each, of_group) if op.transposed is None else (of_group, each)
    if taken % VECTOR_HALVES or made % VECTOR_HALVES:
        return f"its groups have {taken} and {made} channels, no number of {VECTOR_HALVES}"
    return ""


def reads_elements(op: nd.ConvOp) -> str:
    """Why factors would be read element by element, not 16 bytes at once; "" if they are not."""
    if is_depthwise(op):
        if not _by_channels(op, 0):
            return "channels do not lie side by side in the image"
        return "" if _has_strips(op) else "no number of windows is a multiple of 2, 3, 5 or 7 along which they overlap"
    if _by_channels(op, 0) or 0 in out_of_order(op):
        return ""
    if not _is_pointwise(op):
        return "channels do not lie side by side in the image"
    pixels = product(tensor_type(op.input).dims[2:]).value
    return "" if pixels is None or pixels % VECTOR_HALVES == 0 else f"channels of {pixels} pixels are no multiple of 16 bytes"


def out_of_order(op: nd.ConvOp) -> Collection[int]:
    """The operands that are put in order before, channels side by side: weights, and images of which loop-layout has no choice. A
    transposed convolution puts its weight in an order of its own (phases.py)."""
    if is_depthwise(op) or _is_pointwise(op):
        return ()
    chosen_later = tensor_type(op.input).rank == IMAGE_RANK
    operands = (*(() if chosen_later else (0,)), *((1,) if op.transposed is None else ()))
    return [k for k in operands if not _by_channels(op, k)]


def _has_strips(op: nd.ConvOp) -> bool:
    """Whether windows that overlap can be taken several at once: their number along a dimension is known, and a multiple of a few."""
    places, window = tensor_type(op.result).dims[2:], tensor_type(op.weight).dims[2:]
    return any(
        n.value is not None and any(n.value % k == 0 for k in WINDOW_STRIP_FACTORS) and step % gap == 0 and step // gap < (reach.value or 0)
        for n, reach, step, gap in zip(places, window, op.stride.data, op.dilation.data, strict=True)
    )


def _is_pointwise(op: nd.ConvOp) -> bool:
    """Whether the result has the pixels of the image, each made of the channels of its own."""
    alone = all(n is ONE for n in tensor_type(op.weight).dims[2:])
    return alone and set(op.stride.data) == {1} and set(op.padding.data) == {0}


def _by_channels(op: nd.ConvOp, k: int) -> bool:
    """Whether an operand's channels are known to lie side by side: in what the library would see, and in what a caller gives."""
    layouts = op.attributes.get("operand_layouts")
    seen = layouts.data[k] if isinstance(layouts, ArrayAttr) and k < len(layouts.data) else None
    given, found = seen, op.operands[k]
    if isinstance(found, BlockArgument) and isinstance(func := found.block.parent_op(), FuncOp) and func.arg_attrs is not None:
        attributes = func.arg_attrs.data[found.index]
        given = attributes.data.get("nd.layout", seen) if isinstance(attributes, DictionaryAttr) else seen
    return all(isinstance(one, LayoutAttr) and one.stride_exprs[1] is ONE for one in (seen, given))


def sizes_of(op: nd.ConvOp, hints: Mapping[str, int]) -> tuple[int, int, int, int]:
    """Rows, columns, terms and batches of the product that the library makes; of a transposed one terms on the average."""
    (samples, out, *places), (first, each, *window) = tensor_type(op.result).dims, tensor_type(op.weight).dims
    groups, rows = op.groups.data[0], size(product((samples, *places)), hints)
    if op.transposed is None:
        return rows, size(out, hints) // groups, size(product((each, *window)), hints), groups
    terms = size(product((first, *window)), hints) // groups
    return rows, size(each, hints), max(1, terms // prod(op.stride.data)), groups


def read_once(op: nd.ConvOp, hints: Mapping[str, int]) -> int:
    """Bytes of image and weight."""
    return bytes_of(op.input, hints) + bytes_of(op.weight, hints)


def as_product(rw: Rewriter, op: nd.ConvOp) -> SSAValue:
    """A convolution as multiplications and a sum whose terms units for products may add up; its bias is added before it is rounded."""
    weight, t = tensor_type(op.weight), tensor_type(op.result)
    groups = op.groups.data[0]
    (samples, _, *places), (out, each, *window) = t.dims, weight.dims
    spatial, rows, columns = len(window), product((samples, *places)), as_expr((out.value or 0) // groups)
    batch: tuple[Expr, ...] = (as_expr(groups),) if groups > 1 else ()
    sizes = (*batch, rows, columns, *window, each)
    first = len(batch)
    row, column, channel = dim(first), dim(first + 1), dim(len(sizes) - 1)
    taps = [dim(first + 2 + k) for k in range(spatial)]
    group: Expr = dim(0) if batch else as_expr(0)
    pixel = [row // product(places[k + 1 :]) % places[k] for k in range(spatial)]
    at = [pixel[k] * op.stride.data[k] + taps[k] * op.dilation.data[k] for k in range(spatial)]
    of_image = IndexMap(len(sizes), (row // product(places), group * each + channel, *at))
    of_weight = IndexMap(len(sizes), (group * columns + column, channel, *taps))
    image, kernel = (in_order(rw, x) if k in out_of_order(op) else rounded_operand(rw, x) for k, x in enumerate(op.operands[:2]))
    image = padded(rw, op, image)
    made = summed(rw, op, ((image, of_image), (kernel, of_weight)), sizes, (*batch, rows, columns))
    if batch:
        turned = tensor_type(made).with_dims((rows, *batch, columns))
        made = rw.new(nd.PermuteOp.new((made,), turned, dims=IntsAttr.get((1, 0, 2))))
    made = rw.new(nd.ReshapeOp.new((made,), t.with_dims((samples, *places, out))))
    return channels_first(rw, made, t)


def summed(
    rw: Rewriter, op: nd.ConvOp, factors: Sequence[tuple[SSAValue, IndexMap]], sizes: Sequence[Expr], total: Sequence[Expr]
) -> SSAValue:
    """The sums of products of two factors, each with the index of its element, over the `sizes` behind those of the result, `total`:
    groups, if there are several, then others, and columns last. The bias is added before they are rounded."""
    t = tensor_type(op.result)
    wide, device = compute_type(t.element_type), t.device.data
    views: list[SSAValue] = []
    for source, index in factors:
        view = TensorType.get(sizes, tensor_type(source).element_type, device)
        views.append(_as(rw, rw.new(nd.IndexViewOp.new((source,), view, map=IndexMapAttr.get(index))), wide))
    times = OPS["mul"].new(views, TensorType.get(sizes, wide, device))
    times.attributes[CONTRACT] = UnitAttr()
    kind = TensorType.get(total, wide, device)
    over = IntsAttr.get(range(len(total), len(sizes)))
    made = rw.new(nd.ReduceOp.new((rw.new(times),), kind, kind=StringAttr("sum"), dims=over))
    if op.bias is not None:
        by_group = total[:1] if op.groups.data[0] > 1 else ()
        ones = [ONE] * (len(total) - len(by_group) - 1)
        bias = rw.new(nd.ReshapeOp.new((_as(rw, op.bias, wide),), TensorType.get((*by_group, *ones, total[-1]), wide, device)))
        made = rw.new(OPS["add"].new((made, bias), kind))
    return _as(rw, made, t.element_type)


def in_order(rw: Rewriter, x: SSAValue) -> SSAValue:
    """A tensor whose channels, the second dimension, lie side by side in memory: a copy, or what is computed stored that way."""
    t = tensor_type(x)
    moved = t.with_dims((t.dims[0], *t.dims[2:], t.dims[1]))
    found = rw.new(nd.PermuteOp.new((x,), moved, dims=IntsAttr.get((0, *range(2, t.rank), 1))))
    return channels_first(rw, rw.new(nd.BarrierOp.new((found,), moved)) if isinstance(x.owner, Block) else kept(rw, found), t)


def kept(rw: Rewriter, x: SSAValue) -> SSAValue:
    """A tensor that is computed, in memory by rows: what computes it stores it so, in a nest of its own that may join others before it."""
    kind = tensor_type(x).element_type
    made = _as(rw, _as(rw, x, f64 if kind == f32 else f32), kind)
    return rw.new(nd.BarrierOp.new((made,), made.type))


def channels_first(rw: Rewriter, made: SSAValue, t: TensorType) -> SSAValue:
    """[N, places..., C] as [N, C, places...]."""
    return rw.new(nd.PermuteOp.new((made,), t, dims=IntsAttr.get((0, t.rank - 1, *range(1, t.rank - 1)))))


def _as(rw: Rewriter, x: SSAValue, kind: Attribute) -> SSAValue:
    t = tensor_type(x)
    return x if t.element_type == kind else rw.new(CastOp.new((x,), t.with_dtype(kind)))


def padded(rw: Rewriter, op: nd.ConvOp, image: SSAValue) -> SSAValue:
    """The input of a convolution with zeros around it, up to the end of the last window."""
    window, places = tensor_type(op.weight).dims[2:], tensor_type(op.result).dims[2:]
    return padded_windows(rw, image, places, window, op.stride.data, op.dilation.data, op.padding.data)


def padded_windows(
    rw: Rewriter,
    image: SSAValue,
    places: Sequence[Expr],
    window: Sequence[Expr],
    stride: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
) -> SSAValue:
    """An image [N, C, ...] with `padding` zeros in front, and behind up to the end of the last of `places` windows."""
    x = tensor_type(image)
    low, high = [as_expr(0)] * 2, [as_expr(0)] * 2
    for length, count, reach, step, gap, pad in zip(x.dims[2:], places, window, stride, dilation, padding, strict=True):
        low.append(as_expr(pad))
        high.append((count - 1) * step + (reach - 1) * gap + 1 - pad - length)
    if all(e == 0 for e in (*low, *high)):
        return image
    zero = rw.new(nd.FullOp.new((), x.with_dims(()), value=FloatAttr(0.0, x.element_type)))  # pyright: ignore[reportArgumentType, reportCallIssue]
    dims = [a + length + b for a, length, b in zip(low, x.dims, high, strict=True)]
    return rw.new(nd.PadOp.new((image, zero), x.with_dims(dims), low=ExprsAttr.get(low), high=ExprsAttr.get(high)))
