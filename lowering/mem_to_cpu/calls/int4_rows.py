"""Products with weights of four bits in words (int4_row_calls.py): a kernel that calls the generated function (cpu.int4_rows)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects.builtin import f32, i64
from xdsl.ir import Operation, SSAValue

from ....dialects import cpu, host, mem
from ....dialects.cpu.int4 import Int4RowsOp
from ....dialects.expr import ZERO, Sym, as_expr, free_syms, product
from ....dialects.mem import BufferType
from ....dialects.nd.base import prop
from ....dialects.nd.types import element_bytes
from ....dialects.support.replace import replace_op
from ....passes.nd.quantised.int4_row_calls import Int4RowsCall
from ..attention import DTYPES
from ..builder import Builder
from ..contract import SizeIndices


class Int4RowsLowering:
    """Lowers the products of one module; equal ones share a kernel. `add_symbol` puts an op at the module's end."""

    def __init__(self, add_symbol: Callable[[Operation], None]):
        self.add_symbol = add_symbol
        self.kernels: dict[object, str] = {}
        self.functions: set[str] = set()

    def lower(self, op: mem.ExternOp) -> bool:
        """Replace a call by a launch; whether it is one of such a product."""
        call = Int4RowsCall.of(op.call.data)
        if call is None:
            return False
        buffers = list(op.operands)
        assert list(prop(op, "out") or ()) == [len(buffers) - 1]
        types: list[BufferType] = [b.type for b in buffers]  # pyright: ignore[reportAssignmentType]
        key = (call, *types)
        symbols = sorted({s for t in types for e in (*t.dims, *t.stride_exprs) for s in free_syms(e)}, key=lambda s: s.name)
        kernel = self.kernels.get(key)
        if kernel is None:
            kernel = self.kernels[key] = f"int4_rows_product{len(self.kernels)}"
            self.add_symbol(_wrapper(kernel, self._function(call, types), call, types, symbols))
        traffic = sum((product(t.dims) * element_bytes(t.element_type) for t in types), ZERO)
        replace_op(op, host.LaunchOp.make(kernel, buffers, symbols, bytes=traffic))
        return True

    def _function(self, call: Int4RowsCall, types: Sequence[BufferType]) -> str:
        """The name of the function for such operands, declared."""
        x, scales = (DTYPES[types[k].element_type] for k in (0, 2))
        name = f"int4_rows_{x}_{scales}_{call.parts}_{call.part_groups}{'_zeros' if call.zeros else ''}"
        if name not in self.functions:
            self.functions.add(name)
            self.add_symbol(Int4RowsOp.make(name, x, scales, call.parts, call.part_groups, call.zeros))
        return name


def _wrapper(kernel: str, function: str, call: Int4RowsCall, types: Sequence[BufferType], symbols: Sequence[Sym]) -> cpu.KernelOp:
    """The kernel that calls the generated function; `types` are those of the operands and the result."""
    op = cpu.KernelOp.make(kernel, [cpu.ptr] * len(types) + [i64] * len(symbols))
    block = op.body.block
    b = Builder(block)
    table: dict[Sym, SSAValue] = dict(zip(symbols, block.args[len(types) :], strict=True))
    x, words, scales, y = types[0], types[1], types[2], types[-1]
    terms = int(words.dims[1]) * element_bytes(words.element_type) * 2
    bases = call.bases(terms)
    digits = (terms if call.group == terms else call.group).bit_length()
    digits = digits if call.group == terms else digits - 1  # a row that is one group has no second one
    numbers = [x.dims[0], words.dims[0], x.dims[1], words.stride_exprs[0] * element_bytes(words.element_type)]
    numbers += [scales.stride_exprs[0], y.stride_exprs[0], *map(as_expr, (*bases, digits))]
    *given, result = block.args[: len(types)]
    pointers = [*given[:3], result, *given[3:]]
    b.place(cpu.CallOp.make(function, [*pointers, *map(SizeIndices(b, table).number, numbers), b.constant(call.zero, f32)]))
    block.add_op(cpu.ReturnOp.create())
    return op
