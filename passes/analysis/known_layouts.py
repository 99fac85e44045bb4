"""How tensors will lie in memory, as far as the loop level says: arguments and results of the function, results of calls, what loop-layout
chose for nests. Everything else counts as row-major."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ArrayAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, BlockArgument, OpResult, SSAValue

from ...dialects import loop, nd
from ...dialects.expr import Expr, strides_contiguous
from ...dialects.nd.types import LayoutAttr

Strides = dict[SSAValue, tuple[Expr, ...]]


def argument_strides(func: FuncOp) -> Strides:
    """The strides of the function's arguments, where they are known."""
    found: Strides = {}
    for arg, attr in zip(func.body.block.args, _items(func.arg_attrs), strict=False):
        layout = attr.data.get("nd.layout")  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(layout, LayoutAttr) and isinstance(arg, BlockArgument):
            found[arg] = tuple(layout.stride_exprs)
    return found


def known_strides(func: FuncOp) -> Strides:
    """The strides of tensors that do not lie row-major: of a nest's result those of the tensor that it is made from, too."""
    found = argument_strides(func)
    for op in func.body.block.ops:
        if isinstance(op, loop.NestOp):
            _note(found, op.results, _items(op.attributes.get("layouts")))
        elif isinstance(op, nd.ExternOp):
            _note(found, op.results, _items(op.properties.get("result_layouts")))
        elif isinstance(op, ReturnOp):
            layouts = [attr.data.get("nd.layout") for attr in _items(func.res_attrs)]  # pyright: ignore[reportAttributeAccessIssue]
            _note(found, op.operands, layouts)
    return {v: strides for v, strides in found.items() if strides != strides_contiguous(loop.shaped_dims(v.type))}


def _note(found: Strides, values: Sequence[SSAValue], layouts: Sequence[object]) -> None:
    for value, layout in zip(values, layouts, strict=False):
        if not isinstance(layout, LayoutAttr) or not isinstance(value, OpResult):
            continue
        found[value] = tuple(layout.stride_exprs)
        if isinstance(value.op, loop.NestOp):
            found[value.op.outs[value.index]] = found[value]


def _items(attr: Attribute | None) -> Sequence[Attribute]:
    return attr.data if isinstance(attr, ArrayAttr) else ()
