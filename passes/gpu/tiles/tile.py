"""A tile: how a nest is cut into programs, and what the choice of one asks of sizes, bytes and warps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ....dialects.expr import Expr, evaluate, free_dims, free_syms, product
from ....dialects.nd.types import element_bytes
from ...analysis.nest_access import Access, Loop, NestAccess, Node
from ...analysis.symbols import DEFAULT_SIZE
from ...cost.machine.gpu import Gpu

COPIED_TILE_ELEMENTS = 1024
"""Elements of a tile that only moves data: 8 a thread with 4 warps, 16 bytes of bf16."""
MIN_BLOCK_SHARE = 0.7
"""Share of a block along an axis that should be used."""
WINDOW_THREAD_ELEMENTS = 2
"""Elements of a thread where each comes from a window, goes to a place of its own in a sum, or is gathered in a row: more would lie too far
apart for the warp to load side by side, or to wait for all at once."""
MAX_UNROLLED_INNER_TRIPS = 8
"""Iterations of a single loop inside of a nest that become straight code."""
MAX_UNROLLED_TRIPS = 32
"""Iterations of a window (a reduction over several loops) that become straight code."""
MAX_STRAIGHT_OPS = 400
"""Operations of a body, times its iterations, that become straight code: Triton takes minutes for thousands."""
MAX_WARPS = Gpu.max_warps
STREAM_STAGES = 3
"""Iterations under way of a loop that streams through memory."""
MIN_DOT_SIDE = 16
"""The shortest side of what the units for matrix products take."""


@dataclass
class Tile:
    """How a nest is cut: `axes` are the parallel axes, the last of them innermost in the grid, each the loops that it runs along
    (flattened) and its block; `grid_loops` are loops that the grid walks through, one iteration a program.

    | field | says |
    |---|---|
    | `reduction_block` | the block of the axis for loops inside; 0: there is none |
    | `chunks` | how many such blocks may be on chip at once |
    | `stages` | how many iterations of its loops are under way; 0: as Triton has it |
    | `group` | how many programs share the loops inside (exchange.py) |
    | `segment` | after how many iterations a block begins whatever the one before it has left; 0: nowhere |
    | `registers` | how many a thread may have; 0: as many as it likes |
    | `coarsening` | how many iterations of the last of `grid_loops` a program has, one after the other |
    | `loop_per_program` | whether a program has one block of one of the loops inside, which follow each other |
    | `second_reduction_block` | the block of an axis for loops inside that have reductions of the whole row in them; 0: there is none |
    | `halves` | whether 16-bit numbers that several loops read stay on chip as they are, and each loop widens them |
    | `dot` | whether the sum of products inside, of a value along each of two axes, is a matrix product (products.py) |
    | `band` | how many blocks of the first axis programs side by side go through before the next block of the last; 0: all |
    | `persistent` | how many programs there are at most, each of which goes through several blocks; 0: each has one |
    | `stream_k` | whether these have equal shares of the steps of all blocks, a block of which several programs may have parts |
    | `copies` | whether factors and results of a product are copied as blocks that the launch describes, where they can be |
    """

    axes: list[tuple[list[Loop], int]] = field(default_factory=list)
    grid_loops: list[Loop] = field(default_factory=list)
    reduction_block: int = 0
    warps: int = 4
    chunks: int = 1
    stages: int = 0
    group: int = 1
    segment: int = 0
    registers: int = 0
    coarsening: int = 1
    loop_per_program: int = 0
    second_reduction_block: int = 0
    halves: int = 0
    dot: int = 0
    band: int = 0
    persistent: int = 0
    stream_k: int = 0
    copies: int = 0

    @property
    def elements(self) -> int:
        """Elements of the whole tile."""
        total = max(1, self.reduction_block) * max(1, self.second_reduction_block)
        for _, block in self.axes:
            total *= block
        return total

    def blocks(self, trips: int) -> list[tuple[int, int]]:
        """The blocks that `trips` iterations of the loops inside lie in, one after the other: first iteration and number of them."""
        segment, block = self.segment or max(trips, 1), self.reduction_block
        ends = [min(trips, first + segment) for first in range(0, max(trips, 1), segment)]
        return [(at, min(block, end - at)) for k, end in enumerate(ends) for at in range(k * segment, max(end, 1), block)]

    def count(self, trips: int) -> int:
        """How many blocks that are; a bound for a size that is a symbol may be any number."""
        segments, rest = divmod(trips, self.segment) if self.segment else (0, trips)
        return max(1, segments * -(-self.segment // self.reduction_block) + -(-rest // self.reduction_block))

    def programs(self, sizes: Sizes) -> int:
        """How many programs the grid has."""
        total = sizes.trips(self.grid_loops)
        for loops, block in self.axes:
            total *= -(-sizes.trips(loops) // block)
        most = self.persistent or total
        return (most if self.stream_k else min(total, most)) * self.group


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n (and at least 1)."""
    return 1 << max(0, n - 1).bit_length()


class Sizes:
    """Numbers for sizes: their values, or typical ones for symbols."""

    def __init__(self, hints: Mapping[Expr, int]):
        self.hints = hints

    def __call__(self, e: Expr) -> int:
        if e.value is not None:
            return e.value
        return max(1, evaluate(e, {s: self.hints.get(s, DEFAULT_SIZE) for s in free_syms(e)}))

    def trips(self, loops: Sequence[Loop]) -> int:
        return self(product(one.size for one in loops))


def bytes_moved(node: Node, info: NestAccess, sizes: Sizes) -> Iterator[tuple[Access, Sequence[Loop], int]]:
    """The accesses of a node's own body, the loops around them, and what each moves: every element that it reaches once."""
    around: list[Loop] = []
    up: Node | None = node
    while up is not None:
        around += up.loops
        up = up.parent
    for access in node.accesses:
        known = free_dims(access.offset)
        gathers = not known.isdisjoint(info.opaque)
        yield access, around, sizes.trips([one for one in around if gathers or one.dim in known]) * element_bytes(access.dtype)


def warps_for(elements: int, each: int) -> int:
    """Warps that give every thread about `each` elements."""
    return max(1, min(MAX_WARPS, power_of_two(elements // (32 * each))))
