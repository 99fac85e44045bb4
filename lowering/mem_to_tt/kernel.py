"""One nest as one kernel: the grid, the axes of the tile, the loops inside of the nest."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from xdsl.dialects.builtin import IntegerAttr, StringAttr, i1, i32, i64
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.transforms.dead_code_elimination import is_trivially_dead

from ...dialects import loop
from ...dialects.expr import Expr, as_expr
from ...dialects.expr.ranges import Range
from ...dialects.nd.types import c128
from ...dialects.support.replace import erase_op
from ...dialects.tt.structure import AssertOp, FuncOp, ReturnOp
from ...dialects.tt.types import int32, ptr
from ...passes.analysis.dependences import memory_of
from ...passes.analysis.nest_access import NestAccess, Node
from ...passes.cost.machine.gpu import Gpu
from ...passes.gpu.nest_types import UnsupportedNest, memory_type, scalar_type
from ...passes.gpu.tiles.rules import (
    fits_i32,
    has_effect,
)
from ...passes.gpu.tiles.tile import Tile
from ...passes.manager.locations import source_location
from ..outline import Arguments
from .accumulate import accumulate, accumulated
from .body import lower_block
from .builder import Builder
from .derived_sizes import shared_quotients, typical_value
from .descriptors import is_aligned, store_block
from .early_loads import load_ahead, load_early, load_once
from .fills import fill_loads
from .program.evictions import note_evictions
from .program.grid import Grid
from .program.loops import Loops
from .program.reduce import Reductions
from .scans import lower_scan
from .state import Axis, State

NO_SIZES: Mapping[Expr, int] = {}


def lower_nest(
    name: str, nest: loop.NestOp, info: NestAccess, tile: Tile, gpu: Gpu, exact: bool = False, typical: Mapping[Expr, int] = NO_SIZES
) -> tuple[FuncOp, Arguments, Expr]:
    """The kernel of a nest for a GPU, what it takes, and how many programs its grid has. `exact`: with eager's arithmetic. Of sizes that
    are multiples of 16 as a rule (`typical`) the kernel says that they are: the launch looks, and takes another variant if not."""
    arguments = Arguments(nest, info)
    arguments.derived = shared_quotients(info)
    types: list[Attribute] = [ptr(memory_type(loop.element_type(b.type))) for b in arguments.buffers]
    types += [i64] * len(arguments.sizes)
    types += [scalar_type(v.type) for v in arguments.scalars]
    entry = Block(arg_types=types)
    lowering = NestLowering(nest, info, tile, gpu, arguments, entry, exact, typical)
    programs = lowering.run()
    hints: list[dict[str, Attribute]] = [{"tt.divisibility": int32(16)} if is_aligned(b) else {} for b in arguments.buffers]
    for size in arguments.sizes:
        hints.append({"tt.divisibility": int32(16)} if typical_value(size, typical) % 16 == 0 else {})
    hints += [{}] * (len(entry.args) - len(hints))
    fill_loads(entry)
    drop_unused(entry)
    stored = {memory_of(out) for out in nest.outs}
    read = {entry.args[k] for k, b in enumerate(arguments.buffers) if memory_of(b) not in stored}
    load_early(entry, read, tile.warps * gpu.lanes, drawn=tile.group > 1)
    if lowering.sums or tile.coarsening > 1:
        load_once(entry, read, tile.warps * gpu.lanes)
    if tile.dot:
        load_ahead(entry, read, tile.warps * gpu.lanes)
        drop_unused(entry)
    func = FuncOp.make(name, Region(entry), hints=hints)
    func.attributes["num_warps"] = int32(tile.warps)
    if lowering.s.ordered:  # whether a product meets a sum depends on masks, and these on sizes
        func.attributes["fp_fusion"] = IntegerAttr(0, i1)
    if tile.registers and gpu.name.startswith("sm_"):
        func.attributes["maxnreg"] = int32(tile.registers)
    func.location = nest.location
    _name_checks(func)
    return func, arguments, programs


def _name_checks(func: FuncOp) -> None:
    """Have each check say in which kernel it stands, and which line of the user's that is: a GPU says no more than the message."""
    where = source_location(func.location)
    place = f", {PurePath(where.file).name}:{where.line}" if where is not None and where.file else ""
    for op in func.walk():
        if isinstance(op, AssertOp):
            op.properties["message"] = StringAttr(f"{op.message.data} (kernel @{func.sym_name.data}{place})")


def drop_unused(block: Block) -> None:
    """Take away operations whose results nobody uses, if they do nothing else than make them."""
    for op in reversed(list(block.ops)):
        for region in op.regions:
            for inner in region.blocks:
                drop_unused(inner)
        if op.results and is_trivially_dead(op):
            erase_op(op)


