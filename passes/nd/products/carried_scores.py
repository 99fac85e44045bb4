"""Products whose elements a softmax makes weights of another product's terms: both are one kernel, which stores no score (attention).

    %s = nd.matmul %q, %k ; %x = f(%s) ; %p = softmax(%x) ; %o = nd.matmul %p, %v

`gpu-carry-softmax` makes the nest, of products that are generated; so whether these are is decided for all of them at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod

from xdsl.ir import Operation, SSAValue

from ....dialects import nd
from ....dialects.expr import product
from ....dialects.expr.ranges import RangeEnv, range_of
from ....dialects.nd.pointwise import PointwiseOp
from ....dialects.nd.types import tensor_type
from ...cost.contraction_price import Weighing
from ...cost.library_cost import bytes_of, size
from ..nd_attention import softmax_of, through_cast

MAX_LENGTH = 256
"""Elements of a row that is weighed, and terms of a score, at most: a program has all of them at once."""

VIEWS = (nd.ReshapeOp, nd.PermuteOp)


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
        terms = size(tensor_type(self.weighed.lhs).dims[-1], hints)
        depth = sum(size(tensor_type(op.lhs).dims[-1], hints) for op in self.scores)
        read = [*(v for op in self.scores for v in op.operands), self.weighed.rhs, *self.beside]
        moved = sum(bytes_of(v, hints) for v in dict.fromkeys(read)) + bytes_of(self.weighed.result, hints)
        return Weighing(prod(batch), rows, terms, depth, columns, kind, width, float(moved))


def carried_scores(weighed: nd.MatmulOp, possible: Collection[Operation], symbols: RangeEnv) -> CarriedScores | None:
    """The products that give the weights of a product's terms; None where no kernel can have both. `possible`: products that may be
    generated."""
    weights = through_cast(_as_it_lies(weighed.lhs))
    scores = None if weights is None else softmax_of(weights)
    if scores is None or weighed not in possible:
        return None
    numel = product(tensor_type(scores).dims)
    found: dict[nd.MatmulOp, None] = {}
    beside: dict[SSAValue, None] = {}
    worklist, seen = [scores], {scores}
    while worklist:
        value = worklist.pop()
        op = value.owner
        if isinstance(op, nd.MatmulOp):
            found[op] = None
        elif isinstance(op, (PointwiseOp, *VIEWS)):
            inside = [v for v in op.operands if _is_score(v, op, numel)]
            beside.update((v, None) for v in op.operands if v not in inside)
            worklist += [v for v in inside if v not in seen]
            seen.update(inside)
    long = [tensor_type(weighed.result).dims[-1], *(tensor_type(op.lhs).dims[-1] for op in found)]
    if not found or any((hi := range_of(n, symbols).hi) is None or hi > MAX_LENGTH for n in long):
        return None
    rows = tensor_type(weighed.result).dims[-2].value
    if rows == 1 or any(op not in possible for op in found):
        return None
    return CarriedScores(tuple(found), weighed, weighed.lhs, tuple(v for v in beside if product(tensor_type(v).dims).value != 1))


def _as_it_lies(value: SSAValue) -> SSAValue:
    """What a value that is read once is another view of."""
    while isinstance(op := value.owner, VIEWS) and len(list(value.uses)) == 1:
        value = op.operands[0]
    return value


def _is_score(value: SSAValue, user: Operation, numel: object) -> bool:
    """Whether a value has an element for each score, which nothing else reads, and is computed."""
    computed = isinstance(value.owner, (nd.MatmulOp, PointwiseOp, *VIEWS))
    return computed and product(tensor_type(value).dims) is numel and {use.operation for use in value.uses} == {user}
