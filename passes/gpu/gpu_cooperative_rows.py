"""gpu-cooperative-rows: rows that no program can keep are shared by several programs, and read once.

    loop.nest (%i = 2048) outs(%y) { reduce over 131072; for 131072 }
->  %w = mem.alloc {workspace} : !mem.buffer<65552 x i64>; loop.nest (%k = 32784) outs(%w) { store 0 } attributes {clears}
    loop.nest (%i = 2048) outs(%y, %w) { reduce over 131072; for 131072 } attributes {schedule = {gpu = {..., group = 8}}}

What a nest computes stays the same; the tile says how many programs have a row, and exchange.py how they agree. It pays where a nest reads
its rows more than once, no program can keep one beside another program's, and all of it does not fit the cache anyway. The loops inside
have as many iterations each, of which every program has a part; whatever there is one of for a row all of them compute, and the first
stores. A nest behind it that reads the rows again becomes a part of it first (nest_merge.py).

The nest that fills the first half of the workspace with zeros runs before every launch, so that launches need nothing of each other, on
whatever stream. What it does is not needed where the workspace is memory that stays and no launches over it overlap: a kernel leaves it as
the next launch needs it, if all have the same sizes. So where the size of the workspace is a number the allocation says `workspace`, and
the nest `clears`; the host program has such memory, and does without the nest, on the default stream (host.workspace)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp, UnitAttr, f64, i64
from xdsl.ir import Operation, SSAValue

from ...dialects import loop, mem
from ...dialects.expr import ONE, ZERO, Expr, Sym, as_expr, free_dims, product, split_linear
from ...dialects.expr.ranges import RangeEnv, range_of
from ...dialects.machine import has_fixed_order
from ...dialects.nd.types import LOW_PRECISION, element_bytes
from ..analysis.dependences import address_in, memory_of
from ..analysis.nest_access import Access, Loop, NestAccess, Node
from ..analysis.nest_key import nests_in_memory
from ..analysis.reduction_kinds import Cursor
from ..analysis.schedule_attrs import GPU, narrowed, write_bounds
from ..analysis.symbols import symbol_facts
from ..cost.machine import Gpu, machine_of
from ..cost.machine.gpu import VECTOR_HALVES
from ..cost.machine.registers import OTHER
from ..loop.transform.loop_rewrite import add_out
from ..loop.transform.nest_transform import label_of
from ..manager.pass_manager import Pass
from .gpu_online_softmax import computed_alike
from .nest_merge import follower, joined_nest, replace_nests
from .nest_types import UnsupportedNest, scalar_type
from .shared_rows import HEADER_WORDS, half_words, part_of, words_of
from .short_runs import shortest_run
from .tiles import rules as config
from .tiles.bounds import near_sizes, with_room
from .tiles.candidates import write_tile
from .tiles.rules import has_effect
from .tiles.tile import Sizes, Tile, power_of_two

MAX_ROW_ELEMENTS = config.MAX_ON_CHIP_ELEMENTS
"""Elements of a row that a program keeps by itself."""
MAX_THREAD_ELEMENTS = 112
"""Elements of a thread of several programs' at most: few warps have little to wait for."""
CLEARS = "clears"
"""Attribute of a nest that clears a workspace which may be memory that stays."""


