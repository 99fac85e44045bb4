"""One nest as one kernel: arguments, threads, the loops of the nest around its body."""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import Any

from xdsl.dialects.builtin import DenseArrayBase, i64
from xdsl.ir import Attribute, Block, Operation, SSAValue

from ...dialects import cpu, loop
from ...dialects.cpu.types import ptr
from ...dialects.expr import Range, as_expr, exact_quotient, product
from ...passes.analysis.dependences import memory_of
from ...passes.analysis.nest_access import Loop, NestAccess
from ...passes.cost.nest_cost import SERIAL_NS, Cost, Schedule
from ..outline import Arguments
from .body import lower_block
from .builder import Builder, drop_unused
from .fills import FillLowering
from .loops import NEVER_UNROLL, LoopLowering, Span, run_segments, segments, sequential
from .pieces import pieces, ranges_within
from .reductions.reduce_loops import ReduceLowering
from .reductions.row_cache import RowCache
from .reductions.scans import ScanLowering
from .state import State, scalar_type
from .threads import ThreadedLoops, Units
from .tiles import lower_tiles

UNIT_ELEMENTS = 4096
"""Elements of a long vector loop that make one unit of work for threads, at the usual grain; fewer where less work is worth a thread."""


def argument_types(arguments: Arguments) -> list[Attribute]:
    """The types of a kernel's arguments."""
    scalars = [scalar_type(v.type) for v in arguments.scalars]
    return [ptr] * len(arguments.buffers) + [i64] * len(arguments.symbols) + scalars


