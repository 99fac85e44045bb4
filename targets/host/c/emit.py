"""`host.program` -> its C entry: LLVM text of a function `i32 (model, inputs, results, mode)` beside the kernels that it calls.

Mode 0 writes the sizes and types of results into the caller's tensors, mode 1 computes them. The function gives 0, or 1 and a text in
the model. Tensors are DLPack's. It calls nothing but kernels and its runtime (runtime.py): a program with a call of a library has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import Formatter
from typing import Any

from xdsl.dialects.builtin import Float64Type, IntegerType
from xdsl.ir import Attribute, BlockArgument

from ....dialects import host
from ....dialects.expr import Expr, as_expr
from ....dialects.nd.types import element_bytes
from ...cpu.emit.text import ERROR_SLOT, ERROR_VALUES, ModuleText
from ..emit import extent_bytes
from .interface import Interface
from .layouts import has_layout, layout_of
from .plan import EntryPlan
from .runtime import WEIGHTS

MESSAGES = "stepwell_c_messages"


class CEntryEmitter(Interface):
    """Walks the ops of one program once."""

    def run(self) -> None:
        """Adds the function to the unit."""
        checks = [op for op in self.block.ops if isinstance(op, (host.BindOp, host.CheckOp, host.AssertOp))]
        for k, argument in enumerate(self.block.args):
            self.argument(argument, k)
        for op in checks:
            if op.operands and not isinstance(op.operands[0], BlockArgument):
                raise self.error(op, "sizes that depend on values are known only after kernels have run")
            getattr(self, _RULES[type(op)])(op)
        self.ranges()
        self.begin()
        for op in self.block.ops:
            if op not in checks:
                rule = _RULES.get(type(op))
                if rule is None:
                    raise self.error(op, f"{op.name} has no place in a program without a library")
                getattr(self, rule)(op)
        self._finish_function()

    # -- memory and launches -------------------------------------------------------------------------------------------

    def constant(self, op: host.ConstantOp) -> None:
        self.values[op.result] = self.stored(self.plan.constants[op.index.data])

    def arena_ptr(self, op: host.ArenaPtrOp) -> None:
        code = self.code
        if not self.arena:
            size = as_expr(0) if self.program.arena is None else self.program.arena.data
            bytes = code.call("llvm.smax.i64", code.size(size), "64")
            self.arena = code.require_memory(code.call("stepwell_c_arena", "%model", bytes))
        self.values[op.result] = self.moved(self.arena, op.offset.data)

    def moved(self, address: str, offset: Expr) -> str:
        if offset is as_expr(0):
            return address
        return self.code.let(f"getelementptr i8, ptr {address}, i64 {self.code.size(offset)}")

    def view(self, op: host.ViewOp | host.FromArenaOp) -> None:
        offset = as_expr(0) if op.offset is None else op.offset.data
        if op.result.type != op.source.type and isinstance(op, host.ViewOp) and offset is not as_expr(0):
            raise self.error(op, "a view of another element type begins behind the first element")
        self.values[op.result] = self.moved(self.values[op.source], offset * element_bytes(op.result.type.element_type))

    def workspace(self, op: host.WorkspaceOp) -> None:
        """Of a GPU's kernels."""
        raise self.error(op, "workspaces are for kernels of a GPU")

    def launch(self, op: host.LaunchOp) -> None:
        code = self.code
        if op.grid is not None:
            raise self.error(op, f"kernel '{op.kernel.string_value()}' is for a GPU")
        offsets = op.offsets.data if op.offsets is not None else [as_expr(0)] * len(op.inputs)
        memory: list[str] = []
        numbers: list[tuple[str, str]] = []
        for value, offset in zip(op.inputs, offsets, strict=True):
            if host.is_number(value.type):
                numbers.append((_number_text(value.type), self.values[value]))
            else:
                memory.append(self.moved(self.values[value], offset))
        sizes = [code.size(size) for size in op.sizes.data]
        kernel = op.kernel.string_value()
        if op.entries is not None:
            self._launch_list(kernel, op.entries.data, memory, numbers, sizes)
            return
        arguments = [*(("ptr", m) for m in memory), *(("i64", s) for s in sizes), *numbers]
        code.module.declare(kernel, "void", ", ".join(type for type, _ in arguments))
        code.do(f"call void @{kernel}({', '.join(f'{type} {value}' for type, value in arguments)})")

    def _launch_list(self, kernel: str, count: int, memory: list[str], numbers: list[tuple[str, str]], sizes: list[str]) -> None:
        """A launch over a list: a table with a row of addresses and numbers of 8 bytes each for each entry, one of sizes."""
        code, m, n = self.code, len(memory) // count, len(numbers) // count
        table = code.alloca(f"[{max(1, len(memory) + len(numbers))} x i64]", 8)
        row = m + n
        for k in range(count):
            entries = [("ptr", x) for x in memory[k * m : (k + 1) * m]] + numbers[k * n : (k + 1) * n]
            for j, (type, value) in enumerate(entries):
                if type == "i1":
                    type, value = "i64", code.let(f"zext i1 {value} to i64")
                code.do(f"store {type} {value}, ptr {code.at(table, k * row + j, 'i64')}")
        words = code.scratch("i64", sizes)
        code.module.declare(kernel, "void", "ptr, ptr, i64")
        code.do(f"call void @{kernel}(ptr {table}, ptr {words}, i64 {count})")

    def poll(self, op: host.PollOp) -> None:
        self.code.require(self.code.call("stepwell_c_poll", "%model", f"@{ERROR_SLOT}", f"@{ERROR_VALUES}", f"@{MESSAGES}"))

    # -- calls of the library ------------------------------------------------------------------------------------------

    def extern(self, op: host.ExternOp) -> None:
        """Copies are ours; everything else is refused."""
        target = op.call.data.target
        if target in ("aten.clone.default", "aten.copy_.default") and self.copies(op):
            return
        name = ".".join(target.split(".")[:2])
        raise self.error(
            op,
            f"operator {name} is computed by torch's library, which a C program does without; leave it to the caller, or write it with "
            "operators that stepwell computes (docs/reference/operators.md)",
        )

    def copies(self, op: host.ExternOp) -> bool:
        """Adds a copy; False for what is none."""
        code, tensors = self.code, [v for v in op.inputs if isinstance(v.type, host.TensorType)]
        if any(not has_layout(v) for v in tensors) or len({v.type for v in tensors}) != 1:
            return False
        source = layout_of(tensors[-1])
        sizes, strides = source.sizes.data, source.strides.data
        element = element_bytes(tensors[-1].type.element_type)  # pyright: ignore[reportAttributeAccessIssue]
        rank = str(len(sizes))
        from_strides = code.size_words(strides)
        if op.results:
            extent = code.size(extent_bytes(sizes, strides, element))
            to, to_strides = self.block_of(extent), from_strides
            self.values[op.results[0]] = to
        else:
            target = layout_of(tensors[0])
            if target.sizes.data != sizes:
                return False
            to, to_strides = self.values[tensors[0]], code.size_words(target.strides.data)
        code.call("stepwell_c_copy", to, to_strides, self.values[tensors[-1]], from_strides, code.size_words(sizes), rank, str(element))
        return True

    def release(self, op: host.ReleaseOp) -> None:
        """Memory of a call is freed at its end."""

    def _finish_function(self) -> None:
        code = self.code
        if self.polls:
            code.start("unlock")
            code.call("stepwell_c_unlock")
            code.do("br label %failed")
        code.start("failed")
        code.do("ret i32 1")
        signature = f"define i32 @{code.name}(ptr %model, ptr %inputs, ptr %results, i32 %mode) noinline optnone #0 {{"
        self.unit.defined.add(code.name)
        self.unit.functions.append("\n".join([signature, "entry:", *code.allocas, *code.lines, "}", ""]))


