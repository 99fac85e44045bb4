"""Gradients of convolutions by their images on a GPU as convolutions of their own, so that they may be generated with what stands behind.

    %dx, %dw = aten.convolution_backward %g, %x, %w   ->   %dx = nd.conv %g, %w {transposed} ; %dw = aten.convolution_backward %g, %x, %w

That of a transposed convolution is a plain one. The library computes both gradients by kernels of their own, too.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ArrayAttr, UnitAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute

from .....dialects import nd
from .....dialects.nd.base import IntsAttr
from .....dialects.nd.call_args import Arg, Call, CallAttr
from .....dialects.nd.types import FLOATS, TensorType, tensor_type
from .....dialects.support.replace import erase_op
from ..pixel_products import BACKWARD


def split_image_gradients(func: FuncOp) -> dict[nd.ConvOp, nd.ExternOp]:
    """A convolution for each gradient by an image, which takes the place of the call's first result; the calls stay as they are."""
    found: dict[nd.ConvOp, nd.ExternOp] = {}
    for op in list(func.body.block.ops):
        if not isinstance(op, nd.ExternOp) or (made := _image_gradient(op)) is None:
            continue
        func.body.block.insert_op_before(made, op)
        made.result.name_hint = op.results[0].name_hint
        op.results[0].replace_all_uses_with(made.result)
        found[made] = op
    return found


def take_back(conv: nd.ConvOp, call: nd.ExternOp) -> None:
    """Have a call's first result be what a convolution was made for."""
    conv.result.replace_all_uses_with(call.results[0])
    erase_op(conv)


def without_image_gradient(call: nd.ExternOp) -> None:
    """Leave the gradient by the weight to a call; none where nothing else was wanted."""
    *arguments, wanted = call.call.data.args
    if any(wanted[1:]):
        properties: dict[str, Attribute] = dict(call.properties)
        properties["call"] = CallAttr(Call(call.call.data.target, (*arguments, (False, *wanted[1:])), call.call.data.kwargs))
        properties["kept"] = IntsAttr.get([k for k, one in enumerate(wanted) if one and k])
        if call.result_layouts is not None:
            properties["result_layouts"] = ArrayAttr(call.result_layouts.data[1:])
        types = [result.type for result in call.results[1:]]
        rest = nd.ExternOp.create(operands=call.operands, result_types=types, properties=properties, location=call.location)
        assert (block := call.parent) is not None
        block.insert_op_before(rest, call)
        for old, new in zip(call.results[1:], rest.results, strict=True):
            new.name_hint = old.name_hint
            old.replace_all_uses_with(new)
    erase_op(call)


def _image_gradient(op: nd.ExternOp) -> nd.ConvOp | None:
    """The convolution that gives the first result of a call; None where it is no gradient by an image."""
    if op.call.data.target != BACKWARD or op.call.data.kwargs or op.mutates is not None or len(op.call.data.args) != 11:
        return None
    g, x, w, _, *numbers, transposed, padding, groups, wanted = op.call.data.args
    if not wanted[0] or len(op.results) != sum(map(bool, wanted)) or not all(isinstance(a, Arg) for a in (g, x, w)):
        return None
    operands = [op.operands[a.index] for a in (g, w)]
    kind, weight = op.results[0].type, tensor_type(operands[1])
    known = all(isinstance(n, int) for numbers_of in (*numbers, padding) for n in numbers_of) and isinstance(groups, int)
    if not known or not isinstance(kind, TensorType) or kind.element_type not in FLOATS or weight.rank < 3:
        return None
    spatial = weight.rank - 2
    stride, pad, dilation = (IntsAttr.get(given * spatial if len(given) == 1 else given) for given in numbers)
    properties: dict[str, Attribute] = {
        "stride": stride, "padding": pad, "dilation": dilation, "groups": IntsAttr.get((groups,)),
        "output_padding": IntsAttr.get([0] * spatial),
    }  # fmt: skip
    if not transposed:
        properties["transposed"] = UnitAttr()
    if op.schedule is not None:
        properties["schedule"] = op.schedule
    attributes: dict[str, Attribute] = {}
    if isinstance(op.operand_layouts, ArrayAttr):
        attributes["operand_layouts"] = ArrayAttr([op.operand_layouts.data[a.index] for a in (g, w)])
    return nd.ConvOp.create(operands=operands, result_types=[kind], properties=properties, attributes=attributes, location=op.location)