class NestLowering(Loops):
    """Lowers one nest into the body of a kernel."""

    def __init__(
        self,
        nest: loop.NestOp,
        info: NestAccess,
        tile: Tile,
        gpu: Gpu,
        arguments: Arguments,
        entry: Block,
        exact: bool = False,
        typical: Mapping[Expr, int] = NO_SIZES,
    ):
        self.nest = nest
        self.arguments, self.entry, self.typical = arguments, entry, typical
        self.sums = False
        """Whether a loop over rows keeps sums of columns."""
        wide = any(a.dtype == c128 for a in info.root.all_accesses())  # two numbers each
        index = i32 if fits_i32(info) and not wide else i64
        axes = [Axis(block) for _, block in tile.axes]
        s = State(Builder(entry), info, axes, index, gpu, tile.warps * gpu.lanes, exact)
        super().__init__(info, tile, s)
        if tile.halves and not gpu.takes_ptx:
            raise UnsupportedNest(f"schedule: {gpu.name} has no instructions for a tile with halves, they are NVIDIA's")
        s.keeps_halves = bool(tile.halves) and tile.group > 1
        if tile.copies:
            s.copy_out = functools.partial(store_block, self)
        if tile.second_reduction_block:
            s.second_axis = len(axes)
            axes.append(Axis(tile.second_reduction_block))
        if tile.reduction_block and not tile.dot:
            s.inner_axis = len(axes)
            axes.append(Axis(tile.reduction_block))
            s.lane_dim = info.new_dim(Range.of_size(as_expr(tile.reduction_block)))
            s.dims[s.lane_dim] = s.lane(s.inner_axis)
        arguments.name(entry)
        values = list(entry.args)
        memories = Counter(memory_of(buffer) for buffer in arguments.buffers)
        s.order.viewed = {buffer for buffer in arguments.buffers if memories[memory_of(buffer)] > 1}
        for buffer in arguments.buffers:
            s.pointers[buffer] = values.pop(0)
        for size in arguments.sizes:
            s.sizes[size] = s.b.resize(values.pop(0), index)
        for scalar in arguments.scalars:
            s.values[scalar] = values.pop(0)
        note_evictions(self)
        self.nested: dict[type[Operation], Callable[[Any], None]] = {
            loop.ForOp: self.lower_for,
            loop.ReduceOp: Reductions(self).lower,
            loop.ScanOp: lambda op: lower_scan(self, op),
        }

    def run(self) -> Expr:
        """Fills the kernel; how many programs its grid has."""
        s = self.s
        s.spread = list(s.info.root.loops)
        programs = Grid(self).run()
        s.checks.place()
        s.b.place(ReturnOp.create())
        return programs

    def lower_body(self, block: Block, done: Collection[Operation] = ()) -> None:
        lower_block(self.s, block, self.nested, done)

    # ---- loops inside

    def lower_for(self, op: loop.ForOp) -> None:
        """loop.for."""
        node = self.s.info.nodes[op]
        if not has_effect(node):
            return
        columns = accumulated(self, node)
        if columns:
            self.sums = True
            accumulate(self, node, op, columns)
            return
        how = self.how(node)
        if how == "unroll":
            self.unroll(node, lambda: self.lower_body(op.block))
        elif how == "loop":
            self.sequential(node, [], lambda at, state: self._step(node, at, op.block))
        elif how == "second":
            self._second_reduction(node, op.block)
        else:
            self.tiled(node, [], lambda state, mask: self._body(op.block))

    def _second_reduction(self, node: Node, block: Block) -> None:
        """A loop with reductions in it along an axis of its own, all at once where they fit, else block after block."""
        s, b = self.s, self.s.b
        axis = s.second_axis
        assert axis is not None
        size, lane = s.axes[axis].block, s.lane(axis)
        trips = node.trips
        outside, s.spread, s.along_second = s.spread, [*s.spread, *node.loops], True

        def step(at: SSAValue, _: Sequence[SSAValue]) -> list[SSAValue]:
            flat = b.add(at, lane)
            s.axes[axis].mask = b.cmpi("slt", flat, s.number(trips)) if trips.value is None or trips.value % size else None
            return self._step(node, flat, block)

        if trips.value is not None and trips.value <= size:
            step(b.int(0, s.index), [])
        else:
            self.repeat(node, s.number(trips), size, [], step)
        s.spread, s.along_second, s.axes[axis].mask = outside, False, None

    def _step(self, node: Node, at: SSAValue, block: Block) -> list[SSAValue]:
        self.s.decode(at, node.loops)
        self.lower_body(block)
        return []

    def _body(self, block: Block) -> list[SSAValue]:
        self.lower_body(block)
        return []

    def yielded(self, block: Block) -> list[SSAValue]:
        """What a body yields."""
        last = block.last_op
        assert isinstance(last, loop.YieldOp)
        return [self.s.get(v) for v in last.operands]
