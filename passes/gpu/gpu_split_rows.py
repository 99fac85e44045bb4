"""gpu-split-rows: the rows of a nest that accumulates columns over all of them, shared out among programs.

    loop.nest () { for (%j) { %dw[%j] = 0 }; for (%i = N) { ...; for (%j) { store ..., %dx[%i, %j]; store ..., %dw[%j] add } } }

as loop-fuse-rows leaves it, becomes a nest over P parts, with a row of partial sums for each part, and a nest that adds these up. Part p
has the rows p, p + P, p + 2 P, ...: programs side by side read neighbouring memory, and none has more than one row more than another.
Where P does not divide N, what a row stores stands under the condition that there is one, with which a program's loop ends
(accumulate.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp, StringAttr, i1
from xdsl.ir import Block, Operation, SSAValue

from ...dialects import loop, mem
from ...dialects.expr import ZERO, Expr, IndexMap, as_expr, ceildiv, dim, product
from ...dialects.expr.ranges import RangeEnv, simplify
from ...dialects.support.replace import replace_op
from ..analysis.nest_key import is_nest_in_memory
from ..analysis.reduction_kinds import Cursor
from ..analysis.symbols import symbol_facts
from ..cost.machine import Gpu, machine_of
from ..loop.transform.loop_rewrite import Place, clone_into, drop_index, index_op, index_operands
from ..loop.transform.nest_transform import label_of
from ..manager.pass_manager import Pass
from .atomics import KINDS
from .tiles.tile import COPIED_TILE_ELEMENTS, Sizes, power_of_two

MIN_WAVES_OF_SMALL_TILES = 4
"""How many times as many programs run at once where a tile of them is enough for one or two warps."""
MIN_PART_ROWS = 16
"""Rows of a part at least, where there are more parts than programs wanted: their sums are written and read once more."""


@dataclass(frozen=True)
class GpuSplitRows(Pass):
    """Shares out the rows of nests that accumulate columns."""

    name = "gpu-split-rows"

    programs: int = 0
    """How many programs there should be; 0: those that are resident, whose registers hold the columns. Where rows are short there are more,
    and each has several parts."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        symbols, hints = symbol_facts(op)
        sizes, programs = Sizes(hints), self.programs or machine_of(op, Gpu).resident_programs
        for nest in [n for n in op.walk() if is_nest_in_memory(n)]:
            assert isinstance(nest, loop.NestOp)
            rows = row_loop(nest)
            if rows is None:
                continue
            size = rows.loop_sizes[0]
            width = power_of_two(max(sizes(product(n.loop_sizes)) for n in _loops_in(rows)))
            most = programs * (MIN_WAVES_OF_SMALL_TILES * COPIED_TILE_ELEMENTS // width if width <= COPIED_TILE_ELEMENTS else 1)
            count = max(programs, min(most, sizes(size) // MIN_PART_ROWS))
            split = _Split(nest, rows, count if size.value is None else max(1, min(count, size.value)), symbols)
            split.rewrite()
            self.statistic("num-split")
            self.remark(nest, f"{size} rows in {split.parts} parts", kind="applied")


def _loops_in(rows: loop.ForOp) -> list[loop.LoopLike]:
    return [op for op in rows.block.ops if isinstance(op, loop.LoopLike)]


def row_loop(nest: loop.NestOp) -> loop.ForOp | None:
    """The loop over rows of a nest without loops of its own that accumulates columns; None for another nest."""
    if nest.loop_sizes:
        return None
    for op in nest.block.ops:
        if isinstance(op, loop.ForOp) and op.sequential is None and len(op.loop_sizes) == 1 and accumulated(op):
            return op
    return None


def accumulated(rows: loop.ForOp) -> dict[SSAValue, str]:
    """The outs (inside of the nest) that the rows combine with, and the mode, where no index depends on the row."""
    found: dict[SSAValue, str] = {}
    for op in loop.walk_bodies(rows):
        if isinstance(op, loop.StoreOp) and op.store_mode != "set":
            if rows.indices[0] in op.index_operands or found.get(op.target, op.store_mode) != op.store_mode:
                return {}
            found[op.target] = op.store_mode
    return found


class _Split:
    def __init__(self, nest: loop.NestOp, rows: loop.ForOp, count: int, symbols: RangeEnv):
        self.nest = nest
        self.rows = rows
        self.symbols = symbols
        self.size = rows.loop_sizes[0]
        self.parts = as_expr(count)
        self.length = simplify(ceildiv(self.size, count), symbols)
        self.even = simplify(self.length * count - self.size, symbols) is ZERO
        self.modes = accumulated(rows)

    def rewrite(self) -> None:
        """Write the nests of parts, those that add up, and those of what follows; the old one goes."""
        outer = dict(zip(self.nest.out_args, self.nest.outs, strict=True))
        memory = {arg: self._memory(arg) for arg in self.modes}
        self._rows(memory)
        alike: dict[tuple[Expr, ...], list[SSAValue]] = {}
        for arg in self.modes:
            alike.setdefault(tuple(loop.shaped_dims(arg.type)), []).append(arg)
        for dims, args in alike.items():
            self._add_up(dims, [memory[a] for a in args], [outer[a] for a in args], [KINDS[self.modes[a]] for a in args])
        after = list(self.nest.block.ops)
        after = after[after.index(self.rows) + 1 :]
        for op in after:
            if isinstance(op, loop.ForOp):
                self._follow(op, outer)
        self.nest.detach()
        self.nest.erase(safe_erase=False)

    def _before(self, op: Operation) -> None:
        op.location = self.nest.location
        assert self.nest.parent is not None
        self.nest.parent.insert_op_before(op, self.nest)

    def _memory(self, arg: SSAValue) -> SSAValue:
        t = arg.type
        assert isinstance(t, mem.BufferType)
        kind = mem.BufferType.get((self.parts, *loop.shaped_dims(t)), t.element_type, None, 0, t.device.data)
        made = mem.AllocOp.create(result_types=[kind], properties={"kind": StringAttr("arena")})
        self._before(made)
        return made.result

    def _rows(self, memory: dict[SSAValue, SSAValue]) -> None:
        """The nest of the parts."""
        plain = [(a, o) for a, o in zip(self.nest.out_args, self.nest.outs, strict=True) if a not in memory]
        outs = [*(o for _, o in plain), *memory.values()]
        made = loop.NestOp.build_nest([self.parts], outs)
        if self.nest.label is not None:
            made.properties["label"] = self.nest.label
        values = dict(zip([*(a for a, _ in plain), *memory], made.out_args, strict=True))
        columns = set(made.out_args[len(plain) :])
        part = made.indices[0]
        at = Cursor(made.block)
        for op in self.nest.block.ops:
            if op is self.rows:
                self._row_loop(at, values, part)
                break
            at.place(clone_into(op, values, {}, self.symbols))
        for op in list(loop.walk_bodies(made)):
            if isinstance(op, (loop.LoadOp, loop.StoreOp)) and op.shaped in columns:
                _in_part(op, part)
        self._before(made)

    def _row_loop(self, at: Cursor, values: dict[SSAValue, SSAValue], part: SSAValue) -> None:
        rows = loop.ForOp.build_for([self.length])
        rows.location = self.rows.location
        place: Place = (dim(0) * self.parts + dim(1), [rows.indices[0], part])
        inside = Cursor(rows.block)
        number = inside.place(index_op(*place)).results[0]
        there = None if self.even else inside.compare("slt", number, inside.place(index_op(self.size, [])).results[0])
        values[self.rows.indices[0]] = number
        for op in self.rows.block.ops:
            inside.place(clone_into(op, values, {number: place}, self.symbols))
        if there is not None:
            only_where(there, list(loop.walk_bodies(rows)), set(rows.indices))
        else:
            drop_index(number)
        at.place(rows)

    def _add_up(self, dims: Sequence[Expr], memory: Sequence[SSAValue], targets: Sequence[SSAValue], kinds: Sequence[str]) -> None:
        """A nest that reduces the parts of outs of one shape."""
        made = loop.NestOp.build_nest(list(dims), targets)
        made.properties["label"] = StringAttr(f"{label_of(self.nest)} columns")
        parts = loop.shaped_dims(memory[0].type)[0]
        at = Cursor(made.block)
        reduce = loop.ReduceOp.build_reduce([parts], kinds, [loop.element_type(t.type) for t in targets])
        inside = Cursor(reduce.block)
        rank = len(dims)
        place = IndexMap(rank + 1, (dim(rank), *map(dim, range(rank))))
        loads = [inside.place(loop.LoadOp.new(m, place, [*made.indices, reduce.block.args[0]])).results[0] for m in memory]
        inside.place(loop.YieldOp.create(operands=loads))
        at.place(reduce)
        for value, out in zip(reduce.results, made.out_args, strict=True):
            at.place(loop.StoreOp.new(value, out, IndexMap.identity(rank), list(made.indices)))
        self._before(made)

    def _follow(self, op: loop.ForOp, outer: dict[SSAValue, SSAValue]) -> None:
        """A loop that stood after the rows, as a nest."""
        stored = dict.fromkeys(o.target for o in loop.walk_bodies(op) if isinstance(o, loop.StoreOp))
        made = loop.NestOp.build_nest(list(op.loop_sizes), [outer.get(t, t) for t in stored])
        values = {**outer, **dict(zip(stored, made.out_args, strict=True)), **dict(zip(op.indices, made.indices, strict=True))}
        at = Cursor(made.block)
        for before in self.nest.block.ops:
            if before is op:
                break
            if not isinstance(before, (loop.LoopLike, loop.StoreOp)):
                at.place(clone_into(before, values, {}, self.symbols))
        for inner in op.block.ops:
            at.place(clone_into(inner, values, {}, self.symbols))
        self._before(made)


def only_where(there: SSAValue, ops: Sequence[Operation], varies: set[SSAValue]) -> None:
    """Put what the body of a loop stores under a condition, and what it loads where an index says that `varies`."""
    for op in ops:
        depends = any(v in varies for v in op.operands)
        if isinstance(op, loop.StoreOp):
            replace_op(op, loop.StoreOp.new(op.value, op.target, op.index_map, list(op.index_operands), op.store_mode, _both(op, there)))
        elif isinstance(op, loop.LoadOp) and depends:
            other = op.other
            if other is None:
                other = Cursor(_block_of(op), op).constant(0, op.result.type)
            new = loop.LoadOp.new(op.source, op.index_map, list(op.index_operands), _both(op, there), other)
            varies.add(new.result)
            replace_op(op, new)
        elif depends or op.regions:
            varies.update(op.results)


def _both(op: loop.LoadOp | loop.StoreOp, there: SSAValue) -> SSAValue:
    """The condition of an access and another one."""
    return there if op.mask is None else Cursor(_block_of(op), op).emit(arith.AndIOp, (there, op.mask), i1)


def _block_of(op: Operation) -> Block:
    block = op.parent
    assert block is not None
    return block


def _in_part(op: loop.LoadOp | loop.StoreOp, part: SSAValue) -> None:
    """Turn an access to columns into one to the columns of a part."""
    old = op.index_map
    indices = [*index_operands(op), part]
    m = IndexMap(len(indices), (dim(len(indices) - 1), *old.results))
    if isinstance(op, loop.LoadOp):
        replace_op(op, loop.LoadOp.new(op.source, m, indices, op.mask, op.other))
    else:
        replace_op(op, loop.StoreOp.new(op.value, op.target, m, indices, op.store_mode, op.mask))
