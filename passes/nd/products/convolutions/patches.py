"""Convolutions as products with the matrix of their windows, for machines without a library that has them.

    %y = nd.conv %x, %w   ->   %p = [N, C x window, places] of %x ;  nd.matmul %w, %p

Each sample is a product: output channels by places, and the terms are the window's input channels. The matrix of windows is stored; a group
of channels is one product more. Depthwise convolutions, and those of few terms, are sums of windows in a nest (nd_small_convolutions.py).
"""

from __future__ import annotations

from math import prod

from xdsl.ir import SSAValue

from .....dialects import nd
from .....dialects.expr import ONE, Expr, IndexMap, as_expr, dim, product
from .....dialects.expr.syntax import IndexMapAttr
from .....dialects.nd.pointwise import OPS, CastOp
from .....dialects.nd.types import TensorType, compute_type, tensor_type
from ...algebra.rewriter import Rewriter
from .nests import padded

MIN_PRODUCT_TERMS = 16
"""Terms of a sum below which a register tile is mostly empty."""


def is_product(op: nd.ConvOp) -> bool:
    """Whether a convolution is better a product than sums of windows: enough terms, from more than one channel."""
    out, each, *window = (size.value for size in tensor_type(op.weight).dims)
    if out is None or each is None or None in window or op.transposed is not None:
        return False
    return each > 1 and each * prod(n or 0 for n in window) >= MIN_PRODUCT_TERMS and out // op.groups.data[0] > 1


def as_patches(rw: Rewriter, op: nd.ConvOp) -> SSAValue:
    """A convolution as one product for each sample and group; 16-bit numbers with a bias in f32, so that they are rounded once."""
    x, t = tensor_type(op.input), tensor_type(op.result)
    wide = t.element_type if op.bias is None else compute_type(t.element_type)
    out, each, *window = (int(size) for size in tensor_type(op.weight).dims)
    samples, _, *places = t.dims
    groups, device = op.groups.data[0], t.device.data
    outer: tuple[Expr, ...] = (samples, as_expr(groups))
    rows, terms, columns = as_expr(out // groups), as_expr(each * prod(window)), product(places)
    image = rw.new(nd.IndexViewOp.new(
        (padded(rw, op, op.input),), TensorType.get((*outer, terms, columns), x.element_type, device),
        map=IndexMapAttr.get(_patch_map(op, each, window, places)),
    ))  # fmt: skip
    weight = rw.new(nd.ReshapeOp.new((op.weight,), tensor_type(op.weight).with_dims((ONE, as_expr(groups), rows, terms))))
    weight = rw.new(nd.ExpandOp.new((weight,), tensor_type(weight).with_dims((*outer, rows, terms))))
    factors = [cast(rw, value, wide) for value in (weight, image)]
    made = rw.new(nd.MatmulOp.new(factors, TensorType.get((*outer, rows, columns), wide, device)))
    made = rw.new(nd.ReshapeOp.new((made,), TensorType.get(t.dims, wide, device)))
    if op.bias is not None:
        bias = cast(rw, op.bias, wide)
        bias = rw.new(nd.ReshapeOp.new((bias,), tensor_type(bias).with_dims((as_expr(out), *([ONE] * len(window))))))
        made = rw.new(OPS["add"].new((made, bias), TensorType.get(t.dims, wide, device)))
    return cast(rw, made, t.element_type)


def _patch_map(op: nd.ConvOp, each: int, window: list[int], places: list[Expr]) -> IndexMap:
    """(sample, group, term, place) -> the element of the padded input."""
    sample, group, term, place = map(dim, range(4))
    at: list[Expr] = []
    for k, (reach, length) in enumerate(zip(window, places, strict=True)):
        tap = term // prod(window[k + 1 :]) % reach
        at.append((place // product(places[k + 1 :])) % length * op.stride.data[k] + tap * op.dilation.data[k])
    return IndexMap(4, (sample, group * each + term // prod(window), *at))


def cast(rw: Rewriter, x: SSAValue, dtype: object) -> SSAValue:
    """The value in another element type."""
    t = tensor_type(x)
    return x if t.element_type == dtype else rw.new(CastOp.new((x,), TensorType.get(t.dims, dtype, t.device.data)))  # pyright: ignore[reportArgumentType]
