"""Buffers that are taken from the pool when they are first used and go back after their last use.

The arena is one block, held from its first use to the end of the call: cheap, but a large buffer that is needed at the
beginning of a backward pass then still counts at its end, when all gradients exist. Where the estimated peak falls
by it, large buffers stay out of the arena, as few as do; their `mem.alloc` gets the kind "pooled".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from ....dialects import mem
from ....dialects.expr import as_expr
from ...analysis.lifetimes import Lifetime
from ...manager.instrumentation import remark

MIN_POOLED_BYTES = 16384
"""Bytes of a buffer that is worth an allocation of its own (some 0.3 us)."""
MIN_GAIN_PARTS = 1000
"""The peak has to fall by one part in so many."""
MAX_TRIED_SIZES = 12
"""How many sizes are tried as the limit between arena and pool."""

Peak = Callable[[Sequence[Lifetime], Sequence[Lifetime]], int]
"""The estimated peak with these buffers in the arena and those in the pool."""


def choose_pooled(arena: Sequence[Lifetime], peak: Peak) -> tuple[list[Lifetime], int]:
    """Which buffers of the arena to take from the pool instead, and the peak then."""
    before = peak(arena, ())
    able = [one for one in arena if int(one.bytes) >= MIN_POOLED_BYTES and _begins_its_memory(one)]
    sizes = sorted({int(one.bytes) for one in able}, reverse=True)
    if len(sizes) > MAX_TRIED_SIZES:
        sizes = [sizes[k * len(sizes) // MAX_TRIED_SIZES] for k in range(MAX_TRIED_SIZES)] + sizes[-1:]

    def apart(pooled: Sequence[Lifetime]) -> int:
        inside = set(pooled)
        return peak([one for one in arena if one not in inside], pooled)

    best: list[Lifetime] = []
    least = before
    for size in sizes:
        pooled = [one for one in able if int(one.bytes) >= size]
        found = apart(pooled)
        if found < least:
            best, least = pooled, found
    if before - least < max(before // MIN_GAIN_PARTS, 1):
        return [], before
    limit = least + (before - least) // 20
    for size in sorted({int(one.bytes) for one in best})[:MAX_TRIED_SIZES]:
        fewer = [one for one in best if int(one.bytes) != size]
        # what a library call takes inside is not in the estimate, so that large idle memory may matter elsewhere
        if size * MIN_GAIN_PARTS <= least and apart(fewer) <= limit:
            best = fewer
    return best, apart(best)


def _begins_its_memory(one: Lifetime) -> bool:
    t = one.buffer.type
    return isinstance(t, mem.BufferType) and t.offset_expr is as_expr(0)


def take_from_pool(func: FuncOp, ops: Sequence[Operation], pooled: Sequence[Lifetime]) -> None:
    """Mark the buffers, allocated right before their first use."""
    for one in pooled:
        alloc = one.buffer.owner
        assert isinstance(alloc, mem.AllocOp)
        alloc.properties["kind"] = StringAttr("pooled")
        alloc.detach()
        func.body.block.insert_op_before(alloc, ops[one.first])
        remark(alloc, lambda: "taken from the pool and given back after its last use: the arena would hold it to the end", "applied")
