"""A loop of two or three iterations whose stores lie side by side, in the body of the loop that is to run along the lanes.

    loop.nest (%c = 3, %w = 224) outs(%y) { load %x[%c, %w]; store %y[%w, %c] }
->  loop.nest (%c = 1, %w = 224) outs(%y) { load %x[0, %w]; load %x[1, %w]; load %x[2, %w];
                                            store %y[%w, 0]; store %y[%w, 1]; store %y[%w, 2] }

An image whose channels are put side by side does this. Each store by itself is a scatter; together they are shuffles of whole vectors
(passes/analysis/accesses/neighbours.py). Longer loops are transposed in tiles. The counterpart on a GPU is `gpu-neighbours`."""

from __future__ import annotations

from collections.abc import Sequence

from ....dialects import loop
from ....dialects.expr import linear_coeff
from ....dialects.expr.ranges import RangeEnv
from ...analysis.dependences import memory_of
from ...analysis.nest_access import Access, Loop, NestAccess
from ...cost.nest_cost import MIN_TILE_TRIPS, UNROLL_OPS, VECTOR_LANES
from .unroll_and_jam import unroll_and_jam


def jam_neighbours(nest: loop.NestOp, symbols: RangeEnv) -> int:
    """Write out the iterations of such a loop of a nest of buffers; how many it had, 0 where the nest has none."""
    if not any(1 < (size.value or 0) < MIN_TILE_TRIPS for size in nest.loop_sizes):
        return 0
    if len(list(nest.block.ops)) * MIN_TILE_TRIPS > UNROLL_OPS:
        return 0
    if any(op.regions or isinstance(op, loop.RandomOp | loop.BoundOp) for op in nest.block.ops):
        return 0
    info = NestAccess(nest, symbols)
    short = None if info.opaque else _short_loop(info)
    if short is None or short.size.value is None:
        return 0
    unroll_and_jam(nest, short.positions[0], short.size.value, symbols)
    return short.size.value


def _short_loop(info: NestAccess) -> Loop | None:
    """The loop whose iterations are stored side by side, while another one reads contiguous elements."""
    stores, loads = ([a for a in info.root.accesses if a.is_store is stored] for stored in (True, False))
    read = {memory_of(a.buffer) for a in loads}
    if not stores or any(a.mode != "set" or a.op.properties.get("masked") is not None or memory_of(a.buffer) in read for a in stores):
        return None
    for short in info.root.loops:
        alone = len(short.positions) == 1 and all(one is short or one.positions != short.positions for one in info.root.loops)
        if alone and 1 < (short.size.value or 0) < MIN_TILE_TRIPS and any(_crosses(stores, loads, short, one) for one in info.root.loops):
            return short
    return None


def _crosses(stores: Sequence[Access], loads: Sequence[Access], short: Loop, lanes: Loop) -> bool:
    """Whether stores are contiguous along a short loop and then along another one, and loads along the other one alone."""
    if lanes is short or (lanes.size.value is not None and lanes.size.value < VECTOR_LANES):
        return False
    steps = {_step(a, lanes) for a in loads}
    return 1 in steps and steps <= {0, 1} and all(_step(a, short) == 1 and _step(a, lanes) == short.size.value for a in stores)


def _step(access: Access, one: Loop) -> int | None:
    """How many elements apart iterations of a loop are in an access, where that is known."""
    step = linear_coeff(access.offset, one.dim)
    return None if step is None else step.value