class NestLowering(ThreadedLoops):
    """Lowers one nest into the body of a kernel. With two arguments more than the nest needs, the kernel runs the units of work from the
    first of them to the second, where `units` says then that the nest is made of such."""

    def __init__(self, nest: loop.NestOp, info: NestAccess, schedule: Schedule, cost: Cost, arguments: Arguments, entry: Block):
        self.nest = nest
        s = State(Builder(entry), info)
        super().__init__(s, schedule, cost)
        arguments.name(entry)
        values = list(entry.args)
        for buffer in arguments.buffers:
            s.pointers[buffer] = values.pop(0)
        for symbol in arguments.symbols:
            s.syms[symbol] = values.pop(0)
        for scalar in arguments.scalars:
            s.values[scalar] = values.pop(0)
        s.windows = schedule.windows
        s.written = {memory_of(a.buffer) for a in info.access.values() if a.is_store}
        if schedule.style == "inner" and info.root.children:
            s.cache = RowCache(s, self.choice)
        self.bounds = values
        self.inside: list[Loop] = []
        """Loops of the nest that run inside of the vector loop."""
        loops = LoopLowering(s, self.lower_body, self.choice)
        reductions = ReduceLowering(s, self.lower_body, self.choice, self.parallel if self.few_units else None, schedule.ordered)
        scans = ScanLowering(s, self.lower_region, self.choice)
        fills = FillLowering(s, lambda op: None if reductions.lower_rows(op) else loops.lower_for(op))
        self.nested: dict[type[Operation], Callable[[Any], None]] = {
            loop.ForOp: fills.lower_for,
            loop.LocalOp: fills.lower_local,
            loop.ReduceOp: reductions.lower_reduce,
            loop.ScanOp: scans.lower_scan,
        }

    def choice(self, node: object) -> tuple[Loop, int] | None:
        """The vector loop of an inner loop op."""
        return self.schedule.inner.get(node)  # pyright: ignore[reportArgumentType, reportCallIssue]

    def lower_region(self, block: Block) -> None:
        lower_block(self.s, block, self.nested)

    def lower_body(self, op: Operation) -> None:
        lower_block(self.s, op.regions[0].blocks[0], self.nested)

    def step(self, state: list[SSAValue]) -> list[SSAValue]:
        """One run of the nest's body, or of the loops inside of the vector loop."""
        if self.inside:
            loops = [(one, self.span(one)) for one in self.inside]
            return sequential(self.s, loops, state, self.once, NEVER_UNROLL)
        return self.once(state)

    def once(self, state: list[SSAValue]) -> list[SSAValue]:
        """One run of the nest's body."""
        self.lower_body(self.nest)
        return []

    def run_body(self) -> None:
        self.lower_body(self.nest)

    # ---- the nest's loops

    def lower(self) -> None:
        """Fill the kernel's block."""
        s = self.s
        everywhere = s.info.ranges
        parts = [{}] if self.schedule.tiles else pieces(s.info, self.schedule)
        if len(parts) > 1 or self.few_units:
            self.bounds = []
        for piece in parts:
            s.pieces = piece
            s.info.ranges = ranges_within(s.info, piece) if piece else everywhere
            self._in_tiles()
            s.info.ranges = everywhere
        s.b.place(cpu.ReturnOp.make())
        drop_unused(s.b.levels[0].block)

    def _piece(self) -> None:
        schedule = self.schedule
        if schedule.style == "tile":
            lower_tiles(self)
        elif schedule.style == "lanes":
            self._lanes()
        else:
            self.rows(self.s.info.root.loops, self.run_body)

    def _in_tiles(self) -> None:
        """Loops over the tiles that the schedule asks for, shared by threads, and what is within one."""
        s = self.s
        tiled = [(one, self.schedule.tiles[one.dim]) for one in s.info.root.loops if one.dim in self.schedule.tiles]
        if not tiled:
            self._piece()
            return
        tiles = [self._blocks(one, size) for one, size in tiled]

        def tile() -> None:
            for (one, size), number in zip(tiled, tiles, strict=True):
                self.tiles[one.dim] = self._tile(one, size, number)
            self._piece()
            self.tiles.clear()

        self.rows(tiles, tile)

    def _blocks(self, one: Loop, size: int) -> Loop:
        """The loop over blocks of `size` iterations of a loop. Blocks of a loop whose iterations meet must stay in order."""
        count = (one.size + (size - 1)) // size
        blocks = Loop(self.s.info.new_dim(Range.of_size(count)), count, ())
        if one.dim in self.schedule.serial:
            self.schedule.serial |= {blocks.dim}
        return blocks

    def _tile(self, one: Loop, size: int, number: Loop) -> Span:
        s, b = self.s, self.s.b
        first = b.mul(s.dims[number.dim], b.int(size))
        last = b.add(first, b.int(size))
        count = one.size.value
        if exact_quotient(one.size, as_expr(size)) is not None:
            return Span(first, last, size)
        return Span(first, b.min(last, s.scalar(one.size)), None, 1 if count is None else gcd(size, count))

    def _lanes(self) -> None:
        """A loop of the nest runs along the lanes: whole rows of it, or one block of lanes at a time where loops are
        inside."""
        schedule, s = self.schedule, self.s
        one = schedule.vector
        assert one is not None
        loops = s.info.root.loops
        outer = [o for o in loops if o is not one]
        if schedule.fixed:
            outer, self.inside = loops[: loops.index(one)], loops[loops.index(one) + 1 :]
        else:
            outer, self.inside = [o for o in outer if o.dim not in schedule.inside], [o for o in outer if o.dim in schedule.inside]
        if s.info.root.children or (outer and self.inside and not schedule.fixed):
            self._blocked(outer, one)
        elif outer:
            self.rows(outer, lambda: self._vectors(one, self.span(one)))
        elif self.inside:
            self._rows_inside(one)
        else:
            self._long(one)

    def _rows_inside(self, one: Loop) -> None:
        """Each vector of the row with all rows, so that what depends on the lanes alone is computed once for them."""
        first = self.inside[0]
        if not self.may_share() or first.dim in self.schedule.serial:
            self._vectors(one, self.span(one))
            return
        count = self.count_of(first)

        def chunk(begin: SSAValue, end: SSAValue) -> None:
            low, high = self.shifted(first, begin, end)
            self.tiles[first.dim] = Span(low, high, None)
            self._vectors(one, self.span(one))
            del self.tiles[first.dim]

        self.parallel(count, chunk)

    def _blocked(self, outer: list[Loop], one: Loop) -> None:
        """Blocks of one vector: every inner loop runs over all its indices with the lanes of a block."""
        s, b = self.s, self.s.b
        count, lanes = one.size.value, self.schedule.lanes
        if one.dim in self.tiles or (count is not None and count <= lanes):
            self.rows(outer, lambda: self._vectors(one, self.span(one)))
            return
        width = b.int(lanes)
        size = (one.size + (lanes - 1)) // lanes
        block = s.info.new_dim(Range.of_size(size))
        blocks = Loop(block, size, ())

        def body() -> None:
            first = b.mul(s.dims[block], width)
            full = Span(first, None, lanes)
            if count is not None and count % lanes == 0:
                self._vectors(one, full)
                return
            last = s.scalar(one.size)
            whole_block = b.cmpi("sle", b.add(first, width), last)
            b.begin_if()
            self._vectors(one, full)
            then = b.end_branch()
            b.begin_if()
            rest = Span(first, last, None if count is None else count % lanes)
            if rest.count is not None:
                self._vectors(one, rest)
            else:
                s.enter_lanes(one.dim, lanes, first)
                assert s.lane is not None
                s.lane.mask = s.first_lanes(b.sub(last, first))
                self.step([])
                s.leave_lanes()
            b.end_if(whole_block, then, b.end_branch())

        if self.schedule.windows:
            self._block_by_block(blocks, outer, body)
        else:
            self.rows([*outer, blocks], body)

    def _block_by_block(self, blocks: Loop, outer: list[Loop], body: Callable[[], None]) -> None:
        """All rows of one block, then those of the next, so that what windows share stays near. Threads share rows, as whoever reads the
        rows does, and the blocks of a row only where their shares meet."""
        s, b = self.s, self.s.b
        if not self.may_share() or not outer or self.few_units or any(one.dim in self.schedule.serial for one in (blocks, *outer)):
            self.rows([blocks, *outer], body)
            return

        def chunk(begin: SSAValue, end: SSAValue) -> None:
            count = s.scalar(blocks.size)
            (number,) = b.begin_for(b.int(0), count, b.int(1))
            s.dims[blocks.dim] = number
            # the rows with begin <= row * count + number < end
            before = b.sub(b.sub(count, number), b.int(1))
            first, last = (b.quotient(b.add(bound, before), count) for bound in (begin, end))
            (row,) = b.begin_for(first, last, b.int(1))
            self._share(outer, row)
            body()
            b.end_for()
            b.end_for()

        self.parallel(product([*(self.count_of(one) for one in outer), blocks.size]), chunk)

    def _vectors(self, one: Loop, span: Span) -> None:
        parts = segments(span, self.schedule.lanes)
        ops = NEVER_UNROLL if self.inside else self.s.info.root.num_ops + 2
        run_segments(self.s, one.dim, one.size, span, parts, [[] for _ in parts], self.step, ops)

    def _long(self, one: Loop) -> None:
        """One long loop: threads take blocks of it."""
        s, b = self.s, self.s.b
        whole_span = self.span(one)
        count, lanes = whole_span.count, self.schedule.lanes
        block = lanes * max(1, UNIT_ELEMENTS * min(self.schedule.grain, SERIAL_NS) // (SERIAL_NS * lanes))
        if not self.may_share() or (count is not None and count < 2 * block):
            self._vectors(one, whole_span)
            return
        units = (self.count_of(one) + (block - 1)) // block

        def chunk(begin: SSAValue, end: SSAValue) -> None:
            size = b.int(block)
            first, last = self.shifted(one, b.mul(begin, size), b.mul(end, size))
            last = b.min(last, s.scalar(one.size) if whole_span.last is None else whole_span.last)
            self._vectors(one, Span(first, last, None, 1 if count is None else gcd(block, count)))

        self.parallel(units, chunk)


def lower_nest(name: str, nest: loop.NestOp, info: NestAccess, schedule: Schedule, cost: Cost) -> tuple[cpu.KernelOp, Arguments]:
    """A kernel for a nest, and what it takes."""
    kernel, arguments, lowering = _begin(name, nest, info, schedule, cost, part=False)
    lowering.lower()
    return kernel, arguments


def lower_part(
    name: str, nest: loop.NestOp, info: NestAccess, schedule: Schedule, cost: Cost
) -> tuple[cpu.KernelOp, Arguments, Units | None]:
    """A private kernel for a nest that runs beside others in one parallel region: it takes the first unit of work and the one behind the
    last beside what a kernel takes; without units it runs the whole nest."""
    kernel, arguments, lowering = _begin(name, nest, info, schedule, cost, part=True)
    lowering.lower()
    return kernel, arguments, lowering.units


def _begin(
    name: str, nest: loop.NestOp, info: NestAccess, schedule: Schedule, cost: Cost, part: bool
) -> tuple[cpu.KernelOp, Arguments, NestLowering]:
    arguments = Arguments(nest, info)
    types = argument_types(arguments) + [i64, i64] * part
    kernel = cpu.KernelOp.make(name, types, _effects(nest, info, arguments), private=part)
    return kernel, arguments, NestLowering(nest, info, schedule, cost, arguments, kernel.body.block)


def _effects(nest: loop.NestOp, info: NestAccess, arguments: Arguments) -> dict[str, Attribute]:
    """Which pointer arguments the kernel reads and writes."""
    position = {buffer: k for k, buffer in enumerate(arguments.buffers)}
    outside = [a for a in info.access.values() if a.buffer not in info.local]
    reads = sorted({position[a.buffer] for a in outside if not a.is_store or a.mode != "set"})
    writes = sorted({position[a.buffer] for a in outside if a.is_store})
    found: dict[str, Attribute] = {
        "reads": DenseArrayBase.from_list(i64, reads),
        "writes": DenseArrayBase.from_list(i64, writes),
    }
    if nest.label is not None:
        found["label"] = nest.label
    return found
