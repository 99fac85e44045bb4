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

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ...dialects import cpu, loop
from ...dialects.expr import Expr, Sym
from ...dialects.expr_ranges import RangeEnv
from ...dialects.host import LaunchOp
from ...dialects.mem import BufferType
from ...dialects.nd_types import element_bytes
from ...passes.loop.loop_schedule import Cost, choose, symbol_facts
from ...passes.loop.nest_access import NestAccess
from ...passes.loop.nest_key import is_nest_in_memory, nest_key
from ...passes.manager import Pass
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
        BatchLowering(op).run()


class Outliner:
    """Replaces nests by launches; kernels are appended to the module as they are needed."""

    def __init__(self, module: ModuleOp, symbols: RangeEnv, hints: dict[Expr, int]):
        self.module = module
        self.symbols = symbols
        self.hints = hints
        self.kernels: dict[tuple[object, ...], tuple[str, list[int], list[Sym]]] = {}
        taken = {o.sym_name.data for o in module.ops if isinstance(o, cpu.KernelOp)}
        self._names = (name for k in range(1 << 30) if (name := f"k{k}") not in taken)

    def outline(self, nest: Operation) -> bool:
        """Replace one nest; whether its kernel was there already."""
        assert isinstance(nest, loop.NestOp)
        key, numbers = nest_key(nest)
        shared = self.kernels.get(key)
        if shared is None:
            info = NestAccess(nest, self.symbols)
            schedule = choose(info, self.hints)
            name = next(self._names)
            kernel, arguments = lower_nest(name, nest, info, schedule, Cost(info, self.hints))
            kernel.location = nest.location
            self.module.body.block.add_op(kernel)
            operands = arguments.operands()
            places = [numbers[v] for v in operands]
            self.kernels[key] = name, places, arguments.symbols
            symbols = arguments.symbols
        else:
            name, places, symbols = shared
            values = {number: value for value, number in numbers.items()}
            operands = [values[k] for k in places]
        launch = LaunchOp.make(name, operands, symbols, bytes=_traffic(operands))
        launch.location = nest.location
        block = nest.parent
        assert block is not None
        block.insert_op_before(launch, nest)
        nest.detach()
        nest.erase(safe_erase=False)
        return shared is not None


def _traffic(operands: Sequence[SSAValue]) -> Expr | int:
    """Bytes of all buffers that a kernel touches: what its launch moves at most, once."""
    total: Expr | int = 0
    for value in operands:
        if isinstance(value.type, BufferType):
            total = total + value.type.numel * element_bytes(value.type.element_type)
    return total
