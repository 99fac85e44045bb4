"""gpu-split-reduction: parts for reductions in nests that would keep only a few programs busy.

Whether a nest has enough programs follows from the tile that mem-to-tt would choose for it (config.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from ...dialects import loop
from ...dialects.expr import product
from ...passes.loop.loop_schedule import symbol_facts
from ...passes.loop.loop_split_reduction import LoopSplitReduction
from ...passes.loop.nest_access import NestAccess
from ...passes.loop.nest_transform import Refused
from ...passes.manager import Pass
from .config import UNROLL, Sizes, choose

PROGRAMS = 2112
"""Programs that keep a large GPU busy: 16 for each of 132 multiprocessors."""
FEW = 528
"""Programs below which a reduction is split, if its nest does nothing else."""
IDLE = 132
"""The same where the nest reads again what it reduces: split, it would no longer find it in the nearest cache."""
LONG = 4096
"""Elements that a program reads at least; a reduction that is shorter stays whole."""


@dataclass(frozen=True)
class GpuSplitReduction(Pass):
    """Splits reductions of nests that have too few programs for a GPU."""

    name = "gpu-split-reduction"

    programs: int = PROGRAMS
    """How many programs there should be."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        symbols, hints = symbol_facts(op)
        sizes = Sizes(hints)
        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            for nest in [n for n in func.body.block.ops if isinstance(n, loop.NestOp)]:
                for reduce in [r for r in nest.block.ops if isinstance(r, loop.ReduceOp)]:
                    parts = self._parts(nest, reduce, sizes, NestAccess(nest, symbols))
                    if parts < 2:
                        continue
                    axis = max(range(len(reduce.loop_sizes)), key=lambda k, r=reduce: sizes(r.loop_sizes[k]))
                    try:
                        said = LoopSplitReduction(parts=parts, axis=str(axis)).transform(nest, reduce, symbols)
                    except Refused as refused:
                        self.remark(nest, f"reduction not split: {refused}", kind="missed")
                        continue
                    self.remark(nest, f"reduction split: {said}", kind="applied")
                    self.statistic("num-split")

    def _parts(self, nest: loop.NestOp, reduce: Operation, sizes: Sizes, info: NestAccess) -> int:
        """How many parts a reduction should have; below 2: it stays whole."""
        assert isinstance(reduce, loop.ReduceOp)
        tile = choose(info, sizes.hints)
        programs, elements = 1, 1
        for loops, block in tile.axes:
            programs *= -(-sizes.trips(loops) // block)
            elements *= block
        programs *= sizes.trips(tile.rest)
        trips = sizes(product(reduce.loop_sizes))
        alone = all(isinstance(o, (loop.ReduceOp, loop.StoreOp)) for o in nest.block.ops if isinstance(o, (loop.LoopLike, loop.StoreOp)))
        if programs >= (FEW if alone else IDLE) or trips <= UNROLL or trips * elements < 2 * LONG:
            return 1
        return min(-(-self.programs // programs), trips * elements // LONG, sizes(max(reduce.loop_sizes, key=sizes)))
