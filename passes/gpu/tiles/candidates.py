"""The tile of a nest as data: the entry `gpu` of its schedule, and other tiles that it could have.

    schedule = {gpu = {axes = [[1], [0]], blocks = [32, 4096], grid_loops = [], reduction_block = 0, chunks = 1, stages = 0, warps = 4}}

A tile that several programs share has `group = 8` beside (exchange.py), `segment = 3136` where a block begins with every 3136 iterations of
the loops inside, and `registers = 128`, which a thread has at most. With `coarsening = 8` a program takes 8 iterations of the last of
`grid_loops`, with `loop_per_program = 1` one block of one of the loops inside. `second_reduction_block = 64` is the block of one more axis,
for loops inside that have reductions in them. With `halves = 1` 16-bit numbers stay on chip as they are from one loop inside to the next.
With `dot = 1` the loops inside are a matrix product, whose factors vary along one of two axes each. With `band = 8` programs side by side
go through 8 blocks of the first of two axes before they go on to the next block of the other. `persistent = 132` programs go through all
blocks, one after the other; with `stream_k = 1` each has an equal share of the steps of all blocks. With `copies = 1` factors and results
are copied as blocks by the GPU's unit for that (TMA) where it can.

Loops are those of the nest as the analysis has merged and split them (the remark of gpu-schedule says which), by number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, i64
from xdsl.ir import Attribute

from ....dialects import loop
from ....dialects.expr import Expr
from ...analysis.nest_access import Loop, NestAccess
from ...analysis.schedule_attrs import GPU, LOOPS, OLDER_TILE_KEYS, schedule_table, tile_table, update_schedule
from ...cost.machine.gpu import Gpu
from ..nest_types import UnsupportedNest
from ..shared_rows import part_of
from .product_nests import BlockReduction, block_reduction, picked_index
from .rules import MAX_BLOCK_ELEMENTS, MIN_TILE_COLUMNS, choose, column_loop, has_effect, long_loops, padded_trips, segment_length
from .stream_k import STREAM_K_NEEDS, shared_node
from .tile import MIN_DOT_SIDE, Sizes, Tile, power_of_two
from .value_tiles import SQUARE_SIDE, only_sets

MAX_GROUP_PROGRAMS = Gpu.lanes
"""Programs that may share a tile: each lane of a warp looks after one of them."""
LOOP_KEYS = ("axes", "blocks", "grid_loops")
NUMBERS = ("reduction_block", "chunks", "stages", "warps")
RARE_NUMBERS = {one.name: one.default for one in fields(Tile) if one.name not in (*LOOP_KEYS, *NUMBERS)}
"""Numbers that few tiles have, and what they are for the others."""


def write_tile(nest: loop.NestOp, info: NestAccess, tile: Tile) -> None:
    """Note a tile on its nest."""
    update_schedule(nest, {GPU: tile_attr(info, tile)})


def tile_attr(info: NestAccess, tile: Tile) -> DictionaryAttr:
    """A tile as an attribute."""
    number = {id(one): k for k, one in enumerate(info.root.loops)}  # a loop that reduces a block of products goes without saying
    entries: dict[str, Attribute] = {
        "axes": ArrayAttr([_ints([number[id(one)] for one in loops if id(one) in number]) for loops, _ in tile.axes]),
        "blocks": _ints([block for _, block in tile.axes]),
        "grid_loops": _ints([number[id(one)] for one in tile.grid_loops]),
        **{one: IntegerAttr(getattr(tile, one), i64) for one in NUMBERS},
    }
    entries |= {one: IntegerAttr(n, i64) for one, default in RARE_NUMBERS.items() if (n := getattr(tile, one)) != default}
    return DictionaryAttr(entries)


def read_tile(nest: loop.NestOp, info: NestAccess) -> Tile | None:
    """The tile that is noted on a nest, if there is one.  UnsupportedNest for one that does not fit the nest."""
    given = schedule_table(nest).get(GPU)
    if given is None:
        return None
    if not isinstance(given, DictionaryAttr):
        raise UnsupportedNest(f"schedule: '{GPU}' is a dictionary, not {given}")
    table = tile_table(given)
    _check_keys(given)
    loops = info.root.loops
    axes = [_numbers(a, "axes") for a in _array(table, "axes")]
    blocks, walked = _numbers(table.get("blocks"), "blocks"), _numbers(table.get("grid_loops"), "grid_loops")
    used = [k for axis in (*axes, walked) for k in axis]
    reduced = block_reduction(info) if table.get("dot") else None
    if sorted(used) != list(range(len(loops))) or not all(axes) and (reduced is None or len(reduced.side) > 1):
        raise UnsupportedNest(f"schedule: axes and grid_loops name each of the nest's {len(loops)} loops once, not {used}")
    values = {one: _number(table, one) for one in (*NUMBERS, *(key for key in RARE_NUMBERS if key in table))}
    powers = [*blocks, values["warps"], *(values[key] for key in ("reduction_block", "second_reduction_block") if values.get(key))]
    if len(blocks) != len(axes) or any(p < 1 or p != power_of_two(p) for p in powers):
        raise UnsupportedNest("schedule: blocks (one for each axis), reduction_block, second_reduction_block and warps are powers of two")
    if values["chunks"] < 1 or values["stages"] < 0:
        raise UnsupportedNest("schedule: chunks is at least 1, stages at least 0")
    if not 1 <= values.get("group", 1) <= MAX_GROUP_PROGRAMS:
        raise UnsupportedNest(f"schedule: a group has 1 to {MAX_GROUP_PROGRAMS} programs")
    if (coarsening := values.get("coarsening", 1)) < 1 or (coarsening > 1 and not walked):
        raise UnsupportedNest("schedule: coarsening is a number from 1, of iterations of the last of the grid loops")
    if coarsening > 1 and ((trips := loops[walked[-1]].size.value) is None or trips % coarsening) and not only_sets(info):
        raise UnsupportedNest("schedule: coarsening divides the last of the grid loops where a nest reads what it stores, or adds to it")
    whole_rows = values["reduction_block"] and values.get("group", 1) == 1 and not values.get("loop_per_program")
    if values.get("second_reduction_block") and not whole_rows:
        raise UnsupportedNest("schedule: a tile with second_reduction_block has reduction_block too, neither group nor loop_per_program")
    if values.get("dot") and (len(axes) != 2 or min(*blocks, values["reduction_block"]) < MIN_DOT_SIDE):
        raise UnsupportedNest(f"schedule: a tile with dot has two axes, their blocks and reduction_block are at least {MIN_DOT_SIDE}")
    if values.get("band", 0) < 0 or (values.get("band") and len(axes) != 2):
        raise UnsupportedNest("schedule: band is a number of blocks of the first of two axes")
    alone = values.get("group", 1) == 1 and (not values["reduction_block"] or values.get("dot"))
    if (persistent := values.get("persistent", 0)) < 0 or (persistent and not alone):
        raise UnsupportedNest("schedule: persistent is a number of programs, of tiles without loops inside or with dot, and without group")
    if values.get("stream_k") and not (values.get("dot") and persistent and shared_node(info) is not None):
        raise UnsupportedNest(f"schedule: {STREAM_K_NEEDS}; persistent says how many programs there are")
    segment = values.get("segment", 0)
    if segment and any(has_effect(n) and (not n.loops or (n.loops[-1].size.value or 0) % segment) for n in long_loops(info)):
        raise UnsupportedNest("schedule: the last of the loops inside is as long as a segment, or as several")
    pick = [[loops[k] for k in axis] for axis in axes]
    if reduced is not None:
        _add_reduced(pick, blocks, reduced)
    tile = Tile(list(zip(pick, blocks, strict=True)), [loops[k] for k in walked], **values)
    if tile.group > 1 and not _is_shared(tile, info):
        raise UnsupportedNest("schedule: programs that share a row keep all of it, by the lengths of the loops inside or their bounds")
    return tile


def _add_reduced(axes: list[list[Loop]], blocks: Sequence[int], reduced: BlockReduction) -> None:
    """The loop that reduces a block of products runs along the axis of its side, which has that block."""
    (block,), before = reduced.node.loops, list(reduced.side[:-1])
    axis = next((k for k, loops in enumerate(axes) if loops == before and blocks[k] == block.size.value), None)
    if axis is None:
        raise UnsupportedNest(f"schedule: an axis has the block of {block.size} products that the nest reduces")
    axes[axis].append(block)


def _check_keys(given: DictionaryAttr) -> None:
    """UnsupportedNest for a key that no tile has, and for one that is there by both its names."""
    known = {*NUMBERS, *RARE_NUMBERS, *LOOP_KEYS, LOOPS}
    for key in given.data:
        name = OLDER_TILE_KEYS.get(key, key)
        if name not in known:
            near = get_close_matches(name, known, 1)
            raise UnsupportedNest(f"schedule: a tile has no key '{key}'" + (f"; did you mean '{near[0]}'?" if near else ""))
        if name != key and name in given.data:
            raise UnsupportedNest(f"schedule: '{key}' is the older name of '{name}', and the tile has both")


def _is_shared(tile: Tile, info: NestAccess) -> bool:
    """Whether each program has its part of a row on chip, whole runs of it where their length is a symbol."""
    inside = [n for n in info.root.children if has_effect(n) and n.loops]
    length = segment_length(inside)
    for node in inside:
        trips = padded_trips(node, info, tile.segment, length)
        part = 0 if trips is None else part_of(trips, tile.group, tile.segment)
        if trips is None or tile.count(part) > tile.chunks or (tile.segment and length.value is None and part % tile.segment):
            return False
    return True


def candidates(info: NestAccess, hints: Mapping[Expr, int], machine: Gpu) -> list[Tile]:
    """Tiles that a nest could have, the one that the model chooses first; to be measured."""
    first = choose(info, hints, machine)
    found = [first]

    def add(tile: Tile) -> None:
        fits = 1 <= tile.warps <= machine.max_warps and tile.elements >= tile.warps
        if fits and tile.elements * tile.chunks <= 8 * MAX_BLOCK_ELEMENTS and tile not in found:
            found.append(tile)

    if first.dot:
        return [first, *_other_products(info, Sizes(hints), first, machine)]
    for warps in (first.warps * 2, first.warps // 2, first.warps * 4):
        add(replace(first, warps=warps))
    if first.reduction_block:
        add(replace(first, stages=0 if first.stages else 3))
        if first.chunks > 1:
            add(replace(first, reduction_block=first.reduction_block // 2, chunks=first.chunks * 2))
            add(replace(first, chunks=1, reduction_block=min(MAX_BLOCK_ELEMENTS, first.reduction_block * 4)))
        else:
            add(replace(first, reduction_block=first.reduction_block // 2, warps=max(1, first.warps // 2)))
            add(replace(first, reduction_block=first.reduction_block * 2))
    else:
        for times in (2, 0.5):
            axes: list[tuple[list[Loop], int]] = [*first.axes[:-1], *((loops, int(block * times)) for loops, block in first.axes[-1:])]
            if axes and axes[-1][1] >= (1 if len(axes) > 1 else MIN_TILE_COLUMNS):
                add(replace(first, axes=axes))
                add(replace(first, axes=axes, warps=max(1, int(first.warps * times))))
    return found


def _other_products(info: NestAccess, sizes: Sizes, first: Tile, gpu: Gpu) -> Iterator[Tile]:
    """Tiles of a product beside the first one, none of which takes more shared memory. Programs that go through several blocks load
    factors of the next one while they store the one before; the rules have that for sums of several steps alone."""
    yield replace(first, warps=4 if first.warps == 8 else 8)
    yield replace(first, stages=first.stages - 1)
    yield replace(first, reduction_block=first.reduction_block // 2)
    few, (loops, columns) = first.axes
    if columns > MIN_DOT_SIDE and block_reduction(info) is None:
        yield replace(first, axes=[few, (loops, columns // 2)])
    if first.persistent:
        yield replace(first, persistent=0)
    elif first.copies and picked_index(info) is None:
        resident = (gpu.multiprocessors * k for k in (1, 2))
        yield from (replace(first, persistent=n) for n in resident if n < first.programs(sizes))


def doubt(info: NestAccess, hints: Mapping[Expr, int], tile: Tile) -> str:
    """Why the rules are not sure of the tile that they choose for a nest, "" where they are: the kinds of nests for which measurements
    have found faster tiles (docs/lab/gpu-tiles-h200.md)."""
    if long_loops(info):
        return "reductions across the fastest dimension" if column_loop(info, Sizes(hints)) is not None else ""
    if info.opaque and len(info.root.loops) > 1:
        return "gathers"
    blocks = [block for _, block in tile.axes]
    return "accesses disagree about the fastest loop" if len(blocks) == 2 and blocks[0] == blocks[1] >= SQUARE_SIDE // 2 else ""


def _ints(values: Sequence[int]) -> ArrayAttr[Attribute]:
    return ArrayAttr([IntegerAttr(v, i64) for v in values])


def _array(table: Mapping[str, Attribute], key: str) -> Sequence[Attribute]:
    given = table.get(key)
    if not isinstance(given, ArrayAttr):
        raise UnsupportedNest(f"schedule: '{key}' of a tile is a list")
    return given.data


def _numbers(given: Attribute | None, key: str) -> list[int]:
    if not isinstance(given, ArrayAttr) or not all(isinstance(v, IntegerAttr) for v in given.data):
        raise UnsupportedNest(f"schedule: '{key}' of a tile is a list of numbers")
    return [v.value.data for v in given.data if isinstance(v, IntegerAttr)]


def _number(table: Mapping[str, Attribute], key: str) -> int:
    given = table.get(key)
    if not isinstance(given, IntegerAttr):
        raise UnsupportedNest(f"schedule: '{key}' of a tile is a number")
    return given.value.data
