"""Attention as products and a softmax: what a call of the library computes, spelled out.

    aten._scaled_dot_product_...(%q, %k, %v)     ->     nd.matmul ; softmax ; nd.matmul
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import FloatAttr, StringAttr, f32, i1, i64
from xdsl.ir import SSAValue

from ...dialects import nd
from ...dialects.expr import ONE, Expr
from ...dialects.nd.base import IntsAttr
from ...dialects.nd.pointwise import OPS, CastOp, CmpOp, SelectOp, broadcast_dims
from ...dialects.nd.types import TensorType, tensor_type
from .algebra.rewriter import Rewriter


@dataclass(frozen=True)
class AttentionCall:
    """softmax(scale * query key^T + mask) value: `query` is [B, H, T, E], `key` [B, G, S, E], `value` [B, G, S, F], where G divides H; the
    mask is broadcast to [B, H, T, S]. `causal`: query i sees the keys 0 to i. `scale`: None is one over the root of E."""

    query: SSAValue
    key: SSAValue
    value: SSAValue
    mask: SSAValue | None = None
    causal: bool = False
    scale: float | None = None

    def spelled(self, rw: Rewriter, weigh_narrow: bool) -> SSAValue:
        """The result, ``[B, H, T, F]`` of the query's type; rows that a mask leaves nothing are 0. Scores are f32. `weigh_narrow`: products
        are those of the factors as f32, and weights are rounded to the type of the values; else factors keep their types."""
        key, value = tensor_type(self.key), tensor_type(self.value)
        batch, heads, keys, depth = key.dims
        turned = rw.new(nd.PermuteOp.new((self.key,), key.with_dims((batch, heads, depth, keys)), dims=IntsAttr.get([0, 1, 3, 2])))
        factors = [_wide(rw, x) if weigh_narrow else x for x in (self.query, turned, self.value)]
        query = tensor_type(self.query)
        wide = TensorType.get((*query.dims[:3], keys), f32, query.device.data)
        scale = self.scale if self.scale is not None else 1 / math.sqrt(depth.value or 1)
        scores = _pointwise(rw, "mul", rw.new(nd.MatmulOp.new(tuple(factors[:2]), wide)), _number(rw, scale, wide))
        if self.causal:
            scores = rw.new(SelectOp.new((_sees(rw, wide), scores, _number(rw, -math.inf, wide)), wide))
        if self.mask is not None:
            scores = _pointwise(rw, "add", scores, _wide(rw, self.mask))
        weights = _softmax(rw, scores, or_zero=self.mask is not None or not weigh_narrow)
        if weigh_narrow:
            weights = _wide(rw, rw.new(CastOp.new((weights,), wide.with_dtype(value.element_type))))
        made = rw.new(nd.MatmulOp.new((weights, factors[2]), wide.with_dims((*query.dims[:3], value.dims[3]))))
        return made if query.element_type == f32 else rw.new(CastOp.new((made,), tensor_type(made).with_dtype(query.element_type)))

    def with_own_keys(self, rw: Rewriter) -> AttentionCall:
        """The same where each head has keys and values of its own."""
        heads = tensor_type(self.query).dims[1]
        if tensor_type(self.key).dims[1] is heads:
            return self
        key, value = (_repeated(rw, x, heads) for x in (self.key, self.value))
        return replace(self, key=key, value=value)


def _repeated(rw: Rewriter, x: SSAValue, heads: Expr) -> SSAValue:
    """Keys or values of so many heads, each of which is shared by those that follow each other."""
    t = tensor_type(x)
    batch, own, *rest = t.dims
    one = rw.new(nd.ReshapeOp.new((x,), t.with_dims((batch, own, ONE, *rest))))
    all_heads = rw.new(nd.ExpandOp.new((one,), t.with_dims((batch, own, heads // own, *rest))))
    return rw.new(nd.ReshapeOp.new((all_heads,), t.with_dims((batch, heads, *rest))))


def _sees(rw: Rewriter, scores: TensorType) -> SSAValue:
    """Whether a query comes no earlier than a key, [T, S]."""
    queries, keys = scores.dims[2:]
    kind = TensorType.get((queries, ONE), i64, scores.device.data)
    row = rw.new(nd.IotaOp.new((), kind, dim=IntsAttr.get([0])))
    term = rw.new(nd.IotaOp.new((), kind.with_dims((ONE, keys)), dim=IntsAttr.get([1])))
    return rw.new(CmpOp.new((row, term), TensorType.get((queries, keys), i1, scores.device.data), predicate=StringAttr("ge")))


def _softmax(rw: Rewriter, x: SSAValue, or_zero: bool) -> SSAValue:
    """Softmax over the last dimension, f32; `or_zero`: rows of -inf alone are 0."""
    high = _reduced(rw, "max", x)
    e = _pointwise(rw, "exp", _pointwise(rw, "sub", x, high))
    shares = _pointwise(rw, "div", e, _reduced(rw, "sum", e))
    if not or_zero:
        return shares
    t, lowest = tensor_type(x), _number(rw, -math.inf, tensor_type(x))
    nothing = rw.new(CmpOp.new((high, lowest), tensor_type(high).with_dtype(i1), predicate=StringAttr("eq")))
    return rw.new(SelectOp.new((nothing, _number(rw, 0.0, t), shares), t))


def _reduced(rw: Rewriter, kind: str, x: SSAValue) -> SSAValue:
    """A reduction over the last dimension, which keeps size 1."""
    t = tensor_type(x)
    made = rw.new(nd.ReduceOp.new((x,), t.with_dims(t.dims[:-1]), kind=StringAttr(kind), dims=IntsAttr.get([t.rank - 1])))
    return rw.new(nd.ReshapeOp.new((made,), t.with_dims((*t.dims[:-1], ONE))))


def _pointwise(rw: Rewriter, name: str, *operands: SSAValue) -> SSAValue:
    """An operation of `OPS` on tensors of one type that are broadcast."""
    dims = broadcast_dims(*(tensor_type(x).dims for x in operands))
    assert dims is not None
    return rw.new(OPS[name].new(operands, tensor_type(operands[0]).with_dims(dims)))


def _number(rw: Rewriter, value: float, t: TensorType) -> SSAValue:
    """A scalar of f32 where `t` is."""
    return rw.new(nd.FullOp.new((), t.with_dims(()), value=FloatAttr(value, f32)))


def _wide(rw: Rewriter, x: SSAValue) -> SSAValue:
    t = tensor_type(x)
    return x if t.element_type == f32 else rw.new(CastOp.new((x,), t.with_dtype(f32)))
