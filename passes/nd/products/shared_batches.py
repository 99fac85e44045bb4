"""Products and what lies between them with the same batch dimensions, so that their nests have the same loops.

    %s = nd.matmul %q, %k : 16 x N x M ; %t = nd.reshape %s : 2 x 8 x N x M ; %u = f(%t) ; %p = softmax(nd.reshape %u : 16 x N x M)
    ->  %q, %k = nd.reshape ... : 2 x 8 x ... ; %s = nd.matmul %q, %k : 2 x 8 x N x M ; %p = softmax(f(%s)) : 2 x 8 x N x M

A program that flattens heads into the batch, and parts them again for a mask, gives two kinds of loops to one attention. The dimensions
that all others merge are taken for all, and merged again where a kernel has fewer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from xdsl.ir import Block, Operation, SSAValue

from ....dialects import nd
from ....dialects.expr import ONE, Expr, product
from ....dialects.nd.base import IntsAttr
from ....dialects.nd.pointwise import PointwiseOp
from ....dialects.nd.types import tensor_type
from ....dialects.support.replace import erase_op

Dims = tuple[Expr, ...]


def share_batches(scores: Collection[nd.MatmulOp], weighed: Collection[nd.MatmulOp], two: bool = False) -> bool:
    """Give products of scores, the ones that are weighed by these, and what lies between, as many batch dimensions as any of it has, `two`
    at most; whether that changed something. Views around them keep the types that others see."""
    region = _Region.of(next(iter(scores)))
    if region.batch is ONE:
        return False
    for op in (*scores, *weighed):
        region.add(op.result, 2)
    region.grow()
    batch = region.shared_batch(two) if region.is_aligned() else None
    if batch is None:
        return False
    region.rewrite(batch)
    return True


@dataclass(frozen=True)
class _Batch:
    """Batch dimensions: the finest that a value has, and those that all values get, each of which merges some of these."""

    finest: Dims
    dims: Dims

    def parted(self, own: Dims, dims: Dims, prefix: int) -> tuple[Dims, list[Dims]]:
        """The sizes of an operand in each of the batch dimensions, by the finest of them, and behind them: of an operation that gives
        `dims`, `prefix` of them the batch."""
        tail = len(dims) - prefix
        front = [ONE] * (len(dims) - len(own)) + list(own[: len(own) - tail])
        groups = _groups(dims[:prefix], self.finest)
        assert groups is not None
        fine = iter([n for size, group in zip(front, groups, strict=True) for n in ([ONE] * len(group) if size is ONE else group)])
        return own[len(own) - tail :], [tuple(next(fine) for _ in self.finest_of(k)) for k in range(len(self.dims))]

    def finest_of(self, k: int) -> Dims:
        """What one of the dimensions merges."""
        merged = _groups(self.dims, self.finest)
        assert merged is not None
        return merged[k]

    def is_part(self, k: int, sizes: Dims) -> bool:
        """Whether an operand has a part of what one of the dimensions merges."""
        return product(sizes) not in (ONE, self.dims[k])


@dataclass
class _Region:
    """Values with one number for each score, or for each row of them, whose first dimensions are the batch."""

    batch: Expr
    sizes: tuple[Expr, ...]
    prefixes: dict[SSAValue, int] = field(default_factory=dict)
    """The values, and how many dimensions of each are the batch."""

    @classmethod
    def of(cls, scores: nd.MatmulOp) -> _Region:
        *batch, rows, columns = tensor_type(scores.result).dims
        count = product(batch)
        return cls(count, (count * rows * columns, count * rows, count * columns))

    def add(self, value: SSAValue, tail: int | None = None) -> bool:
        """Take a value in, if its first dimensions are the batch; whether it is new. `tail`: how many dimensions are behind these; others
        may have as many elements by chance. Two where nobody says it and they may be: a dimension of one element is the batch's, too."""
        if value in self.prefixes:
            return False
        dims = tensor_type(value).dims
        possible = (max(len(dims) - (2 if tail is None else tail), 0), *(range(1, len(dims) + 1) if tail is None else ()))
        found = next((k for k in possible if product(dims[:k]) is self.batch), None)
        if found is not None:
            self.prefixes[value] = found
        return found is not None

    def tail(self, value: SSAValue) -> int:
        """How many dimensions of a value are behind the batch."""
        return tensor_type(value).rank - self.prefixes[value]

    def is_aligned(self) -> bool:
        """Whether operands of each product and operation on elements have as many dimensions behind the batch as its result."""
        computed = [v for v in self.prefixes if isinstance(v.owner, (PointwiseOp, nd.MatmulOp))]
        return all(self.tail(v) == self.tail(x) for v in computed for x in v.owner.operands if x in self.prefixes)  # pyright: ignore[reportAttributeAccessIssue]

    def grow(self) -> None:
        """Take in all that is computed of values inside, and what they are computed of."""
        worklist = list(self.prefixes)
        while worklist:
            value = worklist.pop()
            op = value.owner
            near = [use.operation for use in value.uses]
            near += [v.owner for v in op.operands] if isinstance(op, Operation) and not isinstance(op, nd.MatmulOp) else []
            for other in near:
                if not isinstance(other, Operation) or not self._follows(other):
                    continue
                between = other if value in other.operands else op
                if self.add(other.results[0], self._tail_across(between, value)):
                    worklist.append(other.results[0])

    def _tail_across(self, op: Operation | Block, value: SSAValue) -> int | None:
        """How many dimensions are behind the batch where `op` alone is between a tensor and a value of the region; None where it may change
        that."""
        if isinstance(op, nd.ReduceOp):
            return self.tail(value) - len(op.dims.data)
        return self.tail(value) if isinstance(op, (PointwiseOp, nd.PermuteOp)) else None

    def _follows(self, op: Operation) -> bool:
        """Whether an operation near values of the region has the batch of these."""
        if not isinstance(op, (PointwiseOp, nd.RandomOp, nd.ReshapeOp, nd.PermuteOp, nd.ReduceOp)):
            return False
        if isinstance(op, (PointwiseOp, nd.RandomOp)):
            return product(tensor_type(op.results[0]).dims) in self.sizes
        source = op.operands[0]
        if source not in self.prefixes or product(tensor_type(op.results[0]).dims) not in self.sizes:
            return False
        first = range(self.prefixes[source])
        if isinstance(op, nd.PermuteOp):
            return tuple(op.dims.data[: len(first)]) == tuple(first)
        return isinstance(op, nd.ReshapeOp) or all(d not in first for d in op.dims.data)

    def shared_batch(self, two: bool) -> _Batch | None:
        """The batch dimensions that all others merge, or, of `two`, those of which the fewest operands have a part; None where all are the
        same, or there are none."""
        computed = [(v, k) for v, k in self.prefixes.items() if not isinstance(v.owner, nd.ReshapeOp)]
        found = {tuple(n for n in tensor_type(v).dims[:k] if n is not ONE) for v, k in computed}
        finest = max(found, key=len)
        batch = _Batch(finest, finest)
        if two and len(finest) > 2:
            splits = [_Batch(finest, (product(finest[:k]), product(finest[k:]))) for k in range(1, len(finest))]
            batch = min(splits, key=self._parts)
        many = two and any(k > 2 for _, k in computed)  # some of one element, perhaps
        changes = many or found != {batch.dims}
        return batch if changes and all(_groups(dims, finest) is not None for dims in found) else None

    def _parts(self, batch: _Batch) -> int:
        """How many operands have a part of one of these batch dimensions."""
        found = 0
        for value, prefix in self.prefixes.items():
            dims = tensor_type(value).dims
            if not isinstance(value.owner, PointwiseOp) or _groups(dims[:prefix], batch.finest) is None:
                continue
            outside = [tensor_type(v).dims for v in value.owner.operands if v not in self.prefixes]
            parted = [batch.parted(own, dims, prefix)[1] for own in outside if len(own) > len(dims) - prefix]
            found += sum(batch.is_part(k, sizes) for groups in parted for k, sizes in enumerate(groups))
        return found

    def rewrite(self, shared: _Batch) -> None:
        """Put each operation again, with these batch dimensions."""
        batch = shared.dims
        block = next(iter(self.prefixes)).owner.parent
        assert isinstance(block, Block)
        old = [op for op in block.ops if op.results and op.results[0] in self.prefixes]
        new: dict[SSAValue, SSAValue] = {}
        for op in old:
            (result,) = op.results
            t, prefix = tensor_type(result), self.prefixes[result]
            if isinstance(op, nd.ReshapeOp) and new[op.input].type == t.with_dims((*batch, *t.dims[prefix:])):
                new[result] = new[op.input]
                continue
            made = op.clone()
            views = list(self._operands(made, shared, new, t.dims, prefix))
            made.results[0]._type = t.with_dims((*batch, *t.dims[prefix:]))  # pyright: ignore[reportAttributeAccessIssue]
            if isinstance(made, (nd.PermuteOp, nd.ReduceOp)):
                self._shift(made, op.operands[0], batch)
            block.insert_ops_before([*views, made], op)
            new[result], made.results[0].name_hint = made.results[0], result.name_hint
        inside = set(old)
        for op in reversed(old):
            outside = [use for use in op.results[0].uses if use.operation not in inside]
            if outside:
                view = nd.ReshapeOp.new((new[op.results[0]],), tensor_type(op.results[0]))
                block.insert_op_before(view, op)
                for use in outside:
                    use.operation.operands[use.index] = view.result
        for op in reversed(old):
            erase_op(op, safe_erase=False)

    def _operands(self, made: Operation, batch: _Batch, new: dict[SSAValue, SSAValue], dims: Dims, prefix: int) -> Iterator[Operation]:
        """Give an operation the operands that it has with other batch dimensions; the views that this takes."""
        for k, value in enumerate(made.operands):
            if value in new:
                made.operands[k] = new[value]
                continue
            own = tensor_type(value).dims
            views: Iterable[Operation] = ()
            if isinstance(made, nd.MatmulOp):
                views = _resized(value, [(*batch.dims, *own[-2:])])
            elif isinstance(made, PointwiseOp) and len(own) > len(dims) - prefix:
                tail, sizes = batch.parted(own, dims, prefix)
                whole = [batch.finest_of(k) if batch.is_part(k, group) else group for k, group in enumerate(sizes)]
                steps = [sizes, whole] if whole != sizes else []
                views = _resized(value, [*((*chain(*step), *tail) for step in steps), (*map(product, whole), *tail)])
            for view in views:
                made.operands[k] = view.results[0]
                yield view

    def _shift(self, made: nd.PermuteOp | nd.ReduceOp, source: SSAValue, batch: Dims) -> None:
        """The dimensions that an operation names, of a value with other batch dimensions."""
        before = self.prefixes[source]
        dims = [d + len(batch) - before for d in made.dims.data if d >= before]
        made.properties["dims"] = IntsAttr.get(tuple([*range(len(batch)), *dims] if isinstance(made, nd.PermuteOp) else dims))


def _groups(dims: Dims, batch: Dims) -> list[Dims] | None:
    """The dimensions of a batch that each of `dims` merges; None where these are no merged ones."""
    found: list[Dims] = []
    rest = list(batch)
    for size in dims:
        taken: list[Expr] = []
        while product(taken) is not size:
            if not rest:
                return None
            taken.append(rest.pop(0))
        found.append(tuple(taken))
    return None if rest else found


def _resized(value: SSAValue, steps: Iterable[Dims]) -> Iterator[Operation]:
    """The views that give a tensor these sizes, one after the other: repeated where it has none of a dimension."""
    for dims in steps:
        t = tensor_type(value)
        if t.dims == dims:
            continue
        view = (nd.ReshapeOp if product(t.dims) is product(dims) else nd.ExpandOp).new((value,), t.with_dims(dims))
        value = view.results[0]
        yield view
