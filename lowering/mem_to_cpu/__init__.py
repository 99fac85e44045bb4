"""mem -> cpu: every loop nest on buffers becomes a kernel of explicit vector code, and a launch of it; equal nests
share one.

    kernel.py      arguments, threads, the nest's own loops        loops.py       inner loops, segments, accumulators
    carried state.py       values, index expressions, masks, lanes         reductions.py  what each reduction kind does
    body.py        body ops by table                               scans.py       running reductions
    memory.py      loads, stores, gathers                          tiles.py       transposes in registers
    builder.py     blocks, hoisting, constants                     outline.py     equal nests

What runs along the lanes is decided in passes/loop/loop_schedule.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from ...dialects import cpu, loop
from ...dialects.expr import Expr
from ...dialects.expr_ranges import RangeEnv
from ...dialects.host import LaunchOp
from ...dialects.nd_types import element_bytes
from ...passes.loop.loop_schedule import Cost, choose, symbol_facts
from ...passes.loop.nest_access import NestAccess
from ...passes.manager import Pass
from .body import UnsupportedBody
from .contract import ContractLowering
from .kernel import Arguments, lower_nest
from .outline import is_nest_in_memory, nest_key


@dataclass(frozen=True)
class MemToCpu(Pass):
    """Turns nests on buffers into vector kernels (`cpu.kernel`) and launches of them (`host.launch`)."""

    name = "mem-to-cpu"

    library: bool = False
    """Run contractions through the library unless their schedule says "gemm" (by default they are generated)."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        symbols, hints = symbol_facts(op)
        outliner = Outliner(op, symbols, hints)
        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            for nest in [n for n in func.walk() if is_nest_in_memory(n)]:
                try:
                    shared = outliner.outline(nest)
                except UnsupportedBody as error:
                    self.fail(nest, str(error))
                self.statistic("num-shared" if shared else "num-kernels")
            contracts = ContractLowering(op.body.block.add_op, self.library)
            for contract in [c for c in func.walk() if isinstance(c, loop.ContractOp)]:
                contracts.lower(contract)


class Outliner:
    """Replaces nests by launches; kernels are appended to the module as they are needed."""

    def __init__(self, module: ModuleOp, symbols: RangeEnv, hints: dict[Expr, int]):
        self.module = module
        self.symbols = symbols
        self.hints = hints
        self.kernels: dict[tuple[object, ...], tuple[str, Arguments, loop.NestOp]] = {}
        taken = {o.sym_name.data for o in module.ops if isinstance(o, cpu.KernelOp)}
        self._names = (name for k in range(1 << 30) if (name := f"k{k}") not in taken)

    def outline(self, nest: Operation) -> bool:
        """Replace one nest; whether its kernel was there already."""
        assert isinstance(nest, loop.NestOp)
        key = nest_key(nest)
        found = self.kernels.get(key)
        info = NestAccess(nest, self.symbols, normalise=found is None)
        if found is None:
            cost = Cost(info, self.hints)
            schedule = choose(info, self.hints)
            name = next(self._names)
            kernel, arguments = lower_nest(name, nest, info, schedule, cost)
            kernel.location = nest.location
            self.module.body.block.add_op(kernel)
            self.kernels[key] = (name, arguments, nest)
            symbols = arguments.symbols
        else:
            name, first, _ = found
            arguments = Arguments(nest, info)
            symbols = first.symbols
        launch = LaunchOp.make(name, arguments.operands(), symbols, bytes=_traffic(arguments))
        launch.location = nest.location
        block = nest.parent
        assert block is not None
        block.insert_op_before(launch, nest)
        nest.detach()
        nest.erase(safe_erase=False)
        return found is not None


def _traffic(arguments: Arguments) -> Expr | int:
    """Bytes of all buffers that a kernel touches: what its launch moves at most, once."""
    total: Expr | int = 0
    for buffer in arguments.buffers:
        t = buffer.type
        total = total + t.numel * element_bytes(loop.element_type(t))  # pyright: ignore[reportAttributeAccessIssue]
    return total
