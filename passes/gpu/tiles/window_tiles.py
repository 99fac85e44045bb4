"""The tile of a nest that sums up several windows of an image at once (gpu-window-strips): channels, and rows of the image.

Threads side by side have channels. Rows of a program have windows that overlap, so that it finds in the nearest cache what another row of
its own has read. What the strip of a thread shares is in its registers."""

from __future__ import annotations

from ....dialects import loop
from ....dialects.expr import ONE, ZERO, exact_quotient, linear_coeff
from ...analysis.nest_access import Access, Loop, NestAccess
from ...cost.machine.gpu import VECTOR_HALVES, Gpu
from .tile import COPIED_TILE_ELEMENTS, MAX_UNROLLED_INNER_TRIPS, Sizes, Tile, power_of_two, warps_for

PROGRAM_CHANNELS = 64
"""Channels of a program: as many, or those of one warp where these divide their number."""
PROGRAM_ROWS = COPIED_TILE_ELEMENTS // PROGRAM_CHANNELS
"""Rows of a program."""


def overlap(image: Access, one: Loop, along: Loop) -> int:
    """The places of windows along a loop inside, where the next iteration of the loop `one` begins at one of them; 0 where it does not."""
    places, step, next_one = along.size.value, linear_coeff(image.offset, along.dim), linear_coeff(image.offset, one.dim)
    if places is None or places > MAX_UNROLLED_INNER_TRIPS or step is None or step is ZERO or next_one is None:
        return 0
    apart = exact_quotient(next_one, step)
    return places if apart is not None and apart.value is not None and 0 < apart.value < places else 0


def lane_of(image: Access, info: NestAccess) -> Loop | None:
    """The loop of a nest along which an access is contiguous."""
    return next((one for one in info.root.loops if linear_coeff(image.offset, one.dim) is ONE and one.size is not ONE), None)


def window_tile(info: NestAccess, sizes: Sizes) -> Tile | None:
    """The tile of such a nest; None for another one, or where threads go along the windows that are left."""
    if len(info.root.children) != 1 or not isinstance(op := info.root.children[0].op, loop.ReduceOp):
        return None
    if len(op.results) < 2 or set(op.kind_names) != {"sum"} or info.opaque:
        return None
    inside = info.root.children[0]
    for image in inside.accesses:
        lane = lane_of(image, info)
        for y in info.root.loops if lane is not None else ():
            if y is not lane and lane is not None and any(overlap(image, y, along) for along in inside.loops):
                return _tile(info, lane, y, sizes)
    return None


def _tile(info: NestAccess, lane: Loop, y: Loop, sizes: Sizes) -> Tile:
    width, height = sizes(lane.size), sizes(y.size)
    even = width & -width
    block = min(PROGRAM_CHANNELS, even if even >= Gpu.lanes else power_of_two(width))
    rows = min(PROGRAM_ROWS, power_of_two(height))
    others = [one for one in info.root.loops if one is not lane and one is not y]
    # of fewer coefficients than threads, Triton has each thread load its own; others go through shared memory, all warps waiting
    warps = max(warps_for(rows * block, VECTOR_HALVES), warps_for(2 * block, 1))
    return Tile([([lane], block), ([y], rows)], others, warps=warps)
