"""Tiles of nests without loops inside, or with short ones that become straight code: one axis along the fastest loop, two where accesses
disagree about it, or where it is short."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....dialects.expr import ONE, ZERO, Expr, free_dims, linear_coeff
from ....dialects.nd.types import element_bytes
from ...analysis.dependences import memory_of
from ...analysis.nest_access import Loop, NestAccess
from ...cost.machine.gpu import VECTOR_BYTES
from .gathers import index_loops
from .tile import (
    COPIED_TILE_ELEMENTS,
    MAX_UNROLLED_INNER_TRIPS,
    MIN_BLOCK_SHARE,
    WINDOW_THREAD_ELEMENTS,
    Sizes,
    Tile,
    bytes_moved,
    power_of_two,
    warps_for,
)

SQUARE_SIDE = 64
"""Side of a tile whose accesses disagree about the fastest dimension."""
MIN_FASTEST_SIZE = 128
"""A fastest loop shorter than this may take in its neighbours."""
MIN_CONTIGUOUS_SHARE = 0.2
"""Share of what is accessed that counts, of what is side by side along a loop: less of it may be read and written across."""
GATHERED_THREAD_ELEMENTS = 16
"""The same where indices are loaded, each of which then serves more rows."""
RESAMPLED_STRIP_ROWS = 8
"""Rows that a program resamples one after the other, where it is neighbouring rows that they are made of."""


def value_tile(info: NestAccess, loops: Sequence[Loop], weights: Mapping[Expr, float], sizes: Sizes) -> Tile:
    """The tile of such a nest; `weights`: the bytes of accesses that are contiguous along a loop, or nearly so."""
    if not loops:
        return Tile(warps=1)
    ranked = sorted(info.root.loops, key=lambda one: weights.get(one.dim, 0), reverse=True)
    x = ranked[0]
    apart = _has_windows(info, x) or _scatters_along(info, x)
    each = WINDOW_THREAD_ELEMENTS if apart else GATHERED_THREAD_ELEMENTS if info.opaque and len(loops) > 1 else 8
    if _lies_apart(info, x, sizes):
        each = 1
    most = each * COPIED_TILE_ELEMENTS // 8
    thread = VECTOR_BYTES if each == 8 and _has_bytes(info, x) else each
    if len(loops) == 1:
        block = min(most, power_of_two(sizes.trips(loops)))
        return Tile([([loops[0]], block)], warps=warps_for(block, thread))
    short = [one for one in loops if one is not x and 2 < sizes(one.size) <= MAX_UNROLLED_INNER_TRIPS]
    few = next((one for one in short if _is_stored_along(info, one)), None)
    if few is not None and not info.opaque:
        side = power_of_two(sizes(few.size))
        if sizes(x.size) >= COPIED_TILE_ELEMENTS // side:
            return Tile([([few], side), ([x], COPIED_TILE_ELEMENTS // side)], [one for one in loops if one is not x and one is not few])
    fast = _as_one(info, x, sizes)
    width = sizes.trips(fast)
    y = next((one for one in ranked if one not in fast and weights.get(one.dim, 0) > MIN_CONTIGUOUS_SHARE * weights.get(x.dim, 0)), None)
    side = min(SQUARE_SIDE, power_of_two(width), power_of_two(sizes(y.size))) if y is not None else 0
    others = [one for one in loops if one not in fast]
    if y is not None and side >= SQUARE_SIDE // 2:
        return Tile([([y], side), (fast, side)], [one for one in others if one is not y], warps=warps_for(side * side, 16))
    while others and (width < MIN_FASTEST_SIZE or not info.opaque) and not _fills(width, most):
        fast.insert(0, others.pop())
        width = sizes.trips(fast)
    block = min(most, power_of_two(width))
    rows = min(most // block, power_of_two(sizes.trips(others))) if others else 1
    if rows == 1 and (y := _outer_loop(info, x, others)) is not None and sizes(y.size) > 1:
        return Tile([([y], 2), (fast, block // 2)], [one for one in others if one is not y], warps=warps_for(block, each))
    if rows == 1:
        return Tile([(fast, block)], others, warps=warps_for(block, thread))
    y = others[-1]
    if info.opaque:  # rows that read at the same places share what it takes to find them
        indexed = index_loops(info)
        if x.dim in indexed and y.dim in indexed and sizes(y.size) % RESAMPLED_STRIP_ROWS == 0 and (y.size.value or only_sets(info)):
            # neighbouring rows read the same rows, which one warp after the other finds in the nearest cache
            return Tile([(fast, block)], others, warps=max(1, block // 128), coarsening=RESAMPLED_STRIP_ROWS)
        y = next((one for one in reversed(others) if one.dim not in indexed and sizes(one.size) >= rows), y)
    if sizes(y.size) % rows == 0:
        return Tile([(fast, block), ([y], rows)], [one for one in others if one is not y], warps=warps_for(rows * block, each))
    return Tile([(fast, block), (others, rows)], warps=warps_for(rows * block, each))


def _has_windows(info: NestAccess, x: Loop) -> bool:
    """Whether the loops inside of a nest go along windows, of which some elements of what is loaded along `x` lie in several, or apart."""
    for node in info.root.walk():
        for access in node.accesses if node is not info.root else ():
            step = linear_coeff(access.offset, x.dim)
            if step is not ZERO and (step is not ONE or any(linear_coeff(access.offset, one.dim) is ONE for one in node.loops)):
                return True
    return False


def _scatters_along(info: NestAccess, x: Loop) -> bool:
    """Whether each element along a loop is added to a place of its own."""
    adds = any(a.is_store and a.mode != "set" and not free_dims(a.offset).isdisjoint(info.opaque) for a in info.root.accesses)
    return adds and x.dim in index_loops(info, stores=True)


def _has_bytes(info: NestAccess, x: Loop) -> bool:
    """Whether bytes, and no more than two for each of them, are what lies side by side along a loop."""
    widths = {element_bytes(a.dtype) for a in info.root.all_accesses() if x.dim in free_dims(a.offset)}
    return 1 in widths and max(widths) <= 2


def _as_one(info: NestAccess, x: Loop, sizes: Sizes) -> list[Loop]:
    """`x`, and in front of it the loops around it that are one with it, but for what is the same in each of its iterations (the channels of
    a group, and groups): most of what lies side by side along it goes on along them."""
    moved = [(access.offset, n) for node in info.root.walk() for access, _, n in bytes_moved(node, info, sizes)]
    beside = [(offset, n) for offset, n in moved if linear_coeff(offset, x.dim) is ONE]
    total = sum(n for _, n in beside)
    fast, width = [x], sizes(x.size)
    while width < SQUARE_SIDE // 2 and total >= MIN_CONTIGUOUS_SHARE * sum(n for _, n in moved):
        around = (one for one in info.root.loops if one not in fast)
        found = next((one for one in around if _goes_on(beside, one, fast[0]) > MIN_BLOCK_SHARE * total), None)
        if found is None:
            break
        fast.insert(0, found)
        width = sizes.trips(fast)
    return fast


def _goes_on(accesses: Sequence[tuple[Expr, int]], one: Loop, inner: Loop) -> int:
    """The bytes of accesses for which a step of a loop is as far as all of the one inside of it."""
    found = 0
    for offset, moved in accesses:
        step = linear_coeff(offset, inner.dim)
        if step is not None and step is not ZERO and linear_coeff(offset, one.dim) is step * inner.size:
            found += moved
    return found


def _is_stored_along(info: NestAccess, one: Loop) -> bool:
    """Whether a nest's results lie side by side along a loop that what it loads does not vary along."""
    accesses = list(info.root.all_accesses())
    stores = all(linear_coeff(a.offset, one.dim) is ONE for a in accesses if a.is_store)
    return stores and not any(linear_coeff(a.offset, one.dim) is ONE for a in accesses if not a.is_store)


