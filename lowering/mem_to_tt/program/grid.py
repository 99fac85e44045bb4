"""Which block of the grid a program has, and what it does there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd
from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from ....dialects import loop
from ....dialects.expr import Expr, as_expr, ceildiv, minimum, product
from ....dialects.expr.ranges import Range
from ....dialects.tt.structure import GetProgramIdOp
from ....passes.analysis.dependences import memory_of
from ....passes.gpu.nest_types import UnsupportedNest
from ....passes.gpu.shared_rows import words_of
from ....passes.gpu.tiles.product_nests import picked_index, sorted_rows
from ....passes.gpu.tiles.rules import has_effect
from ..carried.term_bounds import longest_first
from ..exchange import Group, draw
from .group_blocks import blocks_of_groups, lower_by_group
from .picked_matrices import lower_by_matrix
from .reduce import accumulators
from .shares import Shares

if TYPE_CHECKING:
    from ..kernel import NestLowering

STRIP_ROWS_AT_ONCE = 2
"""Rows of a strip whose loads are under way together, as far as they divide it."""


class Grid:
    """The grid of a kernel."""

    def __init__(self, kernel: NestLowering):
        self.kernel, self.tile, self.s = kernel, kernel.tile, kernel.s
        self.sorted = sorted_rows(self.s.info) if self.tile.dot else None
        self.sorted_axis = 0
        self.group_block: SSAValue | None = None
        """The block of all groups' rows that this program has."""
        self.shares: Shares | None = None
        """The share of the steps of all blocks that this program has."""

    def run(self) -> Expr:
        """Fill the kernel; how many programs its grid has."""
        s, b = self.s, self.s.b
        work: list[tuple[Expr, Callable[[SSAValue], None]]] = []
        if self.tile.loop_per_program:
            work.append((as_expr(self._part_loops()), self._take_part))
        axes: list[tuple[Expr, Callable[[SSAValue], None]]] = []
        for axis, (loops, block) in enumerate(self.tile.axes):
            total = product(one.size for one in loops)
            blocks = ceildiv(total, block)
            if self.sorted is not None and tuple(loops) == self.sorted.side:
                self.sorted_axis = axis
                axes.append((blocks_of_groups(self.sorted, block), self._take_group_block))
                continue
            axes.append((blocks, lambda at, a=axis, n=blocks, t=total, ls=loops: s.place(a, longest_first(s, at, n, ls), t, ls)))
        if self.tile.band:
            (rows, place_row), (columns, place_column) = axes
            axes = [(rows * columns, lambda at: self._in_bands(at, rows, columns, place_row, place_column))]
        work += reversed(axes)
        for one in reversed(self.tile.grid_loops):
            count = one.size if one is not self.tile.grid_loops[-1] else ceildiv(one.size, self.tile.coarsening)
            work.append((count, lambda at, d=one.dim: s.dims.__setitem__(d, at)))
        programs = product(count for count, _ in work)
        if self.tile.stream_k:
            self.shares = Shares(self.kernel, programs)
            self.shares.run(lambda at: self._run_at(at, work))
            return self.shares.programs
        at = self._join_group() if self.tile.group > 1 else None
        if at is None and work:
            at = b.resize(b.place(GetProgramIdOp.make(0)).results[0], s.index)
        if self.tile.persistent and at is not None:
            return self._one_after_the_other(at, programs, work)
        self._run_at(at, work)
        return programs * self.tile.group

    def _run_at(self, at: SSAValue | None, work: Sequence[tuple[Expr, Callable[[SSAValue], None]]]) -> None:
        """The body, in block `at` of the grid."""
        s = self.s
        for k, (count, place) in enumerate(work):
            assert at is not None
            if k == len(work) - 1:
                place(at)
                break
            n = s.number(count)
            place(s.b.remainder(at, n))
            at = s.b.quotient(at, n)
        self._strip()

    def _one_after_the_other(self, at: SSAValue, blocks: Expr, work: Sequence[tuple[Expr, Callable[[SSAValue], None]]]) -> Expr:
        """The body in each of the blocks that the program has, from block `at` on. Triton makes one loop of that and the one inside: the
        next block's loads are under way at the end of one."""
        s, lasting = self.s, self.tile.persistent

        def step(block: SSAValue, _: Sequence[SSAValue]) -> list[SSAValue]:
            self._run_at(block, work)
            return []

        self.kernel.repeat(s.info.root, s.number(blocks), lasting, [], step, at, flatten=True)
        return minimum(blocks, as_expr(lasting))

    def _in_bands(
        self, at: SSAValue, rows: Expr, columns: Expr, place_row: Callable[[SSAValue], None], place_column: Callable[[SSAValue], None]
    ) -> None:
        """Program `at` of two axes: rows of blocks in bands, each gone through column by column."""
        s, b, band = self.s, self.s.b, self.tile.band
        width = s.number(columns * band)
        first = b.mul(s.b.quotient(at, width), b.int(band, s.index))
        height = b.min(b.sub(s.number(rows), first), b.int(band, s.index))
        within = s.b.remainder(at, width)
        place_row(b.add(first, s.b.remainder(within, height)))
        place_column(s.b.quotient(within, height))

    def _take_group_block(self, at: SSAValue) -> None:
        self.group_block = at

    def _part_loops(self) -> int:
        """How many blocks the loops inside have, all together."""
        total = 0
        for node in (n for n in self.s.info.root.children if has_effect(n)):
            trips = node.trips.value
            plain = isinstance(node.op, loop.ForOp) and node.op.sequential is None and not node.children
            if trips is None or not plain or not self.tile.reduction_block:
                raise UnsupportedNest("schedule: loops of which programs have a block each are loop.for of fixed lengths, not nested")
            count = -(-trips // self.tile.reduction_block)
            self.kernel.parts[node] = (total, count)
            total += count
        return total

    def _take_part(self, at: SSAValue) -> None:
        self.kernel.part = self.s.info.new_dim(Range.of_size(as_expr(sum(count for _, count in self.kernel.parts.values()))))
        self.s.dims[self.kernel.part] = at

    def _join_group(self) -> SSAValue:
        """The tile that this program shares with others."""
        s = self.s
        if any(block > 1 for _, block in self.tile.axes) or not self.tile.reduction_block:
            raise UnsupportedNest("schedule: a group of programs shares one row, along the loops inside of the nest")
        ticket = draw(self.kernel)
        s.hidden_zero = ticket.zero
        words = sum(words_of(acc.kind, acc.types) for op in self._shared() for acc, _ in accumulators(self.s, op))
        self.kernel.group = Group.of(self.kernel, ticket, words, product(one.size for one in s.info.root.loops))
        s.owner = self.kernel.group.first
        s.owned = {memory_of(a.buffer) for a in s.info.root.accesses if a.is_store}
        return self.kernel.group.row

    def _shared(self) -> list[loop.ReduceOp]:
        """The reductions that several programs do together."""
        reductions = [op for op in self.kernel.nest.block.ops if isinstance(op, loop.ReduceOp)]
        return [op for op in reductions if self.kernel.how(self.s.info.nodes[op]) == "tile"]

    def _strip(self) -> None:
        """The body, for each of the iterations that the program has of the last loop of the grid; what lies behind its end is the last one
        again."""
        s = self.s
        if self.shares is not None:
            self.shares.lower_body()
            return
        if self.tile.coarsening == 1:
            if self.sorted is not None and self.group_block is not None:
                lower_by_group(self.kernel, self.sorted, self.sorted_axis, self.group_block)
            elif self.tile.dot and (picks := picked_index(s.info)) is not None:
                lower_by_matrix(self.kernel, *picks)
            else:
                self.kernel.lower_body(self.kernel.nest.block)
            return
        last, size = self.tile.grid_loops[-1].dim, self.tile.grid_loops[-1].size
        even = size.value is not None and size.value % self.tile.coarsening == 0
        first = s.info.new_dim(Range.of_size(size))
        s.dims[first] = s.b.mul(s.dims[last], s.b.int(self.tile.coarsening, s.index))
        row = s.info.new_dim(Range.of_size(as_expr(self.tile.coarsening)))
        abreast = gcd(self.tile.coarsening, STRIP_ROWS_AT_ONCE)

        def step(at: SSAValue, _: Sequence[SSAValue]) -> list[SSAValue]:
            s.dims[row] = at
            for k in range(abreast):
                s.fixed = {last: first + row + k if even else minimum(first + row + k, size - 1)}
                self.kernel.lower_body(self.kernel.nest.block)
            return []

        self.kernel.repeat(s.info.root, s.b.int(self.tile.coarsening, s.index), abreast, [], step)
        s.fixed = {}
