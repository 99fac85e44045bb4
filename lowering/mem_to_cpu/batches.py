"""A batch as one kernel: it walks over a table of entries and calls the kernels of the body for each.

The kernel takes a table of addresses (then numbers), one of sizes, a row for each entry, and how many there are. The last size of a row is
its work: the bytes that it touches. Threads share the entries so that each gets about as much work. An entry with more than its share is
left to all of them, one after the other: its kernels have parallel loops of their own.
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, ModuleOp, StringAttr, f64, i64
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import SSAValue

from ...dialects import cpu, loop
from ...dialects.cpu.types import ptr
from ...dialects.expr import Expr, as_expr
from ...dialects.host import LaunchOp
from ...dialects.mem import BufferType
from ...dialects.nd.types import element_bytes
from ...dialects.support.replace import erase_op, replace_op
from ...passes.cost.nest_cost import SERIAL_NS
from ...passes.manager.errors import PassError
from .builder import Builder
from .state import scalar_type

THREAD_GRAIN_BYTES = 1 << 17
"""Bytes of work below which one more thread does not pay (waking it takes about as long as its share); fewer where the
schedules of the nests say that less work is worth one (`grain`)."""
ENTRY_SHARE_DIVISOR = 4
"""An entry is left to all threads when it is over 1/ENTRY_SHARE_DIVISOR of what one thread gets."""


class BatchLowering:
    """Turns the bodies of a module's batches, whose nests are launches already, into kernels, and batches into launches."""

    def __init__(self, module: ModuleOp, grains: Mapping[str, int]):
        """`grains`: for each body the least nanoseconds of work that are worth a thread in the schedules of its nests."""
        self.module = module
        self.grains = grains
        self._names = {o.sym_name.data for o in module.ops if isinstance(o, cpu.KernelOp)}

    def run(self) -> None:
        """Lower all batches; the functions that were their bodies are gone afterwards."""
        bodies = [f for f in self.module.ops if isinstance(f, FuncOp) and loop.batch_symbols(f) is not None]
        kernels = {f.sym_name.data: self._kernel(f) for f in bodies}
        for op in [op for op in self.module.walk() if type(op) is loop.BatchOp]:
            self._launch(op, kernels[op.callee.string_value()])
        for f in bodies:
            erase_op(f)

    def _launch(self, op: loop.BatchOp, kernel: str) -> None:
        sizes: list[Expr] = []
        operands: list[SSAValue] = []
        total = as_expr(0)
        for given, own in zip(op.entry_operands(), op.entry_sizes(), strict=True):
            memory = [v for v in given if isinstance(v.type, BufferType)]
            work = sum((v.type.numel * element_bytes(v.type.element_type) for v in memory), as_expr(0))  # pyright: ignore
            operands += [*memory, *(v for v in given if not isinstance(v.type, BufferType))]
            sizes += [*own, work]
            total = total + work
        launch = LaunchOp.make(kernel, operands, sizes, bytes=total, entries=op.count)
        replace_op(op, launch)

    def _kernel(self, body: FuncOp) -> str:
        name = next(n for k in range(1 << 30) if (n := f"{body.sym_name.data}{f'_{k}' if k else ''}") not in self._names)
        self._names.add(name)
        kernel = cpu.KernelOp.make(name, [ptr, ptr, i64], {"label": StringAttr(self._label(body))})
        kernel.location = body.location
        grain = min(self.grains.get(body.sym_name.data, SERIAL_NS), SERIAL_NS)
        _Walk(body, kernel, max(1, THREAD_GRAIN_BYTES * grain // SERIAL_NS)).lower()
        self.module.body.block.add_op(kernel)
        return name

    def _label(self, body: FuncOp) -> str:
        """The labels of the kernels that the body runs."""
        labels = {k.sym_name.data: k.attributes.get("label") for k in self.module.ops if isinstance(k, cpu.KernelOp)}
        found = [labels.get(op.kernel.string_value()) for op in body.body.block.ops if isinstance(op, LaunchOp)]
        return "+".join(label.data for label in found if isinstance(label, StringAttr))


class _Walk:
    """The kernel of one body. `grain`: bytes that are worth a thread."""

    def __init__(self, body: FuncOp, kernel: cpu.KernelOp, grain: int):
        self.body = body
        self.grain = grain
        self.b = Builder(kernel.body.block)
        self.table, self.sizes, self.count = kernel.body.block.args
        arguments = body.body.block.args
        self.memory = [a for a in arguments if isinstance(a.type, BufferType)]
        self.numbers = [a for a in arguments if not isinstance(a.type, BufferType)]
        symbols = loop.batch_symbols(body)
        assert symbols is not None
        self.symbols = symbols

    def lower(self) -> None:
        """Fill the kernel."""
        b = self.b
        zero, one = b.int(0), b.int(1)
        index, before = b.begin_for(zero, self.count, one, [zero])
        (total,) = b.end_for([b.add(before, self._work(index))])
        threads = b.place(cpu.NumThreadsOp.make()).results[0]
        limit = b.max(b.quotient(total, b.mul(threads, b.int(ENTRY_SHARE_DIVISOR))), b.int(2 * self.grain))
        with b.parallel(total, b.int(self.grain)) as (begin, end):
            index, start = b.begin_for(zero, self.count, one, [zero])
            work = self._work(index)
            small = b.cmpi("sle", work, limit)
            mine = self._all(small, b.cmpi("sge", start, begin), b.cmpi("slt", start, end))
            with b.when(mine):
                self._run(index)
            b.end_for([b.add(start, work)])
        (index,) = b.begin_for(zero, self.count, one)
        with b.when(b.cmpi("sgt", self._work(index), limit)):
            self._run(index)
        b.end_for()
        b.place(cpu.ReturnOp.make())

    def _all(self, *conditions: SSAValue) -> SSAValue:
        found = conditions[0]
        for one in conditions[1:]:
            found = self.b.pure(arith.AndIOp, (found, one), found.type)
        return found

    def _work(self, index: SSAValue) -> SSAValue:
        """The work of an entry; at least 1, so that every entry begins at a place of its own."""
        b = self.b
        row = len(self.symbols) + 1
        found = b.place(cpu.LoadOp.make(i64, self.sizes, b.add(b.mul(index, b.int(row)), b.int(row - 1)))).results[0]
        return b.max(found, b.int(1))

    def _run(self, index: SSAValue) -> None:
        """The kernels of the body on one entry."""
        b = self.b
        width, row = len(self.memory) + len(self.numbers), len(self.symbols) + 1
        first = b.mul(index, b.int(width))
        values: dict[SSAValue, SSAValue] = {}
        for k, formal in enumerate((*self.memory, *self.numbers)):
            values[formal] = self._number(formal, b.add(first, b.int(k)))
        at = b.mul(index, b.int(row))
        syms = {s: b.place(cpu.LoadOp.make(i64, self.sizes, b.add(at, b.int(k)))).results[0] for k, s in enumerate(self.symbols)}
        for op in self.body.body.block.ops:
            if isinstance(op, ReturnOp):
                return
            if not isinstance(op, LaunchOp):
                raise PassError(f"{op.name} has no place in the body of a batch", pass_name="mem-to-cpu", op=op)
            pointers: list[SSAValue] = [values[v] for v in op.inputs if isinstance(v.type, BufferType)]
            numbers: list[SSAValue] = [values[v] for v in op.inputs if not isinstance(v.type, BufferType)]
            sizes = [syms[s] for s in op.sizes.data]  # pyright: ignore[reportArgumentType]
            b.place(cpu.CallOp.make(op.kernel.string_value(), [*pointers, *sizes, *numbers]))

    def _number(self, formal: SSAValue, at: SSAValue) -> SSAValue:
        """An address or number of the table."""
        b = self.b
        if isinstance(formal.type, BufferType):
            return b.place(cpu.LoadOp.make(ptr, self.table, at)).results[0]
        kind = scalar_type(formal.type)
        if kind == f64:
            return b.place(cpu.LoadOp.make(f64, self.table, at)).results[0]
        word = b.place(cpu.LoadOp.make(i64, self.table, at)).results[0]
        return b.cast("trunci", word, kind) if isinstance(kind, IntegerType) and kind.width.data < 64 else word
