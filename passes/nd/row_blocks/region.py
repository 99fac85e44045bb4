"""What rows of a wide product are for: the operations that a block of these rows can do without the other rows.

A region grows from a product [R, V]. All that reads a value of its width joins, and what such operations need of the product besides. Each
value has its rows in front, in one dimension or several; a matrix that was transposed for a product has them last. What ends a region are
values of few columns for each row, and sums (or maxima) over all rows, which are put together from those of the blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.dialects.func import ReturnOp
from xdsl.ir import Operation, SSAValue

from ....dialects import nd
from ....dialects.expr import ONE, ZERO, Expr, product
from ....dialects.nd.pointwise import PointwiseOp
from ....dialects.nd.types import TensorType, tensor_type
from ...cost.library_cost import size

JOINED_BY: dict[str, str] = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "any": "or", "all": "and"}
"""Kind of a reduction -> operation that puts the results of two blocks together."""
_COMPUTED = (PointwiseOp, nd.IotaOp, nd.FullOp, nd.ExpandOp, nd.ReshapeOp, nd.MatmulOp)
"""What a block computes for its own rows even if the product is no part of it: as a whole it would be as large as the product."""


class NotByBlocks(Exception):
    """Steers: no region, and why."""


@dataclass(eq=False)
class RowRegion:
    """The operations that follow from one product, in program order.

    `rows`: how many there are. `places`: for each value with rows, how many of its leading dimensions are rows; None where the last one
    of two is. `joined`: for the values that all rows give together, the kind of reduction. `outputs`: the values that others read."""

    seed: Operation
    rows: Expr
    members: list[Operation] = field(default_factory=list)
    places: dict[SSAValue, int | None] = field(default_factory=dict)
    joined: dict[SSAValue, str] = field(default_factory=dict)
    outputs: list[SSAValue] = field(default_factory=list)
    after: set[Operation] = field(default_factory=set)
    """Operations of the function that follow from the product."""
    behind: list[Operation] = field(default_factory=list)
    """Operations between the first and the last member that read an output."""

    @property
    def wide(self) -> SSAValue:
        """What it grows from."""
        return self.seed.results[0]

    def leading(self, t: TensorType) -> int | None:
        """How many leading dimensions of a type the rows are, if they are."""
        return next((k for k in range(1, t.rank + 1) if product(t.dims[:k]) is self.rows), None)

    def is_given(self, x: SSAValue) -> bool:
        """Whether a value comes from outside."""
        return x not in self.places and x not in self.joined


def region_of(seed: Operation, position: Mapping[Operation, int], hints: Mapping[str, int]) -> RowRegion:
    """The region of a product of two matrices, or of another value whose last dimension is the columns. `position`: the place of each
    operation of the function. Raises NotByBlocks."""
    region = RowRegion(seed, product(tensor_type(seed.results[0]).dims[:-1]))
    depends = region.after = _depending(seed, position)
    found = _closure(region, depends, hints)
    region.members = sorted(found, key=position.__getitem__)
    for op in region.members:
        _place(region, op)
    last = max(position[op] for op in region.members if op in depends)
    region.outputs = [r for op in region.members if op in depends for r in op.results if any(u.operation not in found for u in r.uses)]
    between = (op for op, at in position.items() if position[seed] < at < last)
    for op in between:
        if _has_effect(op):
            raise NotByBlocks(f"{op.name} between its operations has an effect")
        if op in depends and op not in found:
            region.behind.append(op)
    return region


def _has_effect(op: Operation) -> bool:
    return not op.results or not {"effect", "mutates", "binds"}.isdisjoint(op.properties)


def _depending(seed: Operation, position: Mapping[Operation, int]) -> set[Operation]:
    """The operations that the product leads to, itself among them."""
    found = {seed}
    for op, at in position.items():
        if at > position[seed] and any(x.owner in found for x in op.operands):
            found.add(op)
    return found


def _closure(region: RowRegion, depends: set[Operation], hints: Mapping[str, int]) -> set[Operation]:
    """The seed, what reads wide values, and what these operations need."""
    half = size(tensor_type(region.wide).numel, hints) // 2

    def is_wide(x: SSAValue) -> bool:
        return isinstance(x.type, TensorType) and size(x.type.numel, hints) > half

    found: set[Operation] = set()
    waiting: list[Operation] = [region.seed]
    while waiting:
        op = waiting.pop()
        if op in found:
            continue
        found.add(op)
        for x in op.operands:
            owner = x.owner
            if isinstance(owner, Operation) and (owner in depends or (is_wide(x) and isinstance(owner, _COMPUTED))):
                waiting.append(owner)
        for user in _users(op, is_wide) if op in depends else ():
            if isinstance(user, ReturnOp):
                raise NotByBlocks("its rows are a result of the graph")
            waiting.append(user)
    return found


def _users(op: Operation, is_wide: Callable[[SSAValue], bool]) -> Iterator[Operation]:
    return (use.operation for r in op.results if is_wide(r) for use in r.uses)


# ---- where the rows of a value lie


def _place(region: RowRegion, op: Operation) -> None:
    """Say where the rows of an operation's results are. Raises NotByBlocks for one that a block cannot do."""
    rule = _RULES.get(type(op)) or (_pointwise if isinstance(op, PointwiseOp) else None)
    if rule is None:
        raise NotByBlocks(f"{op.name} is not done block by block")
    if any(x in region.joined for x in op.operands):
        raise NotByBlocks(f"{op.name} reads what all rows give")
    rule(region, op)


