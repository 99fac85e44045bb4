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
MAX_WARPS = Gpu.max_warps
MIN_DOT_SIDE = 16
"""The shortest side of what the units for matrix products take."""


@dataclass
class Tile:
    """`axes` are the parallel axes, the last of them innermost in the grid, each the loops that it runs along (flattened) and its
    block; `rest` are loops that the grid walks through; `inner` is the block of the axis for loops inside (0: there is none), `pieces`
    how many such blocks may be on chip at once, `stages` how many iterations of its loops are under way (0: as Triton has it), `group`
    how many programs share the loops inside of a tile (exchange.py), `run` after how many iterations a block begins whatever the one
    before it has left (0: nowhere), `registers` how many a thread may have (0: as many as it likes), `strip` how many iterations of the
    last of `rest` a program has, one after the other, `apart` whether a program has one block of one of the loops inside, which follow
    each other, `cross` the block of an axis for loops inside that have reductions of the whole row in them (0: there is none), `halves`
    whether 16-bit numbers that several loops read stay on chip as they are, and each loop widens them, `dot` whether the sum of products
    that the loops inside are, of a value along each of the two axes, is a matrix product (products.py), `band` how many blocks of the first
    axis programs side by side go through before they go on to the next block of the last one (0: the last axis is the innermost), `lasting`
    how many programs there are at most, each of which goes through several blocks (0: each has one), `copies` whether factors of a product,
    and what is stored of it, are copied as blocks that the launch describes to the GPU, where they can be (descriptors.py)."""

    axes: list[tuple[list[Loop], int]] = field(default_factory=list)
    rest: list[Loop] = field(default_factory=list)
    inner: int = 0
    warps: int = 4
    pieces: int = 1
    stages: int = 0
    group: int = 1
    run: int = 0
    registers: int = 0
    strip: int = 1
    apart: int = 0
    cross: int = 0
    halves: int = 0
    dot: int = 0
    band: int = 0
    lasting: int = 0
    copies: int = 0

    @property
    def elements(self) -> int:
        """Elements of the whole tile."""
        total = max(1, self.inner) * max(1, self.cross)
        for _, block in self.axes:
            total *= block
        return total

    def blocks(self, trips: int) -> list[tuple[int, int]]:
        """The blocks that `trips` iterations of the loops inside lie in, one after the other: first iteration and number of them."""
        run = self.run or max(trips, 1)
        ends = [min(trips, first + run) for first in range(0, max(trips, 1), run)]
        return [(at, min(self.inner, end - at)) for k, end in enumerate(ends) for at in range(k * run, max(end, 1), self.inner)]

    def count(self, trips: int) -> int:
        """How many blocks that are; a bound for a size that is a symbol may be any number."""
        runs, rest = divmod(trips, self.run) if self.run else (0, trips)
        return max(1, runs * -(-self.run // self.inner) + -(-rest // self.inner))

    def programs(self, sizes: Sizes) -> int:
        """How many programs the grid has."""
        total = sizes.trips(self.rest)
        for loops, block in self.axes:
            total *= -(-sizes.trips(loops) // block)
        return min(total, self.lasting or total) * self.group


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
