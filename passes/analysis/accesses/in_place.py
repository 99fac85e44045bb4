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

Reads at places that no store of the nest reaches, in whatever iteration, ask for nothing: the ends of a row that are copied to its other
ends.

A tensor that is seen with other sizes than those that the nest stores (a matrix product read as a batch of rows) may be
overwritten where all accesses to the two are in the same loops and at the same address, a different one in each
iteration.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.ir import Block, Operation, SSAValue

from ....dialects import loop
from ....dialects.expr import ONE, Dim, Expr, dim, free_dims, simplify
from ....dialects.expr.ranges import Range, RangeEnv
from ....dialects.mem import BufferType
from .disjoint import never_equal

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


class InPlaceAccesses:
    """The accesses of a nest by level; built when the first question about the nest is asked."""

    def __init__(self, nest: Operation):
        self._index: dict[SSAValue, Expr] = {}
        self._count = 0
        self._sizes: dict[Dim, Expr] = {}
        self.root = self._level(nest)

    def allows(self, source: SSAValue, out: SSAValue, env: RangeEnv) -> bool:
        """Whether stores to `out` (an argument of the body) may go to the memory of `source`, which has the same
        type. `env` is what is known of symbols."""
        pair = source, out
        if _allows(self.root, pair):
            return True
        accesses = _below(self.root, pair)
        stores = [a for a in accesses if a.is_store]
        ranges = self._twice(env)
        apart = [a for a in accesses if a.shaped is source and all(self._apart(a, s, ranges) for s in stores)]
        return bool(apart) and _allows(_without(self.root, {id(a) for a in apart}), pair)

    def _twice(self, env: RangeEnv) -> RangeEnv:
        """What is known of symbols, of the loops, and of the loops again, with numbers of their own, for another iteration."""
        found: dict[Expr, Range] = {**env}
        for d, size in self._sizes.items():
            found[d] = found[dim(d.index + self._count)] = Range.of_size(size)
        return RangeEnv(found)

    def _apart(self, read: _Access, store: _Access, ranges: RangeEnv) -> bool:
        """Whether an access never goes to the element of another one, each in any iteration: somewhere in the index one is always behind
        the other."""
        known = [pair for pair in zip(read.index, store.index, strict=True) if all(d in self._sizes for e in pair for d in free_dims(e))]
        moved = [e.subs({d: dim(d.index + self._count) for d in free_dims(e)}) for _, e in known]
        return never_equal([e for e, _ in known], moved, ranges)

    def same_address(self, source: SSAValue, place: BufferType, out: SSAValue, stored: BufferType, env: RangeEnv) -> bool:
        """Whether each iteration of the nest reads `source` (of type `place`) only where it stores to `out` (of type
        `stored` in the same memory), and before it does."""
        pair = source, out
        accesses = _below(self.root, pair)
        stores = [a for a in accesses if a.is_store]
        if not stores or any(not e.value == 0 and not isinstance(e, Dim) for e in stores[0].index):
            return False
        walked: set[Expr] = {e for e in stores[0].index if isinstance(e, Dim)}
        if not _in_loops(self.root, pair, walked) or _read_after_store(self.root, pair, [False]):
            return False
        ranges = RangeEnv({**env, **{d: Range.of_size(size) for d, size in self._sizes.items()}})
        addresses = {_address(a.index, place if a.shaped is source else stored, ranges) for a in accesses}
        return len(addresses) == 1

    def _new_dim(self, size: Expr | None = None) -> Dim:
        self._count += 1
        made = dim(self._count - 1)
        if size is not None:
            self._sizes[made] = size
        return made

    def _level(self, op: Operation) -> _Level:
        assert isinstance(op, loop.LoopLike)
        dims = [self._new_dim(size) for size in op.loop_sizes]
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


def _without(level: _Level, left_out: set[int]) -> _Level:
    """A level without some of its accesses, by identity."""
    items = [_without(i, left_out) if isinstance(i, _Level) else i for i in level.items if id(i) not in left_out]
    return _Level(level.dims, items, level.repeated)


def _address(index: tuple[Expr, ...], t: BufferType, ranges: RangeEnv) -> Expr:
    place = t.offset_expr
    for e, stride in zip(index, t.stride_exprs, strict=True):
        place = place + e * stride
    return simplify(place, ranges)


def _in_loops(level: _Level, pair: tuple[SSAValue, SSAValue], walked: set[Expr], outer: frozenset[Dim] = frozenset()) -> bool:
    """Whether every access to the pair stands in the loops `walked` and in no others."""
    inside = outer | frozenset(level.dims)
    for item in level.items:
        if isinstance(item, _Level):
            if not _in_loops(item, pair, walked, inside) or (item.repeated and _below(item, pair)):
                return False
        elif item.shaped in pair and inside != walked:
            return False
    return True


def _read_after_store(level: _Level, pair: tuple[SSAValue, SSAValue], stored: list[bool]) -> bool:
    for item in level.items:
        if isinstance(item, _Level):
            if _read_after_store(item, pair, stored):
                return True
        elif item.is_store and item.shaped is pair[1]:
            stored[0] = True
        elif item.shaped is pair[0] and stored[0]:
            return True
    return False


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
