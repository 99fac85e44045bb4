"""What the cache is told of loads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from ....dialects.expr import ZERO, free_dims, linear_coeff, product
from ....dialects.expr.ranges import range_of
from ....dialects.nd.types import element_bytes
from ....passes.analysis.nest_access import Access
from ....passes.gpu.tiles.rules import has_effect, most_trips

if TYPE_CHECKING:
    from ..state import State
    from .loops import Loops


def note_evictions(kernel: Loops) -> None:
    """What several programs read stays in the cache, where what they write beside it would push it out. Rows that loops read one after
    the other, if they are short enough for it, all but the first find in the nearest cache."""
    if not kernel.tile.reduction_block:
        _note_shared(kernel.s)
    loops = [n for n in kernel.s.info.root.children if has_effect(n) and n.loops and kernel.how(n) == "tile"]
    if len(loops) < 2 or any(n.children or kernel.whole(n) is not None for n in loops):
        return
    readers: dict[SSAValue, list[Access]] = {}
    for node in loops:
        for access in node.accesses:
            if not access.is_store and linear_coeff(access.offset, node.loops[-1].dim) is not ZERO:
                readers.setdefault(access.buffer, []).append(access)
    again = [found for found in readers.values() if len({a.node for a in found}) > 1]
    most = kernel.s.gpu.near_row_bytes
    longest = max(most_trips(n, kernel.s.info) or most for n in loops)
    rows = kernel.tile.elements // kernel.tile.reduction_block
    if sum(rows * longest * element_bytes(found[0].dtype) for found in again) > most:
        return
    for found in again:
        for access in found:
            kernel.s.eviction[access.op] = "evict_first" if access.node is found[-1].node else "evict_last"


def _note_shared(s: State) -> None:
    """Loads that do not vary along all loops, of what is small."""
    info = s.info
    for access in info.root.accesses:
        along = free_dims(access.offset)
        same = [one for one in info.root.loops if one.dim not in along]
        if access.is_store or not same or not along or not along.isdisjoint(info.opaque):
            continue
        elements = product(one.size for one in info.root.loops if one.dim in along)
        most = range_of(elements, info.ranges).hi
        if most is not None and most * element_bytes(access.dtype) <= s.gpu.resident_bytes:
            s.eviction[access.op] = "evict_last"
