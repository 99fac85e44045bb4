"""Transposed convolutions as convolutions: of an image with zeros between its elements, by the weight with its windows reversed.

    %y = nd.conv %x, %w {transposed, stride = s, padding = p}   ->   nd.conv %d, %v {stride = 1, padding = dilation * (window - 1) - p}
"""

from __future__ import annotations

from xdsl.dialects.builtin import FloatAttr
from xdsl.ir import SSAValue

from .....dialects import nd
from .....dialects.expr import Expr, as_expr
from .....dialects.nd.base import ExprsAttr, IntsAttr
from .....dialects.nd.types import FLOATS, TensorType, tensor_type
from ...algebra.rewriter import Rewriter


def has_plain_form(op: nd.ConvOp) -> bool:
    """Whether a transposed convolution is a convolution: its window is known and reaches as far as its padding takes away."""
    window = [size.value for size in tensor_type(op.weight).dims]
    if None in window or tensor_type(op.result).element_type not in FLOATS:
        return False
    reach = [gap * ((n or 0) - 1) for n, gap in zip(window[2:], op.dilation.data, strict=True)]
    return all(0 <= pad <= far for pad, far in zip(op.padding.data, reach, strict=True))


def plain_form(rw: Rewriter, op: nd.ConvOp) -> nd.ConvOp:
    """The convolution that a transposed one is; not in the block."""
    window = tensor_type(op.weight).dims[2:]
    spatial = len(window)
    padding = [gap * (int(n) - 1) - pad for n, gap, pad in zip(window, op.dilation.data, op.padding.data, strict=True)]
    operands = [_spread(rw, op), _turned(rw, op), *([] if op.bias is None else [op.bias])]
    ones = IntsAttr.get([1] * spatial)
    properties = {
        "stride": ones, "padding": IntsAttr.get(padding), "dilation": op.dilation, "groups": op.groups,
        "output_padding": IntsAttr.get([0] * spatial),
    }  # fmt: skip
    return nd.ConvOp.create(operands=operands, result_types=[op.result.type], properties=properties, location=op.location)


def _spread(rw: Rewriter, op: nd.ConvOp) -> SSAValue:
    """The image with stride - 1 zeros between its elements."""
    x = tensor_type(op.input)
    steps = (1, 1, *op.stride.data)
    if set(steps) == {1}:
        return op.input
    sizes: list[Expr] = [(size - 1) * step + 1 for size, step in zip(x.dims, steps, strict=True)]
    t = x.with_dims(sizes)
    zeros = rw.new(nd.FullOp.new((), x.with_dims(()), value=FloatAttr(0.0, x.element_type)))  # pyright: ignore[reportArgumentType, reportCallIssue]
    zeros = rw.new(nd.ExpandOp.new((zeros,), t))
    starts = ExprsAttr.get([0] * len(steps))
    return rw.new(nd.SliceScatterOp.new((zeros, op.input), t, starts=starts, steps=ExprsAttr.get(steps)))


def _turned(rw: Rewriter, op: nd.ConvOp) -> SSAValue:
    """The weight [C, O / groups, window] as [O, C / groups, window], each window reversed."""
    w, groups = tensor_type(op.weight), op.groups.data[0]
    taken, each, *window = w.dims
    spatial = len(window)
    parts: TensorType = w.with_dims((as_expr(groups), taken // groups, each, *window))
    made = rw.new(nd.ReshapeOp.new((op.weight,), parts))
    order = (0, 2, 1, *range(3, 3 + spatial))
    made = rw.new(nd.PermuteOp.new((made,), w.with_dims([parts.dims[k] for k in order]), dims=IntsAttr.get(order)))
    made = rw.new(nd.ReshapeOp.new((made,), w.with_dims((each * groups, taken // groups, *window))))
    return rw.new(nd.FlipOp.new((made,), made.type, dims=IntsAttr.get(range(2, 2 + spatial))))
