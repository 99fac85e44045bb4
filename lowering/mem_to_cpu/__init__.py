"""mem -> cpu: every loop nest on buffers becomes a kernel of explicit vector code, and a launch of it; equal nests
share one.

    kernel.py      arguments, threads, the nest's own loops        loops.py       inner loops, segments, accumulators
    carried state.py       values, index expressions, masks, lanes         reductions.py  what each reduction kind does
    body.py        body ops by table                               scans.py       running reductions
    memory.py      loads, stores, gathers                          tiles.py       transposes in registers
    builder.py     blocks, hoisting, constants                     row_cache.py   values kept for later passes
    shared_loops.py  long loops and rows in parts, on threads; columns that all rows share
    batches.py     kernels that walk over lists

What runs along the lanes is decided in passes/loop/loop_schedule.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from ...dialects import loop
from ...passes.loop.loop_schedule import Cost, choose, symbol_facts
from ...passes.loop.nest_access import NestAccess
from ...passes.loop.nest_key import is_nest_in_memory
from ...passes.manager import Pass
from ..outline import Arguments, Outliner
from .batches import BatchLowering
from .body import UnsupportedBody
from .contract import ContractLowering
from .kernel import lower_nest


@dataclass(frozen=True)
class MemToCpu(Pass):
    """Turns nests on buffers into vector kernels (`cpu.kernel`) and launches of them (`host.launch`)."""

    name = "mem-to-cpu"

    library: bool = False
    """Run contractions through the library unless their schedule says "gemm" (by default they are generated)."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        symbols, hints = symbol_facts(op)
        outliner = CpuOutliner(op, symbols, hints)
        contracts = ContractLowering(op.body.block.add_op, self.library)
        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            for nest in [n for n in func.walk() if is_nest_in_memory(n)]:
                try:
                    shared = outliner.outline(nest)
                except UnsupportedBody as error:
                    self.fail(nest, str(error))
                self.statistic("num-shared" if shared else "num-kernels")
            for contract in [c for c in func.walk() if isinstance(c, loop.ContractOp)]:
                contracts.lower(contract)
        BatchLowering(op).run()


class CpuOutliner(Outliner):
    """Makes `cpu.kernel`s of nests."""

    def kernel(self, name: str, nest: loop.NestOp, info: NestAccess) -> tuple[Operation, Arguments, dict[str, Any]]:
        """See Outliner."""
        kernel, arguments = lower_nest(name, nest, info, choose(info, self.hints), Cost(info, self.hints))
        return kernel, arguments, {}
