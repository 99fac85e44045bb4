"""Other names for the size symbols of `nd` operations, in every type and property."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xdsl.dialects.builtin import ArrayAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute

from ....dialects.expr import Expr, sym
from ....dialects.expr.syntax import ExprAttr, IndexMapAttr
from ....dialects.nd.base import ExprsAttr
from ....dialects.nd.call_args import CallAttr
from ....dialects.nd.types import LayoutAttr, TensorType


def rename_symbols(func: FuncOp, names: Mapping[str, str]) -> None:
    """Rename the size symbols in the body of a function, all at once."""
    mapping: dict[Expr, Expr] = {sym(old): sym(new) for old, new in names.items()}
    for block in func.body.blocks:
        for value in (*block.args, *(r for op in block.ops for r in op.results)):
            value._type = renamed(value.type, mapping)
        for op in block.ops:
            op.properties = {key: renamed(value, mapping) for key, value in op.properties.items()}


def renamed(attribute: Any, mapping: Mapping[Expr, Expr]) -> Attribute:
    """An attribute with every size expression in it substituted."""
    if isinstance(attribute, TensorType):
        return attribute.with_dims([e.subs(mapping) for e in attribute.dims])
    if isinstance(attribute, ExprAttr):
        return ExprAttr.get(attribute.data.subs(mapping))
    if isinstance(attribute, ExprsAttr):
        return ExprsAttr.get([e.subs(mapping) for e in attribute.data])
    if isinstance(attribute, IndexMapAttr):
        return IndexMapAttr(attribute.data.subs(mapping))
    if isinstance(attribute, LayoutAttr):
        return LayoutAttr.get([e.subs(mapping) for e in attribute.stride_exprs], attribute.offset_expr.subs(mapping))
    if isinstance(attribute, CallAttr):
        return CallAttr(attribute.data.map(lambda leaf: leaf.subs(mapping) if isinstance(leaf, Expr) else leaf))
    if isinstance(attribute, ArrayAttr):
        return ArrayAttr([renamed(a, mapping) for a in attribute.data])
    return attribute
