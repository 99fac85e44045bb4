"""Products whose elements a softmax makes weights of another product's terms: both are one kernel, which stores no score (attention).

    %s = nd.matmul %q, %k ; %x = f(%s) ; %p = softmax(%x) ; %o = nd.matmul %p, %v

`gpu-carry-softmax` makes the nest, of products that are generated; so whether these are is decided for all of them at once. Scores may be
products of float32 of numbers of 16 bits (FlexAttention). Numbers of a row, its maximum and the sum of its exponentials, and what is
computed of them, may be needed by others, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from xdsl.dialects.builtin import f32
from xdsl.ir import Block, Operation, SSAValue

from ....dialects import nd
from ....dialects.expr import product
from ....dialects.expr.ranges import RangeEnv, range_of
from ....dialects.nd.pointwise import OPS, CastOp, PointwiseOp, SelectOp
from ....dialects.nd.types import LOW_PRECISION, TensorType, tensor_type
from ....dialects.support.float8 import f8e8m0fnu
from ...cost.contraction_price import MAX_WEIGHED_ELEMENTS, Weighing
from ...cost.library_cost import bytes_of, size
from ..algebra.rewriter import Rewriter

SHARED = "something else needs the scores or the weights"
VIEWS = (nd.ReshapeOp, nd.PermuteOp)
COMPUTED = (nd.MatmulOp, PointwiseOp, *VIEWS)


@dataclass(frozen=True)
class CarriedScores:
    """The products that scores are computed from, the one that they weigh rows of, and what lies between: `weights` in memory, `beside`
    read by the operations on scores."""

    scores: tuple[nd.MatmulOp, ...]
    weighed: nd.MatmulOp
    weights: SSAValue
    beside: tuple[SSAValue, ...]

    @property
    def products(self) -> tuple[nd.MatmulOp, ...]:
        return *self.scores, self.weighed

    def work(self, hints: Mapping[str, int], kind: str, width: int) -> Weighing:
        """What the kernel does."""
        *batch, rows, columns = [size(n, hints) for n in tensor_type(self.weighed.result).dims]
        terms, count = size(tensor_type(self.weighed.lhs).dims[-1], hints), prod(batch)
        depth = sum(size(tensor_type(op.lhs).dims[-1], hints) for op in self.scores)
        read = [*(v for op in self.scores for v in op.operands), self.weighed.rhs, *self.beside]
        sources = dict.fromkeys(source(v) for v in read)
        moved = sum(bytes_of(v, hints) for v in sources) + bytes_of(self.weighed.result, hints)
        if rows == 1:  # those of the heads that share keys
            rows = bytes_of(self.weighed.rhs, hints) // max(1, bytes_of(source(self.weighed.rhs), hints))
            count //= max(1, rows)
        return Weighing(count, rows, terms, depth, columns, kind, width, float(moved))


def carried_scores(
    weighed: nd.MatmulOp, possible: Collection[Operation], symbols: RangeEnv, shared: bool = False
) -> CarriedScores | str:
    """The products that give the weights of a product's terms; where no kernel can have both, why not ("": the terms have no such weights).
    `possible`: products that may be generated. `shared`: others may need the scores and the weights, too."""
    softmax = softmax_of(weighed.lhs)
    if softmax is None or weighed not in possible:
        return ""
    numel = product(tensor_type(softmax.scores).dims)
    found: dict[nd.MatmulOp, None] = {}
    beside: dict[SSAValue, None] = {v: None for v in softmax.factors if not isinstance(v.owner, COMPUTED)}
    worklist = [softmax.scores, *softmax.factors]
    seen = set(worklist)
    while worklist:
        op = worklist.pop().owner
        if isinstance(op, nd.MatmulOp):
            found[op] = None
        elif isinstance(op, (PointwiseOp, *VIEWS)):
            inside = [v for v in op.operands if isinstance(v.owner, COMPUTED) and product(tensor_type(v).dims) is numel]
            beside.update((v, None) for v in op.operands if v not in inside)
            worklist += [v for v in inside if v not in seen]
            seen.update(inside)
    long = [tensor_type(weighed.result).dims[-1], *(tensor_type(op.lhs).dims[-1] for op in found)]
    if not found or any(op not in possible for op in found):
        return ""
    if any((hi := range_of(n, symbols).hi) is None or hi > MAX_WEIGHED_ELEMENTS for n in long):
        return f"rows have more than {MAX_WEIGHED_ELEMENTS} elements, or nobody knows how many"
    if tensor_type(weighed.result).dims[-2].value == 1 and not repeated(weighed.rhs):
        return "one row, of a head that shares its keys with no other"
    if not shared and not _all_end_in(weighed, found, softmax.of_rows):
        return SHARED
    read = [v for v in beside if product(tensor_type(v).dims).value != 1 and not isinstance(v.owner, nd.RandomOp)]
    return CarriedScores(tuple(found), weighed, weighed.lhs, tuple(read))


def repeated(x: SSAValue) -> bool:
    """Whether a tensor has elements of another one several times (keys that heads share)."""
    return product(tensor_type(source(x)).dims) is not product(tensor_type(x).dims)


def source(x: SSAValue) -> SSAValue:
    """The tensor that views and casts give another one of."""
    while isinstance(x.owner, nd.ViewOp | CastOp):
        x = x.owner.operands[0]
    return x


def exact_factors(op: nd.MatmulOp) -> tuple[CastOp, CastOp] | None:
    """The casts that make the factors of a product of float32 of numbers of 16 bits, or of 8, of one type: it is as exact with these."""
    if tensor_type(op.result).element_type != f32:
        return None
    left, right = (_cast_behind(x) for x in (op.lhs, op.rhs))
    if left is None or right is None or (kind := tensor_type(left.input).element_type) != tensor_type(right.input).element_type:
        return None
    return (left, right) if kind in LOW_PRECISION and kind != f8e8m0fnu else None


def without_cast(rw: Rewriter, x: SSAValue, cast: CastOp) -> SSAValue:
    """A tensor as the views behind a cast give it, of what the cast takes."""
    if x is cast.result:
        return cast.input
    op = x.owner
    assert isinstance(op, nd.ViewOp)
    t, inside = tensor_type(x), without_cast(rw, op.input, cast)
    narrow = TensorType.get(t.dims, tensor_type(inside).element_type, t.device.data)
    return rw.new(type(op).create(operands=[inside], result_types=[narrow], properties=op.properties, attributes=op.attributes))


def _cast_behind(x: SSAValue) -> CastOp | None:
    while isinstance(x.owner, nd.ViewOp):
        x = x.owner.input
    return x.owner if isinstance(x.owner, CastOp) else None


class Softmax(NamedTuple):
    """The scores of weights, what gives the maximum of a row and the sum of its exponentials, and factors that each weight has of its own
    (dropout)."""

    scores: SSAValue
    of_rows: tuple[Operation, ...]
    factors: tuple[SSAValue, ...] = ()


def softmax_of(weights: SSAValue) -> Softmax | None:
    """The scores whose exponentials, less those of the highest score of a row, are weights, but for factors, and for rows that a condition
    makes 0. What is multiplied by something computed from products is a gradient, which is in memory for others, too."""
    return _softmax_behind(weights, {})


def _softmax_behind(value: SSAValue, known: dict[SSAValue, Softmax | None]) -> Softmax | None:
    """As `softmax_of`; `known` has what was found for values before, of which a power has the same on both sides."""
    if value not in known:
        known[value] = _softmax_of_operands(value.owner, known)
    return known[value]


def _softmax_of_operands(op: Operation | Block, known: dict[SSAValue, Softmax | None]) -> Softmax | None:
    if isinstance(op, OPS["exp"]):
        return _softmax_by(op)
    if isinstance(op, CastOp) or (isinstance(op, VIEWS) and _keeps_rows(op)):
        return _softmax_behind(op.operands[0], known)
    if isinstance(op, SelectOp) and _is_of_row(op.condition) and _is_zero(op.on_true):
        return _softmax_behind(op.on_false, known)
    if isinstance(op, OPS["div"]) and _is_of_row(op.operands[1]):
        return _softmax_behind(op.operands[0], known)
    if not isinstance(op, OPS["mul"]):
        return None
    for value, factor in (op.operands, op.operands[::-1]):
        found = None if _is_of_row(value) else _softmax_behind(value, known)
        if found is not None and _is_of_row(factor):
            return found
        if found is not None and not is_of_products(factor):
            return found._replace(factors=(*found.factors, factor))
    return None


def is_of_products(value: SSAValue) -> bool:
    """Whether products are computed for a value, element by element."""
    worklist, seen = [value], {value}
    while worklist:
        op = worklist.pop().owner
        if isinstance(op, nd.MatmulOp):
            return True
        if isinstance(op, COMPUTED):
            new = [v for v in op.operands if v not in seen]
            seen.update(new)
            worklist += new
    return False


def _softmax_by(op: Operation) -> Softmax | None:
    """The scores of exponentials, and what gives the numbers of their rows."""
    shifted = op.operands[0].owner
    if not isinstance(shifted, OPS["sub"]):
        return None
    scores, highest = shifted.operands
    while isinstance(highest.owner, nd.ReshapeOp):
        highest = highest.owner.operands[0]
    top, last = highest.owner, tensor_type(scores).rank - 1
    if not isinstance(top, nd.ReduceOp) or top.kind.data != "max" or list(top.dims.data) != [last] or top.input is not scores:
        return None
    reductions = [use.operation for use in op.results[0].uses if isinstance(use.operation, nd.ReduceOp)]
    return Softmax(scores, (top, *(op for op in reductions if op.kind.data == "sum" and list(op.dims.data) == [last])))


def _keeps_rows(op: nd.ReshapeOp | nd.PermuteOp) -> bool:
    """Whether rows of the result of a view are rows of its operand."""
    t = tensor_type(op.operands[0])
    return op.dims.data[-1] == t.rank - 1 if isinstance(op, nd.PermuteOp) else t.dims[-1:] == tensor_type(op.result).dims[-1:]


def _is_of_row(value: SSAValue) -> bool:
    """Whether a value has one element for each row, or is a scalar."""
    dims = tensor_type(value).dims
    return not dims or dims[-1].value == 1


def _is_zero(value: SSAValue) -> bool:
    while isinstance(value.owner, CastOp):
        value = value.owner.input
    number = getattr(getattr(value.owner, "value", None), "value", None)
    return isinstance(value.owner, nd.FullOp) and getattr(number, "data", None) == 0.0


def _all_end_in(weighed: nd.MatmulOp, scores: Collection[nd.MatmulOp], of_rows: Collection[Operation]) -> bool:
    """Whether all that is computed of scores is for one product, but for numbers of rows."""
    worklist = [use.operation for op in scores for use in op.result.uses]
    seen: set[Operation] = {weighed, *of_rows}
    while worklist:
        op = worklist.pop()
        if op in seen:
            continue
        seen.add(op)
        if not isinstance(op, PointwiseOp | nd.ViewOp | nd.ReduceOp):
            return False
        worklist += [use.operation for result in op.results for use in result.uses]
    return True
