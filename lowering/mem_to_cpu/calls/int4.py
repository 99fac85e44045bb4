"""Products with packed weights of four bits whose `schedule` says "generated": a kernel that calls the generated function (cpu.int4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects.builtin import StringAttr, i64
from xdsl.ir import Operation, SSAValue

from ....dialects import cpu, host, mem
from ....dialects.cpu.int4 import Int4Op
from ....dialects.expr import ONE, ZERO, Sym, as_expr, free_syms, product
from ....dialects.mem import BufferType
from ....dialects.nd.base import prop
from ....dialects.nd.types import element_bytes
from ....dialects.support.replace import replace_op
from ....passes.nd.quantised.int4_calls import DTYPES, Int4Call, int4_call, shapes_fit
from ..attention import GENERATED
from ..builder import Builder
from ..contract import SizeIndices


class Int4Lowering:
    """Lowers the products of one module; equal ones share a kernel. `add_symbol` puts an op at the module's end."""

    def __init__(self, add_symbol: Callable[[Operation], None]):
        self.add_symbol = add_symbol
        self.kernels: dict[object, str] = {}
        self.functions: set[str] = set()

    def lower(self, op: mem.ExternOp) -> bool:
        """Replace `op` by a launch where generated code can do what it asks for; else it stays a call of the library."""
        int4 = int4_call(op.call.data)
        outs = [op.operands[k] for k in prop(op, "out") or ()]
        if int4 is None or not isinstance(op.schedule, StringAttr) or op.schedule.data != GENERATED or len(outs) != 1:
            return False
        buffers = [*(op.operands[k] for k in int4.operands), *outs]
        types: list[BufferType] = [b.type for b in buffers]  # pyright: ignore[reportAssignmentType]
        dense = all(t.is_contiguous for t in types[1:3]) and all(t.stride_exprs[1] is ONE or t.dims[1] is ONE for t in (types[0], types[3]))
        if not dense or not shapes_fit([v.type for v in op.operands], int4):
            return False
        replace_op(op, self._launch(int4, buffers, types))
        return True

    def _launch(self, int4: Int4Call, buffers: Sequence[SSAValue], types: Sequence[BufferType]) -> host.LaunchOp:
        key = (int4.group, *types)
        kernel = self.kernels.get(key)
        symbols = sorted({s for t in types for e in (*t.dims, *t.stride_exprs) for s in free_syms(e)}, key=lambda s: s.name)
        if kernel is None:
            kernel = self.kernels[key] = f"int4_product{len(self.kernels)}"
            dtype = DTYPES[types[0].element_type]
            function = f"int4_{dtype}"
            if function not in self.functions:
                self.functions.add(function)
                self.add_symbol(Int4Op.make(function, dtype))
            self.add_symbol(_wrapper(kernel, function, int4, types, symbols))
        traffic = sum((product(t.dims) * element_bytes(t.element_type) for t in types), ZERO)
        return host.LaunchOp.make(kernel, buffers, symbols, bytes=traffic)


def _wrapper(kernel: str, function: str, int4: Int4Call, types: Sequence[BufferType], symbols: Sequence[Sym]) -> cpu.KernelOp:
    """The kernel that calls the generated function; `types` are those of the factor, the weights, the scales and the result."""
    op = cpu.KernelOp.make(kernel, [cpu.ptr] * len(types) + [i64] * len(symbols))
    block = op.body.block
    b = Builder(block)
    table: dict[Sym, SSAValue] = dict(zip(symbols, block.args[len(types) :], strict=True))
    x, y = types[0], types[3]
    numbers = [x.dims[0], y.dims[1], x.dims[1], x.stride_exprs[0], y.stride_exprs[0], as_expr(int4.group)]
    b.place(cpu.CallOp.make(function, [*block.args[: len(types)], *map(SizeIndices(b, table).number, numbers)]))
    block.add_op(cpu.ReturnOp.create())
    return op
