"""`host.program` -> the native entry: LLVM text of one C function `(self, args, nargs) -> object`, beside the kernels
that it calls.

The function is a METH_FASTCALL method. It takes one list, which it empties (torch's boxed calling), or the arguments
themselves, and returns a new list. Python's global lock is dropped around kernels and library calls that are worth
it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from xdsl.dialects.builtin import Float64Type, IntegerType
from xdsl.ir import Attribute, Operation, SSAValue

from ...dialects import host
from ...dialects.expr import Expr, as_expr
from ...dialects.machine import measures_products
from ...dialects.nd.call_args import Arg, Obj
from ...dialects.nd.types import element_bytes
from ..cpu.emit.text import ModuleText
from .arguments import ArgumentEmitter, layout_kind
from .checks import check_devices
from .description import ARENA, SYMBOL, ItemTable, Launcher, LibraryCall, ProgramDescription
from .element_types import dtype_code, dtype_name
from .extern import emit_extern
from .gpu.emit import GpuEntry, program_device
from .interpreted.python_path import python_source
from .runtime.runtime import native_launches
from .selftest import native_wanted
from .steps import HostStep, Kind, reference
from .values import HostValue

if TYPE_CHECKING:
    from ..triton.kernels import GpuKernel

CHEAP_BYTES = 1 << 15
"""A kernel that moves less than this keeps Python's global lock: dropping and taking it costs as much as 1 KB of
traffic."""


def emit_host(
    text: ModuleText,
    program: host.ProgramOp,
    native: bool | None = None,
    kernels: Sequence[Any] = (),
    device: str | None = None,
    target: str | None = None,
) -> ProgramDescription:
    """Adds the entry of `program` to the module's text and describes the rest. The kernels that it launches are in
    the same text, others in `kernels`. `native` tells whether there shall be an entry; by default it is there when it can run
    (selftest.py). `device` is where the kernels run, by default what the tensors of the program say; `target` what they are made by, by
    default the CPU's, or a GPU's where there are `kernels`."""
    check_devices(program)
    device, target = device or program_device(program), target or ("gpu" if kernels else "cpu")
    if native is None:
        from ..target import find_target  # the self-test, which every process runs, does without

        native = find_target(target).native and native_wanted() and (device == "cpu" or native_launches())
    source, python_items = python_source(program, device, {kernel.name: k for k, kernel in enumerate(kernels)})
    description = ProgramDescription(
        name=program.sym_name.data,
        arguments=len(program.body.block.args),
        native=native,
        python=source,
        python_items=python_items,
        messages=text.messages,
        device=device,
        kernels=list(kernels),
        target=target,
        measures=measures_products(program),
    )
    if native:
        items = ItemTable()
        emitter = _Emitter(text, program, items, device, kernels)
        emitter.run()
        description.items, description.checks, description.asserts = items.items, emitter.checks, emitter.asserts
        description.calls, description.arena_views = emitter.calls, emitter.entry.views
        description.launchers = list(emitter.launchers.values())
    return description


def releases_behind_launches(ops: Iterable[Operation]) -> Iterator[Operation]:
    """The ops in their order, releases behind the launches that follow them: Python's lock is not taken between kernels only to drop an
    input. Nothing takes memory meanwhile, so that none is held for longer than it would be missed."""
    waiting: list[Operation] = []
    has_arena = False
    for op in ops:
        if isinstance(op, host.ReleaseOp):
            waiting.append(op)
            continue
        if not isinstance(op, host.LaunchOp | host.ConstantOp) and not (has_arena and isinstance(op, host.ArenaPtrOp)):
            yield from waiting
            waiting.clear()
        has_arena |= isinstance(op, host.ArenaPtrOp)
        yield op
    yield from waiting


def extent_bytes(sizes: Sequence[Expr], strides: Sequence[Expr], element: int) -> Expr:
    """Bytes from the first element to the end of the last one (an upper bound when a size is 0)."""
    if any(size is as_expr(0) for size in sizes):
        return as_expr(0)
    last = as_expr(1)
    for size, stride in zip(sizes, strides, strict=True):
        last = last + (size - 1) * stride
    return last * element


def element_size(element_type: Attribute) -> int:
    """Bytes of an element (1 when the type is not known)."""
    return 1 if dtype_name(element_type) is None else element_bytes(element_type)


class _Emitter(ArgumentEmitter):
    """Walks the ops of one program once."""

    def __init__(self, text: ModuleText, program: host.ProgramOp, items: ItemTable, device: str = "cpu", kernels: Sequence[GpuKernel] = ()):
        super().__init__(text, program, items)
        self.calls: list[LibraryCall] = []
        self.launchers: dict[str, Launcher] = {}
        self.on_gpu = device != "cpu"
        self.gpu = GpuEntry(self, device, kernels) if self.on_gpu or kernels else None

    def run(self) -> None:
        entry = self.entry
        entry.guards_grad_mode = any(isinstance(op, (host.ExternOp, host.ViewOp)) for op in self.block.ops)
        if entry.guards_grad_mode:
            entry.do(f"store i8 {entry.call('aoti_torch_grad_mode_is_enabled')}, ptr %grad")
            entry.call("aoti_torch_grad_mode_set_enabled", "0")
        self._take_arguments()
        self._check_constants()
        if self.gpu is not None:
            self.gpu.enter()
        for op in releases_behind_launches(self.block.ops):
            if op not in self.done:
                _RULES[type(op)](self, op)  # pyright: ignore[reportArgumentType]
        entry.finish_entry()

    # -- ops -----------------------------------------------------------------------------------------------------------

    def bind(self, op: host.BindOp) -> None:
        entry, kind = self.entry, op.kind.data
        if kind == "value":
            entry.sizes[op.symbol_expr] = self._as_size(op.source)
            return
        handle = self.values.handle(self.values[op.source])
        slot = entry.alloca("i64", 8)
        if kind == "item":
            entry.require_ok(entry.call("aoti_torch_item_int64", handle, slot))
        else:
            assert op.dim is not None
            entry.require_ok(entry.call(f"aoti_torch_get_{kind}", handle, str(op.dim.data), slot))
        entry.sizes[op.symbol_expr] = entry.load(slot, "i64")

    def _as_size(self, value: SSAValue) -> str:
        register = self.number(value)
        if isinstance(value.type, IntegerType) and value.type.width.data == 1:
            return self.entry.let(f"zext i1 {register} to i64")
        return register

    def check_relation(self, op: host.AssertOp) -> None:
        entry = self.entry
        left, right = entry.size(op.left.data), entry.size(op.right.data)
        self.asserts.append(op.message.data)
        entry.where(len(self.asserts) - 1)
        opposite = {"eq": "ne", "ne": "eq", "lt": "sge", "le": "sgt"}[op.predicate.data]
        entry.fail_if(entry.let(f"icmp {opposite} i64 {left}, {right}"), "raise_assert")

    def _compare(self, op: host.LayoutOp, handle: str) -> tuple[str, str, str]:
        """Compares a tensor with the op's layout; gives the result and the addresses of sizes and strides."""
        entry = self.entry
        sizes, strides = entry.words(op.sizes.data), entry.words(op.strides.data)
        found = entry.call("stepwell_compare", handle, str(layout_kind(op)), str(len(op.sizes.data)), sizes, strides)
        return found, sizes, strides

    def _refuse(self, condition: str, number: int, handle: str, sizes: str, strides: str) -> None:
        """Leave with the message of check `number` when the i1 holds."""
        entry = self.entry
        bad, onward = entry.label(), entry.label()
        entry.do(f"br i1 {condition}, label %{bad}, label %{onward}")
        entry.start(bad)
        if not entry.has_lock:
            entry.call("PyEval_RestoreThread", entry.load("%thread"))
        tensor = entry.call("stepwell_wrap", handle)
        callback = entry.item("callback", "raise_check")
        entry.call("stepwell_call", callback, tensor, str(number), self._address(sizes), self._address(strides))
        entry.call("Py_DecRef", tensor)
        entry.do("br label %fail.python")
        entry.start(onward)

    def check(self, op: host.CheckOp) -> None:
        if self._is_argument(op.source) and self.entry.has_lock:
            run = [op]
            while isinstance(following := run[-1].next_op, host.CheckOp) and self._is_argument(following.source):
                run.append(following)
            wanted = [check for check in run if check not in self.done]
            exprs = dict.fromkeys(e for check in wanted for e in (*check.sizes.data, *check.strides.data))
            self._check_arguments(wanted, list(exprs))
            return
        handle = self.values.handle(self.values[op.source])
        found, sizes, strides = self._compare(op, handle)
        number = self._new_check(op)
        self._refuse(self.entry.let(f"icmp ne i64 {found}, 0"), number, handle, sizes, strides)

    def ensure(self, op: host.EnsureOp) -> None:
        entry, values = self.entry, self.values
        source = values[op.source]
        shared = not all(use.operation is op or isinstance(use.operation, host.ReleaseOp) for use in op.source.uses)
        if shared or not source.is_owned:
            source = self.duplicate(source)
        number = self._new_check(op)
        items = [self.items.place("callback", name) for name in ("raise_check", "copy_strided")]
        layout = entry.step_layout(op.sizes.data, op.strides.data)
        entry.step(HostStep.ENSURE, source.reference(), layout_kind(op), number, *items, *layout)
        result = values.define(op.result)
        result.object_slot, result.handle_slot = source.object_slot, source.handle_slot
        values.clear(source)

    def duplicate(self, source: HostValue) -> HostValue:
        """A handle of our own to the same tensor."""
        made = HostValue()
        made.handle_slot = self.entry.handle_slot()
        self.entry.step(HostStep.DUPLICATE, made.handle_slot, source.reference())
        return made

    def empty_output(self, op: host.EmptyOutputOp) -> None:
        op.verify_()  # as in from_arena
        entry = self.entry
        type = op.result.type.element_type
        if self.gpu is not None and op.result.type.device.data != "cpu":
            self.gpu.empty(op, entry.words(op.sizes.data), entry.words(op.strides.data))
            return
        room = entry.step_size(extent_bytes(op.sizes.data, op.strides.data, element_size(type)))
        layout = entry.step_layout(op.sizes.data, op.strides.data)
        entry.step(HostStep.EMPTY, self.values.new_handle(op.result), dtype_code(type), room, *layout)

    def view(self, op: host.ViewOp) -> None:
        entry, source = self.entry, self.values[op.source]
        offset = as_expr(0) if op.offset is None else op.offset.data
        if op.result.type != op.source.type:
            self._view_dtype(op, source, offset)
            return
        place, layout = entry.step_size(offset), entry.step_layout(op.sizes.data, op.strides.data)
        entry.step(HostStep.VIEW, self.values.new_handle(op.result), source.reference(), place, *layout)

    def _view_dtype(self, op: host.ViewOp, source: HostValue, offset: Expr) -> None:
        """A view with another element type: through Python, which knows what torch allows."""
        entry = self.entry
        sizes, strides = entry.words(op.sizes.data), entry.words(op.strides.data)
        tensor = self.values.object(source)
        entry.take_lock()
        number = self._new_check(op)
        rank = len(op.sizes.data)
        spec = entry.scratch("i64", [str(number), str(rank), entry.size(offset)])
        callback = entry.item("callback", "view_dtype")
        made = entry.call("stepwell_call", callback, tensor, self._address(spec), self._address(sizes), self._address(strides))
        self.values.own_object(op.result, entry.require_object(made))

    def arena_ptr(self, op: host.ArenaPtrOp) -> None:
        if not self.entry.arena_block:
            self._acquire_arena()
        self.values.define(op.result).offset = op.offset.data

    def _acquire_arena(self) -> None:
        entry, size = self.entry, self.program.arena
        bytes = "64" if size is None else entry.call("llvm.smax.i64", entry.size(size.data), "64")
        if self.gpu is not None and self.on_gpu:
            entry.arena_block = self.gpu.acquire_arena(bytes)
            return
        entry.uses_arena, entry.arena_bytes = True, bytes
        arena = entry.call("stepwell_arena_acquire", entry.load(f"@{ARENA}"), bytes)
        entry.do(f"store ptr {arena}, ptr %arena")
        entry.do(f"store ptr {arena}, ptr %frame5")
        entry.fail_if(entry.let(f"icmp eq ptr {arena}, null"), "memory")
        entry.arena_block = entry.load(entry.let(f"getelementptr i8, ptr {arena}, i64 8"))

    def workspace(self, op: host.WorkspaceOp) -> None:
        assert self.gpu is not None, "a workspace needs the kernels of a GPU"
        self.gpu.workspace(op)

    def from_arena(self, op: host.FromArenaOp) -> None:
        op.verify_()  # torch ends the process where a stride is negative
        entry, type = self.entry, op.result.type.element_type
        offset = self.values[op.source].offset
        assert offset is not None, "host.from_arena takes memory of the arena"
        if op.offset is not None:
            offset = offset + op.offset.data * element_size(type)
        if self.gpu is not None and self.on_gpu:
            data = entry.let(f"getelementptr i8, ptr {entry.arena_block}, i64 {entry.size(offset)}")
            self.gpu.from_blob(op, data, entry.words(op.sizes.data), entry.words(op.strides.data))
            return
        place, layout = entry.step_size(offset), entry.step_layout(op.sizes.data, op.strides.data)
        if all(e.is_const for e in (offset, *op.sizes.data, *op.strides.data)):
            # the same in every call: the arena keeps it
            entry.step(HostStep.KEPT, entry.views, dtype_code(type), place, *layout)
            self.values.define(op.result).view = entry.views
            entry.views += 1
            return
        entry.step(HostStep.BLOB, self.values.new_handle(op.result), dtype_code(type), place, *layout)

    def constant(self, op: host.ConstantOp) -> None:
        self.values.define(op.result).item = self.items.place("constant", op.index.data)

    def launch(self, op: host.LaunchOp) -> None:
        if op.grid is not None:
            assert self.gpu is not None, "a launch with a grid needs the kernels of a GPU"
            self.gpu.launch(op)
            return
        entry = self.entry
        offsets = op.offsets.data if op.offsets is not None else [as_expr(0)] * len(op.inputs)
        memory: list[tuple[int, int]] = []
        numbers: list[tuple[int, int]] = []
        types: list[str] = []
        for value, offset in zip(op.inputs, offsets, strict=True):
            if host.is_number(value.type):
                numbers.append((reference(Kind.NUMBER), self._number_word(value)))
                types.append("double" if isinstance(value.type, Float64Type) else _integer_text(value.type))
                continue
            source = self.values[value]
            if source.offset is not None:
                offset = source.offset + offset
            memory.append((source.reference(), entry.step_size(offset)))
        sizes = [entry.step_size(size) for size in op.sizes.data]
        kernel, traffic = op.kernel.string_value(), None if op.bytes is None else op.bytes.data
        if traffic is None or not traffic.is_const or int(traffic) >= CHEAP_BYTES:
            entry.step_unlock()
        if op.entries is not None:
            words = _rows(memory, numbers, op.entries.data)
            entry.module.declare(kernel, "void", "ptr, ptr, i64")
            self.launchers[kernel] = Launcher(entry.function_place(kernel), kernel, True)
            function, counts = entry.function_place(kernel), (len(words), len(sizes), op.entries.data)
            entry.need_scratch(len(words) + len(sizes))
            entry.step(HostStep.LIST, function, *counts, *(w for pair in words for w in pair), *sizes)
            return
        words = [*memory, *((reference(Kind.NUMBER), size) for size in sizes), *numbers]
        function = entry.launcher(kernel, [*["ptr"] * len(memory), *["i64"] * len(sizes), *types])
        self.launchers[kernel] = Launcher(function, kernel)
        entry.need_scratch(len(words))
        entry.step(HostStep.LAUNCH, function, len(words), *(w for pair in words for w in pair))

    def _number_word(self, value: SSAValue) -> int:
        """The word of a scalar operand of a launch."""
        entry, register = self.entry, self.number(value)
        if isinstance(value.type, IntegerType) and value.type.width.data == 1:
            register = entry.let(f"zext i1 {register} to i64")
        return entry.step_number(value, register, "double" if isinstance(value.type, Float64Type) else "i64")

    def poll(self, op: host.PollOp) -> None:
        self.entry.poll()

    def extern(self, op: host.ExternOp) -> None:
        emit_extern(self, op, len(self.calls))
        # where operands are now: a call through Python makes objects of handles
        self.calls.append(LibraryCall(op.call.data, tuple(self._reference(value) for value in op.inputs)))

    def _reference(self, value: SSAValue) -> int | None:
        """Where the frame has an operand of a call; None for a number."""
        return self.values[value].reference() if isinstance(value.type, host.TensorType) else None

    def release(self, op: host.ReleaseOp) -> None:
        self.values.release([self.values[value] for value in op.values])

    def finish(self, op: host.ReturnOp) -> None:
        entry, leaves = self.entry, op.template.data.args
        entry.step_lock()
        left = Counter(op.values[leaf.index] for leaf in leaves if isinstance(leaf, Arg))
        outputs = [self._output(op, leaf, left) for leaf in leaves]
        slot = entry.object_slot()
        entry.step(HostStep.COLLECT, slot, len(outputs), *outputs)
        result = entry.load(entry.at("%objects", slot))
        entry.forget_object(slot)
        entry.leave(result)

    def _output(self, op: host.ReturnOp, leaf: object, left: Counter[SSAValue]) -> int:
        """The word of one output; with the last use of a value the entry's own is given away."""
        if isinstance(leaf, Arg):
            source = op.values[leaf.index]
            if host.is_number(source.type):
                return self._boxed_output(self.box(source))
            left[source] -= 1
            value = self.values[source]
            return value.reference() << 1 | (value.is_owned and left[source] == 0)
        if isinstance(leaf, Expr) and not leaf.is_const:
            entry = self.entry
            return self._boxed_output(entry.require_object(entry.call("PyLong_FromLongLong", entry.size(leaf))))
        return reference(Kind.ITEM, self._leaf_place(leaf)) << 1

    def _boxed_output(self, register: str) -> int:
        return reference(Kind.OBJECT, self.entry.keep_object(register)) << 1 | 1

    def leaf_item(self, leaf: object) -> str:
        """The object of a template value that is the same in every call (borrowed)."""
        return self.entry.item_at(self._leaf_place(leaf))

    def _leaf_place(self, leaf: object) -> int:
        if isinstance(leaf, Obj):
            return self.items.place("given", leaf.index)
        return self.items.place("value", int(leaf) if isinstance(leaf, Expr) else leaf)


