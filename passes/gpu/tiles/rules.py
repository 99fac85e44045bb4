"""How a nest is cut into programs: which loops run along the axes of the tile, how long the tile is along each, how many
warps share it.

Three shapes of nests: without loops inside (value_tiles.py); reductions along the fastest dimension (`rows`: an axis of few rows, the
last axis runs along the inner loops, all of a row at once where it fits on chip); reductions across it (`columns`: an axis of neighbouring
columns).
The figures follow from measurements: 8 to 64 elements a thread, a row within as few warps as that allows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from xdsl.dialects.builtin import f32
from xdsl.ir import Attribute, SSAValue

from ....dialects import loop
from ....dialects.expr import ONE, ZERO, Add, Expr, FloorDiv, Max, Min, Mod, Mul, exact_quotient, free_dims, linear_coeff
from ....dialects.expr.ranges import range_of
from ....dialects.machine import has_fixed_order
from ....dialects.nd.types import I32_MAX, element_bytes
from ...analysis.accesses.disjoint import separate_in_row
from ...analysis.dependences import memory_of
from ...analysis.nest_access import Access, Loop, NestAccess, Node
from ...cost.machine.gpu import LINE_BYTES, MACHINES, Gpu
from ...cost.machine.registers import OTHER
from .gathers import index_loops
from .ordered import lanes_and_pieces, ordered_product, ordered_weights, takes_lanes
from .product_tiles import product_tile
from .summed_products import summed_tile
from .tile import (
    COPIED_TILE_ELEMENTS,
    MAX_UNROLLED_INNER_TRIPS,
    MAX_UNROLLED_TRIPS,
    MAX_WARPS,
    MIN_BLOCK_SHARE,
    STREAM_STAGES,
    WINDOW_THREAD_ELEMENTS,
    Sizes,
    Tile,
    bytes_moved,
    power_of_two,
    warps_for,
)
from .value_tiles import value_tile
from .weighed_products import weighed_tile
from .window_tiles import window_tile

MIN_KEPT_BLOCK_SHARE = 0.8
"""Share of the block of a row that should be used where several tensors of it are kept on chip (elsewhere MIN_BLOCK_SHARE)."""
MAX_BLOCK_ELEMENTS = 16384
"""Elements of a row that are one tensor at most."""
CHUNK_ELEMENTS = 4096
"""Elements of a tensor where several make a row."""
MAX_CHUNKS = 12
"""Tensors that make a row at most."""
MAX_ON_CHIP_ELEMENTS = MAX_CHUNKS * CHUNK_ELEMENTS
"""Elements, of all tensors that vary along a row, that are kept on chip: 96 a thread with 16 warps."""
LONG_ROW_STEP_ELEMENTS = 8192
"""Elements that are read at once of a row that does not fit, by all the warps that there are; of one, too, whose maximum and sum of
exponentials are found together. A row of no more elements is scanned at once."""
MAX_NEAR_STEP = 4
"""Elements from one iteration of a loop to the next up to which neighbours lie in one line of memory: every second one, say."""
HEAVY_OPS = 32
"""Operations of an element, as the cost model counts them, above which blocks of a row that is read once are short, and a thread has few
elements of a row that is kept: what is computed for the elements of a thread side by side takes registers."""
SCANNED_STEP_ELEMENTS = 2048
"""Elements of a longer row that are scanned at once, block after block."""
SCANNED_THREAD_ELEMENTS = 8
"""Elements of such a block that a thread has: running sums are f64, other running values two numbers."""
REDUCTION_THREAD_ELEMENTS = 16
"""Elements of a tile with reductions that a thread should have."""
PHASED_THREAD_ELEMENTS = 64
"""The same where several reductions of a row wait for each other: all warps of a program wait each time."""
ROW_THREAD_ELEMENTS = 32
"""The same for rows of which a program has one: fewer warps have less to exchange, and the more elements share a maximum, the fewer
instructions each takes."""
TILE_COLUMNS = LINE_BYTES // element_bytes(f32)
"""Columns of a tile whose reductions go across the fastest dimension: those that lie together in memory; twice as many of 16 bits."""
MIN_TILE_COLUMNS = 8
"""The same where these would not keep every multiprocessor busy: 32 bytes of f32 are what memory gives at once."""
REDUCTION_TILE_ELEMENTS = 4096
"""Elements of such a tile, of one that does several reductions of a row side by side, and those that are read at once of a row that is read
once. A program of a split reduction reads as many at least: a row that is shorter is not worth another kernel."""
STATES_TILE_ELEMENTS = 512
"""The same where each column has several numbers (Welford's): more of them would be registers."""
MAX_ALL_WARPS_ELEMENTS = ROW_THREAD_ELEMENTS * Gpu.lanes * MAX_WARPS
"""Elements of a row on chip that a program of all the warps that there may be keeps at most."""
MAX_ROWS_THREAD_ELEMENTS = 144
"""Elements that a thread can hold where a program goes through rows and sums up columns: two programs then fit a multiprocessor."""
MAX_AHEAD_BYTES = 100 << 10
"""Bytes that such a program may have under way: twice that is on chip."""
SHARED_VECTOR_ROWS = 4
"""Rows that a loaded vector serves at least: those of a tile that are multiplied by a vector of more bytes than each of them, and those of
one tensor that are reduced with a row of another one, where OUTER_RESULTS bound both."""
OUTER_STEP_TERMS = 32
"""Elements at once of each row where a row of one tensor and a row of another one are reduced to one result."""
OUTER_RESULTS = LONG_ROW_STEP_ELEMENTS // OUTER_STEP_TERMS
"""Results of such a program: it has as many terms at once as one that goes through a long row."""
MAX_SECOND_REDUCTION_TRIPS = math.isqrt(REDUCTION_TILE_ELEMENTS)
"""Reductions of a row, each by other numbers (a small product's), that a program does side by side: as many as it has elements of each."""
MAX_SECOND_REDUCTION_CHUNKS = 2
"""Such tiles that are on chip at once."""


def choose(info: NestAccess, hints: Mapping[Expr, int], gpu: Gpu = MACHINES["sm_90"]) -> Tile:
    """The tile of a nest."""
    if has_fixed_order(info.nest):
        return _ordered(info, Sizes(hints), gpu)
    tile = product_tile(info, Sizes(hints), gpu) or weighed_tile(info, gpu) or summed_tile(info, gpu) or window_tile(info, Sizes(hints))
    tile = tile or whole_sorted_rows(_within(_choose(info, Sizes(hints), gpu), info, gpu), info)
    warps = max(1, tile.warps * 32 // gpu.lanes)
    return replace(tile, warps=min(warps, gpu.max_warps))


def _ordered(info: NestAccess, sizes: Sizes, gpu: Gpu) -> Tile:
    """The tile of a nest whose sums have an order of their own."""
    if (tile := ordered_product(info, sizes, gpu) or ordered_weights(info, gpu) or window_tile(info, sizes)) is not None:
        return tile
    weights, long = _unit_strides(info, sizes), long_loops(info)
    loops = in_memory_order(info, sizes)
    if not long:
        return value_tile(info, loops, weights, sizes)
    most = [most_trips(n, info) for n in long]
    lanes, chunks = lanes_and_pieces(None if None in most else max(n or 0 for n in most), MAX_CHUNKS)
    if second := [sizes.trips(n.loops) for n in info.root.children if has_reductions_inside(n)]:
        side = min(MAX_SECOND_REDUCTION_TRIPS, power_of_two(max(second)), max(1, REDUCTION_TILE_ELEMENTS // lanes))
        axes, warps = _along(loops, 1), warps_for(side * lanes, REDUCTION_THREAD_ELEMENTS)
        return Tile(axes, reduction_block=lanes, warps=warps, chunks=chunks, second_reduction_block=side)
    x = column_loop(info, sizes, weights)
    if x is not None:
        columns = min(max(MIN_TILE_COLUMNS, REDUCTION_TILE_ELEMENTS // (lanes * chunks)), TILE_COLUMNS, power_of_two(sizes(x.size)))
        warps, rest = warps_for(columns * lanes * chunks, REDUCTION_THREAD_ELEMENTS), [one for one in loops if one is not x]
        return Tile([([x], columns)], rest, reduction_block=lanes, warps=warps, chunks=chunks)
    rows = max(1, min(COPIED_TILE_ELEMENTS // (lanes * chunks), power_of_two(sizes.trips(loops))))
    warps = min(MAX_WARPS // 2, warps_for(rows * lanes * chunks, REDUCTION_THREAD_ELEMENTS))
    return Tile(_along(loops, rows), reduction_block=lanes, warps=warps, chunks=chunks)


def _choose(info: NestAccess, sizes: Sizes, gpu: Gpu) -> Tile:
    weights = _unit_strides(info, sizes)
    loops = in_memory_order(info, sizes)
    long = long_loops(info)
    if not long:
        return value_tile(info, loops, weights, sizes)
    if (tile := _outer(info, loops, sizes)) is not None:
        return tile
    x = column_loop(info, sizes, weights)
    if x is not None:
        return _columns(loops, x, long, sizes, gpu)
    return _rows(info, loops, long, sizes)


def _within(tile: Tile, info: NestAccess, gpu: Gpu) -> Tile:
    """A tile that can go through shared memory as a whole, which is how its elements get from one thread to another: smaller blocks where
    the GPU has less of it, and as many more of them."""
    widest = max((element_bytes(a.dtype) for a in info.root.all_accesses()), default=1)
    while tile.elements * widest > gpu.shared:
        if tile.reduction_block > 1:
            tile = replace(tile, reduction_block=tile.reduction_block // 2, chunks=tile.chunks * 2)
        else:
            loops, block = tile.axes[-1]
            tile = replace(tile, axes=[*tile.axes[:-1], (loops, block // 2)])
    return tile


def whole_sorted_rows(tile: Tile, info: NestAccess) -> Tile:
    """A tile whose last axis has all elements of each row that is sorted, and as many rows as a tile that moves data has elements for."""
    longest = max((most_trips(n, info) or 0 for n in info.root.walk() if isinstance(n.op, loop.ScanOp) and n.op.kind == "sort"), default=0)
    if not longest:
        return tile
    block = power_of_two(longest)
    rows = max(1, COPIED_TILE_ELEMENTS // block)
    axes = [(loops, min(size, rows)) for loops, size in tile.axes]
    warps = warps_for(block * axes[-1][1] if axes else block, SCANNED_THREAD_ELEMENTS)
    return replace(tile, axes=axes, reduction_block=block, chunks=1, warps=warps, stages=0, registers=0)


def in_memory_order(info: NestAccess, sizes: Sizes) -> list[Loop]:
    """The parallel loops, those first along which what moves most bytes takes the longest steps: programs side by side, and the rows of
    one, then read neighbouring memory. Loops that it does not vary along come first; steps that are symbols count with their hints."""
    loops = info.root.loops

    def moved(access: Access) -> int:
        known = free_dims(access.offset)
        return element_bytes(access.dtype) * sizes.trips([one for one in loops if one.dim in known])

    plain = [a for a in info.root.all_accesses() if free_dims(a.offset).isdisjoint(info.opaque)]
    if len(loops) < 2 or not plain:
        return list(loops)
    heaviest = max(plain, key=moved)
    steps: dict[Expr, int] = {}
    for one in loops:
        stride = linear_coeff(heaviest.offset, one.dim)
        if stride is None or free_dims(stride):
            return list(loops)
        steps[one.dim] = 0 if stride is ZERO else abs(sizes(stride))
    return sorted(loops, key=lambda one: -steps[one.dim] if steps[one.dim] else -math.inf)


def long_loops(info: NestAccess) -> list[Node]:
    """The innermost loops of a nest, those apart that become straight code."""
    long = [n for n in info.root.walk() if n is not info.root and not _is_short(n)]
    return [n for n in long if not any(inner in long for inner in n.walk() if inner is not n)]


def column_loop(info: NestAccess, sizes: Sizes, weights: Mapping[Expr, float] | None = None) -> Loop | None:
    """The parallel loop along which most of what a nest reads is contiguous; None where that is a loop inside."""
    weights = _unit_strides(info, sizes) if weights is None else weights
    fastest = max(weights, key=lambda d: weights[d], default=None)
    found = next((one for one in info.root.loops if one.dim is fastest), None)
    return found if found is not None and sizes(found.size) > 1 else None


def _is_short(node: Node) -> bool:
    """Whether the loops of a node become straight code."""
    trips = node.trips
    limit = MAX_UNROLLED_TRIPS if len(node.loops) > 1 else MAX_UNROLLED_INNER_TRIPS
    if trips.value is None or trips.value > limit or isinstance(node.op, loop.ScanOp):
        return False
    return not (takes_lanes(node) and has_fixed_order(node.op))


def _unit_strides(info: NestAccess, sizes: Sizes) -> dict[Expr, float]:
    """For each loop dimension, the bytes of accesses that are contiguous along it, or nearly so."""
    weights: dict[Expr, float] = {}
    for node in info.root.walk():
        for access, around, moved in bytes_moved(node, info, sizes):
            for one in around:
                stride = linear_coeff(access.offset, one.dim)
                step = 0 if stride is None or stride.value is None else abs(stride.value)
                if 0 < step <= MAX_NEAR_STEP:
                    weights[one.dim] = weights.get(one.dim, 0) + moved / step
    return weights


def _rows(info: NestAccess, loops: Sequence[Loop], inside: Sequence[Node], sizes: Sizes) -> Tile:
    caps = [most_trips(n, info) for n in inside]
    fixed = None not in caps
    longest = max(1, *(n for n in caps if n is not None)) if fixed else max(sizes.trips(n.loops) for n in inside)
    outer = [n for n in info.root.children if has_reductions_inside(n)]
    if outer and fixed:
        second = min(MAX_SECOND_REDUCTION_TRIPS, max(power_of_two(sizes.trips(n.loops)) for n in outer))
        block = min(REDUCTION_TILE_ELEMENTS // second, power_of_two(longest))
        if longest <= MAX_CHUNKS * block:
            warps, chunks = warps_for(second * block, REDUCTION_THREAD_ELEMENTS), -(-longest // block)
            axes = _along(loops, 1)
            return Tile(axes, reduction_block=block, warps=warps, chunks=chunks, second_reduction_block=second)
    kept = kept_tensors(inside)
    if loops and not kept and longest >= COPIED_TILE_ELEMENTS and sizes.trips(loops) >= COPIED_TILE_ELEMENTS and _shares_more(inside):
        return Tile([(list(loops), SHARED_VECTOR_ROWS)], reduction_block=COPIED_TILE_ELEMENTS, warps=4, stages=STREAM_STAGES)
    scans = any(isinstance(n.op, loop.ScanOp) for n in inside)
    block, chunks = min(SCANNED_STEP_ELEMENTS if scans else LONG_ROW_STEP_ELEMENTS, power_of_two(longest)), 1
    if fixed and not reads_once(inside, longest) and longest * max(1, kept or streams(inside)) <= MAX_ON_CHIP_ELEMENTS:
        block, chunks = cut(longest, MIN_BLOCK_SHARE if kept < 2 else MIN_KEPT_BLOCK_SHARE)
    if loops and not kept and longest > COPIED_TILE_ELEMENTS and _is_heavy(inside) and not scans:
        return Tile([(list(loops), 1)], reduction_block=COPIED_TILE_ELEMENTS, warps=_heavy_warps(inside), stages=STREAM_STAGES)
    if chunks > 1 and not kept and any(isinstance(n.op, loop.ForOp) for n in inside):
        block, chunks = LONG_ROW_STEP_ELEMENTS, 1  # what is written and not read again need not be on chip
    if scans and not kept and longest > LONG_ROW_STEP_ELEMENTS:
        block, chunks = SCANNED_STEP_ELEMENTS, 1
    if block * chunks < longest:
        axes = _along(loops, 1)
        if scans:
            return Tile(axes, reduction_block=block, warps=warps_for(block, SCANNED_THREAD_ELEMENTS))
        if _is_heavy(inside):
            return Tile(axes, reduction_block=COPIED_TILE_ELEMENTS, warps=_heavy_warps(inside), stages=STREAM_STAGES)
        if not kept and any(isinstance(n.op, loop.ForOp) for n in inside):
            return Tile(axes, reduction_block=block, warps=warps_for(block, REDUCTION_THREAD_ELEMENTS))
        online = any("softmax" in n.op.kind_names for n in inside if isinstance(n.op, loop.ReduceOp))
        if not kept:
            each = ROW_THREAD_ELEMENTS if online else REDUCTION_THREAD_ELEMENTS
            step = min(block, REDUCTION_TILE_ELEMENTS)
            return Tile(axes, reduction_block=step, warps=warps_for(step, each), stages=STREAM_STAGES)
        if online:
            step = min(block, LONG_ROW_STEP_ELEMENTS)
            return Tile(axes, reduction_block=step, warps=warps_for(step, REDUCTION_THREAD_ELEMENTS), stages=STREAM_STAGES)
        return Tile(axes, reduction_block=block, warps=warps_for(block, 8))
    if block * chunks <= COPIED_TILE_ELEMENTS and info.opaque and any(n.last_dim in index_loops(info) for n in inside):
        few = max(1, min(32 * WINDOW_THREAD_ELEMENTS // block, power_of_two(sizes.trips(loops))))
        warps = warps_for(few * block * chunks, WINDOW_THREAD_ELEMENTS)
        return Tile(_along(loops, few), reduction_block=block, warps=warps, chunks=chunks)
    rows = max(1, min(COPIED_TILE_ELEMENTS // block, power_of_two(sizes.trips(loops)))) if loops and chunks == 1 else 1
    held = block * chunks * kept
    if not any(isinstance(n.op, (loop.ReduceOp, loop.ScanOp)) for n in inside):
        if rows == 1 and not kept and _are_apart(info, inside):
            axes, warps = _along(loops, 1), warps_for(COPIED_TILE_ELEMENTS, 8)
            return Tile(axes, reduction_block=COPIED_TILE_ELEMENTS, warps=warps, loop_per_program=1)
        warps = warps_for(rows * block, REDUCTION_THREAD_ELEMENTS if rows > 1 else 8)
        return Tile(_along(loops, rows), reduction_block=block, warps=warps, chunks=chunks)
    if _sums(inside):
        rows_of = {
            a.buffer: block * chunks * element_bytes(a.dtype)
            for n in inside
            for a in n.accesses
            if not a.is_store and not free_dims(a.offset) <= {one.dim for one in n.loops}
        }
        under_way = sum(rows_of.values())
        if under_way * (STREAM_STAGES + 1) <= MAX_AHEAD_BYTES:
            stages = STREAM_STAGES + 1
        else:
            stages = STREAM_STAGES if under_way * (STREAM_STAGES - 1) <= MAX_AHEAD_BYTES else 0
        needed = held + block * chunks * _read_once(inside)
        warps = min(16, power_of_two(-(-needed // (32 * MAX_ROWS_THREAD_ELEMENTS))))
        registers = _registers_of_two(needed, warps)
        if block == CHUNK_ELEMENTS:
            block, chunks = CHUNK_ELEMENTS // 2, chunks * 2
        axes = _along(loops, rows)
        return Tile(axes, reduction_block=block, warps=warps, chunks=chunks, stages=stages, registers=registers)
    if kept == 1 and _phases(inside) == 1 and _is_narrow(inside):
        # read again from the nearest cache: without the row in their registers, four programs fit a multiprocessor
        if block == longest == LONG_ROW_STEP_ELEMENTS:
            warps = warps_for(LONG_ROW_STEP_ELEMENTS, REDUCTION_THREAD_ELEMENTS)
            return Tile(_along(loops, rows), reduction_block=CHUNK_ELEMENTS, warps=warps)
        if longest == 2 * LONG_ROW_STEP_ELEMENTS and not finds_positions(inside):
            inner = LONG_ROW_STEP_ELEMENTS if all(len(n.loops) == 1 for n in inside) else longest
            warps = warps_for(LONG_ROW_STEP_ELEMENTS, ROW_THREAD_ELEMENTS)
            return Tile(_along(loops, 1), reduction_block=inner, warps=warps)
    if block == LONG_ROW_STEP_ELEMENTS and kept:
        warps = warps_for(LONG_ROW_STEP_ELEMENTS, PHASED_THREAD_ELEMENTS if _phases(inside) > 1 else REDUCTION_THREAD_ELEMENTS)
        block = min(LONG_ROW_STEP_ELEMENTS // 2, 256 * warps)
        return Tile(_along(loops, rows), reduction_block=block, warps=warps, chunks=LONG_ROW_STEP_ELEMENTS // block)
    busy = chunks == 1 and sum(n.num_ops for n in inside) > HEAVY_OPS
    warps = min(16, warps_for(rows * block * chunks, REDUCTION_THREAD_ELEMENTS if rows > 1 or busy else ROW_THREAD_ELEMENTS))
    while warps < 16 and 16 * held > warps * MAX_ON_CHIP_ELEMENTS:  # 16 warps keep the most that is on chip, each its share
        warps *= 2
    if fills_multiprocessor(held) and held <= MAX_ALL_WARPS_ELEMENTS:
        warps = MAX_WARPS  # with 16 there would be too little under way
    if rows == 1 and block > max(COPIED_TILE_ELEMENTS * 2, 512 * warps) and _phases(inside) > 1:
        block = 512 * warps  # the elements of a thread in more, shorter chunks take fewer registers
        chunks = -(-longest // block)
    registers = _registers_of_two(2 * rows * block * chunks, warps) if scans and not kept else 0  # running sums are f64
    return Tile(_along(loops, rows), reduction_block=block, warps=warps, chunks=chunks, registers=registers)


def _along(loops: Sequence[Loop], block: int) -> list[tuple[list[Loop], int]]:
    """The axis of blocks of so many rows; none where there is one row."""
    return [(list(loops), block)] if loops else []


def _registers_of_two(needed: int, warps: int) -> int:
    """Registers of a thread that leave room for a second program, where each of the threads needs no more beside its part of `needed`
    numbers; else 0, which leaves them open."""
    registers = Gpu.registers // (2 * Gpu.lanes * warps)
    return registers if needed // (Gpu.lanes * warps) + OTHER.column_sums <= registers < Gpu.thread_registers else 0


def fills_multiprocessor(held: int) -> bool:
    """Whether a program that keeps so many elements on chip is the only one of its multiprocessor."""
    return 2 * held > MAX_ON_CHIP_ELEMENTS


def _outer(info: NestAccess, loops: Sequence[Loop], sizes: Sizes) -> Tile | None:
    """The tile of a reduction for each row of one tensor and each of another one, as distances are; None for another nest. What is loaded
    of a row serves all rows of the other tensor that the program has."""
    nodes = [n for n in info.root.walk() if n is not info.root]
    if len(nodes) != 1 or not isinstance(nodes[0].op, loop.ReduceOp) or not set(nodes[0].op.kind_names) <= {"sum", "prod", "max", "min"}:
        return None
    (node,) = nodes
    if sizes.trips(node.loops) < OUTER_STEP_TERMS:
        return None
    along = [free_dims(a.offset) for a in node.accesses if node.last_dim in free_dims(a.offset)]
    for second in reversed(loops):
        for first in loops:
            ones, others = [d for d in along if first.dim in d], [d for d in along if second.dim in d]
            if first is second or not ones or not others or any(second.dim in d for d in ones):
                continue
            columns = min(OUTER_RESULTS // SHARED_VECTOR_ROWS, power_of_two(sizes(second.size)))
            rows = min(OUTER_RESULTS // columns, power_of_two(sizes(first.size)))
            if rows >= SHARED_VECTOR_ROWS and rows * columns == OUTER_RESULTS:
                rest = [one for one in loops if one is not first and one is not second]
                return Tile(
                    [([first], rows), ([second], columns)],
                    rest,
                    reduction_block=OUTER_STEP_TERMS,
                    warps=warps_for(OUTER_RESULTS * OUTER_STEP_TERMS, ROW_THREAD_ELEMENTS),
                )
    return None


def _shares_more(inside: Sequence[Node]) -> bool:
    """Whether rows that are summed up have more bytes in common than each has for itself: a matrix of bytes times a vector of 16 bits."""
    if any(not isinstance(n.op, loop.ReduceOp) or set(n.op.kind_names) != {"sum"} for n in inside):
        return False
    moved = {True: 0, False: 0}
    for n in inside:
        own = {one.dim for one in n.loops}
        for a in n.accesses:
            moved[free_dims(a.offset) <= own] += element_bytes(a.dtype)
    return moved[True] > moved[False]


def has_reductions_inside(node: Node) -> bool:
    """Whether each element of a loop is a long reduction of a row by itself, as the elements of a product's row are."""
    trips = node.trips.value
    if trips is None or trips <= MAX_UNROLLED_INNER_TRIPS or not isinstance(node.op, loop.ForOp) or node.op.sequential is not None:
        return False
    plain = all(isinstance(c.op, loop.ReduceOp) and not c.children and not _is_short(c) for c in node.children)
    return bool(node.children) and plain and all(a.mode == "set" for a in node.all_accesses() if a.is_store)


def most_trips(node: Node, info: NestAccess) -> int | None:
    """How many iterations the loops of a node have at most; None where sizes that are symbols leave that open."""
    return range_of(node.trips, info.ranges).hi


def segment_length(nodes: Sequence[Node]) -> Expr:
    """What the loops of nodes have in common, after which a block may begin whatever the one before it has left: the shortest of the last
    loops, of which the others are multiples; ONE where there is none."""
    last = {n.loops[-1].size if n.loops else ONE for n in nodes}
    return next((e for e in last if all(exact_quotient(other, e) is not None for other in last)), ONE)


def padded_trips(node: Node, info: NestAccess, run: int, length: Expr) -> int | None:
    """How many iterations the loops of a node have at most, runs of `length` counted as `run` ones (0: as they are); None where that is
    open."""
    total = node.trips
    if total.value is not None or not run:
        return range_of(total, info.ranges).hi
    runs, most = exact_quotient(total, length), range_of(length, info.ranges).hi
    count = None if runs is None else range_of(runs, info.ranges).hi
    return None if count is None or most is None or most > run else count * run


def reads_once(inside: Sequence[Node], longest: int) -> bool:
    """Whether rows whose length is a symbol are reduced as they go by: nothing of them is wanted twice, and blocks without a mask are
    reduced in a third of the instructions."""
    open_ended = any(n.trips.value is None for n in inside)
    reduces = all(isinstance(n.op, loop.ReduceOp) for n in inside)
    return open_ended and longest > REDUCTION_TILE_ELEMENTS and kept_tensors(inside) == 0 and reduces


def fits_on_chip(info: NestAccess) -> bool:
    """Whether the rows of a nest are surely so short that they are kept on chip."""
    long = long_loops(info)
    caps = [most_trips(n, info) for n in long]
    if reads_once(long, max((n or 0 for n in caps), default=0)):
        return False
    return bool(caps) and all(n is not None and n * max(1, kept_tensors(long)) <= MAX_ON_CHIP_ELEMENTS for n in caps)


def _are_apart(info: NestAccess, inside: Sequence[Node]) -> bool:
    """Whether long loops over values have nothing in common, as those of a concatenation: programs that write one short block each keep
    memory busier than those which have whole rows."""
    loops = [n for n in inside if has_effect(n)]
    if len(loops) < 2 or any(n.children or n.parent is not info.root or not _is_long(n) for n in loops):
        return False
    if any(a.is_store for a in info.root.accesses) or any(isinstance(op, loop.BoundOp) for op in loop.walk_bodies(info.root.op)):
        return False
    read = {memory_of(a.buffer) for a in info.root.all_accesses() if not a.is_store}
    stores = [a for n in loops for a in n.accesses if a.is_store]
    if any(memory_of(a.buffer) in read or a.mode != "set" for a in stores):
        return False
    rows = {one.dim for one in info.root.loops}
    return all(separate_in_row(a, b, rows, info.ranges) for k, a in enumerate(stores) for b in stores[:k] if a.node is not b.node)


def _is_long(node: Node) -> bool:
    trips = node.trips.value
    return trips is not None and trips >= COPIED_TILE_ELEMENTS and isinstance(node.op, loop.ForOp) and node.op.sequential is None


def _phases(inside: Sequence[Node]) -> int:
    """How many times the reductions of a row wait for each other. An online softmax counts once: exponentials keep more warps busy."""
    kinds = [kind for n in inside if isinstance(n.op, loop.ReduceOp) for kind in n.op.kind_names]
    return sum(2 if kind == "welford" else 1 for kind in kinds)


def kept_tensors(inside: Sequence[Node]) -> int:
    """How many tensors that vary along the loops inside of a nest stay on chip: two of these read them, or a loop around sums them up."""
    return len(kept_buffers(inside)) + _sums(inside)


def kept_buffers(inside: Sequence[Node]) -> dict[SSAValue, Attribute]:
    """Those that several loops read, with the types of their elements in memory."""
    seen: dict[SSAValue, set[Node]] = {}
    loaded = {access.buffer: access.dtype for node in inside for access in node.accesses if not access.is_store}
    for node in inside:
        if not has_effect(node) or not node.loops:
            continue
        for access in node.accesses:
            if linear_coeff(access.offset, node.loops[-1].dim) is not ZERO:
                seen.setdefault(access.buffer, set()).add(node)
    return {buffer: loaded[buffer] for buffer, nodes in seen.items() if len(nodes) > 1 and buffer in loaded}


def finds_positions(inside: Sequence[Node]) -> bool:
    """Whether a loop inside of a nest looks for the place of the largest or smallest element."""
    return any(isinstance(n.op, loop.ReduceOp) and {"argmax", "argmin"} & set(n.op.kind_names) for n in inside)


def _is_heavy(inside: Sequence[Node]) -> bool:
    """Whether what is computed of the elements of a row takes so many registers that few of them should be under way."""
    return max(n.num_ops for n in inside) > HEAVY_OPS or (finds_positions(inside) and streams(inside) > 1)


def _heavy_warps(inside: Sequence[Node]) -> int:
    """Warps that have a block of such a row: more of them where no places are kept beside what is found."""
    return warps_for(COPIED_TILE_ELEMENTS, 8 if finds_positions(inside) else 4)


def streams(inside: Sequence[Node]) -> int:
    """How many tensors the loop inside of a nest that reads most of them reads along its last one."""
    return max(
        len({a.buffer for a in n.accesses if not a.is_store and n.loops and linear_coeff(a.offset, n.loops[-1].dim) is not ZERO})
        for n in inside
    )


def _is_narrow(inside: Sequence[Node]) -> bool:
    """Whether what varies along the loops inside of a nest has 16 bits at most."""
    return all(element_bytes(a.dtype) <= 2 for n in inside for a in n.accesses)


def _read_once(inside: Sequence[Node]) -> int:
    """How many tensors that are the same in each row a program which goes through rows reads in one of the loops inside (early_loads.py has
    it read them once; those that several loops read are among the kept ones)."""
    readers: dict[object, set[Node]] = {}
    for n in inside:
        for a in n.accesses:
            if not a.is_store and n.loops and free_dims(a.offset) <= {one.dim for one in n.loops}:
                readers.setdefault(a.buffer, set()).add(n)
    return sum(len(nodes) == 1 for nodes in readers.values())


def _sums(inside: Sequence[Node]) -> int:
    """How many tensors a loop around those loops sums up."""
    return sum(a.mode != "set" and n.parent is not None and n.parent.parent is not None for n in inside for a in n.accesses)


def has_effect(node: Node) -> bool:
    """Whether anything comes of the loops of a node."""
    if not isinstance(node.op, loop.ForOp):
        return True
    return any(a.is_store for a in node.all_accesses()) or any(isinstance(op, loop.BoundOp) for op in loop.walk_bodies(node.op))


def cut(longest: int, filled: float = MIN_BLOCK_SHARE) -> tuple[int, int]:
    """The block of a row that is kept on chip, and how many make the row: one, unless less of it than `filled` would be used."""
    block = power_of_two(longest)
    if block <= MAX_BLOCK_ELEMENTS and longest >= filled * block:
        return block, 1
    for block in (CHUNK_ELEMENTS, CHUNK_ELEMENTS // 2, CHUNK_ELEMENTS // 4, CHUNK_ELEMENTS // 8, CHUNK_ELEMENTS // 16):
        chunks = -(-longest // block)
        if chunks <= MAX_CHUNKS and longest >= filled * block * chunks:
            return block, chunks
    return (power_of_two(longest), 1) if power_of_two(longest) <= MAX_BLOCK_ELEMENTS else (CHUNK_ELEMENTS, -(-longest // CHUNK_ELEMENTS))


def _columns(loops: Sequence[Loop], x: Loop, inside: Sequence[Node], sizes: Sizes, gpu: Gpu) -> Tile:
    rest = [one for one in loops if one is not x]
    around = sizes.trips(rest)
    narrow = _is_narrow(inside)
    block = min(TILE_COLUMNS * (2 if narrow else 1), power_of_two(sizes(x.size)))
    while block > MIN_TILE_COLUMNS and around * -(-sizes(x.size) // block) < gpu.multiprocessors:
        block //= 2
    longest = max(sizes.trips(n.loops) for n in inside)
    states = any("welford" in n.op.kind_names for n in inside if isinstance(n.op, loop.ReduceOp))
    depth = max(1, min((STATES_TILE_ELEMENTS if states else REDUCTION_TILE_ELEMENTS) // block, power_of_two(longest)))
    even = depth
    while even > depth // 4 and longest % even:
        even //= 2
    depth = depth if longest % even else even
    each = REDUCTION_THREAD_ELEMENTS // 2 if states else REDUCTION_THREAD_ELEMENTS * 2 if narrow else REDUCTION_THREAD_ELEMENTS
    return Tile([([x], block)], rest, reduction_block=depth, warps=warps_for(block * depth, each), stages=STREAM_STAGES)


def fits_i32(info: NestAccess) -> bool:
    """Whether all index arithmetic of a nest surely fits 32 bits, a last block that hangs over included; numbers that no index is computed
    from may be of any size."""

    limit = I32_MAX - (1 << 21)

    def small(e: Expr) -> bool:
        r = range_of(e, info.ranges)
        return r.lo is not None and r.hi is not None and r.lo >= -limit and r.hi <= limit

    def fits(e: Expr) -> bool:
        if not small(e):
            return False
        parts: Sequence[Expr] = ()
        if isinstance(e, Add):
            return all(fits(t) and small(t * c) for t, c in e.terms)
        if isinstance(e, Mul):
            parts = e.factors
        elif isinstance(e, (FloorDiv, Mod)):
            parts = (e.lhs, e.rhs)
        elif isinstance(e, (Min, Max)):
            parts = e.args
        return all(fits(p) for p in parts)

    for node in info.root.walk():
        if not fits(node.trips):
            return False
        if not all(fits(a.offset) for a in node.accesses):
            return False
    return all(fits(e) for e in info.exprs.values() if e.value is None and e not in info.opaque)
