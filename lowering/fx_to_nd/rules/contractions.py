"""Matrix products and convolutions."""

from __future__ import annotations

from typing import Any

import torch
from xdsl.dialects.builtin import ArrayAttr, i1
from xdsl.ir import SSAValue

from ....dialects.expr import ONE
from ....dialects.nd import ConvOp
from ....dialects.nd.base import IntsAttr
from ....dialects.nd.types import FLOATS
from ..calls.externs import operand_layout
from ..calls.layout_choices import convolution_choices
from ..core.builder import UNIT
from ..core.importer import Importer
from ..core.registry import packet, rule

aten = torch.ops.aten


def _product(b: Importer, lhs: SSAValue, rhs: SSAValue) -> SSAValue:
    """A matrix product of floats, or of integers with a vector; other products of integers are calls of the library."""
    if b.dtype(lhs) in FLOATS:
        return b.matmul(lhs, rhs)
    (*batch, rows, inner), columns = b.dims(lhs), b.dims(rhs)[-1]
    if b.dtype(lhs) == i1 or (rows is not ONE and columns is not ONE):
        return NotImplemented
    if columns is ONE:
        return b.reduce("sum", b.mul(lhs, b.reshape(rhs, (*batch, ONE, inner))), [len(batch) + 1], keepdim=True)
    return b.reduce("sum", b.mul(b.reshape(lhs, (*batch, inner, ONE)), rhs), [len(batch)], keepdim=True)


@rule(aten.mm.default, aten.bmm.default)
def _mm(b: Importer, lhs: SSAValue, rhs: SSAValue) -> SSAValue:
    return _product(b, lhs, rhs)


def _added(b: Importer, x: SSAValue, product: SSAValue, beta: Any, alpha: Any) -> SSAValue:
    """beta * x + alpha * product; beta 0 does not read x."""
    if product is NotImplemented:
        return NotImplemented
    if not (isinstance(alpha, (int, float)) and alpha == 1):
        product = b.mul(product, b.scalar(alpha, b.dtype(product)))
    if isinstance(beta, (int, float)) and beta == 0:
        return product
    x = b.cast(x, b.dtype(product))
    if not (isinstance(beta, (int, float)) and beta == 1):
        x = b.mul(x, b.scalar(beta, b.dtype(x)))
    return b.add(product, x)


@rule(aten.addmm.default, aten.baddbmm.default)
def _addmm(b: Importer, x: SSAValue, lhs: SSAValue, rhs: SSAValue, *, beta: Any = 1, alpha: Any = 1) -> SSAValue:
    return _added(b, x, _product(b, lhs, rhs), beta, alpha)


@rule(aten.addbmm)
def _addbmm(b: Importer, x: SSAValue, lhs: SSAValue, rhs: SSAValue, *, beta: Any = 1, alpha: Any = 1) -> SSAValue:
    """The sum of a batch of products is one product over the batch and the inner dimension."""
    batch, rows, inner = b.dims(lhs)
    columns = b.dims(rhs)[2]
    wide = b.reshape(b.permute(lhs, (1, 0, 2)), (rows, batch * inner))
    return _added(b, x, _product(b, wide, b.reshape(rhs, (batch * inner, columns))), beta, alpha)


def _as_column(b: Importer, vector: SSAValue) -> SSAValue:
    return b.reshape(vector, (*b.dims(vector), ONE))


def _as_row(b: Importer, vector: SSAValue) -> SSAValue:
    return b.reshape(vector, (ONE, *b.dims(vector)))


@rule(aten.mv)
def _mv(b: Importer, matrix: SSAValue, vector: SSAValue) -> SSAValue:
    product = _product(b, matrix, _as_column(b, vector))
    return product if product is NotImplemented else b.reshape(product, b.dims(matrix)[:1])


@rule(aten.addmv)
def _addmv(b: Importer, x: SSAValue, matrix: SSAValue, vector: SSAValue, *, beta: Any = 1, alpha: Any = 1) -> SSAValue:
    return _added(b, x, _mv(b, matrix, vector), beta, alpha)


@rule(aten.dot, aten.vdot)
def _dot(b: Importer, x: SSAValue, y: SSAValue) -> SSAValue:
    if b.dtype(x) == i1:
        return NotImplemented
    return b.reduce("sum", b.mul(b.widen(x), b.widen(y)), [0])


@rule(aten.addr)
def _addr(b: Importer, x: SSAValue, u: SSAValue, v: SSAValue, *, beta: Any = 1, alpha: Any = 1) -> SSAValue:
    u, v, x = (b.cast(t, b.out_dtype) for t in (u, v, x))
    return _added(b, x, b.mul(_as_column(b, u), _as_row(b, v)), beta, alpha)


# ---- convolution


def _numbers(values: Any, count: int) -> IntsAttr | None:
    """A stride, padding or dilation list of `count` numbers (a single one stands for all); None when one is
    symbolic."""
    given = list(values) if isinstance(values, (tuple, list)) else [values]
    if any(not isinstance(v, int) for v in given):
        return None
    return IntsAttr.get(given * count if len(given) == 1 else given)


@rule(aten.convolution.default, packet(aten, "_convolution"))
def _convolution(
    b: Importer,
    x: SSAValue,
    weight: SSAValue,
    bias: SSAValue | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    *flags: Any,
) -> SSAValue:
    spatial = b.rank(weight) - 2
    lists = [_numbers(v, spatial) for v in (stride, padding, dilation, output_padding)]
    known = None not in lists and isinstance(groups, int)
    if b.dtype(x) not in FLOATS or b.rank(x) != spatial + 2 or not known or spatial < 1:
        return NotImplemented
    operands = [x, weight] if bias is None else [x, weight, bias]
    properties: dict[str, Any] = dict(zip(("stride", "padding", "dilation", "output_padding"), lists, strict=True))
    if transposed:
        properties["transposed"] = UNIT
    layout = b.layout(b.sizes(b.val.stride()))
    groups_attr = IntsAttr.get((groups,))
    result = b.emit(ConvOp, operands, b.out_dims, b.out_dtype, **properties, groups=groups_attr, layout=layout)
    # the strides that come out depend on those that go in
    layouts = [operand_layout(b, source) for source in b.node.args[: len(operands)]]
    owner: Any = result.owner
    owner.attributes["operand_layouts"] = ArrayAttr(layouts)
    choices = convolution_choices(b, b.node.args[: len(operands)], transposed, groups, layouts)
    if choices is not None:
        owner.attributes["layout_choices"] = choices
    return result
