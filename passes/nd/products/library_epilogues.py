"""What the library's products compute beside: a bias, and one of two activations behind it.

    %p = nd.matmul %a, %b ; %q = nd.add %p, %bias ; %y = nd.relu %q     ->     aten._addmm_activation(%bias, %a, %b)

The other activation is GELU by a hyperbolic tangent, which graphs have as additions and multiplications in some order. So it is known by
its values. All of a function that is made of these and of hyperbolic tangents of f32 counts; what it is at points of all sizes tells it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ArrayAttr, StringAttr, bf16, f16, f32
from xdsl.ir import Attribute, Operation, SSAValue

from ....dialects import nd
from ....dialects.expr import strides_contiguous
from ....dialects.nd.call_args import Arg, Call, CallAttr
from ....dialects.nd.pointwise import OPS, CastOp
from ....dialects.nd.types import LayoutAttr, TensorType, tensor_type
from ...cost.machine.gpu import VECTOR_HALVES
from ..algebra.nd_canonicalize import full_value
from ..algebra.rewriter import Rewriter

TARGET = "aten._addmm_activation.default"

Values = tuple[float, ...]
"""A function of one number, at the points of `_POINTS`."""

_POINTS: Values = tuple(sign * 10.0 ** (k / 4) for k in range(-12, 17) for sign in (-1.0, 1.0))

_FUNCTIONS: Mapping[type[Operation], Callable[..., float]] = {
    OPS["add"]: lambda x, y: x + y, OPS["sub"]: lambda x, y: x - y, OPS["mul"]: lambda x, y: x * y,
    OPS["neg"]: lambda x: -x, OPS["tanh"]: math.tanh, CastOp: float,
}  # fmt: skip
"""Operations that such an activation is made of. They are smooth: no two that differ somewhere agree at all points."""


def _gelu(x: float) -> float:
    return x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


_GELU: Values = tuple(map(_gelu, _POINTS))


@dataclass(frozen=True)
class Activation:
    """An activation behind a product and its bias. `name`: as the rates of the library have it (gpu_rates.py); `ops`: what computes it, the
    last one of which gives the result."""

    name: str
    product: nd.MatmulOp
    bias: SSAValue
    ops: tuple[Operation, ...]

    @property
    def last(self) -> Operation:
        return self.ops[-1]

    def call(self, rw: Rewriter) -> SSAValue:
        """The result as one call."""
        t, result = tensor_type(self.product.result), tensor_type(self.last.results[0])
        call = CallAttr(Call(TARGET, (Arg(0), Arg(1), Arg(2)), (("use_gelu", True),) if self.name == "gelu" else ()))
        layouts = ArrayAttr([LayoutAttr.get(strides_contiguous(t.dims))])
        operands = [self.bias, *self.product.operands]
        made = rw.new(nd.ExternOp.create(operands=operands, result_types=[t], properties={"call": call, "result_layouts": layouts}))
        return made if result == t else rw.new(nd.ReshapeOp.new((made,), result))


def product_and_bias(op: Operation) -> tuple[nd.MatmulOp, SSAValue] | None:
    """The product and the vector over its columns that an addition adds, where nothing else needs the product."""
    for k, value in enumerate(op.operands):
        found, bias = value.owner, op.operands[1 - k]
        if not isinstance(found, nd.MatmulOp) or len(list(value.uses)) != 1:
            continue
        t, b = tensor_type(value), tensor_type(bias)
        if t.rank == 2 and b.rank == 1 and b.dims[0] is t.dims[1] and b.element_type == t.element_type and b.device == t.device:
            return found, bias
    return None


def biased(op: nd.MatmulOp) -> Operation | None:
    """The addition of a bias that a call of the library computes with a product."""
    adds = [use.operation for use in op.result.uses if isinstance(use.operation, OPS["add"])]
    pair = product_and_bias(adds[0]) if adds else None
    return adds[0] if pair is not None and pair[0] is op else None


def activation_behind(op: nd.MatmulOp) -> Activation | None:
    """The activation that a call of the library computes with a product of 16-bit numbers and its bias; None if there is none, or if rows
    of the result are not aligned."""
    t, add = tensor_type(op.result), biased(op)
    columns = t.dims[-1].value
    if add is None or t.element_type not in (bf16, f16) or columns is None or columns % VECTOR_HALVES or columns == 0:
        return None
    (bias,) = [v for v in add.operands if v is not op.result]
    chain = _Chain(add.results[0], t.element_type)
    name = chain.follow()
    if not name or (name != "relu" and _rounds_as_eager(op)):
        return None
    return Activation(name, op, bias, tuple(chain.ops))


def _rounds_as_eager(op: Operation) -> bool:
    """Whether what is computed of a product is to be computed of the rounded one; the largest of it and zero is the same of both."""
    func = op.parent_op()
    module = func.parent_op() if func is not None else None
    return module is not None and module.attributes.get("nd.numerics") == StringAttr("eager")


class _Chain:
    """What is computed of one tensor, element by element, until it is a known activation. `ops`: the operations, in an order in which
    operands come first; `values`: what is known of their results; `same`: tensors with the elements of the first one."""

    def __init__(self, source: SSAValue, kind: Attribute):
        self.kind = kind
        self.ops: dict[Operation, None] = {}
        self.values: dict[SSAValue, Values] = {source: _POINTS}
        self.same = {source}

    def follow(self) -> str:
        """The name of the activation; "" for none. Each value is looked at once."""
        worklist = list(self.values)
        while worklist:
            for user in dict.fromkeys(use.operation for use in worklist.pop().uses):
                if any(v not in self.values and full_value(v) is None for v in user.operands):
                    continue  # once its other operands are known
                if not self._take(user):
                    return ""
                result = user.results[0]
                if (name := self._name(user)) and self._is_last(result):
                    return name
                worklist.append(result)
        return ""

    def _take(self, op: Operation) -> bool:
        """Whether the result of an operation is a function of the elements that stays on the way."""
        if len(op.results) != 1 or not isinstance(t := op.results[0].type, TensorType):
            return False
        operands = [v for v in op.operands if v in self.values]
        if isinstance(op, nd.ReshapeOp | OPS["relu"]):
            values = self.values[op.operands[0]] if op.operands[0] in self.same else None
            if isinstance(op, nd.ReshapeOp) and values is not None:
                self.same.add(op.results[0])
        elif t.element_type not in (f32, self.kind) or any(self._is_rounded(v) for v in operands):
            return False
        else:
            values = self._evaluate(op)
        if values is None:
            return False
        self.ops[op] = None
        self.values[op.results[0]] = values
        return True

    def _is_rounded(self, value: SSAValue) -> bool:
        """Whether something was rounded on the way: the library does not do that."""
        return value not in self.same and tensor_type(value).element_type != f32

    def _evaluate(self, op: Operation) -> Values | None:
        function = _FUNCTIONS.get(type(op))
        if function is None:
            return None
        columns: Sequence[Values] = [self.values.get(v) or (float(full_value(v) or 0),) * len(_POINTS) for v in op.operands]
        return tuple(map(function, *columns))

    def _name(self, op: Operation) -> str:
        """The activation that the result of the last operation is."""
        if tensor_type(op.results[0]).element_type != self.kind:
            return ""
        if isinstance(op, OPS["relu"]):
            return "relu"
        found = self.values[op.results[0]]
        equal = isinstance(op, CastOp) and all(math.isclose(x, y, rel_tol=1e-6, abs_tol=1e-6) for x, y in zip(found, _GELU, strict=True))
        return "gelu" if equal else ""

    def _is_last(self, result: SSAValue) -> bool:
        """Whether nothing else needs what is on the way."""
        return all(use.operation in self.ops for v in self.values if v is not result for use in v.uses)
