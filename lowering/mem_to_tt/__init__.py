"""mem -> tt: every loop nest on buffers becomes a Triton kernel (`tt.func`) and a launch of it; equal nests share one.

    kernel.py      arguments, axes, loops without a result           reductions.py  what each reduction kind does
    state.py       values, axes, masks, index expressions            scans.py       running reductions
    body.py        body ops by table                                 memory.py      loads, stores, atomics
    functions/     functions that Triton lacks                       builder.py     blocks, constants, broadcasts
    exchange.py    programs that share a row                         accumulate.py  columns kept while rows go by
    products.py    sums of products as matrix products               pairs.py       neighbours in memory as one access
    program/       a program: its block of the grid (grid.py), how loops run (loops.py), reductions (reduce.py), order of threads
    user_kernels.py  launches of users' kernels

What bodies and index expressions mean in every kernel is in `lowering/nest/`.
Before it run the passes of passes/gpu on nests, after it `tt-join-launches` and `tt-overlap-launches`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, UnitAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ...dialects import loop
from ...dialects.expr import Expr
from ...dialects.expr.ranges import RangeEnv
from ...dialects.tt.structure import RARE
from ...passes.analysis.dependences import memory_of
from ...passes.analysis.levels import refuse_tensors
from ...passes.analysis.nest_access import NestAccess
from ...passes.analysis.nest_key import nests_in_memory
from ...passes.analysis.schedule_attrs import bounds_of, narrowed
from ...passes.analysis.symbols import symbol_facts
from ...passes.cost.machine import Gpu, machine_of
from ...passes.gpu.gpu_cooperative_rows import CLEARS
from ...passes.gpu.nest_types import UnsupportedNest
from ...passes.gpu.tiles.bounds import BEYOND, is_within, nest_beyond
from ...passes.gpu.tiles.candidates import read_tile
from ...passes.gpu.tiles.rules import choose
from ...passes.manager.pass_manager import Pass
from ..outline import Arguments, Outliner
from .kernel import is_aligned, lower_nest
from .user_kernels import lower_user_kernels


@dataclass(frozen=True)
class MemToTt(Pass):
    """Turns nests on buffers into Triton kernels (`tt.func`) and launches of them (`host.launch`)."""

    name = "mem-to-tt"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        refuse_tensors(self, op)
        symbols, hints = symbol_facts(op)
        outliner = TtOutliner(op, symbols, hints, machine_of(op, Gpu))
        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            for nest in nests_in_memory(func):
                try:
                    beyond = nest_beyond(nest) if bounds_of(nest) else None
                    clears = nest.attributes.get(CLEARS)
                    launch, shared = outliner.outline(nest)
                    if clears is not None:
                        launch.properties["clears"] = clears
                    if beyond is not None:
                        assert launch.parent is not None
                        launch.parent.insert_op_after(beyond, launch)
                        outliner.outline(beyond)
                except UnsupportedNest as error:
                    self.fail(nest, str(error))
                self.statistic("num-shared" if shared else "num-kernels")
        if calls := lower_user_kernels(op):
            self.statistic("num-user-kernels", calls)


class TtOutliner(Outliner):
    """Makes `tt.func`s of nests."""

    def __init__(self, module: ModuleOp, symbols: RangeEnv, hints: dict[Expr, int], gpu: Gpu):
        super().__init__(module, symbols, hints)
        self.gpu = gpu
        self.exact = module.attributes.get("nd.numerics") == StringAttr("eager")

    def kernel(self, name: str, nest: loop.NestOp, info: NestAccess) -> tuple[Operation, Arguments, dict[str, Any]]:
        """See Outliner."""
        tile = read_tile(nest, info) or choose(info, self.hints, self.gpu)
        kernel, arguments, programs = lower_nest(name, nest, info, tile, self.gpu, self.exact, self.hints)
        if bounds := bounds_of(nest):
            within = is_within(bounds)
            programs = programs * (1 - within if BEYOND in nest.attributes else within)
        if BEYOND in nest.attributes:
            kernel.attributes[RARE] = UnitAttr()
        return kernel, arguments, {"grid": [programs]}

    def access(self, nest: loop.NestOp) -> NestAccess:
        """See Outliner."""
        bounds = {} if BEYOND in nest.attributes else bounds_of(nest)
        return NestAccess(nest, narrowed(self.symbols, bounds))

    def facts(self, buffers: Sequence[SSAValue]) -> tuple[object, ...]:
        """Kernels say which addresses are aligned, and have barriers between accesses to one memory."""
        memories = [memory_of(b) for b in buffers]
        return *(is_aligned(b) for b in buffers), *(memories.index(m) for m in memories)
