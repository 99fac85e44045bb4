"""Products whose elements are weights of other products' terms, whatever lies between: the weights are computed where they weigh.

    %s = nd.matmul %q, %k ; %w = f(%s) ; %o = nd.matmul %w, %v ; %p = nd.matmul (nd.permute %w), %u

A group is all products that weights are computed from, and all that they weigh rows of: the backward pass of attention, a linear attention,
two layers with an activation between them. `gpu-carry-softmax` makes the nests, of products that are generated: a group is as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from xdsl.ir import Operation, SSAValue

from ....dialects import nd
from ....dialects.expr import product
from ....dialects.expr.ranges import RangeEnv, range_of
from ....dialects.nd.pointwise import PointwiseOp
from ....dialects.nd.types import tensor_type
from ...cost.contraction_price import MAX_WEIGHED_ELEMENTS, Weighing
from ...cost.library_cost import bytes_of, size
from .carried_scores import COMPUTED, VIEWS, source


@dataclass(frozen=True)
class WeighedRows:
    """A product that weighs rows: which of its operands the weights are, and what they are computed from."""

    op: nd.MatmulOp
    side: int
    scores: tuple[nd.MatmulOp, ...]
    beside: tuple[SSAValue, ...]

    @property
    def rows(self) -> SSAValue:
        return self.op.operands[1 - self.side]

    def lengths(self) -> list[int]:
        """The numbers of the dimensions of its result that the weights, and the rows, have."""
        return [-2, -1] if self.side == 0 else [-1, -2]

    def work(self, hints: Mapping[str, int], kind: str, width: int) -> Weighing:
        """What its kernel does."""
        dims = tensor_type(self.op.result).dims
        count, columns = (size(dims[k], hints) for k in self.lengths())
        terms = size(tensor_type(self.op.lhs).dims[-1], hints)
        depth = sum(size(tensor_type(op.lhs).dims[-1], hints) for op in self.scores)
        read = dict.fromkeys(source(v) for v in (*(v for op in self.scores for v in op.operands), self.rows, *self.beside))
        moved = sum(bytes_of(v, hints) for v in read) + bytes_of(self.op.result, hints)
        return Weighing(prod(size(n, hints) for n in dims[:-2]), count, terms, depth, columns, kind, width, float(moved))


@dataclass(frozen=True)
class CarriedWeights:
    """The products of a group."""

    scores: tuple[nd.MatmulOp, ...]
    weighed: tuple[WeighedRows, ...]

    @property
    def products(self) -> tuple[nd.MatmulOp, ...]:
        return *self.scores, *(one.op for one in self.weighed)


def carried_weights(products: Collection[nd.MatmulOp], symbols: RangeEnv) -> Iterator[CarriedWeights]:
    """The groups of these products, which can be generated."""
    done: set[Operation] = set()
    for op in products:
        if op not in done and (found := _group(op, products, symbols)) is not None:
            done.update(found.scores)
            yield found


def _group(first: nd.MatmulOp, products: Collection[nd.MatmulOp], symbols: RangeEnv) -> CarriedWeights | None:
    """All that is computed of a product, element by element, with what else it is computed from, if products take all of it as weights."""
    numel = product(tensor_type(first.result).dims)
    inside: dict[Operation, None] = {first: None}
    weighed: dict[Operation, None] = {}
    worklist: list[Operation] = [first]
    while worklist:
        op = worklist.pop()
        users = [use.operation for use in op.results[0].uses]
        weighed.update((user, None) for user in users if isinstance(user, nd.MatmulOp))
        follows = [user for user in users if not isinstance(user, nd.MatmulOp)]
        if not all(isinstance(user, (PointwiseOp, *VIEWS)) and product(tensor_type(user.results[0]).dims) is numel for user in follows):
            return None
        before = [] if isinstance(op, nd.MatmulOp) else [o for v in op.operands if (o := _computed(v, numel)) is not None]
        new = [o for o in dict.fromkeys((*follows, *before)) if o not in inside]
        inside.update(dict.fromkeys(new))
        worklist += new
    scores = tuple(op for op in inside if isinstance(op, nd.MatmulOp))
    rows = [_rows(op, inside) for op in weighed if isinstance(op, nd.MatmulOp)]
    if not rows or any(op not in products for op in (*scores, *weighed)) or any(op in weighed for op in scores):
        return None
    found = tuple(one for one in rows if one is not None)
    long = [tensor_type(op.lhs).dims[-1] for op in scores]
    long += [tensor_type(one.op.result).dims[one.lengths()[1]] for one in found]
    if len(found) < len(rows) or any((hi := range_of(n, symbols).hi) is None or hi > MAX_WEIGHED_ELEMENTS for n in long):
        return None
    return CarriedWeights(scores, found)


def _computed(value: SSAValue, numel: object) -> Operation | None:
    """The operation that computes a tensor of so many elements from products, perhaps."""
    op = value.owner
    return op if isinstance(op, COMPUTED) and product(tensor_type(value).dims) is numel else None


def _rows(op: nd.MatmulOp, inside: Collection[Operation]) -> WeighedRows | None:
    """The rows that a product weighs by what is computed inside; None where there is one row of weights, or no product behind them."""
    sides = [k for k, v in enumerate(op.operands[:2]) if v.owner in inside]
    if len(sides) != 1:
        return None
    (side,) = sides
    scores: dict[nd.MatmulOp, None] = {}
    beside: dict[SSAValue, None] = {}
    worklist = [op.operands[side]]
    seen = set(worklist)
    while worklist:
        one = worklist.pop()
        owner = one.owner
        if isinstance(owner, nd.MatmulOp) and owner in inside:
            scores[owner] = None
        elif isinstance(owner, Operation) and owner in inside:
            new = [v for v in owner.operands if v not in seen]
            seen.update(new)
            worklist += new
        elif product(tensor_type(one).dims).value != 1:
            beside[one] = None
    found = WeighedRows(op, side, tuple(scores), tuple(beside))
    alone = tensor_type(op.result).dims[found.lengths()[0]].value == 1
    return None if alone or not scores else found