def _lies_apart(info: NestAccess, x: Loop, sizes: Sizes) -> bool:
    """Whether most of what is accessed along a loop lies three elements and more apart, as coordinates of points do: threads side by side
    then have one of them each."""
    near = apart = 0
    for node in info.root.walk():
        for access, _, moved in bytes_moved(node, info, sizes):
            step = linear_coeff(access.offset, x.dim)
            if step is not None and step.value is not None and abs(step.value) > 2:
                apart += moved
            elif x.dim in free_dims(access.offset):
                near += moved
    return apart > near


def _outer_loop(info: NestAccess, x: Loop, others: Sequence[Loop]) -> Loop | None:
    """A loop with two iterations of which a program should have the same elements along `x`, since what is loaded along that varies along
    `x` alone; None where there is none."""
    along = [free_dims(a.offset) for a in info.root.all_accesses() if not a.is_store and x.dim in free_dims(a.offset)]
    if not along or info.opaque:
        return None
    return next((one for one in reversed(others) if not any(one.dim in dims for dims in along)), None)


def _fills(width: int, most: int) -> bool:
    """Whether blocks of `most` elements, or one that has fewer, along a loop are full enough."""
    block = min(most, power_of_two(width))
    return width >= MIN_BLOCK_SHARE * -(-width // block) * block


def only_sets(info: NestAccess) -> bool:
    """Whether an iteration may run twice: nothing that a nest stores is added up, or read by it."""
    stores = [a for a in info.root.all_accesses() if a.is_store]
    read = {memory_of(a.buffer) for a in info.root.all_accesses() if not a.is_store}
    return all(a.mode == "set" and memory_of(a.buffer) not in read for a in stores)
