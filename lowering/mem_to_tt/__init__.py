"""mem -> tt: every loop nest on buffers becomes a Triton kernel (`tt.func`) and a launch of it; equal nests share one.

    kernel.py      arguments, the grid, loops inside of the nest     reductions.py  what each reduction kind does
    config.py      the choice of tiles                               scans.py       running reductions
    state.py       values, axes, masks, index expressions            memory.py      loads, stores, atomics
    body.py        body ops by table                                 builder.py     blocks, constants, broadcasts
    random_numbers.py                                                accumulate.py  columns kept while rows go by
    tiles.py       tiles in the IR, candidates                       user_kernels.py  launches of users' kernels
    exchange.py    programs that share a row                         bounds.py      kernels for sizes within bounds
    products.py    sums of products as matrix products               product_nests.py  which nests are these
    pairs.py       neighbours in memory as one access                machine.py     GPUs
    value_tiles.py the choice for nests without loops                tile.py        what a tile is

Before it: gpu-parallel-scatter (scatter.py), gpu-recompute (recompute.py), gpu-split-rows (rows.py), gpu-online-softmax (online.py),
gpu-cooperative-rows (cooperative.py), gpu-fission (fission.py), gpu-split-reduction (split.py), gpu-split-scan (split_scan.py),
gpu-neighbours (neighbours.py), gpu-interleave (interleave.py). After it: tt-join-launches (join.py), tt-overlap-launches (overlap.py).
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
from ...dialects.expr_ranges import RangeEnv
from ...dialects.tt_structure import RARE
from ...passes.loop.loop_schedule import symbol_facts
from ...passes.loop.nest_access import NestAccess
from ...passes.loop.nest_key import is_nest_in_memory
from ...passes.manager import Pass
from ...passes.mem.levels import refuse_tensors
from ..outline import Arguments, Outliner
from .bounds import BEYOND, bounds_of, choose_bounds, is_within, narrowed, nest_beyond, write_bounds
from .config import choose
from .cooperative import CLEARS
from .follow import memory_of
from .kernel import is_aligned, lower_nest
from .machine import Machine, machine
from .state import UnsupportedNest
from .tiles import read_tile, write_tile
from .user_kernels import lower_user_kernels


@dataclass(frozen=True)
class GpuSchedule(Pass):
    """Chooses how nests are cut into programs of a GPU, and notes it on them (docs/triton.md); what is noted already stays."""

    name = "gpu-schedule"

    target: str = ""
    """The GPU: sm_80, sm_90, gfx942 or another of their makers; "": the one of the machine, without one sm_90."""

    multiprocessors: int = 0
    """How many multiprocessors it has; 0: as many as the usual model."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        symbols, hints = symbol_facts(op)
        gpu = machine(self.target, self.multiprocessors)
        for nest in [n for n in op.walk() if is_nest_in_memory(n)]:
            assert isinstance(nest, loop.NestOp)
            bounds = bounds_of(nest)
            try:
                if read_tile(nest, NestAccess(nest, narrowed(symbols, bounds))) is not None:
                    continue
            except UnsupportedNest as error:
                self.fail(nest, str(error))
            if not bounds and (bounds := choose_bounds(nest, symbols, hints)):
                write_bounds(nest, bounds)
                self.statistic("num-bounded")
            info = NestAccess(nest, narrowed(symbols, bounds))
            tile = choose(info, hints, gpu)
            write_tile(nest, info, tile)
            self.statistic("num-nests")
            if self.remarks_wanted:
                self.remark(nest, f"{tile}; loops {', '.join(map(str, info.root.loops)) or 'none'}", kind="analysis")


@dataclass(frozen=True)
class MemToTt(Pass):
    """Turns nests on buffers into Triton kernels (`tt.func`) and launches of them (`host.launch`)."""

    name = "mem-to-tt"

    target: str = ""
    """The GPU whose instructions may be used: sm_80, sm_90, gfx942 or another of their makers; "": the one of the machine, without one
    sm_90."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        refuse_tensors(self, op)
        symbols, hints = symbol_facts(op)
        outliner = TtOutliner(op, symbols, hints, machine(self.target))
        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            for nest in [n for n in func.walk() if is_nest_in_memory(n)]:
                assert isinstance(nest, loop.NestOp)
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

    def __init__(self, module: ModuleOp, symbols: RangeEnv, hints: dict[Expr, int], gpu: Machine):
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
