"""loop-split-reduction: a reduction in parts that run in parallel, each leaving its partial result in memory, and then merged.

    %s = loop.reduce (%j = N) sum {...}   ->   parts[p] = loop.reduce (%l = L) sum {... j = p * L + l ...}   (a nest, over p too)
                                               %s = loop.reduce (%p = P) sum { parts[p] }

Partial results have the compute type (f32 for f16 and bf16). What is left over when the parts do not divide the size is a part of its own.
What the body of the reduction stores to buffers, the parts store.
Counterparts: `transform.structured.split_reduction` of MLIR, and the split reductions of Inductor.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

from xdsl.dialects.builtin import IndexType
from xdsl.ir import Operation, SSAValue

from ....dialects import loop
from ....dialects.expr import ONE, ZERO, Expr, dim, maximum
from ....dialects.expr.ranges import RangeEnv, simplify
from ....dialects.nd.types import TensorType
from ....dialects.support.replace import erase_op
from ...analysis.dependences import touched_in
from ...analysis.reduction_kinds import Cursor
from ...analysis.schedule_attrs import fix, is_fixed
from .loop_rewrite import Place, Values, clone_into, drop_out, drop_unused, needed, used_by
from .nest_transform import NestTransform, Refused, loop_name, loop_number
from .split_loop import SplitLoop, clone_iteration


@dataclass(frozen=True)
class LoopSplitReduction(NestTransform):
    """Splits reductions into parts, with the partial results in memory."""

    name = "loop-split-reduction"

    part: int = 1
    """Which loop inside of the nest, from 1: a loop.reduce of its body."""

    parts: int = 64
    """The most parts; each is as long as the others, but for one of what is left over."""

    axis: str = "0"
    """The loop of the reduction that is split, by number or by the name of its index."""

    parts_first: bool = False
    """Partial results lie in memory part by part, for nests whose neighbouring iterations write side by side; without, all parts of
    a result lie together."""

    def transform(self, nest: loop.NestOp, target: loop.LoopLike, symbols: RangeEnv) -> str:
        """See the class."""
        if not isinstance(target, loop.ReduceOp):
            raise Refused(f"part {self.part} is a {target.name}, not a loop.reduce")
        if target.parent is not nest.block:
            raise Refused("the reduction stands inside of another loop of the nest")
        if self.parts < 2:
            raise Refused(f"parts: takes a number from 2, got {self.parts}")
        axis = loop_number(target, self.axis)
        name = loop_name(target, axis)
        split = _Split(nest, target, axis, self.parts, symbols, self.parts_first)
        split.check()
        split.rewrite()
        rest = "" if split.rest is ZERO else f" and one of {split.rest}"
        return f"{name} in {split.count} parts of {split.length}{rest}"


class _Split:
    def __init__(self, nest: loop.NestOp, reduce: loop.ReduceOp, axis: int, parts: int, symbols: RangeEnv, parts_first: bool):
        self.nest = nest
        self.reduce = reduce
        self.axis = axis
        self.symbols = symbols
        self.split = SplitLoop(nest, symbols, reduce.location, parts_first)
        size = reduce.loop_sizes[axis]
        self.length = simplify(maximum(ONE, (size + (parts - 1)) // parts), symbols)
        """Iterations of a part; as many parts as are full follow, and the rest."""
        self.count = simplify(size // self.length, symbols)
        self.rest = simplify(size - self.count * self.length, symbols)
        self.slice: list[Operation] = []
        stores = [o.target for o in loop.walk_bodies(reduce) if isinstance(o, loop.StoreOp)]
        self.stored: list[SSAValue] = list(dict.fromkeys(stores))
        """Outs that the body of the reduction stores to, which the parts do then."""

    # ---- legality

    def check(self) -> None:
        """Raises Refused where the parts cannot be computed before the nest. Collects what they need of its body."""
        if any(isinstance(t.type, TensorType) for t in self.stored):
            raise Refused("the body of the reduction stores to a tensor; nests on buffers (behind loop-to-mem) are split then too")
        if any(isinstance(r.type, IndexType) for r in self.reduce.results):
            raise Refused("a result of type index cannot be kept in memory; yield it as i64")
        self.slice = needed(used_by([self.reduce]), self.nest.block)
        for op in self.slice:
            if isinstance(op, loop.LoopLike):
                size = " x ".join(map(str, op.loop_sizes))
                raise Refused(f"it needs the result of another loop over {size}, which each part would repeat; split that one before")
        stored, seen = touched_in(takewhile(lambda op: op is not self.reduce, self.nest.block.ops), self.nest)
        if not seen.isdisjoint(touched_in([self.reduce], self.nest)[0]):
            raise Refused("it stores to memory that the nest accesses before it")
        if not stored.isdisjoint(touched_in((*self.slice, self.reduce), self.nest)[1]):
            raise Refused("it reads what the nest stores before it")
        loads = [o for op in (*self.slice, self.reduce) for o in (op, *loop.walk_bodies(op)) if isinstance(o, loop.LoadOp)]
        if any(o.source in self.nest.out_args and isinstance(o.source.type, TensorType) for o in loads):
            raise Refused("it reads an out of the nest")

    # ---- the rewrite

    def rewrite(self) -> None:
        """Make the nest of parts (and that of the rest) and merge in place of the reduction."""
        outer = self.nest.loop_sizes
        parts = self.count if self.rest is ZERO else self.count + 1
        memory = [self.split.memory(parts, outer, r.type) for r in self.reduce.results]
        memory = self._nest([*outer, self.count], self.length, memory, "parts")
        if self.rest is not ZERO:
            memory = self._nest(list(outer), self.rest, memory, "rest")
        at = Cursor(self.nest.block, self.reduce)
        merged = self.split.merged(at, self.reduce.kind_names, memory, parts, self.nest.indices)
        loop.take_uses(self.reduce.results, merged)
        erase_op(self.reduce)
        drop_unused(self.slice)
        for argument in [t for t in self.stored if t in self.nest.out_args and not any(True for _ in t.uses)]:
            drop_out(self.nest, argument)

    def _nest(self, sizes: list[Expr], length: Expr, memory: list[SSAValue], what: str) -> list[SSAValue]:
        """A nest over `sizes` that reduces `length` iterations into `memory`; that memory afterwards. The last of `sizes`, where there
        is one more than the nest has loops, counts parts."""
        loops = len(self.nest.loop_sizes)
        outer = dict(zip(self.nest.out_args, self.nest.outs, strict=True))
        made, values = self.split.open(sizes, [*memory, *(outer.get(t, t) for t in self.stored)], f"{self.split.name}_{what}")
        values.update(zip(self.stored, made.out_args[len(memory) :], strict=True))
        at = Cursor(made.block)
        for op in self.slice:
            at.place(clone_into(op, values, {}, self.symbols))
        part = list(made.indices[loops:])
        reduced = self._reduce_part(length, part, values)
        at.place(reduced)
        if is_fixed(self.reduce) and is_fixed(self.nest):
            fix(made)
        for old, new in zip(self.reduce.results, reduced.results, strict=True):
            new.name_hint = old.name_hint
        self.split.store(at, reduced.results, made, self.split.place(loops, None if part else self.count))
        for old, new in zip(memory, made.results, strict=False):
            new.name_hint = old.name_hint
        return list(made.results) or memory

    def _reduce_part(self, length: Expr, part: list[SSAValue], values: Values) -> loop.ReduceOp:
        """The reduction over one part: the split loop is shorter and begins later."""
        old = self.reduce
        sizes = list(old.loop_sizes)
        sizes[self.axis] = length
        new = loop.ReduceOp.build_reduce(sizes, old.kind_names, old.result_types, old.location)
        if is_fixed(old):
            fix(new)
        for mine, theirs in zip(new.indices, old.indices, strict=True):
            mine.name_hint = theirs.name_hint
        first = dim(1) * self.length if part else self.count * self.length
        place: Place = (dim(0) + first, [new.indices[self.axis], *part])
        inside = {**values, **dict(zip(old.indices, new.indices, strict=True))}
        clone_iteration(old.block, Cursor(new.block), old.indices[self.axis], place, inside, self.symbols)
        return new