def emit_c_entry(unit: ModuleText, program: host.ProgramOp, plan: EntryPlan, symbol: str, kernels: Mapping[str, Any] | None = None) -> None:
    """Adds the C entry of `program` to the module's text, under `symbol`. kernels: of a GPU, by name (gpu_entry.py). CEntryError for what
    has none."""
    if kernels is None:
        CEntryEmitter(unit, program, plan, symbol).run()
    else:
        from .gpu_entry import GpuEntryEmitter

        GpuEntryEmitter(unit, program, plan, symbol, kernels).run()
    unit.globals += [_messages(unit), f"@{WEIGHTS} = external hidden constant i8"]


def _messages(unit: ModuleText) -> str:
    """The table of what kernels report, as formats of C."""
    lines: list[str] = []
    for k, message in enumerate(unit.messages):
        data = _c_format(message).encode()
        escaped = "".join(chr(b) if 32 <= b < 127 and b not in (34, 92) else f"\\{b:02X}" for b in data)
        lines.append(f'@{MESSAGES}.{k} = internal constant [{len(data) + 1} x i8] c"{escaped}\\00"')
    table = ", ".join(f"ptr @{MESSAGES}.{k}" for k in range(len(lines)))
    return "\n".join([*lines, f"@{MESSAGES} = internal constant [{len(lines)} x ptr] [{table}]"])


def _c_format(message: str) -> str:
    """A format string of Python, of integers in order, as one of C."""
    parts = ((text.replace("%", "%%"), field) for text, field, _, _ in Formatter().parse(message))
    return "".join(text + ("" if field is None else "%lld") for text, field in parts)


def _number_text(type: Attribute) -> str:
    if isinstance(type, Float64Type):
        return "double"
    return f"i{type.width.data}" if isinstance(type, IntegerType) else "i64"


_RULES: dict[type, str] = {
    host.BindOp: "bind",
    host.AssertOp: "check_relation",
    host.CheckOp: "check",
    host.EmptyOutputOp: "empty_output",
    host.ViewOp: "view",
    host.FromArenaOp: "view",
    host.ArenaPtrOp: "arena_ptr",
    host.WorkspaceOp: "workspace",
    host.ConstantOp: "constant",
    host.LaunchOp: "launch",
    host.PollOp: "poll",
    host.ExternOp: "extern",
    host.ReleaseOp: "release",
    host.ReturnOp: "finish",
}
"""Operation -> the method that emits it."""