@dataclass(frozen=True)
class GpuCooperativeRows(Pass):
    """Has several programs share rows that one of them cannot keep."""

    name = "gpu-cooperative-rows"

    alone: int = MAX_ROW_ELEMENTS
    """Elements of a row that a program keeps by itself."""

    part: int = config.LONG_ROW_STEP_ELEMENTS
    """Elements that each program should keep of a row that several share: several programs fit a multiprocessor, and work while one
    waits."""

    most: int = config.MAX_BLOCK_ELEMENTS
    """Elements that each program keeps at most, where more programs would be too many to wait for each other."""

    least: int = -1
    """Bytes that a nest moves at least; -1: what the cache of the GPU does not hold, where rows may as well be read twice."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if has_fixed_order(op):
            return
        symbols, hints = symbol_facts(op)
        gpu, sizes = machine_of(op, Gpu), Sizes(hints)
        for nest in nests_in_memory(op, without=GPU):
            if nest.parent is None or not any(isinstance(o, loop.ReduceOp) for o in nest.block.ops):
                continue
            why = ""
            for second in (None, follower(nest)):
                joined = nest if second is None else joined_nest(nest, second, symbols)
                if joined is None:
                    continue
                info, bounds = _with_bounds(joined, symbols, hints)
                try:
                    tile, words = self._tile(info, sizes, gpu)
                except UnsupportedNest as refused:
                    why = why or str(refused)
                    if joined is not nest:
                        joined.erase(safe_erase=False)
                    continue
                if second is not None:
                    replace_nests(joined, nest, second)
                if bounds:
                    write_bounds(joined, bounds)
                add_workspace(joined, info, tile, words)
                self.statistic("num-cooperative")
                self.remark(joined, f"{tile.group} programs share a row", kind="applied")
                break
            else:
                if why:
                    self.remark(nest, f"one program has a row: {why}", kind="missed")

    def _tile(self, info: NestAccess, sizes: Sizes, gpu: Gpu) -> tuple[Tile, int]:
        """The tile of a nest whose rows several programs share, and the words that they exchange.  UnsupportedNest for another nest, with
        the reason, if that is of interest."""
        inside = [n for n in info.root.children if has_effect(n)]
        if not all(n.loops for n in inside):  # what all programs do once, at a place that is not looked at below
            raise UnsupportedNest("a loop of one iteration lies in it")
        if not any(isinstance(n.op, loop.ReduceOp) for n in inside):
            raise UnsupportedNest("")
        wide = any(a.dtype in (f64, i64) for n in inside for a in n.accesses)
        kept = config.kept_tensors(inside) * (1 + wide)
        longest = max(sizes.trips(n.loops) for n in inside)
        elements = longest * kept
        # a program of all the warps that there are has too little of 16-bit data under way
        narrow = all(element_bytes(a.dtype) <= 2 for n in inside for a in n.accesses)
        crowded = narrow and config.fills_multiprocessor(elements)
        # where deviations wait for a mean (group norm), nothing is under way meanwhile but what another program has
        moments = any("welford" in n.op.kind_names for n in inside if isinstance(n.op, loop.ReduceOp))
        alone = min(self.alone, config.MAX_ALL_WARPS_ELEMENTS) if moments else self.alone
        least = gpu.cache_bytes if self.least < 0 else self.least
        if not kept or (elements <= alone and not crowded) or sizes.trips(info.root.loops) * longest * kept < least // 4:
            raise UnsupportedNest("")
        if config.column_loop(info, sizes) is not None:
            raise UnsupportedNest("a part of a row is not contiguous")
        if (run := shortest_run(info, sizes)) is not None:
            raise UnsupportedNest(f"its rows are runs of {run} bytes")
        run, trips = _check_loops(inside, info)
        _check_memory(info, inside)
        if config.streams(inside) > 1 and config.finds_positions(inside):
            raise UnsupportedNest("positions in rows of several tensors take more registers than a program has")
        words = sum(_words(n.op) for n in inside if isinstance(n.op, loop.ReduceOp))
        values = _wide_values(inside)
        low = sum(t in LOW_PRECISION for t in config.kept_buffers(inside).values())
        in_vectors = kept == low and not run and _in_vectors(info, inside, trips)
        halves = in_vectors and kept < 2 * values and _take_halves(inside, trips, gpu)
        if in_vectors and not halves:
            kept = min(kept, values)
        tile = self._rows(info, trips, run, kept, sizes, gpu, halves)
        if config.MAX_ALL_WARPS_ELEMENTS < elements <= alone and not tile.halves:
            raise UnsupportedNest("")
        tile = replace(tile, registers=_registers(tile, inside, kept, moments, gpu))
        return replace(tile, warps=max(1, tile.warps * 32 // gpu.lanes)), words

    def _rows(self, info: NestAccess, trips: int, run: int, kept: int, sizes: Sizes, gpu: Gpu, halves: bool) -> Tile:
        """Of all groups of programs one that keeps about as much as it should, in blocks that are full. Where the length of runs, or their
        number, is a symbol, programs have whole ones. Of two tensors that stay in 16 bits it keeps as much each as of one."""
        wanted = self.part * min(kept, 2) if halves else self.part
        open_ended = any(n.trips.value is None for n in info.root.children if has_effect(n) and n.loops)
        most = gpu.together
        if trips * kept > most * self.most:
            raise UnsupportedNest(f"{-(-trips * kept // self.most)} programs would have to wait for each other, of {most} at most")
        loops = config.in_memory_order(info, sizes)
        axes = [(loops, 1)] if loops else []
        found: list[tuple[float, Tile]] = []
        for group in range(2, most + 1):
            part = part_of(trips, group, run)
            if open_ended and run and (part % run or trips % part):
                continue
            tile = self._part(axes, part, trips, run, group, part if open_ended else part - 1)
            held = tile.reduction_block * tile.chunks * kept
            if held <= self.most * 3 // 2:
                filled = trips / (group * tile.reduction_block * tile.chunks)
                across = 2 if not tile.segment and run % tile.reduction_block else 0  # each element would compute which run it lies in
                cost = round((1 - filled) * 8) + abs(math.log2(held / wanted)) + across
                found.append((cost, replace(tile, warps=self._warps(held // 2 if halves else held))))
        if not found:
            raise UnsupportedNest("no group of programs keeps a row")
        runs = [tile for _, tile in found if tile.segment]
        # each block of a run is code of its own: what Triton makes of 224 takes a minute
        if runs and all(tile.chunks > config.MAX_UNROLLED_TRIPS for tile in runs):
            raise UnsupportedNest(f"its rows lie in runs of {run}, each of which would be code of its own")
        best = min((one for one in found if not one[1].segment or one[1].chunks <= config.MAX_UNROLLED_TRIPS), key=lambda one: one[0])[1]
        if not halves:
            return best
        # a block at a time is widened, and its numbers are gone before the next one's
        block = min(best.reduction_block, config.CHUNK_ELEMENTS // 2)
        return replace(best, halves=1, reduction_block=block, chunks=-(-best.reduction_block * best.chunks // block))

    def _part(self, axes: list[tuple[list[Loop], int]], part: int, trips: int, run: int, group: int, longest: int) -> Tile:
        """The blocks of a part of a row, which begin with each run that is at most `longest`."""
        if run and part % run == 0 and trips % part == 0 and run <= longest:
            block = max({max(1, power_of_two(run) >> k) for k in range(4)}, key=lambda n: (-round(8 * -(-run // n) * n / run), n))
            return Tile(axes, reduction_block=block, chunks=-(-run // block) * (part // run), group=group, segment=run)
        block, chunks = config.cut(part_of(trips, group))
        return Tile(axes, reduction_block=block, chunks=chunks, group=group)

    def _warps(self, held: int) -> int:
        return max(4, min(16, power_of_two(held // (32 * MAX_THREAD_ELEMENTS))))


def _take_halves(inside: Sequence[Node], trips: int, gpu: Gpu) -> bool:
    """Whether numbers of 16 bits that lie in whole vectors may be kept as they are. Where positions are looked for, these take the
    registers."""
    fixed = all(n.trips.value == trips for n in inside)
    positions = config.finds_positions(inside)
    return fixed and not positions and gpu.takes_ptx


def _wide_values(inside: Sequence[Node]) -> int:
    """How many numbers for each element of a row are wanted again and again: x + y is one where no loop has another use for x and y."""
    kept = config.kept_buffers(inside)
    found: list[tuple[SSAValue, Node]] = []
    for n in inside:
        loads: set[SSAValue] = {a.op.results[0] for a in n.accesses if a.buffer in kept and not a.is_store}
        for value in {_together(load, loads) for load in loads}:
            if not any(computed_alike(other, value, _same_element(m, n)) for other, m in found):
                found.append((value, n))
    return len(found)


def _together(load: SSAValue, loads: set[SSAValue]) -> SSAValue:
    """What one of several loads becomes where it is first computed with another one, if it has no other use; itself, if there is none. A
    product is computed again with what is added to it, in one instruction, and its factors are kept."""
    value = load
    while len(uses := list(value.uses)) == 1 and len(results := uses[0].operation.results) == 1 and not uses[0].operation.regions:
        value = results[0]
        others = (_behind(operand) for operand in uses[0].operation.operands)
        if not isinstance(value.owner, arith.MulfOp) and any(load not in found and found & loads for found in others):
            return value
    return load


def _behind(value: SSAValue) -> set[SSAValue]:
    """The results of all operations without regions that a value is computed by."""
    found, worklist = set[SSAValue](), [value]
    while worklist:
        one = worklist.pop()
        if one not in found and isinstance(one.owner, Operation) and not one.owner.regions:
            found.add(one)
            worklist += one.owner.operands
    return found


def _same_element(first: Node, second: Node) -> dict[SSAValue, SSAValue]:
    """The indices of one loop, each with that of another that goes over the same."""
    assert isinstance(first.op, loop.LoopLike) and isinstance(second.op, loop.LoopLike)
    before, after = first.op.indices, second.op.indices
    return dict(zip(before, after, strict=True)) if len(before) == len(after) else {}


def _in_vectors(info: NestAccess, inside: Sequence[Node], trips: int) -> bool:
    """Whether programs load whole vectors of a row: other numbers come in a register each, which two of 16 bits share too late."""
    loads = [(a, [*info.root.loops, *n.loops]) for n in inside for a in n.accesses if not a.is_store]
    return trips % VECTOR_HALVES == 0 and all(_side_by_side(access, loops) for access, loops in loads)


def _side_by_side(access: Access, loops: Sequence[Loop]) -> bool:
    """Whether elements lie side by side along the last of the loops, from multiples of a vector on; or do not vary along it."""
    found = split_linear(access.offset, [one.dim for one in loops])
    if found is None:
        return False
    steps, start = found
    step = steps.pop(loops[-1].dim, ZERO)
    return step is ZERO or (step is ONE and all(e.value is not None and e.value % VECTOR_HALVES == 0 for e in (start, *steps.values())))


def _registers(tile: Tile, inside: Sequence[Node], kept: int, moments: bool, gpu: Gpu) -> int:
    """Registers of a thread with which as many programs run side by side as what they keep leaves room for."""
    threads = tile.warps * 32
    loads = [(n, a) for n in inside for a in n.accesses if not a.is_store]
    streams = {a.buffer for n, a in loads if n.last_dim in free_dims(a.offset)}
    held = tile.reduction_block * tile.chunks * kept // threads
    if tile.halves:
        stored = {a.buffer for n in inside for a in n.accesses if a.is_store}
        each = held // 2 + OTHER.halves + OTHER.moments * moments + OTHER.halves_tensor * (len(streams) + len(stored) - 2)
    else:
        each = held + OTHER.rows + OTHER.rows // 2 * max(0, len(streams) - kept)
    programs = max(1, gpu.registers // (threads * each))
    return min(255, gpu.registers // (threads * programs) // 8 * 8)


def _words(reduce: loop.ReduceOp) -> int:
    """Words that programs exchange to do a reduction together."""
    return sum(words_of(kind, [scalar_type(r.type) for r in results]) for kind, _, results in reduce.each())


def _with_bounds(nest: loop.NestOp, symbols: RangeEnv, hints: Mapping[Expr, int]) -> tuple[NestAccess, dict[Sym, int]]:
    """The analysis of a nest within bounds for its sizes that are symbols, and these."""
    info = NestAccess(nest, symbols)
    near, rows = near_sizes(info, symbols, hints)
    bounds = with_room(nest, symbols, near, rows) if near else {}
    return (NestAccess(nest, narrowed(symbols, bounds)) if bounds else info), bounds


def _check_loops(inside: Sequence[Node], info: NestAccess) -> tuple[int, int]:
    """The length of the runs that the rows of a nest are made of (0: of one), and how many iterations its loops have at most, with runs as
    long as that.  UnsupportedNest unless programs can share them."""
    every = {n.trips for n in inside}
    length = config.segment_length(inside)
    run = range_of(length, info.ranges).hi or 0
    if length is config.ONE or length in every:
        run = 0
    trips = {config.padded_trips(n, info, run, length) for n in inside}
    total = next(iter(trips))
    if len(every) > 1 or len(trips) > 1 or total is None:
        raise UnsupportedNest("its loops have different lengths, or lengths without bounds")
    for node in inside:
        plain = isinstance(node.op, loop.ReduceOp) or (isinstance(node.op, loop.ForOp) and node.op.sequential is None)
        if not plain or node.children:
            raise UnsupportedNest("there are loops in its loops, or such that run in order")
        dims = {one.dim for one in node.loops}
        for access in node.accesses:
            if access.is_store and (access.mode != "set" or not dims <= free_dims(access.offset)):
                raise UnsupportedNest("programs would store to one place")
    return run, total


def _check_memory(info: NestAccess, inside: Sequence[Node]) -> None:
    """UnsupportedNest if one program might load what another has stored already."""
    stored = {memory_of(a.buffer) for n in inside for a in n.accesses if a.is_store}
    rows = {one.dim for one in info.root.loops}
    streamed = {memory_of(a.buffer) for n in inside for a in n.accesses if a.is_store or not free_dims(a.offset) <= rows}
    for access in info.root.accesses:
        if access.is_store:
            if access.mode != "set":
                raise UnsupportedNest("it adds to what there is one of for a row")
            if memory_of(access.buffer) in streamed:
                raise UnsupportedNest("it reads along its rows what it stores for each of them")
        elif stored and memory_of(access.buffer) in streamed:
            # what is stored may lie where this is loaded from, and only one program knows that it has been
            raise UnsupportedNest("it reads an element of a row apart")
    own = {memory_of(a.buffer) for a in info.root.accesses if a.is_store}
    for access in info.root.accesses:
        if not access.is_store and memory_of(access.buffer) in own and not _for_stores(access.op.results[0]):
            raise UnsupportedNest("its rows depend on memory that it overwrites")
    if any(not a.is_store and memory_of(a.buffer) in own for node in inside for a in node.accesses):
        raise UnsupportedNest("its loops read from memory what one program stores for the row")
    for node in inside:
        offsets: dict[SSAValue, set[object]] = {}
        for access in node.accesses:
            offsets.setdefault(memory_of(access.buffer), set()).add(address_in(access.buffer, access.offset))
        if any(a.is_store and len(offsets[memory_of(a.buffer)]) > 1 for a in node.accesses):
            raise UnsupportedNest("it reads elements that other programs store")


def _for_stores(value: SSAValue) -> bool:
    """Whether only stores of the nest itself come of a value: those of the program that stores them."""
    for use in value.uses:
        op = use.operation
        if not isinstance(op.parent_op(), loop.NestOp) or op.regions:
            return False
        if not isinstance(op, loop.StoreOp) and not all(_for_stores(r) for r in op.results):
            return False
    return True


def add_workspace(nest: loop.NestOp, info: NestAccess, tile: Tile, words: int) -> None:
    """Note a tile with a group on a nest, which gets the memory that its programs exchange `words` words a row through; one with stream_k,
    `words` words a program."""
    write_tile(nest, info, tile)
    rows = product(one.size for one in info.root.loops)
    half = as_expr(tile.persistent * words) if tile.stream_k else half_words(rows, tile.group, words)
    device = next(o.type.device.data for o in nest.outs if isinstance(o.type, mem.BufferType))
    made = mem.AllocOp.arena((half * 2 + HEADER_WORDS,), i64, device)
    clear = loop.NestOp.build_nest([half + HEADER_WORDS], [made.result], nest.location, f"{label_of(nest)} workspace")
    if half.is_const:
        made.properties["workspace"] = clear.attributes[CLEARS] = UnitAttr()
    clear.store([Cursor(clear.block).constant(0, i64)])
    made.location = nest.location
    assert nest.parent is not None
    nest.parent.insert_ops_before([made, clear], nest)
    add_out(nest, made.result)
