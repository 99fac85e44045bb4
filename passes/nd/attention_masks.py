"""What attention on the CPU leaves out and adds: conditions on scores (causal, windows, documents) and numbers added to them.

    %x = nd.select (i >= j), %scaled, -inf                                ->     the call is causal
    %x = nd.select %condition, %scaled + %bias, -inf ; softmax, or 0      ->     a mask that is added: select(%condition, %bias, -inf)

A row of which a mask leaves nothing gives zeros, as the kernel does; without that choice in the program only a mask that leaves each row
something is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import FloatAttr
from xdsl.ir import SSAValue

from ...dialects import nd
from ...dialects.expr import ONE, Expr
from ...dialects.nd.pointwise import OPS, CastOp, CmpOp, PointwiseOp, SelectOp
from ...dialects.nd.types import TensorType, tensor_type
from .algebra.rewriter import Rewriter

LOWEST = float("-inf")


@dataclass(frozen=True)
class Mask:
    """Scores are -inf where `condition` is `hidden`; `bias` is added to the others. None: there is none."""

    condition: SSAValue | None = None
    hidden: bool = False
    bias: SSAValue | None = None

    @property
    def is_causal(self) -> bool:
        """Whether query i sees the keys 0 to i, and that is all."""
        return self.bias is None and not self.hidden and self.condition is not None and _is_causal(self.condition)

    @property
    def is_computed(self) -> bool:
        """Whether the condition is not in memory anyway."""
        return self.condition is not None and isinstance(self.condition.owner, PointwiseOp)

    def fits(self, scores: TensorType) -> bool:
        """Whether the call takes it: along each dimension of the scores it has all elements or one, all keys among them."""
        found = [x for x in (self.condition, self.bias) if x is not None]
        return all(tensor_type(x).element_type == scores.element_type for x in found if x is self.bias) and _dims(found, scores) is not None

    def added(self, rw: Rewriter, scores: TensorType) -> SSAValue:
        """The tensor that is added to scores."""
        parts = [x for x in (self.condition, self.bias) if x is not None]
        dims = _dims(parts, scores)
        assert dims is not None
        t = TensorType.get(dims, scores.element_type, scores.device.data)
        if self.condition is None:
            assert self.bias is not None
            return self.bias if tensor_type(self.bias).dims == dims else rw.new(nd.ReshapeOp.new((self.bias,), t))
        lowest = _number(rw, LOWEST, scores)
        kept = self.bias or _number(rw, 0.0, scores)
        values = (lowest, kept) if self.hidden else (kept, lowest)
        return rw.new(SelectOp.new((self.condition, *values), t))


def _number(rw: Rewriter, value: float, like: TensorType) -> SSAValue:
    t = TensorType.get((), like.element_type, like.device.data)
    return rw.new(nd.FullOp.new((), t, value=FloatAttr(value, like.element_type)))  # pyright: ignore


def _dims(parts: Sequence[SSAValue], scores: TensorType) -> tuple[Expr, ...] | None:
    """The sizes of a mask made of these, of rank 2 or 4; None where one is something else, or where keys are one for all."""
    rank = 2 if all(tensor_type(x).rank <= 2 for x in parts) else 4
    whole = ((ONE, *scores.dims) if scores.rank == 3 else scores.dims)[4 - rank :]
    found: list[Expr] = [ONE] * rank
    for x in parts:
        dims = tensor_type(x).dims
        if scores.rank == 3 and len(dims) == 3:
            dims = (ONE, *dims)
        for k, size in enumerate(dims, rank - len(dims)):
            if size is not ONE and size is not whole[k]:
                return None
            found[k] = whole[k] if size is not ONE else found[k]
    return tuple(found) if found[-1] is whole[-1] and found[-1] is not ONE else None


def without_mask(scores: SSAValue) -> tuple[SSAValue, Mask]:
    """Scores as they are before what hides and shifts some, and that."""
    op, mask = scores.owner, Mask()
    if isinstance(op, SelectOp):
        for hidden, lowest, other in ((False, op.on_false, op.on_true), (True, op.on_true, op.on_false)):
            if is_number(lowest, LOWEST) and other.has_one_use():
                scores, mask = other, Mask(_unexpanded(op.condition), hidden)
                break
    add = scores.owner
    if isinstance(add, OPS["add"]):
        for product, bias in (add.operands, reversed(add.operands)):
            if product.has_one_use() and _of_product(product):
                return product, Mask(mask.condition, mask.hidden, _unexpanded(bias))
    return scores, mask


def _of_product(value: SSAValue) -> bool:
    """Whether a value is a product of matrices, or a multiple of one."""
    while isinstance(op := value.owner, (OPS["mul"], OPS["div"])):
        value = op.operands[0]
    return isinstance(value.owner, nd.MatmulOp)


def _unexpanded(value: SSAValue) -> SSAValue:
    """A tensor without repeated elements, along dimensions that it has."""
    while isinstance(op := value.owner, nd.ExpandOp):
        value = op.input
    return value


def is_number(value: SSAValue, number: float) -> bool:
    """Whether all elements are one number."""
    while isinstance(value.owner, CastOp | nd.ExpandOp | nd.ReshapeOp):
        value = value.owner.operands[0]
    found = getattr(getattr(value.owner, "value", None), "value", None)
    return isinstance(value.owner, nd.FullOp) and getattr(found, "data", None) == number


def softmax_or_zero(weights: SSAValue) -> tuple[SSAValue, CmpOp | None]:
    """A softmax whose rows without a finite score are 0 by choice, without that: its values, and the comparison of the rows' maxima with
    -inf; None where there is no such choice."""
    op = weights.owner
    if not isinstance(op, SelectOp) or not is_number(op.on_true, 0.0):
        return weights, None
    condition = op.condition
    while isinstance(condition.owner, nd.ReshapeOp) and condition.has_one_use():
        condition = condition.owner.input
    test = condition.owner
    if not isinstance(test, CmpOp) or test.predicate.data != "eq" or not is_number(test.rhs, LOWEST) or not condition.has_one_use():
        return weights, None
    return op.on_false, test


def _is_causal(condition: SSAValue) -> bool:
    """Whether a condition is that the number of the last dimension but one is at least that of the last one."""
    op = condition.owner
    if not isinstance(op, CmpOp) or op.predicate.data not in ("ge", "le"):
        return False
    rows, columns = op.operands if op.predicate.data == "ge" else reversed(op.operands)
    return _numbers_along(rows) == 2 and _numbers_along(columns) == 1


def _numbers_along(value: SSAValue) -> int:
    """The dimension, from the end, along which elements are their own number, and of which alone they depend; 0 where there is none."""
    op = value.owner
    if isinstance(op, nd.IotaOp):
        dims = tensor_type(value).dims
        (at,) = op.dim.data
        return len(dims) - at if all(size is ONE for k, size in enumerate(dims) if k != at) else 0
    if isinstance(op, nd.ReshapeOp) and _numbers_along(op.input):
        long = [k for k, size in enumerate(tensor_type(value).dims) if size is not ONE]
        return tensor_type(value).rank - long[0] if len(long) == 1 else 0
    return _numbers_along(op.input) if isinstance(op, nd.ExpandOp) and tensor_type(value).rank == tensor_type(op.input).rank else 0
