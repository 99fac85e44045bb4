"""The C entry of a program for a GPU: memory of the device, launches and copies by the driver, on the stream of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import Float64Type, IntegerType
from xdsl.ir import SSAValue

from ....dialects import host
from ....dialects.expr import as_expr
from ....dialects.nd.types import element_bytes
from ...cpu.emit.text import ModuleText
from ..emit import extent_bytes
from ..entry_code import launch_words
from .emit import CEntryEmitter
from .layouts import has_layout, layout_of
from .plan import EntryPlan, Kernel


class GpuEntryEmitter(CEntryEmitter):
    """`kernels`: by name, the number in the object's table, and the kernel."""

    def __init__(
        self, unit: ModuleText, program: host.ProgramOp, plan: EntryPlan, symbol: str, kernels: Mapping[str, tuple[int, Kernel]]
    ):
        super().__init__(unit, program, plan, symbol)
        self.kernels = kernels

    def arena_ptr(self, op: host.ArenaPtrOp) -> None:
        code = self.code
        if not self.arena:
            size = as_expr(0) if self.program.arena is None else self.program.arena.data
            bytes = code.call("llvm.smax.i64", code.size(size), "64")
            self.arena = code.require_memory(code.call("stepwell_c_gpu_arena", "%model", bytes))
        self.values[op.result] = self.moved(self.arena, op.offset.data)

    def block_of(self, bytes: str) -> str:
        return self.code.require_memory(self.code.call("stepwell_c_gpu_block", "%model", bytes))

    def workspace(self, op: host.WorkspaceOp) -> None:
        """Memory of the call, which launches clear: calls of several models may overlap."""
        self.values[op.result] = self.values[op.other]

    def launch(self, op: host.LaunchOp) -> None:
        if op.grid is None or op.kernel.string_value() not in self.kernels:
            raise self.error(op, f"kernel '{op.kernel.string_value()}' runs on the CPU, in a program for a GPU")
        code = self.code
        number, kernel = self.kernels[op.kernel.string_value()]
        words = self._words(op)
        grid = [code.size(e) for e in op.grid.data]
        grid += ["1"] * (3 - len(grid))
        record = code.scratch("i64", [*grid, str(len(words)), *words])
        addresses, sizes = (self._together([words[k] for k in places]) for places in (kernel.aligned, kernel.even))
        code.require(code.call("stepwell_c_gpu_launch", "%model", str(number), record, addresses, sizes))

    def _words(self, op: host.LaunchOp) -> list[str]:
        """The arguments as i64: memory, sizes, numbers, then what the kernel takes in the place of descriptors."""
        code = self.code
        offsets = op.offsets.data if op.offsets is not None else [as_expr(0)] * len(op.inputs)
        memory: list[str] = []
        numbers: list[str] = []
        for value, offset in zip(op.inputs, offsets, strict=True):
            if host.is_number(value.type):
                numbers.append(self._bits(value))
            else:
                memory.append(code.let(f"ptrtoint ptr {self.moved(self.values[value], offset)} to i64"))
        return launch_words(code, op, memory, numbers)

    def _bits(self, value: SSAValue) -> str:
        register, type = self.values[value], value.type
        if isinstance(type, Float64Type):
            return self.code.let(f"bitcast double {register} to i64")
        return self.code.let(f"zext i1 {register} to i64") if isinstance(type, IntegerType) and type.width.data == 1 else register

    def _together(self, words: Sequence[str]) -> str:
        total = "0"
        for k, word in enumerate(dict.fromkeys(words)):
            total = word if k == 0 else self.code.let(f"or i64 {total}, {word}")
        return total

    def copies(self, op: host.ExternOp) -> bool:
        """Copies between equal layouts."""
        tensors = [v for v in op.inputs if isinstance(v.type, host.TensorType)]
        if any(not has_layout(v) for v in tensors) or len({v.type for v in tensors}) != 1:
            return False
        source = layout_of(tensors[-1])
        extent = self.code.size(
            extent_bytes(source.sizes.data, source.strides.data, element_bytes(tensors[-1].type.element_type))  # pyright: ignore[reportAttributeAccessIssue]
        )
        if op.results:
            self.values[op.results[0]] = self.block_of(extent)
        else:
            target = layout_of(tensors[0])
            if (target.sizes, target.strides) != (source.sizes, source.strides):
                return False
        to = self.values[op.results[0] if op.results else tensors[0]]
        self.code.require(self.code.call("stepwell_c_gpu_copy", "%model", to, self.values[tensors[-1]], extent))
        return True