def _rows_of(region: RowRegion, x: SSAValue, op: Operation) -> int:
    """The leading dimensions of a value that are its rows."""
    found = region.leading(tensor_type(x)) if region.is_given(x) else region.places[x]
    if found is None:
        raise NotByBlocks(f"{op.name} reads a value of which the rows are not in front")
    return found


def _pointwise(region: RowRegion, op: Operation) -> None:
    t = tensor_type(op.results[0])
    found = [(x, _rows_of(region, x, op)) for x in op.operands if not region.is_given(x)]
    count = found[0][1] if found else region.leading(t)
    if count is None or any(k != count or tensor_type(x).rank != t.rank or tensor_type(x).dims[:k] != t.dims[:k] for x, k in found):
        raise NotByBlocks(f"{op.name} joins rows of different shapes")
    region.places[op.results[0]] = count


def _reduce(region: RowRegion, op: Operation) -> None:
    count = _rows_of(region, op.operands[0], op)
    dims: Sequence[int] = op.dims.data  # pyright: ignore[reportAttributeAccessIssue]
    if all(d >= count for d in dims):
        region.places.update(dict.fromkeys(op.results, count))
        return
    kind = op.kind.data if isinstance(op, nd.ReduceOp) else ""
    if kind not in JOINED_BY or not set(range(count)) <= set(dims):
        raise NotByBlocks(f"{op.name} over rows has no results of blocks to join")
    region.joined[op.results[0]] = kind


def _look_up(region: RowRegion, op: Operation) -> None:
    """nd.gather and nd.scatter, whose first operand the dimension is one of."""
    (dim,) = op.dim.data  # pyright: ignore[reportAttributeAccessIssue]
    counts = {_rows_of(region, x, op) for x in op.operands}
    rows = {tensor_type(x).dims[: min(counts)] for x in op.operands}
    if dim < max(counts) or len(counts) != 1 or len(rows) != 1:
        raise NotByBlocks(f"{op.name} takes elements of other rows")
    region.places[op.results[0]] = min(counts)


def _reshape(region: RowRegion, op: Operation) -> None:
    _rows_of(region, op.operands[0], op)
    count = region.leading(tensor_type(op.results[0]))
    if count is None:
        raise NotByBlocks("nd.reshape joins rows and columns")
    region.places[op.results[0]] = count


def _permute(region: RowRegion, op: Operation) -> None:
    assert isinstance(op, nd.PermuteOp)
    if region.is_given(op.input):
        raise NotByBlocks("nd.permute of a value from outside")
    count = region.places[op.input]
    order = op.dims.data
    if order == (1, 0) and count in (1, None):
        region.places[op.result] = None if count == 1 else 1
    elif count is not None and order[:count] == tuple(range(count)):
        region.places[op.result] = count
    else:
        raise NotByBlocks("nd.permute moves the rows")


def _slice(region: RowRegion, op: Operation) -> None:
    assert isinstance(op, nd.SliceOp)
    count = _rows_of(region, op.input, op)
    whole = tensor_type(op.input).dims[:count] == tensor_type(op.result).dims[:count]
    if not whole or any(s is not ZERO for s in op.starts.data[:count]) or any(s is not ONE for s in op.steps.data[:count]):
        raise NotByBlocks("nd.slice takes some of the rows")
    region.places[op.result] = count


def _matmul(region: RowRegion, op: Operation) -> None:
    """A product of rows by a matrix from outside has rows; one that sums over rows is the sum of those of the blocks."""
    assert isinstance(op, nd.MatmulOp)
    given = [region.is_given(x) for x in op.operands]
    places = [region.places.get(x) for x in op.operands]
    rows = tensor_type(op.lhs).dims[0] is region.rows if given[0] else places[0] == 1
    if tensor_type(op.result).rank != 2:
        raise NotByBlocks("nd.matmul of batches")
    if given[1] and rows:
        region.places[op.result] = 1
    elif not all(given) and places[0] is None and (given[1] or places[1] == 1):
        region.joined[op.result] = "sum"
    else:
        raise NotByBlocks("nd.matmul mixes rows")


def _iota(region: RowRegion, op: Operation) -> None:
    assert isinstance(op, nd.IotaOp)
    count = region.leading(tensor_type(op.result))
    if count is None or op.dim.data[0] < count:
        raise NotByBlocks("nd.iota counts rows")
    region.places[op.result] = count


_RULES: dict[type[Operation], Callable[[RowRegion, Operation], None]] = {
    nd.ReduceOp: _reduce,
    nd.ArgReduceOp: _reduce,
    nd.VarMeanOp: _reduce,
    nd.GatherOp: _look_up,
    nd.ScatterOp: _look_up,
    nd.ReshapeOp: _reshape,
    nd.PermuteOp: _permute,
    nd.SliceOp: _slice,
    nd.ExpandOp: _pointwise,
    nd.FullOp: _pointwise,
    nd.MatmulOp: _matmul,
    nd.IotaOp: _iota,
}
