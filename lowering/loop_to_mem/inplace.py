"""Whether a nest may store one of its outs into the memory of a tensor that it reads.

It may when every element is read before it is overwritten, in whatever order and however many at a time the
iterations run. That is so when

- every access to either of the two, at any depth, has the index of each parallel loop around it at the same place of
  its index (so that iterations touch disjoint elements), and
- within an iteration no read follows a store.

Both are asked at every level of the nest: a row may be read by a first inner loop and overwritten by a second one,
but when one loop does both, its index too must stand at the same place in all of them. An index that was loaded from
memory is never such an index. The body of a reduction whose kind may be computed in two passes (`welford`, `softmax`)
runs twice, so that nothing that it reads may be overwritten in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.ir import Block, Operation, SSAValue

from ...dialects import loop
from ...dialects.expr import ONE, Dim, Expr, dim

TWO_PASSES = frozenset({"welford", "softmax"})


@dataclass
class _Access:
    shaped: SSAValue
    index: tuple[Expr, ...]
    is_store: bool


@dataclass
class _Level:
    """The accesses and inner loops of one body, in order; `dims` are its loops (without those of size 1)."""

    dims: list[Dim]
    items: list[_Access | _Level] = field(default_factory=list)
    repeated: bool = False


class NestAccesses:
    """The accesses of a nest by level; built when the first question about the nest is asked."""

    def __init__(self, nest: Operation):
        self._index: dict[SSAValue, Expr] = {}
        self._count = 0
        self.root = self._level(nest)

    def allows(self, source: SSAValue, out: SSAValue) -> bool:
        """Whether stores to `out` (an argument of the body) may go to the memory of `source`, which has the same
        type."""
        return _allows(self.root, (source, out))

    def _new_dim(self) -> Dim:
        self._count += 1
        return dim(self._count - 1)

    def _level(self, op: Operation) -> _Level:
        assert isinstance(op, loop.LoopLike)
        dims = [self._new_dim() for _ in op.loop_sizes]
        level = _Level([d for d, size in zip(dims, op.loop_sizes, strict=True) if size is not ONE])
        level.repeated = isinstance(op, loop.ReduceOp) and not TWO_PASSES.isdisjoint(op.kind_names)
        for region in op.regions:
            for block in region.blocks:
                for d, arg in zip(dims, block.args, strict=False):
                    self._index[arg] = d
                self._block(block, level)
        return level

    def _block(self, block: Block, level: _Level) -> None:
        for op in block.ops:
            if isinstance(op, loop.AccessOp):
                index = op.index_map.apply([self._expr(v) for v in op.index_operands])
                level.items.append(_Access(op.shaped, index, isinstance(op, loop.StoreOp)))
            elif isinstance(op, loop.LoopLike):
                level.items.append(self._level(op))
            elif isinstance(op, loop.IndexOp):
                (self._index[op.result],) = op.map.data.apply([self._expr(v) for v in op.args])

    def _expr(self, value: SSAValue) -> Expr:
        """An index value over the loops; one that was loaded is a dimension of its own, which is no loop."""
        found = self._index.get(value)
        if found is None:
            found = self._index[value] = self._new_dim()
        return found


def _below(level: _Level, pair: tuple[SSAValue, SSAValue]) -> list[_Access]:
    found: list[_Access] = []
    for item in level.items:
        if isinstance(item, _Level):
            found.extend(_below(item, pair))
        elif item.shaped in pair:
            found.append(item)
    return found


def _allows(level: _Level, pair: tuple[SSAValue, SSAValue]) -> bool:
    accesses = _below(level, pair)
    source, out = pair
    if not any(a.shaped is source for a in accesses) or not any(a.is_store for a in accesses):
        return True
    for d in level.dims:
        if not any(all(k < len(a.index) and a.index[k] is d for a in accesses) for k in range(len(accesses[0].index))):
            return False
    stored = False
    for item in level.items:
        if isinstance(item, _Level):
            inside = _below(item, pair)
            reads = any(a.shaped is source for a in inside)
            stores = any(a.is_store and a.shaped is out for a in inside)
            if (reads and stored) or (reads and stores and (item.repeated or not _allows(item, pair))):
                return False
            stored |= stores
        elif item.shaped is out and item.is_store:
            stored = True
        elif item.shaped is source and stored:
            return False
    return True
