"""mem -> tt: every loop nest on buffers becomes a Triton kernel (`tt.func`) and a launch of it; equal nests share one.

    kernel.py      arguments, the grid, loops inside of the nest     reductions.py  what each reduction kind does
    config.py      tiles and warps                                   scans.py       running reductions
    state.py       values, axes, masks, index expressions            memory.py      loads, stores, atomics
    body.py        body ops by table                                 builder.py     blocks, constants, broadcasts
    random_numbers.py
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ...dialects import loop, tt_structure
from ...dialects.expr import Expr, Sym
from ...dialects.expr_ranges import RangeEnv
from ...dialects.host import LaunchOp
from ...dialects.mem import BufferType
from ...dialects.nd_types import element_bytes
from ...passes.loop.loop_schedule import symbol_facts
from ...passes.loop.nest_access import NestAccess
from ...passes.loop.nest_key import is_nest_in_memory, nest_key
from ...passes.manager import Pass
from .config import choose
from .kernel import is_aligned, lower_nest
from .state import UnsupportedNest


@dataclass(frozen=True)
class MemToTt(Pass):
    """Turns nests on buffers into Triton kernels (`tt.func`) and launches of them (`host.launch`)."""

    name = "mem-to-tt"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        symbols, hints = symbol_facts(op)
        outliner = Outliner(op, symbols, hints)
        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            for nest in [n for n in func.walk() if is_nest_in_memory(n)]:
                try:
                    shared = outliner.outline(nest)
                except UnsupportedNest as error:
                    self.fail(nest, str(error))
                self.statistic("num-shared" if shared else "num-kernels")


class Outliner:
    """Replaces nests by launches; kernels are appended to the module as they are needed."""

    def __init__(self, module: ModuleOp, symbols: RangeEnv, hints: dict[Expr, int]):
        self.module = module
        self.symbols = symbols
        self.hints = hints
        self.kernels: dict[tuple[object, ...], tuple[str, list[int], list[Sym], Expr]] = {}
        taken = {o.sym_name.data for o in module.ops if isinstance(o, tt_structure.FuncOp)}
        self._names = (name for k in range(1 << 30) if (name := f"k{k}") not in taken)

    def outline(self, nest: Operation) -> bool:
        """Replace one nest; whether its kernel was there already."""
        assert isinstance(nest, loop.NestOp)
        key, numbers = nest_key(nest)
        key = (*key, *(is_aligned(v) for v in numbers if isinstance(v.type, BufferType)))
        shared = self.kernels.get(key)
        if shared is None:
            info = NestAccess(nest, self.symbols)
            name = next(self._names)
            kernel, arguments, grid = lower_nest(name, nest, info, choose(info, self.hints))
            self.module.body.block.add_op(kernel)
            operands = arguments.operands()
            symbols = arguments.symbols
            self.kernels[key] = name, [numbers[v] for v in operands], symbols, grid
        else:
            name, places, symbols, grid = shared
            values = {number: value for value, number in numbers.items()}
            operands = [values[k] for k in places]
        launch = LaunchOp.make(name, operands, symbols, bytes=_traffic(operands), grid=[grid])
        launch.location = nest.location
        block = nest.parent
        assert block is not None
        block.insert_op_before(launch, nest)
        nest.detach()
        nest.erase(safe_erase=False)
        return shared is not None


def _traffic(operands: list[SSAValue]) -> Expr | int:
    """Bytes of all buffers that a kernel touches: what its launch moves at most, once."""
    total: Expr | int = 0
    for value in operands:
        if isinstance(value.type, BufferType):
            total = total + value.type.numel * element_bytes(value.type.element_type)
    return total


__all__ = ["MemToTt", "Outliner"]
