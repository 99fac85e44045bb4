"""gpu-split-rows: the rows of a nest that accumulates columns over all of them, shared out among programs.

    loop.nest () { for (%j) { %dw[%j] = 0 }; for (%i = N) { ...; for (%j) { store ..., %dx[%i, %j]; store ..., %dw[%j] add } } }

as loop-fuse-rows leaves it, becomes a nest over P parts, with a row of partial sums for each part, and a nest that adds these up. Part p
has the rows p, p + P, p + 2 P, ...: programs side by side read neighbouring memory, and none has more than one row more than another.
Where P does not divide N, what a row stores stands under the condition that there is one, with which a program's loop ends
(accumulate.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from ...dialects import loop
from ...dialects.expr import ZERO, Expr, IndexMap, as_expr, ceildiv, dim, product
from ...dialects.expr.ranges import RangeEnv, simplify
from ...dialects.machine import has_fixed_order
from ...dialects.support.replace import erase_op, replace_op
from ..analysis.nest_key import nests_in_memory
from ..analysis.reduction_kinds import Cursor
from ..analysis.symbols import symbol_facts
from ..cost.machine import Gpu, machine_of
from ..loop.transform.loop_rewrite import Place, clone_into, index_operands
from ..loop.transform.nest_transform import label_of
from ..loop.transform.split_loop import SplitLoop, clone_iteration
from ..manager.pass_manager import Pass
from .atomics import KINDS
from .gpu_fission import from_outside, passes, split_off
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
        if has_fixed_order(op):
            return
        symbols, hints = symbol_facts(op)
        sizes, programs = Sizes(hints), self.programs or machine_of(op, Gpu).resident_programs
        for nest in nests_in_memory(op):
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
            kept = [v for each in _behind(nest, op) for v in from_outside(each, nest) if passes(v, nest)]
            return None if kept else op
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
        self.split = SplitLoop(nest, symbols, nest.location, parts_first=True)
        self.size = rows.loop_sizes[0]
        self.parts = as_expr(count)
        self.length = simplify(ceildiv(self.size, count), symbols)
        self.even = simplify(self.length * count - self.size, symbols) is ZERO
        self.modes = accumulated(rows)

    def rewrite(self) -> None:
        """Write the nests of parts, those that add up, and those of what follows; the old one goes."""
        outer = dict(zip(self.nest.out_args, self.nest.outs, strict=True))
        memory = {a: self.split.memory(self.parts, loop.shaped_dims(a.type), loop.element_type(a.type)) for a in self.modes}
        self._rows(memory, outer)
        alike: dict[tuple[Expr, ...], list[SSAValue]] = {}
        for arg in self.modes:
            alike.setdefault(tuple(loop.shaped_dims(arg.type)), []).append(arg)
        for dims, args in alike.items():
            made, _ = self.split.open(dims, [outer[a] for a in args], f"{label_of(self.nest)} columns")
            at, kinds = Cursor(made.block), [KINDS[self.modes[a]] for a in args]
            found = self.split.merged(at, kinds, [memory[a] for a in args], self.parts, made.indices)
            self.split.store(at, found, made, IndexMap.identity(len(dims)))
        for op in reversed(_behind(self.nest, self.rows)):
            split_off(self.nest, op, {}, self.symbols)
        erase_op(self.nest, safe_erase=False)

    def _rows(self, memory: dict[SSAValue, SSAValue], outer: dict[SSAValue, SSAValue]) -> None:
        """The nest of the parts."""
        own = [a for a in self.nest.out_args if a not in memory]
        label = self.nest.label.data if self.nest.label is not None else ""
        made, values = self.split.open([self.parts], [*(outer[a] for a in own), *memory.values()], label)
        values.update(zip([*own, *memory], made.out_args, strict=True))
        at, part = Cursor(made.block), made.indices[0]
        for op in self.nest.block.ops:
            if op is self.rows:
                break
            at.place(clone_into(op, values, {}, self.symbols))
        rows = loop.ForOp.build_for([self.length], self.rows.location)
        place: Place = (dim(0) * self.parts + dim(1), [rows.indices[0], part])
        end = None if self.even else self.size
        clone_iteration(self.rows.block, Cursor(rows.block), self.rows.indices[0], place, values, self.symbols, end)
        at.place(rows)
        columns = set(made.out_args[len(own) :])
        for op in list(loop.walk_bodies(made)):
            if isinstance(op, (loop.LoadOp, loop.StoreOp)) and op.shaped in columns:
                _in_part(op, part)


def _behind(nest: loop.NestOp, rows: loop.ForOp) -> list[loop.ForOp]:
    """The loops that follow the rows."""
    ops = list(nest.block.ops)
    return [op for op in ops[ops.index(rows) + 1 :] if isinstance(op, loop.ForOp)]


def _in_part(op: loop.LoadOp | loop.StoreOp, part: SSAValue) -> None:
    """Turn an access to columns into one to the columns of a part."""
    old = op.index_map
    indices = [*index_operands(op), part]
    m = IndexMap(len(indices), (dim(len(indices) - 1), *old.results))
    if isinstance(op, loop.LoadOp):
        replace_op(op, loop.LoadOp.new(op.source, m, indices, op.mask, op.other))
    else:
        replace_op(op, loop.StoreOp.new(op.value, op.target, m, indices, op.store_mode, op.mask))
