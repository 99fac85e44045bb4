"""How products of matrices are cut into programs: which block of the result one has, how many terms of its sums it takes at once, how many
of these are under way, and in which order the programs go through the result.

Of few rows a program has all, so that the other matrix is read once. Else the block is the one that is fastest by what limits it: the units
for matrix products, or the cache that all multiprocessors read the factors from again and again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import product as pairs
from math import ceil, gcd

from xdsl.dialects import arith
from xdsl.dialects.builtin import i8
from xdsl.ir import Attribute, SSAValue

from ....dialects import loop
from ....dialects.expr import free_dims, product
from ....dialects.expr.ranges import range_of
from ....dialects.nd.types import element_bytes
from ...analysis.accesses.varying import Varying
from ...analysis.nest_access import Access, Loop, NestAccess, Node
from ...cost.block_price import PROGRAM_WARPS, Block, Sums, block_ns, generated, parts_ns, warps_for, words
from ...cost.contraction_price import MAX_SKINNY_ROWS, TILE_SIDES
from ...cost.held_numbers import held_numbers
from ...cost.machine.gpu import HALF_BYTES, LINE_BYTES, Gpu
from .product_nests import HALVES, WIDE, Side, block_reduction, factors, picked_index, product_nodes, product_sides, sorted_rows
from .stream_k import shared_node
from .tile import MIN_DOT_SIDE, Sizes, Tile, power_of_two
from .window_tiles import overlap

SKINNY_STAGES = 5
"""Iterations under way of a loop over a product's terms; one less where all numbers are of 16 bits as they are, two where a program has
many columns of such."""
SKINNY_BLOCK_TERMS = tuple(n for n in TILE_SIDES if n > MIN_DOT_SIDE)
"""Terms that a program of a product of few rows multiplies by at once."""
SKINNY_BLOCK_COLUMNS = SKINNY_BLOCK_TERMS[1:]
"""Columns of such a product that a program may have: as many as leave MIN_PROGRAMS_PER_MULTIPROCESSOR of the multiprocessors a program
each. It multiplies by a square of the most at once: where that is computed, which takes registers, 8 warps have it, otherwise 4."""
MIN_PROGRAMS_PER_MULTIPROCESSOR = 0.72
"""Programs for each multiprocessor below which a product of few rows has shorter blocks of columns, or its sums are split."""
BLOCK_SIDES = tuple(n for n in TILE_SIDES if n >= MAX_SKINNY_ROWS)
"""Sides of a block of the result where both are long."""
MIN_STEP_BYTES = MIN_DOT_SIDE * HALF_BYTES
"""Bytes of a row that a unit for products takes at once."""
MAX_STAGES = 4
"""Steps over the terms that are under way at most."""
GROUPED_BLOCK_ROWS = 8
"""Rows of blocks that programs go through before they go on to the next columns: what they read then is in the cache."""


class Computed(IntEnum):
    """How a factor is come by."""

    LOADED = 0
    MASKED = 1
    """It is loaded, but for zeros."""
    CONVERTED = 2
    """It is computed from what is loaded."""


def product_tile(info: NestAccess, sizes: Sizes, gpu: Gpu, least_rows: int = MIN_DOT_SIDE) -> Tile | None:
    """The tile of a product; None for another nest. `least_rows`: of the first side of its block."""
    sides = product_sides(info) if gpu.multiplies_halves else []
    if not sides:
        return None
    few, many = sorted(sides, key=sizes.trips)
    if has_few_rows(info, few, many, sizes):
        return _of_few_rows(info, few, many, sizes, gpu, least_rows)
    work = _Product.of(info, sides, sizes)
    tile = min(_blocks(work, gpu), key=lambda tile: _ns(work, tile, gpu), default=None)
    if tile is None:
        return None
    several = tile.programs(sizes) > gpu.multiprocessors and picked_index(info) is None
    if work.beside and tile.copies and work.sums == 1 and work.terms > tile.reduction_block and several:
        # results are stored meanwhile, through shared memory
        return replace(tile, persistent=gpu.multiprocessors, stages=min(tile.stages, MAX_STAGES - 1))
    return tile


def has_few_rows(info: NestAccess, few: Side, many: Side, sizes: Sizes) -> bool:
    """Whether a program has all rows, or both factors are computed on the way. Of rows that are sorted by matrices a program has those of
    one matrix."""
    if block_reduction(info) is not None:
        return False
    most = MAX_SKINNY_ROWS if not _are_windows(info, many) else MAX_SKINNY_ROWS // 2
    if sizes.trips(few) <= most and sorted_rows(info) is None:
        return True
    return all(_how_computed(info, one) == Computed.CONVERTED for one in (few, many))


def product_parts(info: NestAccess, possible: Sequence[int], sizes: Sizes, gpu: Gpu) -> int:
    """In how many parts the sums of a product are computed fastest, of those that are `possible`; 1: they are not split."""
    sides = product_sides(info)
    few, many = sorted(sides, key=sizes.trips)
    if has_few_rows(info, few, many, sizes):
        programs = _of_few_rows(info, few, many, sizes, gpu).programs(sizes)
        enough = gpu.multiprocessors * MIN_PROGRAMS_PER_MULTIPROCESSOR
        return next((n for n in (1, *possible) if programs * n >= enough), possible[-1])
    work = _Product.of(info, sides, sizes)
    return min([1, *possible], key=lambda parts: _ns_of_parts(work, parts, gpu))


def stream_k_tile(info: NestAccess, possible: Sequence[int], sizes: Sizes, gpu: Gpu) -> tuple[Tile, float, float] | None:
    """The tile by which programs have equal shares of a product's steps, its nanoseconds, and those of programs that have whole blocks, or
    one of as many parts of them as are `possible`; None for another nest."""
    sides = product_sides(info) if gpu.multiplies_halves and gpu.takes_ptx and shared_node(info) is not None else []
    if not sides:
        return None
    few, many = sorted(sides, key=sizes.trips)
    if has_few_rows(info, few, many, sizes):
        return None
    work = _Product.of(info, sides, sizes)
    tiles = [replace(t, persistent=gpu.multiprocessors, stream_k=1) for t in _blocks(work, gpu) if t.reduction_block < work.terms]
    tile = min(tiles, key=lambda tile: _ns(work, tile, gpu), default=None)
    return None if tile is None else (tile, _ns(work, tile, gpu), min(_ns_of_parts(work, parts, gpu) for parts in (1, *possible)))


def _ns_of_parts(work: _Product, parts: int, gpu: Gpu) -> float:
    """Nanoseconds of a product whose sums programs compute in so many parts."""
    one = work if parts == 1 else replace(work, batch=work.batch * parts, terms=ceil(work.terms / parts), beside=4.0 * work.sums)
    added = parts_ns(_sums(work), parts, gpu) + gpu.rates.start_us * 1e3 if parts > 1 else 0.0  # by a kernel of their own
    return min(_ns(one, tile, gpu) for tile in _blocks(one, gpu)) + added


@dataclass(frozen=True)
class _Product:
    """What the price of a product's tile depends on. `axes` are the two sides, the one of a factor that is computed last: the units take
    only the second factor from registers as it is there (docs/lab/gpu-products.md). `read` are bytes of each term along each of them,
    `widest` those of the widest factor, `beside` those of each element of the result that are read and written beside it; `held` are
    numbers of each element that a thread keeps at once; `rate` is what the rates of a GPU call the products; `cuts`: of each
    side, blocks that are lost where a matrix' rows end, or how often what has one matrix ends. `whole`: of each
    side, the block that a program has all of, since it reduces it; 0: any."""

    axes: tuple[Side, Side]
    rest: list[Loop]
    size: tuple[int, int]
    batch: int
    sums: int
    terms: int
    last: int
    read: tuple[int, int]
    widest: int
    beside: float
    held: int
    rate: str
    cuts: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    whole: tuple[int, int] = (0, 0)

    @staticmethod
    def of(info: NestAccess, sides: Sequence[Side], sizes: Sizes) -> _Product:
        """The product that a nest is."""
        inside = product_nodes(info)
        first, second = sides
        if _how_computed(info, first) > _how_computed(info, second):
            first, second = second, first
        rest = [one for one in info.root.loops if one not in first and one not in second]
        loads = _factors(inside)

        def read(side: Side) -> int:
            return sum(element_bytes(a.dtype) for a in loads if _along(a, side))

        widest = max([element_bytes(a.dtype) for a in loads], default=1)
        reduced = block_reduction(info)
        behind = [*info.root.accesses, *([] if reduced is None else reduced.node.accesses)]
        block_of = {} if reduced is None else {reduced.side: sizes.trips(reduced.node.loops)}
        beside = sum(element_bytes(a.dtype) for a in behind if _along(a, first) and _along(a, second))
        return _Product(
            (first, second), rest, (sizes.trips(first), sizes.trips(second)), sizes.trips(rest), sum(len(factors(info, n)) for n in inside),
            max(sizes.trips(n.loops) for n in inside), gcd(*(sizes(n.loops[-1].size) for n in inside if len(n.loops) > 1)),
            (read(first), read(second)), widest, beside, _held(info, first, second),
            next(f.rate for n in inside for f in factors(info, n)), _cuts(info, (first, second), sizes),
            (block_of.get(first, 0), block_of.get(second, 0)),
        )  # fmt: skip


def _held(info: NestAccess, first: Side, second: Side) -> int:
    """Numbers of each element of the result that a thread keeps at once."""
    reduced = block_reduction(info)
    ops = list((info.root if reduced is None else reduced.node).op.regions[0].blocks[0].ops)
    varying = Varying(info)
    sums = [v for n in product_nodes(info) if n.op in ops for v in n.op.results]

    def is_of_element(value: SSAValue) -> bool:
        if value in info.exprs or value in sums:
            return False
        dims = varying.of_value(value)
        return all(not dims.isdisjoint(one.dim for one in side) for side in (first, second))

    stores = [op for op in ops if isinstance(op, loop.StoreOp)]
    ends = [op for op in ops if isinstance(op, loop.StoreOp | loop.YieldOp)]
    partly = any(f.adds_blocks for n in info.root.walk() for f in factors(info, n))  # the unit's are beside f32's
    draws = any(isinstance(op, loop.RandomOp) and is_of_element(op.result) for op in ops)
    places = any(op.store_mode != "set" for op in stores)  # addresses of atomic operations, which no shared memory puts in order
    return partly + places + held_numbers(sums, ops, ends, is_of_element, draws)


def _cuts(info: NestAccess, sides: tuple[Side, Side], sizes: Sizes) -> tuple[tuple[int, int], tuple[int, int]]:
    """Along each side: how many blocks are lost where each begins with its matrix' rows; else how often what has one matrix ends before all
    ends, if it is sorted by matrices."""
    if (found := sorted_rows(info)) is not None:
        first, second = (sizes(found.count) // 2 if one == found.side else 0 for one in sides)
        return (first, second), (0, 0)
    picks = picked_index(info)
    op = None if picks is None else info.opaque[picks[0]].owner
    ends = sizes(op.size.data) - 1 if isinstance(op, loop.BoundOp) else 0
    first, second = (ends if picks is not None and one == picks[1] else 0 for one in sides)
    return (0, 0), (first, second)


def _are_windows(info: NestAccess, side: Side) -> bool:
    """Whether elements that vary along a side are in several windows: the cache hands them out, and memory is not the limit."""
    inside = product_nodes(info)
    return any(overlap(a, one, along) for n in inside for a in n.accesses for one in side for along in n.loops)


def _along(access: Access, side: Side) -> bool:
    """Whether an access varies along a side."""
    return not free_dims(access.offset).isdisjoint(one.dim for one in side)


def _how_computed(info: NestAccess, side: Side) -> Computed:
    """How factors along a side are come by; the most that any of them takes."""
    inside = product_nodes(info)
    return max((_computed(f.along[side], f.element) for n in inside for f in factors(info, n)), default=Computed.LOADED)


def _computed(factor: SSAValue, element: Attribute) -> Computed:
    op = factor.owner
    if isinstance(op, arith.ExtSIOp) and element == i8:
        op = op.input.owner
    if not isinstance(op, loop.LoadOp) or loop.element_type(op.source.type) not in ({element} if element in WIDE else HALVES | {element}):
        return Computed.CONVERTED
    return Computed.LOADED if op.mask is None else Computed.MASKED


def _factors(inside: Sequence[Node]) -> list[Access]:
    return [a for n in inside for a in n.accesses if not a.is_store and n.last_dim in free_dims(a.offset)]


def _blocks(work: _Product, gpu: Gpu) -> Iterator[Tile]:
    """The blocks that the result may have, whose factors fit shared memory, and what is computed of them the registers."""
    first, second = ((whole,) if whole else BLOCK_SIDES for whole in work.whole)
    for columns, rows in pairs(second, first):
        sides = rows, columns
        warps = warps_for(rows * columns, work.sums * words(work.rate), work.held * words(work.rate), gpu)
        if not warps and rows * columns > BLOCK_SIDES[-1] ** 2:
            continue
        least = max(MIN_DOT_SIDE, MIN_STEP_BYTES // work.widest)
        terms = max(least, min(LINE_BYTES // work.widest, power_of_two(work.terms)))
        while terms > least and work.last % terms:
            terms //= 2  # a block within one iteration of the loops around the last: what these index is the same for all of it
        step = terms * (sides[0] * work.read[0] + sides[1] * work.read[1])
        steps = ceil(work.terms / terms)
        stages = min(MAX_STAGES, gpu.shared // step, steps)
        if stages < min(2, steps):
            continue
        axes = [(list(loops), side) for loops, side in zip(work.axes, sides, strict=True)]
        warps = warps or PROGRAM_WARPS[-1]
        copies = int(gpu.copies_blocks)
        yield Tile(axes, work.rest, reduction_block=terms, stages=stages, warps=warps, dot=1, band=GROUPED_BLOCK_ROWS, copies=copies)


def _ns(work: _Product, tile: Tile, gpu: Gpu) -> float:
    """The price of a tile."""
    (_, rows), (_, columns) = tile.axes
    block = Block(rows, columns, tile.reduction_block, tile.stages, tile.warps, shares=bool(tile.stream_k))
    return block_ns(generated(_sums(work), gpu), block, gpu)[0]


def _sums(work: _Product) -> Sums:
    """What the price of a block is of."""
    row, column = work.read
    return Sums(*work.size, work.terms, work.batch, work.sums, row, column, work.beside, work.rate, work.cuts[1], lost=work.cuts[0])


def _of_few_rows(info: NestAccess, few: Side, many: Side, sizes: Sizes, gpu: Gpu, least_rows: int = MIN_DOT_SIDE) -> Tile:
    """A program has all rows, or MAX_SKINNY_ROWS of them, and blocks of the other matrix, or matrices, under way in shared memory.
    No factor that is computed on the way stands first in blocks of 64 rows: the units for whole warp groups take it from registers.
    Rows that are fewer than the first side has at least are the second one."""
    inside = product_nodes(info)
    most = range_of(product(one.size for one in few), info.ranges).hi
    rest = [one for one in info.root.loops if one not in few and one not in many]
    rows = MAX_SKINNY_ROWS if most is None else min(MAX_SKINNY_ROWS, max(MIN_DOT_SIDE, power_of_two(most)))
    converted = [_how_computed(info, one) == Computed.CONVERTED for one in (few, many)]
    if all(converted):
        rows = min(rows, MAX_SKINNY_ROWS // 2)
    around = sizes.trips(rest) * -(-sizes.trips(few) // rows)
    enough = gpu.multiprocessors * MIN_PROGRAMS_PER_MULTIPROCESSOR
    possible = [n for n in SKINNY_BLOCK_COLUMNS if n >= least_rows or rows >= least_rows]
    columns = next((n for n in possible if around * (sizes.trips(many) // n) >= enough), possible[-1])
    loads = [a for n in inside for a in n.accesses if not a.is_store and n.last_dim in free_dims(a.offset)]
    terms_alone = {one.dim for n in inside for one in n.loops}
    places = [rows if _along(a, few) else 1 if free_dims(a.offset) <= terms_alone else columns for a in loads]
    each = sum(element_bytes(a.dtype) * places[k] for k, a in enumerate(loads))
    kinds = HALVES | {f.element for n in inside for f in factors(info, n)}
    computes = any(a.dtype not in kinds for a in loads)
    stages = SKINNY_STAGES - (0 if computes else 1 if columns < SKINNY_BLOCK_COLUMNS[0] else 2)
    longest = SKINNY_BLOCK_COLUMNS[0] ** 2 // columns
    # one program multiplies while another one waits: two have room; where there are no two, one has, and what it converts
    alone = around * -(-sizes.trips(many) // columns) <= gpu.multiprocessors
    steps, room = (stages + 1, gpu.shared) if alone else (stages - 1, gpu.shared // 2)
    fitting = [n for n in SKINNY_BLOCK_TERMS if n <= longest and each * n * steps <= room] or [SKINNY_BLOCK_TERMS[-1]]
    # a block within one iteration of the loops around the last: what these index (scales of groups) is the same for all of it
    last = [sizes(n.loops[-1].size) for n in inside]
    terms = next((n for n in fitting if all(size % n == 0 for size in last)), fitting[0])
    warps = 8 if computes and columns == SKINNY_BLOCK_COLUMNS[0] else 4
    stages = min(stages, ceil(max(sizes.trips(n.loops) for n in inside) / terms))
    axes = [(list(few), rows), (list(many), columns)]
    turned = converted == [True, False] or rows < least_rows
    return Tile(axes[::-1] if turned else axes, rest, reduction_block=terms, stages=stages, warps=warps, dot=1)
