"""One nest as one kernel: the grid, the axes of the tile, the loops inside of the nest."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import product as tuples
from math import gcd
from pathlib import PurePath
from typing import Any

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IntegerType, StringAttr, UnitAttr, i32, i64
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.transforms.dead_code_elimination import is_trivially_dead

from ...dialects import loop
from ...dialects.expr import ONE, ZERO, Dim, Expr, Sym, as_expr, ceildiv, exact_quotient, free_dims, linear_coeff, minimum, product
from ...dialects.expr.ranges import Range, prove_lt, range_of, simplify
from ...dialects.loop import KINDS
from ...dialects.nd.types import c128, element_bytes
from ...dialects.support.names import name_indices
from ...dialects.tt.arith import SIToFPOp
from ...dialects.tt.structure import AssertOp, FuncOp, GetProgramIdOp, ReturnOp
from ...dialects.tt.types import int32, ptr
from ...passes.analysis.dependences import address_in, memory_of
from ...passes.analysis.nest_access import Access, Loop, NestAccess, Node
from ...passes.cost.machine.gpu import Gpu
from ...passes.gpu.nest_types import UnsupportedNest, memory_type, scalar_type
from ...passes.gpu.shared_rows import part_of, words_of
from ...passes.gpu.tiles.rules import (
    MAX_CROSS_CHUNKS,
    MAX_UNROLLED_TRIPS,
    fits_i32,
    has_effect,
    is_crossed,
    most_trips,
    padded_trips,
    run_length,
)
from ...passes.gpu.tiles.tile import Tile
from ...passes.manager.locations import source_location
from ..outline import Arguments
from .accumulate import accumulate, accumulated
from .body import lower_block
from .builder import Builder
from .carried.term_bounds import bounded, longest_first
from .carried.weighed_products import lower_weighed
from .derived_sizes import shared_quotients, typical_value
from .descriptors import is_aligned, store_block
from .early_loads import load_ahead, load_early, load_once
from .exchange import Group, draw
from .fills import fill_loads
from .products import lower_product
from .reductions import Accumulator, ArgAccumulator, accumulator, joined_across
from .scans import lower_scan
from .state import Axis, State

NO_SIZES: Mapping[Expr, int] = {}

MAX_UNROLLED_ITERATIONS = 16
"""Iterations of a loop inside of a tile that become straight code."""

MAX_CACHED_ROW_BYTES = 32 << 10
"""Bytes at most of a row that is read again from the nearest cache, beside those of other programs."""

MAX_RESIDENT_BYTES = 16 << 20
"""Bytes at most of what stays in the cache for programs that read it again."""

MAX_STRAIGHT_OPS = 400
"""Operations of a body, times its iterations, that become straight code: Triton takes minutes for thousands."""
STRIP_ROWS_AT_ONCE = 2
"""Rows of a strip whose loads are under way together, as far as they divide it."""


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
    if lowering.sums or tile.strip > 1:
        load_once(entry, read, tile.warps * gpu.lanes)
    if tile.dot:
        load_ahead(entry, read, tile.warps * gpu.lanes)
        drop_unused(entry)
    func = FuncOp.make(name, Region(entry), hints=hints)
    func.attributes["num_warps"] = int32(tile.warps)
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
            op.detach()
            op.erase()


class NestLowering:
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
        self.tile = tile
        self.arguments, self.entry, self.typical = arguments, entry, typical
        self._lengths: dict[Node, int] = {}
        self.length = run_length([n for n in info.root.children if has_effect(n) and n.loops]) if tile.run else ONE
        """How long the runs of the tile are."""
        self.block_start: SSAValue | None = None
        """Where the block begins that the last axis runs through now, in loops that run block after block."""
        self.group: Group | None = None
        self.parts: dict[Node, tuple[int, int]] = {}
        """Where each program has a block of one of the loops inside: the first block of each loop, and how many it has."""
        self.part: Dim | None = None
        """The block that this program has."""
        self.sums = False
        """Whether a loop over rows keeps sums of columns."""
        wide = any(a.dtype == c128 for a in info.root.all_accesses())  # two numbers each
        index = i32 if fits_i32(info) and not wide else i64
        axes = [Axis(block) for _, block in tile.axes]
        self.s = s = State(Builder(entry), info, axes, index, gpu, tile.warps * gpu.lanes, exact)
        if tile.halves and not gpu.takes_ptx:
            raise UnsupportedNest(f"schedule: {gpu.name} has no instructions for a tile with halves, they are NVIDIA's")
        s.keeps_halves = bool(tile.halves) and tile.group > 1
        if tile.copies:
            s.copy_out = functools.partial(store_block, self)
        if tile.cross:
            s.cross_axis = len(axes)
            axes.append(Axis(tile.cross))
        if tile.inner and not tile.dot:
            s.inner_axis = len(axes)
            axes.append(Axis(tile.inner))
            s.lane_dim = info.new_dim(Range.of_size(as_expr(tile.inner)))
            s.dims[s.lane_dim] = s.lane(s.inner_axis)
        arguments.name(entry)
        values = list(entry.args)
        memories = Counter(memory_of(buffer) for buffer in arguments.buffers)
        s.viewed = {buffer for buffer in arguments.buffers if memories[memory_of(buffer)] > 1}
        for buffer in arguments.buffers:
            s.pointers[buffer] = values.pop(0)
        for size in arguments.sizes:
            s.sizes[size] = s.b.resize(values.pop(0), index)
        for scalar in arguments.scalars:
            s.values[scalar] = values.pop(0)
        self._note_evictions()
        self.nested: dict[type[Operation], Callable[[Any], None]] = {
            loop.ForOp: self.lower_for,
            loop.ReduceOp: self.lower_reduce,
            loop.ScanOp: lambda op: lower_scan(self, op),
        }

    def run(self) -> Expr:
        """Fills the kernel; how many programs its grid has."""
        s = self.s
        s.spread = list(s.info.root.loops)
        programs = self._grid()
        s.place_checks()
        s.b.place(ReturnOp.create())
        return programs

    def _note_evictions(self) -> None:
        """What several programs read stays in the cache, where what they write beside it would push it out. Rows that loops read one after
        the other, if they are short enough for it, all but the first find in the nearest cache."""
        if not self.tile.inner:
            self._note_shared()
        loops = [n for n in self.s.info.root.children if has_effect(n) and n.loops and self.how(n) == "tile"]
        if len(loops) < 2 or any(n.children or self.whole(n) is not None for n in loops):
            return
        readers: dict[SSAValue, list[Access]] = {}
        for node in loops:
            for access in node.accesses:
                if not access.is_store and linear_coeff(access.offset, node.loops[-1].dim) is not ZERO:
                    readers.setdefault(access.buffer, []).append(access)
        again = [found for found in readers.values() if len({a.node for a in found}) > 1]
        longest = max(most_trips(n, self.s.info) or MAX_CACHED_ROW_BYTES for n in loops)
        rows = self.tile.elements // self.tile.inner
        if sum(rows * longest * element_bytes(found[0].dtype) for found in again) > MAX_CACHED_ROW_BYTES:
            return
        for found in again:
            for access in found:
                self.s.eviction[access.op] = "evict_first" if access.node is found[-1].node else "evict_last"

    def _note_shared(self) -> None:
        """Loads that do not vary along all loops, of what is small."""
        info = self.s.info
        for access in info.root.accesses:
            along = free_dims(access.offset)
            same = [one for one in info.root.loops if one.dim not in along]
            if access.is_store or not same or not along or not along.isdisjoint(info.opaque):
                continue
            elements = product(one.size for one in info.root.loops if one.dim in along)
            most = range_of(elements, info.ranges).hi
            if most is not None and most * element_bytes(access.dtype) <= MAX_RESIDENT_BYTES:
                self.s.eviction[access.op] = "evict_last"

    def lower_body(self, block: Block) -> None:
        lower_block(self.s, block, self.nested)

    def _strip(self) -> None:
        """The body, for each of the iterations that the program has of the last loop of the grid; what lies behind its end is the last one
        again."""
        s = self.s
        if self.tile.strip == 1:
            self.lower_body(self.nest.block)
            return
        last, size = self.tile.rest[-1].dim, self.tile.rest[-1].size
        even = size.value is not None and size.value % self.tile.strip == 0
        first = s.info.new_dim(Range.of_size(size))
        s.dims[first] = s.b.mul(s.dims[last], s.b.int(self.tile.strip, s.index))
        row = s.info.new_dim(Range.of_size(as_expr(self.tile.strip)))
        abreast = gcd(self.tile.strip, STRIP_ROWS_AT_ONCE)

        def step(at: SSAValue, _: Sequence[SSAValue]) -> list[SSAValue]:
            s.dims[row] = at
            for k in range(abreast):
                s.fixed = {last: first + row + k if even else minimum(first + row + k, size - 1)}
                self.lower_body(self.nest.block)
            return []

        self.repeat(s.info.root, s.b.int(self.tile.strip, s.index), abreast, [], step)
        s.fixed = {}

    # ---- the grid

    def _grid(self) -> Expr:
        s, b = self.s, self.s.b
        work: list[tuple[Expr, Callable[[SSAValue], None]]] = []
        if self.tile.apart:
            work.append((as_expr(self._part_loops()), self._take_part))
        axes: list[tuple[Expr, Callable[[SSAValue], None]]] = []
        for axis, (loops, block) in enumerate(self.tile.axes):
            total = product(one.size for one in loops)
            blocks = ceildiv(total, block)
            axes.append((blocks, lambda at, a=axis, n=blocks, t=total, ls=loops: s.place(a, longest_first(s, at, n, ls), t, ls)))
        if self.tile.band:
            (rows, place_row), (columns, place_column) = axes
            axes = [(rows * columns, lambda at: self._in_bands(at, rows, columns, place_row, place_column))]
        work += reversed(axes)
        for one in reversed(self.tile.rest):
            count = one.size if one is not self.tile.rest[-1] else ceildiv(one.size, self.tile.strip)
            work.append((count, lambda at, d=one.dim: s.dims.__setitem__(d, at)))
        programs = product(count for count, _ in work)
        at = self._join_group() if self.tile.group > 1 else None
        if at is None and work:
            at = b.resize(b.place(GetProgramIdOp.make(0)).results[0], s.index)
        if self.tile.lasting and at is not None:
            return self._one_after_the_other(at, programs, work)
        self._run_at(at, work)
        return programs * self.tile.group

    def _run_at(self, at: SSAValue | None, work: Sequence[tuple[Expr, Callable[[SSAValue], None]]]) -> None:
        """The body, in block `at` of the grid."""
        s = self.s
        for k, (count, place) in enumerate(work):
            assert at is not None
            if k == len(work) - 1:
                place(at)
                break
            n = s.number(count)
            place(s.b.remainder(at, n))
            at = s.b.quotient(at, n)
        self._strip()

    def _one_after_the_other(self, at: SSAValue, blocks: Expr, work: Sequence[tuple[Expr, Callable[[SSAValue], None]]]) -> Expr:
        """The body in each of the blocks that the program has, from block `at` on. Triton makes one loop of that and the one inside: the
        next block's loads are under way at the end of one."""
        s, lasting = self.s, self.tile.lasting

        def step(block: SSAValue, _: Sequence[SSAValue]) -> list[SSAValue]:
            self._run_at(block, work)
            return []

        self.repeat(s.info.root, s.number(blocks), lasting, [], step, at, flatten=True)
        return minimum(blocks, as_expr(lasting))

    def _in_bands(
        self, at: SSAValue, rows: Expr, columns: Expr, place_row: Callable[[SSAValue], None], place_column: Callable[[SSAValue], None]
    ) -> None:
        """Program `at` of two axes: rows of blocks in bands, each gone through column by column."""
        s, b, band = self.s, self.s.b, self.tile.band
        width = s.number(columns * band)
        first = b.mul(s.b.quotient(at, width), b.int(band, s.index))
        height = b.min(b.sub(s.number(rows), first), b.int(band, s.index))
        within = s.b.remainder(at, width)
        place_row(b.add(first, s.b.remainder(within, height)))
        place_column(s.b.quotient(within, height))

    def _part_loops(self) -> int:
        """How many blocks the loops inside have, all together."""
        total = 0
        for node in (n for n in self.s.info.root.children if has_effect(n)):
            trips = product(one.size for one in node.loops).value
            plain = isinstance(node.op, loop.ForOp) and node.op.sequential is None and not node.children
            if trips is None or not plain or not self.tile.inner:
                raise UnsupportedNest("schedule: loops of which programs have a block each are loop.for of fixed lengths, not nested")
            count = -(-trips // self.tile.inner)
            self.parts[node] = (total, count)
            total += count
        return total

    def _take_part(self, at: SSAValue) -> None:
        self.part = self.s.info.new_dim(Range.of_size(as_expr(sum(count for _, count in self.parts.values()))))
        self.s.dims[self.part] = at

    def _in_part(self, node: Node, body: Callable[[Sequence[SSAValue], SSAValue | None], list[SSAValue]]) -> None:
        """The block of a loop, where the program has one of it."""
        s, b = self.s, self.s.b
        first, count = self.parts[node]
        axis, part, block = s.inner_axis, self.part, self.tile.inner
        assert axis is not None and part is not None
        number = s.number(part)
        inside = b.both(b.cmpi("sge", number, b.int(first, s.index)), b.cmpi("slt", number, b.int(first + count, s.index)))
        assert inside is not None
        region = Block()
        b.open(region)
        start = (part - first) * block
        trips = product(one.size for one in node.loops)
        if (trips.value or 0) % block:
            s.axes[axis].mask = b.cmpi("slt", b.add(s.number(start), s.lane(axis)), s.number(trips))
        around = s.fixed
        s.fixed = {**around, **self._in_block(start, 0, node.loops)}
        body([], s.axes[axis].mask)
        s.fixed = around
        s.axes[axis].mask = None
        s.place_checks()
        b.place(scf.YieldOp.create())
        b.close()
        b.place(scf.IfOp.create(operands=[inside], regions=[Region(region), Region(Block([scf.YieldOp.create()]))]))

    def _join_group(self) -> SSAValue:
        """The tile that this program shares with others."""
        s = self.s
        ticket = draw(self)
        s.hidden_zero = ticket.zero
        words = sum(words_of(acc.kind, acc.types) for op in self._shared() for acc, _ in self._parts(op))
        self.group = Group.of(self, ticket, words, product(one.size for one in s.info.root.loops))
        s.owner = self.group.first
        s.owned = {memory_of(a.buffer) for a in s.info.root.accesses if a.is_store}
        return ticket.row

    def _shared(self) -> list[loop.ReduceOp]:
        """The reductions that several programs do together."""
        return [op for op in self.nest.block.ops if isinstance(op, loop.ReduceOp) and self.how(self.s.info.nodes[op]) == "tile"]

    def places(self, flat: Expr, loops: Sequence[Loop]) -> dict[Expr, Expr]:
        """The same, as expressions: quotients by the length of a piece of a row are numbers."""
        found: dict[Expr, Expr] = {}
        for k, one in enumerate(reversed(loops)):
            if k == len(loops) - 1:
                found[one.dim] = simplify(flat, self.s.info.ranges)
                break
            found[one.dim] = simplify(flat % one.size, self.s.info.ranges)
            flat = simplify(flat // one.size, self.s.info.ranges)
        return found

    # ---- loops inside

    def how(self, node: Node) -> str:
        """How the loops of a node run: along the last axis of the tile ("tile"), or the one before it ("cross"), as straight code
        ("unroll"), or one iteration after the other ("loop")."""
        if self.tile.cross and not self.s.crossing and is_crossed(node):
            return "cross"
        trips = product(one.size for one in node.loops).value
        sequential = isinstance(node.op, loop.ForOp) and node.op.sequential is not None
        if self.s.inner or self.s.inner_axis is None or sequential:
            limit = MAX_UNROLLED_ITERATIONS if self.s.inner or sequential else MAX_UNROLLED_TRIPS
            return "unroll" if trips is not None and self._is_few(node, limit) else "loop"
        if any(product(one.size for one in c.loops).value is None or self._trips(c) > MAX_UNROLLED_ITERATIONS for c in node.children):
            return "unroll" if trips is not None and self._is_few(node, MAX_UNROLLED_ITERATIONS) else "loop"
        # programs that share a row each have their part of it, however short it is
        return "unroll" if trips is not None and trips <= 4 and self.tile.group <= 1 else "tile"

    def _trips(self, node: Node) -> int:
        return product(one.size for one in node.loops).value or 0

    def _is_few(self, node: Node, limit: int) -> bool:
        """Whether the iterations of a node, all in all, are straight code of a tolerable length."""
        trips = self._trips(node)
        return trips <= 1 or (trips <= limit and trips * self._length(node) <= MAX_STRAIGHT_OPS)

    def _length(self, node: Node) -> int:
        """The operations of one iteration of a node, with those of the loops in it that become straight code."""
        found = self._lengths.get(node)
        if found is None:
            inner = sum((max(1, self._trips(c)) if self._is_few(c, MAX_UNROLLED_TRIPS) else 1) * self._length(c) for c in node.children)
            found = self._lengths[node] = inner + sum(len(block.ops) for region in node.op.regions for block in region.blocks)
        return found

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
        elif how == "cross":
            self._crossed(node, op.block)
        else:
            self.tiled(node, [], lambda state, mask: self._body(op.block))

    def _crossed(self, node: Node, block: Block) -> None:
        """A loop with reductions in it along an axis of its own, all at once where they fit, else block after block."""
        s, b = self.s, self.s.b
        axis = s.cross_axis
        assert axis is not None
        size, lane = s.axes[axis].block, s.lane(axis)
        trips = product(one.size for one in node.loops)
        outside, s.spread, s.crossing = s.spread, [*s.spread, *node.loops], True

        def step(at: SSAValue, _: Sequence[SSAValue]) -> list[SSAValue]:
            flat = b.add(at, lane)
            s.axes[axis].mask = b.cmpi("slt", flat, s.number(trips)) if trips.value is None or trips.value % size else None
            return self._step(node, flat, block)

        if trips.value is not None and trips.value <= size:
            step(b.int(0, s.index), [])
        else:
            self.repeat(node, s.number(trips), size, [], step)
        s.spread, s.crossing, s.axes[axis].mask = outside, False, None

    def _step(self, node: Node, at: SSAValue, block: Block) -> list[SSAValue]:
        self.s.decode(at, node.loops)
        self.lower_body(block)
        return []

    def _body(self, block: Block) -> list[SSAValue]:
        self.lower_body(block)
        return []

    def lower_reduce(self, op: loop.ReduceOp) -> None:
        """loop.reduce."""
        s = self.s
        node = s.info.nodes[op]
        if self.tile.dot:
            lower = lower_weighed if "softmax_dot" in op.kind_names else lower_product
            self._define(op, lower(self, op, node))
            return
        parts = self._parts(op)
        how = self.how(node)
        if how == "tile" and self.whole(node) is not None:
            self._reduce_whole(op, node, parts)
            return
        shape = s.full if how == "tile" else s.active
        start = [v for acc, _ in parts for v in acc.start(s, acc.lanes(s, shape) if how == "tile" else shape)]

        def join(state: Sequence[SSAValue], mask: SSAValue | None) -> list[SSAValue]:
            self.lower_body(op.block)
            yielded = self.yielded(op.block)
            found: list[SSAValue] = []
            at = 0
            for acc, place in parts:
                old = list(state[at : at + len(acc.types)])
                values = [s.b.to_shape(v, shape) for v in yielded[place]]
                if how == "tile":
                    found += acc.advance(s, old, values, mask, lambda t=acc.types[0]: self._blocks_so_far(t))
                else:
                    found += acc.follow(s, old, acc.single(s, values))
                at += len(acc.types)
            return found

        if how == "unroll":
            state = start
            for _ in self.iterations(node):
                state = join(state, None)
        elif how == "loop":

            def step(at: SSAValue, now: Sequence[SSAValue]) -> list[SSAValue]:
                self.s.decode(at, node.loops)
                return join(now, None)

            state = self.sequential(node, start, step)
        else:
            state = self.tiled(node, start, join)
            state = joined_across(s, parts, state)
        self._define(op, state)

    def _blocks_so_far(self, element: Attribute) -> SSAValue:
        """How many blocks of the running loop along the last axis there are so far, this one included, as a float."""
        b = self.s.b
        assert self.block_start is not None
        block = b.elementwise(arith.DivSIOp, (self.block_start, b.int(self.tile.inner, self.s.index)))
        return b.cast(SIToFPOp, b.add(block, b.int(1, self.s.index)), element)

    def _reduce_whole(self, op: loop.ReduceOp, node: Node, parts: list[tuple[Accumulator, slice]]) -> None:
        """All values of the reduced loops at hand, in one piece or several."""
        s = self.s
        assert s.inner_axis is not None
        total = product(one.size for one in node.loops)
        pieces: list[tuple[list[SSAValue], SSAValue | None]] = []
        seen: list[slice] = []
        again = s.keeps_halves and not any(a.is_store for a in node.all_accesses())

        def body(state: Sequence[SSAValue], mask: SSAValue | None) -> list[SSAValue]:
            self.lower_body(op.block)
            pieces.append(([s.b.to_shape(v, s.full) for v in self.yielded(op.block)], mask))
            return []

        def through(place: slice) -> list[tuple[list[SSAValue], SSAValue | None]]:
            """The values that one accumulator takes, each time it goes through them: computed again where less is kept then."""
            if seen and again:
                pieces.clear()
                self.tiled(node, [], body)
            seen.append(place)
            return [(values[place], mask) for values, mask in pieces]

        self.tiled(node, [], body)
        group, trips = self.group, self.whole(node) or 0

        def counted(member: SSAValue | None = None) -> SSAValue:
            return s.number(total) if group is None else group.elements(trips, total, self.tile.run, self.length, member)

        count = counted()
        found: list[SSAValue] = []
        if all(acc.is_plain for acc, _ in parts):
            for acc, place in parts:
                found += acc.over_pieces(s, [(values[place], mask) for values, mask in pieces])
            found = joined_across(s, parts, found)
        else:
            for acc, place in parts:
                found += acc.whole(s, functools.partial(through, place), count, s.inner_axis)
        if self.group is not None:
            found = self.group.share([acc for acc, _ in parts], found, counted)
        self._define(op, found)

    def _parts(self, op: loop.ReduceOp) -> list[tuple[Accumulator, slice]]:
        """The accumulators of a reduction, and which of the yielded values each takes."""
        found: list[tuple[Accumulator, slice]] = []
        taken = given = 0
        types = [scalar_type(r.type) for r in op.results]
        last, info = op.body.block.last_op, self.s.info
        assert last is not None
        for kind in op.kind_names:
            takes, gives = KINDS[kind]
            own = types[given : given + gives]
            if kind in ("argmax", "argmin") and own[1] == i64 and info.exprs.get(last.operands[taken + 1]) not in (None, *info.opaque):
                own[1] = self.s.index  # a number that was loaded may be larger than this nest's indices
            part = accumulator(kind, own)
            if isinstance(part, ArgAccumulator):
                part.rising = info.exprs.get(last.operands[taken + 1]) is _flat(info.nodes[op].loops)
                part.index_only = not op.results[given].uses
            found.append((part, slice(taken, taken + takes)))
            taken, given = taken + takes, given + gives
        return found

    def _define(self, op: loop.ReduceOp, values: Sequence[SSAValue]) -> None:
        """The results of a reduction; indices that were kept in 32 bits widened."""
        for result, value in zip(op.results, values, strict=True):
            wanted = scalar_type(result.type)
            self.s.values[result] = self.s.b.resize(value, wanted) if isinstance(wanted, IntegerType) else value

    def yielded(self, block: Block) -> list[SSAValue]:
        """What a body yields."""
        last = block.last_op
        assert isinstance(last, loop.YieldOp)
        return [self.s.get(v) for v in last.operands]

    # ---- ways to run loops

    def whole(self, node: Node) -> int | None:
        """How many iterations the loops of a node have at most, if all of them are on chip at once."""
        trips = padded_trips(node, self.s.info, self.tile.run, self.length)
        part = trips if trips is None or self.tile.group == 1 else part_of(trips, self.tile.group, self.tile.run)
        pieces = min(self.tile.pieces, MAX_CROSS_CHUNKS) if self.s.crossing else self.tile.pieces
        return trips if part is not None and self.tile.count(part) <= pieces else None

    def iterations(self, node: Node):
        """Go through the loops of a node, each index a constant for a while (`s.fixed`)."""
        s = self.s
        outer = dict(s.fixed)
        for place in tuples(*(range(one.size.value or 0) for one in node.loops)):
            s.fixed = {**outer, **{one.dim: as_expr(k) for one, k in zip(node.loops, place, strict=True)}}
            yield place
        s.fixed = outer

    def unroll(self, node: Node, body: Callable[[], None]) -> None:
        for _ in self.iterations(node):
            body()

    def sequential(
        self,
        node: Node,
        start: list[SSAValue],
        body: Callable[[SSAValue, Sequence[SSAValue]], list[SSAValue]],
        trips: Expr | None = None,
    ) -> list[SSAValue]:
        """One iteration after the other, or `trips` of them; the state after the last."""
        return self.repeat(node, self.s.number(product(one.size for one in node.loops) if trips is None else trips), 1, start, body)

    def _in_block(self, start: Expr, first: int, loops: Sequence[Loop]) -> dict[Expr, Expr]:
        """The indices of `loops` in the block that begins with iteration `start` + `first`."""
        run = self.tile.run
        if not run or (self.length.value is not None and loops[-1].size.value != run):
            return self.places(start + self.s.lane_dim + first, loops)
        number = simplify((start + first - first % run) // run, self.s.info.ranges)
        if loops[-1].size is not self.length:
            return self.places(number * self.length + self.s.lane_dim + first % run, loops)
        return {**self.places(number, loops[:-1]), loops[-1].dim: self.s.lane_dim + first % run}

    def _left(self, total: Expr, start: Expr, first: int) -> SSAValue:
        """How many iterations there are from `start` + `first` on to the end of their run, whose length is a symbol."""
        s, run = self.s, self.tile.run
        left = s.number(self.length - first % run)
        runs = exact_quotient(total, self.length)
        number = simplify((start + first - first % run) // run, s.info.ranges)
        if runs is None or prove_lt(number, runs, s.info.ranges):
            return left
        return s.b.select(s.b.cmpi("slt", s.number(number), s.number(runs)), left, s.b.int(0, s.index))

    def tiled(
        self, node: Node, start: list[SSAValue], body: Callable[[Sequence[SSAValue], SSAValue | None], list[SSAValue]]
    ) -> list[SSAValue]:
        """The loops of a node along the last axis of the tile, at once or block after block; `body` gets the state and
        the mask of the axis."""
        s, b = self.s, self.s.b
        axis = s.inner_axis
        assert axis is not None
        block = self.tile.inner
        total = product(one.size for one in node.loops)
        trips = self.whole(node)
        outside, s.inner = s.spread, True
        s.spread = [*outside, *node.loops]
        if self.part is not None:
            s.lane(axis)
            self._in_part(node, body)
            state = start
        elif trips is not None:
            state = start
            around = s.fixed
            s.loops_begun += 1
            s.in_place = _written_in_place(node)
            # of symbols alone: that a loop's own size is 1 or more holds inside of it
            symbols: dict[Expr, Range] = {e: r for e, r in s.info.ranges.items() if isinstance(e, Sym)}
            s.runs = None if prove_lt(0, total, symbols) else b.cmpi("slt", b.int(0, s.index), s.number(total))
            here, origin = (trips, ZERO) if self.group is None else (self.group.part(trips), self.group.start(trips))
            in_runs = total.value is None and self.tile.run > 0
            left = s.number(total) if total.value is None and not in_runs else None
            if self.group is not None and not in_runs and (total.value is None or not self.group.is_even(trips)):
                left = self.group.count(trips, total)
            for s.piece, (first, size) in enumerate(self.tile.blocks(here)):
                if in_runs:
                    s.axes[axis].mask = b.cmpi("slt", s.lane(axis), self._left(total, origin, first))
                elif left is not None:
                    s.axes[axis].mask = b.cmpi("slt", s.lane(axis), b.sub(left, b.int(first, s.index)))
                else:
                    s.axes[axis].mask = None if size == block else b.cmpi("slt", s.lane(axis), b.int(size, s.index))
                s.fixed = {**around, **self._in_block(origin, first, node.loops)}
                if left is None and not in_runs:
                    assert isinstance(s.lane_dim, Dim)
                    s.blocks[axis] = b.int(0, s.index), as_expr(size), [Loop(s.lane_dim, as_expr(block), ())]
                state = body(state, s.axes[axis].mask)
            s.fixed, s.runs = around, None
            written, s.in_place = s.in_place, set()
            for buffer in written:
                s.written(buffer)
        else:
            limit = s.number(total)

            def step(at: SSAValue, now: Sequence[SSAValue], ragged: bool) -> list[SSAValue]:
                self.block_start = at
                flat = b.add(at, s.lane(axis))
                s.axes[axis].mask = b.cmpi("slt", flat, limit) if ragged else None
                s.decode_block(axis, at, flat, node.loops)
                s.blocks[axis] = at, total, node.loops
                return body(now, s.axes[axis].mask)

            s.lane(axis)
            state, begin = start, None
            ragged = total.value is None or total.value % block != 0
            kinds = node.op.kind_names if isinstance(node.op, loop.ReduceOp) else []
            costly = total.value is None or any(KINDS[kind][1] > 1 for kind in kinds)
            if start and ragged and costly and all(size == 1 for _, size in self.tile.axes):
                # what is reduced under a mask takes three times the instructions: only the last block has one
                begin = b.mul(b.elementwise(arith.DivSIOp, (limit, b.int(block, s.index))), b.int(block, s.index))
                state = self.repeat(node, begin, block, start, lambda at, now: step(at, now, False))
            state = self.repeat(node, limit, block, state, lambda at, now: step(at, now, ragged), begin)
        s.inner, s.spread = False, outside
        s.axes[axis].mask = None
        s.blocks.pop(axis, None)
        return state

    def repeat(
        self,
        node: Node,
        end: SSAValue,
        step: int,
        start: list[SSAValue],
        body: Callable[[SSAValue, Sequence[SSAValue]], list[SSAValue]],
        begin: SSAValue | None = None,
        *,
        flatten: bool = False,
        part: bool = False,
    ) -> list[SSAValue]:
        """The loops of a node by `step` iterations at once, up to `end`; the state after the last. flatten: Triton makes one loop of it and
        the one inside. part: `begin` and `end` leave out what is not needed."""
        s, b = self.s, self.s.b
        accesses = list(node.all_accesses())
        if any(memory_of(a.buffer) in (s.loaded if a.is_store else s.stored) or (a.is_store and s.overwrites(a)) for a in accesses):
            s.barrier()  # once, not in every iteration
        first, stride = b.int(0, s.index) if begin is None else begin, b.int(step, s.index)
        stored = {a.buffer for a in accesses if a.is_store and a.op not in s.carried}
        for buffer in stored:
            s.written(buffer)
            memory = memory_of(buffer)
            if len({address_in(a.buffer, a.offset) for a in accesses if memory_of(a.buffer) is memory}) > 1:
                s.stored[memory] = {a for a in accesses if a.is_store and memory_of(a.buffer) is memory}  # by other iterations
                s.loaded[memory] = {None}
        first, end = (first, end) if part else bounded(s, node, first, end, step)
        block = Block(arg_types=[s.index, *(v.type for v in start)])
        name_indices(block.args[:1], len(s.b.blocks) - 1)
        b.open(block)
        state = body(block.args[0], block.args[1:])
        s.place_checks()
        b.place(scf.YieldOp.create(operands=state))
        b.close()
        for a in accesses:
            if a.is_store:
                s.stored.setdefault(memory_of(a.buffer), set()).add(a)
            else:
                s.loaded.setdefault(memory_of(a.buffer), set()).add(None)
        for buffer in stored:
            s.written(buffer)
        op = scf.ForOp.create(operands=[first, end, stride, *start], result_types=[v.type for v in start], regions=[Region(block)])
        if flatten:
            op.attributes["tt.flatten"] = UnitAttr()
        if self.tile.stages and (part or begin is None):
            op.attributes["tt.num_stages"] = int32(self.tile.stages)
        return list(b.place(op).results)


def _written_in_place(node: Node) -> set[SSAValue]:
    """The memories that the loops of a node store to, if all that they access of them is the element that they store, in one buffer."""
    places: dict[SSAValue, set[tuple[SSAValue, Expr]]] = {}
    for access in node.all_accesses():
        places.setdefault(memory_of(access.buffer), set()).add((access.buffer, access.offset))
    return {memory for a in node.all_accesses() if a.is_store and len(places[memory := memory_of(a.buffer)]) == 1}


def _flat(loops: Sequence[Loop]) -> Expr:
    """The number of an iteration among all of them, the last loop the fastest."""
    at: Expr = ZERO
    for one in loops:
        at = at * one.size + one.dim
    return at
