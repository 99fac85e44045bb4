"""Square tiles: nests in which some accesses run along one loop and others along another (x + y.t()).

A tile of 16 rows of 16 lanes is read along whichever loop is contiguous for the access and transposed in registers
where that is the rows' loop; the body runs on groups of rows laid end to end. Tiles are visited in blocks that stay
in the first cache. Where a loop is no multiple of 16 its last tile begins earlier and repeats what the one before it
did, if nothing that is read is written; a loop of less than 16 has one tile with as many rows, or lanes, as it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import i1, i64
from xdsl.ir import SSAValue

from ...dialects import cpu, loop
from ...dialects.cpu.types import lanes_of, vec
from ...dialects.expr import ZERO, Expr, Range, as_expr, free_dims, linear_coeff, prove_ge0
from ...passes.analysis.dependences import memory_of
from ...passes.analysis.nest_access import Access, Loop
from ...passes.cost.nest_cost import VECTOR_LANES as SIDE
from ...passes.cost.nest_cost import Cost
from .body import lower_block
from .memory import address, before_rounding, memory_type, narrow, read, widen
from .state import State

if TYPE_CHECKING:
    from .kernel import NestLowering

BLOCK_SIDE = 64
"""Side of a block of tiles."""
ROWS_AT_ONCE = 4
"""Rows that the body handles at once: as many lanes as a pointwise nest has."""


def lower_tiles(k: NestLowering) -> None:
    """The nest in blocks of tiles."""
    s, b = k.s, k.s.b
    lanes, rows = k.schedule.vector, k.schedule.tile
    assert lanes is not None and rows is not None
    outer = [one for one in s.info.root.loops if one is not lanes and one is not rows]
    tall, wide = k.span(rows), k.span(lanes)
    size = (as_expr(k.schedule.tiles.get(rows.dim, rows.size)) + (BLOCK_SIDE - 1)) // BLOCK_SIDE
    blocks = Loop(s.info.new_dim(Range.of_size(size)), size, ())
    ends = [_known_side(k, one) for one in (rows, lanes)]
    """Rows and lanes of every tile, where they are known; 0 where not."""

    across = follow_rows(k.cost, lanes, rows)

    def block() -> None:
        first = b.mul(s.dims[blocks.dim], b.int(BLOCK_SIDE))
        if tall.first is not None:
            first = b.add(tall.first, first)
        last = b.min(b.add(first, b.int(BLOCK_SIDE)), s.scalar(rows.size) if tall.last is None else tall.last)
        width, side = s.scalar(lanes.size) if wide.last is None else wide.last, b.int(SIDE)
        (left,) = b.begin_for(b.int(0) if wide.first is None else wide.first, width, b.int(BLOCK_SIDE))
        right = b.min(b.add(left, b.int(BLOCK_SIDE)), width)
        if across:
            (column,) = b.begin_for(left, right, side)
        (row,) = b.begin_for(first, last, side)
        if not across:
            (column,) = b.begin_for(left, right, side)
        if all(ends):
            s.dims[rows.dim], s.dims[lanes.dim] = _earlier(s, rows, row), _earlier(s, lanes, column)
            _Tile(k, lanes, rows, tall=ends[0], wide=ends[1]).lower()
        else:
            s.dims[rows.dim], s.dims[lanes.dim] = row, column
            below, beside = b.sub(last, row), b.sub(right, column)
            full = b.cmpi("sge", b.min(below, beside), side)
            b.begin_if()
            _Tile(k, lanes, rows).lower()
            then = b.end_branch()
            b.begin_if()
            _Tile(k, lanes, rows, (below, beside)).lower()
            b.end_if(full, then, b.end_branch())
        for _ in range(3):
            b.end_for()

    k.rows([*outer, blocks], block)


def _known_side(k: NestLowering, one: Loop) -> int:
    """How many iterations of a loop each of its tiles has: 16, or all of a shorter loop; 0 where that is different from tile to tile."""
    number = one.size.value
    if one.dim in k.schedule.tiles:
        return SIDE if _whole(one.size) and _whole(k.schedule.tiles[one.dim]) else 0
    if number is not None and number < SIDE:
        return number
    repeats = prove_ge0(one.size - SIDE, k.s.info.ranges) and not _reads_what_it_writes(k.s.info.root.accesses)
    return SIDE if _whole(one.size) or repeats else 0


def _earlier(s: State, one: Loop, index: SSAValue) -> SSAValue:
    """Where the tile that would begin at `index` begins, so that it ends with its loop at the latest."""
    number = one.size.value
    if _whole(one.size) or (number is not None and number < SIDE):
        return index
    return s.b.min(index, s.scalar(one.size - SIDE))


def follow_rows(cost: Cost, lanes: Loop, rows: Loop) -> bool:
    """Whether the tiles of a block follow each other along the rows: where the accesses that run along them jump farther from lane to
    lane than the others do from row to row, or as far and one is a store (lines far apart share a few sets of the first cache)."""
    jumps: dict[bool, tuple[int, bool]] = {}
    for access in cost.info.root.accesses:
        crosses = _crosses(access, lanes, rows)
        step = linear_coeff(access.offset, (lanes if crosses else rows).dim)
        far = 0 if step is None or free_dims(step) else abs(step.value) if step.value is not None else cost.size(step)
        jumps[crosses] = max(jumps.get(crosses, (0, False)), (far, access.is_store))
    return jumps.get(True, (0, False)) > jumps.get(False, (0, False))


def _crosses(access: Access, lanes: Loop, rows: Loop) -> bool:
    """Whether an access runs along the rows of a tile."""
    across, along = linear_coeff(access.offset, rows.dim), linear_coeff(access.offset, lanes.dim)
    return along is not None and along.value not in (0, 1) and across is not None and across.value == 1


def _whole(size: Expr | int) -> bool:
    """Whether a size is surely a multiple of the side of a tile."""
    number = as_expr(size).value
    return number is not None and number % SIDE == 0


def _reads_what_it_writes(accesses: Sequence[Access]) -> bool:
    written = {memory_of(a.buffer) for a in accesses if a.is_store}
    return any(memory_of(a.buffer) in written for a in accesses if not a.is_store)


class _Tile:
    """One tile at the current indices: `tall` rows of `wide` lanes, or, where `limits` are given, as many rows and lanes as these say."""

    def __init__(
        self,
        k: NestLowering,
        lanes: Loop,
        rows: Loop,
        limits: tuple[SSAValue, SSAValue] | None = None,
        tall: int = SIDE,
        wide: int = SIDE,
    ):
        self.k = k
        self.s: State = k.s
        self.lanes = lanes
        self.rows = rows
        self.below, self.beside = limits or (None, None)
        self.tall = tall
        self.wide = wide
        self.loaded: dict[Access, list[SSAValue]] = {}

    def lower(self) -> None:
        """Reads across, the body in groups, writes across."""
        s = self.s
        accesses = s.info.root.accesses
        for access in accesses:
            if not access.is_store and _crosses(access, self.lanes, self.rows):
                self.loaded[access] = self._read_across(access)
        pending: dict[Access, list[SSAValue]] = {a: [] for a in accesses if a.is_store and _crosses(a, self.lanes, self.rows)}
        for first in range(0, self.tall, ROWS_AT_ONCE):
            self._group(first, pending)
        for access, values in pending.items():
            self._write_across(access, values)

    def _at(self, offset: Expr, row: int, column: int) -> Expr:
        mapping: dict[Expr, Expr] = {}
        if row:
            mapping[self.rows.dim] = self.rows.dim + row
        if column:
            mapping[self.lanes.dim] = self.lanes.dim + column
        return offset.subs(mapping) if mapping else offset

    def _mask(self, position: int, across: bool) -> SSAValue | None:
        """The mask of one row of the tile, or, `across`, of one of its lanes, along the rows."""
        b = self.s.b
        limit, count = (self.beside, self.below) if across else (self.below, self.beside)
        if limit is not None and count is not None:
            inside = b.cmpi("sgt", limit, b.int(position))
            return b.pure(cpu.LanesOp, (b.select(inside, count, b.int(0)),), vec(SIDE, i1))
        side = self.tall if across else self.wide
        return None if side == SIDE else b.pure(cpu.LanesOp, (b.int(side),), vec(SIDE, i1))

    def _read_across(self, access: Access) -> list[SSAValue]:
        """The rows of the tile, read along the rows' loop and transposed."""
        s = self.s
        dtype = memory_type(access.dtype)
        columns: list[SSAValue] = []
        for c in range(self.wide):
            base, at = address(s, access.buffer, self._at(access.offset, 0, c), dtype)
            columns.append(read(s, vec(SIDE, dtype), access.buffer, base, at, self._mask(c, across=True)))
        return self._transpose(columns)

    def _transpose(self, vectors: list[SSAValue]) -> list[SSAValue]:
        """Rows for lanes; what is missing of 16 vectors is anything."""
        made = cpu.TransposeOp.make(*vectors, *vectors[-1:] * (SIDE - len(vectors)))
        return list(self.s.b.place(made).results)

    def _group(self, first: int, pending: dict[Access, list[SSAValue]]) -> None:
        """The body on rows `first` to `first + ROWS_AT_ONCE`; of those that the tile does not have on its last one."""
        s = self.s
        whole = ROWS_AT_ONCE * SIDE
        numbers = [min(first + r, self.tall - 1) for r in range(ROWS_AT_ONCE)]

        def load(op: loop.LoadOp) -> None:
            access = s.info.access[op]
            dtype = memory_type(access.dtype)
            if access in self.loaded:
                rows = [self.loaded[access][r] for r in numbers]
            else:
                rows = [self._row(access, r, dtype) for r in numbers]
            value = rows[0] if all(r is rows[0] for r in rows) and not lanes_of(rows[0].type) else self._concat(rows)
            s.values[op.result] = widen(s, value, access.dtype)

        def store(op: loop.StoreOp) -> None:
            access = s.info.access[op]
            value = s.b.splat(s.get(before_rounding(op.value, access.dtype)), whole)
            value = narrow(s, value, access.dtype)
            parts = [self._slice(value, r) for r in range(min(ROWS_AT_ONCE, self.tall - first))]
            if access in pending:
                pending[access] += parts
                return
            for r, part in enumerate(parts):
                base, at = address(s, access.buffer, self._at(access.offset, first + r, 0), memory_type(access.dtype))
                s.b.place(cpu.StoreOp.make(part, base, at, self._mask(first + r, across=False)))

        block = s.info.nest.regions[0].blocks[0]
        rules = {loop.LoadOp: load, loop.StoreOp: store, loop.IndexOp: lambda op: self._index(op, first)}
        masks = [self._mask(r, across=False) for r in numbers]
        s.counted = self._concat([m for m in masks if m is not None]) if None not in masks else None
        lower_block(s, block, rules)  # pyright: ignore[reportArgumentType]
        s.counted = None

    def _row(self, access: Access, row: int, dtype: object) -> SSAValue:
        """One row of an access along the lanes, or the same in all lanes."""
        s = self.s
        offset = self._at(access.offset, row, 0)
        base, at = address(s, access.buffer, offset, dtype)  # pyright: ignore[reportArgumentType]
        along = linear_coeff(access.offset, self.lanes.dim)
        mask = self._mask(row, across=False)
        if along is ZERO:
            alone = None
            if self.below is not None:
                alone = s.b.cmpi("sgt", self.below, s.b.int(row))
            return read(s, dtype, access.buffer, base, at, alone)  # pyright: ignore[reportArgumentType]
        return read(s, vec(SIDE, dtype), access.buffer, base, at, mask)  # pyright: ignore[reportArgumentType]

    def _concat(self, rows: list[SSAValue]) -> SSAValue:
        rows = [self.s.b.splat(r, SIDE) for r in rows]
        result = vec(SIDE * len(rows), cpu.element_of(rows[0].type))
        return self.s.b.pure(cpu.ConcatOp, tuple(rows), result)

    def _slice(self, value: SSAValue, row: int) -> SSAValue:
        from .reductions.reductions import _slice

        return _slice(self.s, value, row * SIDE, SIDE)

    def _index(self, op: loop.IndexOp, first: int) -> None:
        """An index as a number: each row of the group its own."""
        s = self.s
        e = s.info.exprs[op.result]
        rows: list[SSAValue] = []
        for r in range(ROWS_AT_ONCE):
            s.enter_lanes(self.lanes.dim, SIDE, s.dims[self.lanes.dim])
            rows.append(s.b.splat(s.integer(self._at(e, first + r, 0), i64), SIDE))
            s.leave_lanes()
        s.values[op.result] = self._concat(rows)

    def _write_across(self, access: Access, values: list[SSAValue]) -> None:
        """The rows of the tile, transposed and written along the rows' loop."""
        s = self.s
        dtype = memory_type(access.dtype)
        for c, column in enumerate(self._transpose(values)[: self.wide]):
            base, at = address(s, access.buffer, self._at(access.offset, 0, c), dtype)
            s.b.place(cpu.StoreOp.make(column, base, at, self._mask(c, across=True)))
