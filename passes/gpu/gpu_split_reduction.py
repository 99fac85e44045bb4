"""gpu-split-reduction: parts for reductions in nests that would keep only a few programs busy.

It runs where the nests are on buffers: strides say which loop is contiguous. Parts are of equal length where the size has a divisor
near the number that is wanted; in columns they lie side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from ...dialects import loop
from ...dialects.expr import Expr, dim, product
from ...dialects.expr.ranges import RangeEnv
from ...dialects.machine import has_fixed_order
from ..analysis.nest_access import NestAccess
from ..analysis.nest_key import nests_in_memory
from ..analysis.schedule_attrs import GPU, narrowed, write_bounds
from ..analysis.symbols import symbol_facts
from ..cost.block_price import SPLIT_PARTS
from ..cost.machine import Gpu, machine_of
from ..loop.transform.loop_rewrite import replace_loops
from ..loop.transform.loop_split_reduction import LoopSplitReduction
from ..loop.transform.nest_transform import Refused
from ..manager.pass_manager import Pass
from .gpu_cooperative_rows import add_workspace
from .nest_types import scalar_type
from .short_runs import short_run
from .tiles.bounds import choose_bounds
from .tiles.product_nests import block_reduction
from .tiles.product_tiles import product_parts, product_tile, stream_k_tile
from .tiles.rules import MAX_UNROLLED_TRIPS, REDUCTION_TILE_ELEMENTS, TILE_COLUMNS, column_loop
from .tiles.stream_k import share_words
from .tiles.summed_products import summed_product
from .tiles.tile import Sizes, Tile
from .tiles.weighed_products import weighed_tile

PROGRAMS_PER_MULTIPROCESSOR = 16
"""Programs for each multiprocessor that keep a large GPU busy."""
SPLIT_PROGRAMS_PER_MULTIPROCESSOR = 4
"""Programs for each multiprocessor below which a reduction is split, if its nest does nothing else."""
IDLE_PROGRAMS_PER_MULTIPROCESSOR = 1
"""The same where the nest reads again what it reduces: split, it would no longer find it in the nearest cache."""
MIN_SPLIT_PARTS = 4
"""Fewer parts than these are not worth a kernel that puts them together."""
MIN_DOT_PART_BLOCKS = 2
"""Blocks of terms that a part has at least."""
MIN_WEIGHED_PART_BLOCKS = 4
"""The same of rows that a softmax weighs: their parts are put together by a kernel that reads three numbers of each."""


@dataclass(frozen=True)
class GpuSplitReduction(Pass):
    """Splits reductions of nests that have too few programs for a GPU."""

    name = "gpu-split-reduction"

    programs: int = 0
    """How many programs there should be; 0: PROGRAMS_PER_MULTIPROCESSOR for each multiprocessor."""

    stream_k: float = 0.1
    """Share of a product's time that equal shares of its steps for all programs must save, by price; below -1: all that can be are such.
    That these pay was not measured yet."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if has_fixed_order(op):
            return
        symbols, hints = symbol_facts(op)
        sizes, gpu = Sizes(hints), machine_of(op, Gpu)
        for nest in nests_in_memory(op, without=GPU):
            self._split_runs(nest, sizes, symbols)
        for nest in nests_in_memory(op, without=GPU):
            for reduce in [r for r in nest.block.ops if isinstance(r, loop.ReduceOp)]:
                info = NestAccess(nest, symbols)
                if block_reduction(info) is not None:
                    continue  # it is a part already
                if (weighed := weighed_tile(info, gpu)) is not None:
                    self._split_weighed(nest, reduce, weighed, sizes, symbols, gpu)
                elif (tile := product_tile(info, sizes, gpu)) is not None:
                    self._split_product(nest, reduce, info, tile.reduction_block, sizes, symbols, gpu)
                elif summed_product(info) is None:  # else an iteration has whole products
                    wanted = self._wanted(nest, reduce, sizes, info, gpu)
                    if wanted >= MIN_SPLIT_PARTS:
                        self._split(nest, reduce, wanted, info, sizes, symbols)

    def _split_runs(self, nest: loop.NestOp, sizes: Sizes, symbols: RangeEnv) -> None:
        """Each place of a short run gets a reduction of its own: those of the nest's rows are columns, side by side (short_runs.py)."""
        if not any(isinstance(op, loop.ReduceOp) and len(op.loop_sizes) > 1 for op in nest.block.ops):
            return
        info = NestAccess(nest, symbols)
        for node in info.root.children:
            run = short_run(info, node, sizes)
            if run is None:
                continue
            assert isinstance(node.op, loop.ReduceOp)
            length = node.op.loop_sizes[run.axis].value
            assert length is not None
            split = LoopSplitReduction(parts=length, axis=str(run.axis))
            self._cut(f"runs of {run.bytes} bytes", nest, node.op, split, symbols)

    def _split(self, nest: loop.NestOp, reduce: loop.ReduceOp, wanted: int, info: NestAccess, sizes: Sizes, symbols: RangeEnv) -> None:
        columns = column_loop(info, sizes) is not None
        loops = reduce.loop_sizes
        leading = next((k for k in range(1, len(loops)) if sizes(product(loops[:k])) >= wanted), len(loops))
        row, together = sizes(loops[leading - 1]), sizes(product(loops[:leading]))
        collapse(reduce, leading, symbols)
        parts = even_parts(together, min(wanted, together), row)
        self._cut("reduction", nest, reduce, LoopSplitReduction(parts=parts, parts_first=columns), symbols)

    def _cut(self, what: str, nest: loop.NestOp, reduce: loop.ReduceOp, split: LoopSplitReduction, symbols: RangeEnv) -> None:
        """Split a reduction, and say so; or why it cannot be."""
        try:
            said = split.transform(nest, reduce, symbols)
        except Refused as refused:
            self.remark(nest, f"{what} not split: {refused}", kind="missed")
            return
        self.remark(nest, f"{what} split: {said}", kind="applied")
        self.statistic("num-split")

    def _split_product(
        self, nest: loop.NestOp, reduce: loop.ReduceOp, info: NestAccess, block: int, sizes: Sizes, symbols: RangeEnv, gpu: Gpu
    ) -> None:
        """Parts of a product's sums, of whole blocks each, where there are few blocks of the result."""
        blocks = sizes(reduce.loop_sizes[0]) // block
        even = [n for n in SPLIT_PARTS if n > 1 and blocks % n == 0 and blocks // n >= MIN_DOT_PART_BLOCKS]
        even = even if len(reduce.loop_sizes) == 1 else []
        if self._shares_steps(nest, info, even, sizes, symbols, gpu) or not even:
            return
        parts = product_parts(info, even, sizes, gpu)
        if parts < 2:
            return
        self._cut("product", nest, reduce, LoopSplitReduction(parts=parts, parts_first=True), symbols)

    def _shares_steps(
        self, nest: loop.NestOp, info: NestAccess, parts: list[int], sizes: Sizes, symbols: RangeEnv, gpu: Gpu
    ) -> bool:
        """Give programs equal shares of a product's steps, where that is fastest by far; whether it is."""
        bounds = choose_bounds(info, symbols, sizes.hints)
        info = NestAccess(nest, narrowed(symbols, bounds))
        found = stream_k_tile(info, parts, sizes, gpu)
        if found is None:
            return False
        tile, ns, others = found
        if self.stream_k >= -1 and ns > others * (1 - self.stream_k):
            return False
        if bounds:
            write_bounds(nest, bounds)
        assert isinstance(info.root.children[0].op, loop.ReduceOp)
        kinds = [scalar_type(result.type) for result in info.root.children[0].op.results]
        add_workspace(nest, info, tile, share_words(kinds, tile))
        said = f"{ns / 1e3:.1f} us, whole blocks or parts of one length {others / 1e3:.1f} us, by price"
        self.remark(nest, f"product: {tile.persistent} programs have equal shares of its steps (stream K): {said}", kind="applied")
        self.statistic("num-stream-k")
        return True

    def _split_weighed(self, nest: loop.NestOp, reduce: loop.ReduceOp, tile: Tile, sizes: Sizes, symbols: RangeEnv, gpu: Gpu) -> None:
        """Parts of rows that a softmax weighs, where few programs have all of them."""
        programs, terms = tile.programs(sizes), sizes(product(reduce.loop_sizes))
        most = min(-(-gpu.resident_programs // max(1, programs)), terms // tile.reduction_block // MIN_WEIGHED_PART_BLOCKS)
        if programs > gpu.multiprocessors // 2 or most < 2:
            return
        parts = even_parts(terms, most, tile.reduction_block)
        self._cut("weighed rows", nest, reduce, LoopSplitReduction(parts=parts, parts_first=True), symbols)

    def _wanted(self, nest: loop.NestOp, reduce: loop.ReduceOp, sizes: Sizes, info: NestAccess, gpu: Gpu) -> int:
        """How many parts a reduction should have; below 2: it stays whole."""
        programs, block = programs_of(info, sizes)
        trips = sizes(product(reduce.loop_sizes))
        alone = all(isinstance(o, (loop.ReduceOp, loop.StoreOp)) for o in nest.block.ops if isinstance(o, (loop.LoopLike, loop.StoreOp)))
        enough = SPLIT_PROGRAMS_PER_MULTIPROCESSOR if alone else IDLE_PROGRAMS_PER_MULTIPROCESSOR
        if programs >= enough * gpu.multiprocessors or trips <= MAX_UNROLLED_TRIPS or trips * block < 2 * REDUCTION_TILE_ELEMENTS:
            return 1
        most = self.programs or PROGRAMS_PER_MULTIPROCESSOR * gpu.multiprocessors
        return min(-(-most // programs), trips * block // REDUCTION_TILE_ELEMENTS)


def programs_of(info: NestAccess, sizes: Sizes) -> tuple[int, int]:
    """How many programs a nest has about, and how many neighbouring columns each of them has (1: it has rows)."""
    loops = info.root.loops
    x = column_loop(info, sizes)
    if x is None:
        return sizes.trips(loops), 1
    block = min(TILE_COLUMNS, sizes(x.size))
    return sizes.trips([one for one in loops if one is not x]) * -(-sizes(x.size) // block), block


def collapse(reduce: loop.ReduceOp, count: int, symbols: RangeEnv) -> None:
    """One loop instead of the first `count` loops of a reduction."""
    if count < 2:
        return
    sizes = reduce.loop_sizes
    places: list[Expr] = []
    for k in range(count):
        index = dim(0) // product(sizes[k + 1 : count])
        places.append(index if k == 0 else index % sizes[k])
    places += [dim(k - count + 1) for k in range(count, len(sizes))]
    replace_loops(reduce, [product(sizes[:count]), *sizes[count:]], places, symbols)


def even_parts(size: int, wanted: int, row: int) -> int:
    """A number of equal parts near what is wanted, so that none is left over, if there is one; best those of which each is a number of
    whole rows of `row` iterations, or a row a number of parts."""
    near = [n for n in range(max(2, -(-wanted // 2)), min(size, wanted * 3 // 2) + 1) if size % n == 0]
    whole = [n for n in near if row % (size // n) == 0 or size // n % row == 0]
    return min(whole or near, key=lambda n: abs(n - wanted), default=wanted)