def _rows(memory: list[tuple[int, int]], numbers: list[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    """The operands of a launch over a list by rows: an entry's addresses, then its numbers, 8 bytes each."""
    m, n = len(memory) // count, len(numbers) // count
    return [w for k in range(count) for w in (*memory[k * m : (k + 1) * m], *numbers[k * n : (k + 1) * n])]


def _integer_text(type: Attribute) -> str:
    return f"i{type.width.data}" if isinstance(type, IntegerType) else "i64"


_RULES: dict[type, Callable[[_Emitter, host.HostOp], None]] = {
    host.BindOp: _Emitter.bind,
    host.AssertOp: _Emitter.check_relation,
    host.CheckOp: _Emitter.check,
    host.EnsureOp: _Emitter.ensure,
    host.EmptyOutputOp: _Emitter.empty_output,
    host.ViewOp: _Emitter.view,
    host.FromArenaOp: _Emitter.from_arena,
    host.ArenaPtrOp: _Emitter.arena_ptr,
    host.WorkspaceOp: _Emitter.workspace,
    host.ConstantOp: _Emitter.constant,
    host.LaunchOp: _Emitter.launch,
    host.PollOp: _Emitter.poll,
    host.ExternOp: _Emitter.extern,
    host.ReleaseOp: _Emitter.release,
    host.ReturnOp: _Emitter.finish,
}  # pyright: ignore[reportAssignmentType]

__all__ = ["SYMBOL", "emit_host"]
