"""Products whose elements are weights of other products' terms, whatever lies between: the weights are computed where they weigh.

    %s = nd.matmul %q, %k ; %w = f(%s) ; %o = nd.matmul %w, %v ; %p = nd.matmul (nd.permute %w), %u

Others may add weights up, over batches (the gradient of a bias) or at places of a row (the gradient of what was gathered for each row by
position): these, too, compute them where they add.

A group is all products that weights are computed from, and all that they weigh rows of: the backward pass of attention, a linear attention,
two layers with an activation between them. `gpu-carry-softmax` makes the nests, of products that are generated: a group is as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod

from xdsl.dialects.func import ReturnOp
from xdsl.ir import Attribute, Operation, SSAValue, Use

from ....dialects import nd
from ....dialects.expr import product
from ....dialects.expr.ranges import RangeEnv, range_of
from ....dialects.nd.base import IntsAttr
from ....dialects.nd.pointwise import PointwiseOp
from ....dialects.nd.types import element_bytes, tensor_type
from ....dialects.support.replace import erase_op
from ...cost.contraction_price import MAX_JOINED_COLUMNS, MAX_WEIGHED_ELEMENTS, WEIGHED_SIDE, Weighing, rate_name
from ...cost.library_cost import bytes_of, size
from .carried_scores import COMPUTED, VIEWS, source


@dataclass(frozen=True)
class WeighedRows:
    """A product that weighs rows: which of its operands the weights are, and what they are computed from."""

    op: nd.MatmulOp
    side: int
    scores: tuple[nd.MatmulOp, ...]
    beside: tuple[SSAValue, ...]
    turned: bool
    """Whether a row of the weights is a column of the scores."""

    @property
    def rows(self) -> SSAValue:
        return self.op.operands[1 - self.side]

    def lengths(self) -> list[int]:
        """The numbers of the dimensions of its result that the weights, and the rows, have."""
        return [-2, -1] if self.side == 0 else [-1, -2]

    def count(self, hints: Mapping[str, int]) -> tuple[int, int]:
        """How many rows and columns its result has."""
        dims = tensor_type(self.op.result).dims
        rows, columns = (size(dims[k], hints) for k in self.lengths())
        return rows, columns

    @property
    def key(self) -> tuple[object, ...]:
        """Products of the same key weigh by the same weights, as one kernel may."""
        *batch, _, terms = tensor_type(self.op.lhs).dims
        return *batch, tensor_type(self.op.result).dims[self.lengths()[0]], terms, self.turned


@dataclass(frozen=True)
class SummedWeights:
    """A sum of weights over dimensions in front of their rows and columns, over the terms of each row, or at places of it, and what these
    are computed from."""

    op: nd.ReduceOp | nd.ScatterOp
    scores: tuple[nd.MatmulOp, ...]
    beside: tuple[SSAValue, ...]
    turned: bool
    """Whether a row of the weights is a column of the scores."""

    @property
    def of_terms(self) -> bool:
        """Whether it adds up the terms of rows: a kernel that weighs by these does so beside."""
        return isinstance(self.op, nd.ReduceOp) and _adds_terms(self.op)

    def work(self, hints: Mapping[str, int], kind: Attribute) -> Weighing:
        """What its kernel does with factors of a type: each program has the products of a block in all batches that are added up."""
        op = self.op
        *batch, rows, columns = [size(n, hints) for n in tensor_type(op.input if isinstance(op, nd.ReduceOp) else op.source).dims]
        added = prod(batch[d] for d in op.dims.data) if isinstance(op, nd.ReduceOp) else 1
        depth = added * sum(size(tensor_type(score.lhs).dims[-1], hints) for score in self.scores)
        given = dict.fromkeys(source(v) for v in (*(v for score in self.scores for v in score.operands), *self.beside))
        moved = sum(bytes_of(v, hints) for v in given) + bytes_of(op.result, hints)
        blocks = prod(batch) // max(1, added) * ceil(columns / WEIGHED_SIDE)
        return Weighing(blocks, rows, min(columns, WEIGHED_SIDE), depth, 0, rate_name(kind), element_bytes(kind), float(moved))


@dataclass(frozen=True)
class CarriedWeights:
    """The products of a group, and the sums of its weights."""

    scores: tuple[nd.MatmulOp, ...]
    weighed: tuple[WeighedRows, ...]
    summed: tuple[SummedWeights, ...] = ()

    @property
    def products(self) -> tuple[nd.MatmulOp, ...]:
        return *self.scores, *(one.op for one in self.weighed)

    def works(self, hints: Mapping[str, int]) -> Iterator[Weighing]:
        """What its kernels do: sums by the same weights are one, while a program has room for their columns."""
        kernels: list[list[WeighedRows]] = []
        for one in self.weighed:
            for kernel in kernels:
                columns = sum(each.count(hints)[1] for each in (*kernel, one))
                if kernel[0].key == one.key and columns <= MAX_JOINED_COLUMNS:
                    kernel.append(one)
                    break
            else:
                kernels.append([one])
        yield from (_work(kernel, hints) for kernel in kernels)
        kind = tensor_type(self.scores[0].result).element_type
        placed = [one for one in self.summed if isinstance(one.op, nd.ScatterOp)]
        own = [one for one in self.summed if one not in placed[1:] and not one.of_terms]  # places of the same weights are one kernel's
        yield from (one.work(hints, kind) for one in own)


def _work(kernel: Sequence[WeighedRows], hints: Mapping[str, int]) -> Weighing:
    """What one kernel of several sums does."""
    op = kernel[0].op
    scores = dict.fromkeys(score for one in kernel for score in one.scores)
    given = [*(v for score in scores for v in score.operands), *(v for one in kernel for v in (one.rows, *one.beside))]
    moved = sum(bytes_of(v, hints) for v in dict.fromkeys(map(source, given))) + sum(bytes_of(one.op.result, hints) for one in kernel)
    depth = sum(size(tensor_type(score.lhs).dims[-1], hints) for score in scores)
    columns, kind = sum(one.count(hints)[1] for one in kernel), tensor_type(op.result).element_type
    batch, terms = prod(size(n, hints) for n in tensor_type(op.result).dims[:-2]), size(tensor_type(op.lhs).dims[-1], hints)
    return Weighing(batch, kernel[0].count(hints)[0], terms, depth, columns, rate_name(kind), element_bytes(kind), float(moved))


def turn_products(one: CarriedWeights, made: set[Operation]) -> bool:
    """Have products of a group that weigh by the same weights do so from the left, %w^T %u for (%u^T %w)^T: they are then one kernel.
    Whether that changed something. What is made is added to `made`, and not turned back for the group of its other factor."""
    same = Counter(rows.key for rows in one.weighed)
    turned = [rows.op for rows in one.weighed if rows.side == 1 and same[rows.key] > 1 and rows.op not in made]
    for op in turned:
        *batch, rows, columns = tensor_type(op.result).dims
        views = [_transposed(op.rhs), _transposed(op.lhs)]
        t = tensor_type(op.result).with_dims((*batch, columns, rows))
        weighing = nd.MatmulOp.new([view.result for view in views], t, **op.properties)
        back = _transposed(weighing.result)
        assert (block := op.parent) is not None
        block.insert_ops_before([*views, weighing, back], op)
        weighing.result.name_hint = op.result.name_hint
        op.result.replace_all_uses_with(back.result)
        made.add(weighing)
        erase_op(op)
    return bool(turned)


def _transposed(x: SSAValue) -> nd.PermuteOp:
    *batch, rows, columns = tensor_type(x).dims
    order = (*range(len(batch)), len(batch) + 1, len(batch))
    return nd.PermuteOp.new((x,), tensor_type(x).with_dims((*batch, columns, rows)), dims=IntsAttr.get(order))


def carried_weights(products: Collection[nd.MatmulOp], symbols: RangeEnv, by_blocks: bool = False) -> Iterator[CarriedWeights]:
    """The groups of these products, which can be generated; `by_blocks`: those, too, whose weights, of several products, are only added
    up."""
    known = dict.fromkeys(products)
    done: set[Operation] = set()
    for op in known:
        found = _group(op, known, symbols, done, by_blocks=by_blocks) if op not in done else None
        if found is not None and (found.weighed or (by_blocks and len(found.scores) > 1)):
            yield found


def returned_weights(
    first: nd.MatmulOp, products: Collection[nd.MatmulOp], symbols: RangeEnv
) -> tuple[CarriedWeights, list[Use]] | None:
    """The group of a product of which some weights are results, too (the gradient of a bias of their size), and where they are; None where
    there are none, or where fewer than two products give scores, or weigh by them."""
    others: list[Use] = []
    group = _group(first, products, symbols, set(), others)
    several = group is not None and others and len(group.scores) > 1 and len(group.weighed) > 1
    return (group, others) if several and group is not None else None


def give_own_weights(group: CarriedWeights, others: Sequence[Use]) -> None:
    """Compute weights that are results by products of their own."""
    inside, block = set[Operation](), group.scores[0].parent
    assert block is not None
    for use in others:
        turned, _ = _behind(use.operation.operands[use.index], _Everything(group), False)
        inside.update(v.owner for v in turned if isinstance(v.owner, (nd.MatmulOp, PointwiseOp, *VIEWS)))
    own: dict[SSAValue, SSAValue] = {}
    for op in [op for op in block.ops if op in inside]:
        copied = op.clone(own)
        if isinstance(op, nd.MatmulOp):
            view = nd.ReshapeOp.new((op.lhs,), op.lhs.type)  # with another operand: equal operations would be one
            block.insert_op_before(view, op)
            copied.operands = [view.result, *copied.operands[1:]]
        block.insert_op_before(copied, op)
        own[op.results[0]], copied.results[0].name_hint = copied.results[0], op.results[0].name_hint
    for use in others:
        use.operation.operands[use.index] = own[use.operation.operands[use.index]]


@dataclass(frozen=True)
class _Everything:
    """What is computed of the products of a group, element by element."""

    group: CarriedWeights

    def __contains__(self, op: object) -> bool:
        numel = product(tensor_type(self.group.scores[0].result).dims)
        computed = isinstance(op, (PointwiseOp, *VIEWS)) and product(tensor_type(op.results[0]).dims) is numel
        return op in self.group.scores or computed


def _group(
    first: nd.MatmulOp,
    products: Collection[nd.MatmulOp],
    symbols: RangeEnv,
    done: set[Operation],
    others: list[Use] | None = None,
    by_blocks: bool = False,
) -> CarriedWeights | None:
    """All that is computed of a product, element by element, with what else it is computed from, if products take all of it as weights.
    `done` gets what was looked at: the answer is the same from each product among it, and none where the search meets what others have
    looked at in vain. So all products of a function are asked in time linear in its operations.
    `others`: gets the results of the function among it, which may be then."""
    numel = product(tensor_type(first.result).dims)
    inside: dict[Operation, None] = {first: None}
    weighed: dict[Operation, None] = {}
    added: dict[nd.ReduceOp | nd.ScatterOp, None] = {}
    worklist: list[Operation] = [first]
    while worklist:
        op = worklist.pop()
        if op in done or op in weighed:
            return None
        done.add(op)
        uses = list(op.results[0].uses)
        if others is not None:
            others += [use for use in uses if isinstance(use.operation, ReturnOp)]
            uses = [use for use in uses if not isinstance(use.operation, ReturnOp)]
        users = [use.operation for use in uses]
        weighed.update((user, None) for user in users if isinstance(user, nd.MatmulOp))
        added.update((user, None) for user in users if isinstance(user, nd.ReduceOp) and (_adds_batches(user) or _adds_terms(user)))
        added.update((user, None) for user in users if isinstance(user, nd.ScatterOp) and _adds_in_rows(user, op.results[0]))
        follows = [user for user in users if not isinstance(user, nd.MatmulOp) and user not in added]
        if not all(isinstance(user, (PointwiseOp, *VIEWS)) and product(tensor_type(user.results[0]).dims) is numel for user in follows):
            return None
        before = [] if isinstance(op, nd.MatmulOp) else [o for v in op.operands if (o := _computed(v, numel)) is not None]
        new = [o for o in dict.fromkeys((*follows, *before)) if o not in inside]
        inside.update(dict.fromkeys(new))
        worklist += new
    scores = tuple(op for op in inside if isinstance(op, nd.MatmulOp))
    rows = [_rows(op, inside) for op in weighed if isinstance(op, nd.MatmulOp)]
    if not (rows or added) or any(op not in products for op in (*scores, *weighed)) or any(op in weighed for op in scores):
        return None
    found = tuple(one for one in rows if one is not None)
    long = [tensor_type(op.lhs).dims[-1] for op in scores]
    long += [tensor_type(one.op.result).dims[one.lengths()[1]] for one in found]
    if len(found) < len(rows) or any((hi := range_of(n, symbols).hi) is None or hi > MAX_WEIGHED_ELEMENTS for n in long):
        return None
    summed = tuple(_summed(op, inside) for op in added)
    alone = not by_blocks and any(one.of_terms and not any(rows.turned == one.turned for rows in found) for one in summed)
    if alone or _comes_back([op for op in added if isinstance(op, nd.ReduceOp) and _adds_terms(op)], {*inside, *weighed}):
        return None
    return CarriedWeights(scores, found, summed)


def _comes_back(sums: Sequence[Operation], inside: Container[Operation]) -> bool:
    """Whether something inside is computed of sums: the kernel that makes both would need its own result."""
    worklist, seen = list(sums), set(sums)
    while worklist:
        users = {use.operation for r in worklist.pop().results for use in r.uses} - seen
        if any(op in inside for op in users):
            return True
        seen |= users
        worklist += users
    return False


def _adds_batches(op: nd.ReduceOp) -> bool:
    """Whether a reduction adds up matrices."""
    rank = tensor_type(op.input).rank
    return op.kind.data == "sum" and all(d < rank - 2 for d in op.dims.data)


def _adds_terms(op: nd.ReduceOp) -> bool:
    """Whether a reduction adds up the terms of each row."""
    return op.kind.data == "sum" and list(op.dims.data) == [tensor_type(op.input).rank - 1]


def _adds_in_rows(op: nd.ScatterOp, weights: SSAValue) -> bool:
    """Whether weights are added to rows of zeros, each to the row of its number."""
    t, base = tensor_type(weights), tensor_type(op.base)
    zeros = isinstance(op.base.owner, nd.FullOp) and getattr(getattr(op.base.owner.value, "value", None), "data", None) == 0
    whole = t.dims[:-1] == base.dims[:-1] and tensor_type(op.index).dims == t.dims
    return op.mode.data == "add" and list(op.dim.data) == [t.rank - 1] and zeros and whole and op.index is not weights


def _summed(op: nd.ReduceOp | nd.ScatterOp, inside: Collection[Operation]) -> SummedWeights:
    turned, beside = _behind(op.input if isinstance(op, nd.ReduceOp) else op.source, inside, False)
    scores = tuple(o for v in turned if isinstance(o := v.owner, nd.MatmulOp) and o in inside)
    return SummedWeights(op, scores, beside, any(turned[score.result] for score in scores))


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
    turned, beside = _behind(op.operands[side], inside, side == 1)
    scores = tuple(o for v in turned if isinstance(o := v.owner, nd.MatmulOp) and o in inside)
    found = WeighedRows(op, side, scores, beside, any(turned[score.result] for score in scores))
    alone = tensor_type(op.result).dims[found.lengths()[0]].value == 1
    return None if alone or not scores else found


def _behind(weights: SSAValue, inside: Container[Operation], is_turned: bool) -> tuple[dict[SSAValue, bool], tuple[SSAValue, ...]]:
    """The values that weights are computed by, with whether rows of these are columns there; and those that come from outside."""
    beside: dict[SSAValue, None] = {}
    worklist, turned = [weights], {weights: is_turned}
    while worklist:
        one = worklist.pop()
        owner = one.owner
        if isinstance(owner, Operation) and owner in inside and not isinstance(owner, nd.MatmulOp):
            new = [v for v in owner.operands if v not in turned]
            turned.update(dict.fromkeys(new, turned[one] ^ _turns(owner)))
            worklist += new
        elif not (isinstance(owner, Operation) and owner in inside) and product(tensor_type(one).dims).value != 1:
            beside[one] = None
    return turned, tuple(beside)


def _turns(op: Operation) -> bool:
    """Whether rows and columns change places."""
    return isinstance(op, nd.PermuteOp) and op.dims.data[-2] > op.dims.data[-1]
