"""Nests that run in one parallel region (mem-join-nests): each is a private kernel over units of its work, and one kernel shares the
units of all of them among threads.

    cpu.kernel @k2(the arguments of all) {
      cpu.parallel (%begin, %end) = %total, %grain {           // nanoseconds of estimated work, one nest after the other
        ... units of the first nest whose work begins in [%begin, %end) ...
        cpu.call @k0(..., %first, %last)
        ... the same for the second one: cpu.call @k1
      }
    }

A nest without units (a reduction that threads would share, one that is cut into pieces) is one unit: it runs on the thread to which its
beginning belongs. With one thread all of it runs right away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp, StringAttr, i64
from xdsl.ir import SSAValue

from ...dialects import cpu
from ...dialects.cpu.types import ptr
from ...dialects.expr import Expr, Sym, as_expr
from ...dialects.host import LaunchOp
from ...dialects.mem import BufferType
from ...dialects.support.replace import erase_op
from ...passes.analysis.nest_access import NestAccess
from ..outline import traffic
from .builder import Builder
from .state import State, scalar_type
from .threads import Units


@dataclass(frozen=True)
class JoinedKernel:
    """The kernel of a nest that runs beside others: what it computes sizes from, its units, the work of all of it in ns, and how much is
    worth a thread."""

    info: NestAccess
    symbols: Sequence[Sym]
    units: Units | None
    ns: int
    grain: int


Key = tuple[tuple[str, tuple[int, ...]], ...]


class JoinLowering:
    """Makes kernels that share several nests among threads; equal groups share one."""

    def __init__(self, module: ModuleOp):
        self.module = module
        self._parts: dict[str, JoinedKernel] = {}
        self._known: dict[Key, str] = {}

    def add_part(self, name: str, part: JoinedKernel) -> None:
        """Tell of the kernel of a part."""
        self._parts[name] = part

    def join(self, name: str, launches: Sequence[LaunchOp]) -> None:
        """Make one launch of several, of a kernel called `name` if there is none for them yet; it stands where the last one stood."""
        values = list(dict.fromkeys(v for launch in launches for v in launch.inputs))
        values.sort(key=lambda v: not isinstance(v.type, BufferType))
        symbols = sorted({s for launch in launches for s in self._symbols(launch)}, key=lambda s: s.name)
        number = {value: k for k, value in enumerate(values)}
        key = tuple((launch.kernel.string_value(), tuple(number[v] for v in launch.inputs)) for launch in launches)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = name
            self.module.body.block.add_op(self._kernel(name, launches, values, symbols))
        joined = LaunchOp.make(known, values, symbols, bytes=traffic(values))
        joined.location = launches[-1].location
        block = launches[-1].parent
        assert block is not None
        block.insert_op_after(joined, launches[-1])
        for launch in launches:
            erase_op(launch)

    def _symbols(self, launch: LaunchOp) -> Sequence[Sym]:
        return self._parts[launch.kernel.string_value()].symbols

    def _kernel(self, name: str, launches: Sequence[LaunchOp], values: Sequence[SSAValue], symbols: Sequence[Sym]) -> cpu.KernelOp:
        memory = [v for v in values if isinstance(v.type, BufferType)]
        numbers = values[len(memory) :]
        types = [ptr] * len(memory) + [i64] * len(symbols) + [scalar_type(v.type) for v in numbers]
        kernels = {k.sym_name.data: k for k in self.module.ops if isinstance(k, cpu.KernelOp)}
        labels = [kernels[launch.kernel.string_value()].attributes.get("label") for launch in launches]
        label = " | ".join(label.data for label in labels if isinstance(label, StringAttr))
        kernel = cpu.KernelOp.make(name, types, {"label": StringAttr(label)})
        kernel.location = launches[0].location
        args = list(kernel.body.block.args)
        given: dict[SSAValue, SSAValue] = dict(zip(memory, args, strict=False))
        sizes: dict[Sym, SSAValue] = dict(zip(symbols, args[len(memory) :], strict=False))
        given.update(zip(numbers, args[len(memory) + len(symbols) :], strict=True))
        self._body(Builder(kernel.body.block), launches, given, sizes)
        return kernel

    def _body(self, b: Builder, launches: Sequence[LaunchOp], given: dict[SSAValue, SSAValue], sizes: dict[Sym, SSAValue]) -> None:
        parts = [self._parts[launch.kernel.string_value()] for launch in launches]
        counts: list[SSAValue] = []
        starts = [b.int(0)]
        for part in parts:
            state = State(b, part.info)
            state.syms = sizes
            counts.append(state.scalar(self._count(part)))
            starts.append(b.add(starts[-1], b.mul(counts[-1], b.int(self._unit_ns(part)))))
        with b.parallel(starts[-1], b.int(min(part.grain for part in parts))) as bounds:
            for launch, part, start, count in zip(launches, parts, starts, counts, strict=False):
                first, last = (self._unit(b, b.sub(at, start), part, count) for at in bounds)
                pointers = [given[v] for v in launch.inputs if isinstance(v.type, BufferType)]
                numbers = [given[v] for v in launch.inputs if not isinstance(v.type, BufferType)]
                arguments = [*pointers, *(sizes[s] for s in part.symbols), *numbers, first, last]
                with b.when(b.cmpi("slt", first, last)):
                    b.place(cpu.CallOp.make(launch.kernel.string_value(), arguments))
        b.place(cpu.ReturnOp.make())

    def _count(self, part: JoinedKernel) -> Expr:
        return as_expr(1) if part.units is None else part.units.count

    def _unit_ns(self, part: JoinedKernel) -> int:
        return part.ns if part.units is None else part.units.ns

    def _unit(self, b: Builder, work: SSAValue, part: JoinedKernel, count: SSAValue) -> SSAValue:
        """The first unit whose work does not begin before `work` ns of a nest are done."""
        ns = self._unit_ns(part)
        done = b.add(b.max(work, b.int(0)), b.int(ns - 1))
        return b.min(b.quotient(done, b.int(ns)), count)
