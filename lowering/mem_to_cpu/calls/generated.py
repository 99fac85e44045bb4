"""Library calls that generated functions answer: a kernel that calls the function on the buffers as they lie, and a launch of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import i64
from xdsl.ir import Operation, SSAValue

from ....dialects import cpu, host, mem
from ....dialects.expr import ZERO, Expr, Sym, free_syms, product
from ....dialects.mem import BufferType
from ....dialects.nd.types import element_bytes
from ....dialects.support.replace import replace_op
from ..builder import Builder
from ..contract import SizeIndices

Number = Callable[[Expr], SSAValue]
"""A size as an operand of the function."""
Arguments = Callable[[Builder, Sequence[SSAValue], Number], Sequence[SSAValue]]
"""What the function is called with, by the addresses of the buffers."""


@dataclass
class GeneratedCalls:
    """The kernels of one module that call generated functions; equal calls share one. `add_symbol` puts an op at the module's end."""

    add_symbol: Callable[[Operation], None]
    kernels: dict[str, dict[object, str]] = field(default_factory=dict)
    """What names of kernels begin with -> what they do -> name."""
    functions: set[str] = field(default_factory=set)

    def launch(
        self,
        op: mem.ExternOp,
        name: str,
        key: Sequence[object],
        buffers: Sequence[SSAValue],
        declare: Callable[[int], Operation],
        arguments: Arguments,
        more: Iterable[Sym] = (),
    ) -> None:
        """Put a launch in the place of a call. Calls of one `name`, `key` and types of `buffers` do the same; `declare`: the declaration of
        the function of kernel number k of that name; `more`: symbols that it needs beside those of the buffers."""
        types: list[BufferType] = [b.type for b in buffers]  # pyright: ignore[reportAssignmentType]
        sizes = [e for t in types for e in (*t.dims, *t.stride_exprs)]
        symbols = sorted({s for e in sizes for s in free_syms(e)} | set(more), key=lambda s: s.name)
        known = self.kernels.setdefault(name, {})
        kernel = known.get((*key, *types))
        if kernel is None:
            function = declare(len(known))
            kernel = known[(*key, *types)] = f"{name}{len(known)}"
            self._kernel(kernel, function, len(types), symbols, arguments)
        traffic = sum((product(t.dims) * element_bytes(t.element_type) for t in types), ZERO)
        replace_op(op, host.LaunchOp.make(kernel, buffers, symbols, bytes=traffic))

    def _kernel(self, name: str, function: Operation, buffers: int, symbols: Sequence[Sym], arguments: Arguments) -> None:
        called: str = function.properties["sym_name"].data  # pyright: ignore[reportAttributeAccessIssue]
        if called not in self.functions:
            self.functions.add(called)
            self.add_symbol(function)
        op = cpu.KernelOp.make(name, [cpu.ptr] * buffers + [i64] * len(symbols))
        block = op.body.block
        b = Builder(block)
        number = SizeIndices(b, dict(zip(symbols, block.args[buffers:], strict=True))).number
        b.place(cpu.CallOp.make(called, arguments(b, block.args[:buffers], number)))
        block.add_op(cpu.ReturnOp.create())
        self.add_symbol(op)
