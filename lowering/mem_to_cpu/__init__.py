"""mem -> cpu: every loop nest on buffers becomes a kernel of explicit vector code, and a launch of it; equal nests
share one.

    kernel.py      arguments, threads, the nest's own loops        loops.py       inner loops, segments, what they carry
    state.py       values, index expressions, masks, lanes         reductions/    reduction kinds, scans, kept rows
    body.py        body ops by table                               tiles.py       transposes in registers
    memory.py      loads, stores, gathers                          batches.py     kernels that walk over lists
    builder.py     blocks, hoisting, constants                     joined.py      several nests in one parallel region
    shared_loops.py  long loops and rows in parts, on threads; columns that all rows share
    threads.py     which loops of a nest threads share, in units of work
    calls/         library calls that generated functions answer

What bodies and index expressions mean in every kernel is in `lowering/nest/`.
What runs along the lanes is decided in passes/cost/schedule_choice.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ...dialects import loop, mem
from ...dialects.cpu import KernelOp
from ...dialects.expr import Expr
from ...dialects.expr.ranges import RangeEnv
from ...dialects.host import LaunchOp
from ...dialects.machine import has_fixed_order
from ...passes.analysis.levels import refuse_tensors
from ...passes.analysis.nest_access import NestAccess
from ...passes.analysis.nest_key import nests_in_memory
from ...passes.analysis.symbols import symbol_facts
from ...passes.cost.nest_cost import NS_PER_UNIT, SERIAL_NS, Cost
from ...passes.cost.schedule_choice import choose, grain_of
from ...passes.manager.pass_manager import Pass
from ...passes.mem.mem_join_nests import joined_nests
from ...passes.mem.terms.mem_term_blocks import MemTermBlocks
from ..nest.product_epilogue import RECTANGLE_HINTS, RECTANGLE_RANGES
from ..outline import Arguments, Outliner
from .batches import BatchLowering
from .body import UnsupportedBody
from .calls.attention import lower_attention
from .calls.generated import GeneratedCalls
from .calls.int4 import lower_int4
from .calls.int4_rows import lower_int4_rows
from .contract import ContractLowering
from .joined import JoinedKernel, JoinLowering
from .kernel import lower_nest, lower_part
from .weighed import WeighedLowering, term_functions


@dataclass(frozen=True)
class MemToCpu(Pass):
    """Turns nests on buffers into vector kernels (`cpu.kernel`) and launches of them (`host.launch`)."""

    name = "mem-to-cpu"

    library: bool = False
    """Run contractions through the library unless their schedule says "gemm" (by default they are generated)."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        refuse_tensors(self, op)
        MemTermBlocks().apply(ctx, op)  # for pipelines without it
        symbols, hints = symbol_facts(op)
        outliner = CpuOutliner(op, RangeEnv({**symbols, **RECTANGLE_RANGES}), {**hints, **RECTANGLE_HINTS})
        contracts = ContractLowering(op.body.block.add_op, self.library, lambda nest: self._outline(outliner, nest), has_fixed_order(op))
        calls = GeneratedCalls(op.body.block.add_op)
        grains: dict[str, int] = {}
        terms = term_functions(op)
        weighed = WeighedLowering(op, calls, outliner.of_block)
        weighed.lower_functions(terms.values())
        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            if loop.batch_symbols(func) is not None:
                grains[func.sym_name.data] = min((grain_of(n) for n in nests_in_memory(func)), default=SERIAL_NS)
            for nests in joined_nests(func):
                outliner.join([self._outline(outliner, nest, part=True) for nest in nests])
                self.statistic("num-joined", len(nests))
            for nest in nests_in_memory(func):
                self._outline(outliner, nest)
            for contract in [c for c in func.walk() if isinstance(c, loop.ContractOp)]:
                contracts.lower(contract)
            for call in [c for c in func.body.block.ops if isinstance(c, mem.ExternOp)]:
                if lower_attention(calls, call) or weighed.lower(call):
                    self.statistic("num-attention")
                elif lower_int4(calls, call) or lower_int4_rows(calls, call):
                    self.statistic("num-int4")
        BatchLowering(op, grains).run()

    def _outline(self, outliner: CpuOutliner, nest: Operation, part: bool = False) -> LaunchOp:
        outliner.part = part
        try:
            launch, shared = outliner.outline(nest)
        except UnsupportedBody as error:
            self.fail(nest, str(error))
        self.statistic("num-shared" if shared else "num-kernels")
        return launch


class CpuOutliner(Outliner):
    """Makes `cpu.kernel`s of nests."""

    part = False
    """Whether kernels are made for nests that run beside others in one parallel region."""

    def __init__(self, module: ModuleOp, symbols: RangeEnv, hints: dict[Expr, int]):
        super().__init__(module, symbols, hints)
        self._joins = JoinLowering(module)

    def facts(self, buffers: Sequence[SSAValue]) -> tuple[object, ...]:
        """See Outliner."""
        return (self.part,)

    def kernel(self, name: str, nest: loop.NestOp, info: NestAccess) -> tuple[Operation, Arguments, dict[str, Any]]:
        """See Outliner."""
        schedule, cost = choose(info, self.hints), Cost(info, self.hints)
        if not self.part:
            return *lower_nest(name, nest, info, schedule, cost), {}
        kernel, arguments, units = lower_part(name, nest, info, schedule, cost)
        part = JoinedKernel(info, arguments.symbols, units, max(1, round(schedule.cost * NS_PER_UNIT)), schedule.grain)
        self._joins.add_part(name, part)
        return kernel, arguments, {}

    def of_block(self, name: str, nest: loop.NestOp) -> tuple[KernelOp, Arguments]:
        """The kernel of a nest that generated code calls, by one thread."""
        self.part = False
        kernel, arguments, _ = self.kernel(name, nest, self.access(nest))
        assert isinstance(kernel, KernelOp)
        kernel.location = nest.location
        return kernel, arguments

    def join(self, launches: Sequence[LaunchOp]) -> None:
        """Make one launch of several that were made as parts."""
        self._joins.join(self.new_name(launches), launches)
