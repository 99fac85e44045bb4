"""`host.program` -> the native entry: LLVM text of one C function `(self, args, nargs) -> object`, beside the kernels
that it calls.

The function is a METH_FASTCALL method. It takes one list, which it empties (torch's boxed calling), or the arguments
themselves, and returns a new list. Python's global lock is dropped around kernels and library calls that are worth
it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import Float64Type, IntegerType, StringAttr
from xdsl.ir import Attribute, BlockArgument, SSAValue

from ...dialects import host
from ...dialects.call_args import Arg, Obj
from ...dialects.expr import Expr, as_expr
from ...dialects.nd_types import element_bytes
from ..cpu.emit_text import ModuleText
from .description import (
    ARENA,
    SYMBOL,
    Check,
    ItemTable,
    ProgramDescription,
    dtype_code,
    dtype_name,
    kind_code,
)
from .entry import Entry
from .extern import emit_extern
from .gpu_emit import GpuEntry, program_device
from .python_path import python_source
from .runtime import native_launches
from .selftest import native_wanted
from .symbols import handle_offset
from .values import Value, Values

if TYPE_CHECKING:
    from ..triton.kernels import GpuKernel

CHEAP_BYTES = 1 << 15
"""A kernel that moves less than this keeps Python's global lock: dropping and taking it costs as much as 1 KB of
traffic."""


def emit_host(
    text: ModuleText, program: host.ProgramOp, native: bool | None = None, kernels: Sequence[GpuKernel] = ()
) -> ProgramDescription:
    """Adds the entry of `program` to the module's text and describes the rest. The kernels that it launches are in
    the same text, those of a GPU in `kernels`. `native` tells whether there shall be an entry; by default it is there when it can run
    (selftest.py)."""
    device = program_device(program)
    if native is None:
        native = native_wanted() and (device == "cpu" or native_launches())
    items = ItemTable()
    emitter = _Emitter(text, program, items, device, kernels)
    if native:
        emitter.run()
    source, python_items = python_source(program, device, {kernel.name: k for k, kernel in enumerate(kernels)})
    return ProgramDescription(
        name=program.sym_name.data,
        arguments=len(program.body.block.args),
        native=native,
        python=source,
        items=items.items,
        python_items=python_items,
        checks=emitter.checks,
        asserts=emitter.asserts,
        messages=text.messages,
        targets=emitter.targets,
        arena_views=emitter.entry.views,
        device=device,
        kernels=list(kernels),
    )


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


class _Emitter:
    """Walks the ops of one program once."""

    def __init__(
        self, text: ModuleText, program: host.ProgramOp, items: ItemTable, device: str = "cpu", kernels: Sequence[GpuKernel] = ()
    ):
        self.program = program
        self.block = program.body.block
        self.items = items
        self.entry = Entry(text, items, len(self.block.args))
        self.values = Values(self.entry)
        self.checks: list[Check] = []
        self.asserts: list[str] = []
        self.targets: list[str] = []
        self.done: set[host.HostOp] = set()
        self.arena = self.arena_block = ""
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
        for op in self.block.ops:
            if op not in self.done:
                _RULES[type(op)](self, op)  # pyright: ignore[reportArgumentType]
        entry.finish_entry()

    # -- arguments -----------------------------------------------------------------------------------------------------

    def _take_arguments(self) -> None:
        entry, args = self.entry, self.block.args
        kinds = "null"
        if args:
            kinds = entry.constant_words([isinstance(arg.type, host.TensorType) for arg in args], "i8")
        code = entry.call("stepwell_take", "%args", "%given", "%objects", str(len(args)), kinds)
        entry.require_ok(code, "python")
        for k, arg in enumerate(args):
            self.values.argument(arg, k)

    def _check_constants(self) -> None:
        """All comparisons of arguments with constant sizes, in one go."""
        checks = [op for op in self.block.ops if isinstance(op, host.CheckOp) and self._is_argument(op.source)]
        self._check_arguments([op for op in checks if all(e.is_const for e in (*op.sizes.data, *op.strides.data))])

    def _is_argument(self, value: SSAValue) -> bool:
        return value.owner is self.block

    def _check_arguments(self, checks: Sequence[host.CheckOp], values: Sequence[Expr] = ()) -> None:
        """Comparisons of arguments over a table; with `values`, sizes and strides are kept as places in that list."""
        if not checks:
            return
        entry, table, first = self.entry, [], len(self.checks)
        places = {expr: k for k, expr in enumerate(values)}
        for op in checks:
            exprs = (*op.sizes.data, *op.strides.data)
            words = [places[e] for e in exprs] if values else [int(e) for e in exprs]
            assert isinstance(op.source, BlockArgument)
            self._new_check(op, op.source.index, words)
            table += [op.source.index, _kind(op), len(op.sizes.data), *words]
            self.done.add(op)
        numbers = entry.words(values) if values else "null"
        address = entry.constant_words(table)
        failed = entry.call("stepwell_compare_table", "%objects", address, str(len(checks)), numbers)
        bad, onward = entry.label(), entry.label()
        entry.do(f"br i1 {entry.let(f'icmp ne i64 {failed}, -1')}, label %{bad}, label %{onward}")
        entry.start(bad)
        number = entry.let(f"add i64 {failed}, {first}")
        callback = entry.item("callback", "raise_check")
        entry.call("stepwell_call", callback, "null", number, self._address("%objects"), self._address(numbers))
        entry.do("br label %fail.python")
        entry.start(onward)

    def _new_check(self, op: host.LayoutOp, argument: int | None = None, words: Sequence[int] = ()) -> int:
        label = op.properties.get("label")
        text = label.data if isinstance(label, StringAttr) else f"argument {argument}"
        dtype = dtype_name(_element_type(op)) or ""
        device = op.layout_type().device.data  # pyright: ignore[reportAttributeAccessIssue]
        self.checks.append(Check(text, dtype, len(op.sizes.data), device, argument, tuple(words)))
        return len(self.checks) - 1

    def number(self, value: SSAValue) -> str:
        """The register of a number; an argument is converted at its first use."""
        known = self.values[value]
        if known.number is not None:
            return known.number
        entry = self.entry
        entry.take_lock()
        known.number = self.unbox(self.values.object(known), value.type)
        return known.number

    def unbox(self, register: str, type: Attribute) -> str:
        """The number in a Python object."""
        entry = self.entry
        if isinstance(type, IntegerType) and type.width.data == 1:
            truth = entry.call("PyObject_IsTrue", register)
            entry.fail_if(entry.let(f"icmp slt i32 {truth}, 0"), "python")
            return entry.let(f"trunc i32 {truth} to i1")
        if isinstance(type, Float64Type):
            number = entry.call("PyFloat_AsDouble", register)
            suspect = entry.let(f"fcmp oeq double {number}, -1.0")
        else:
            number = entry.call("PyLong_AsLongLong", register)
            suspect = entry.let(f"icmp eq i64 {number}, -1")
        ask, onward = entry.label(), entry.label()
        entry.do(f"br i1 {suspect}, label %{ask}, label %{onward}")
        entry.start(ask)
        error = entry.let(f"icmp ne ptr {entry.call('PyErr_Occurred')}, null")
        entry.do(f"br i1 {error}, label %fail.python, label %{onward}")
        entry.start(onward)
        return number

    def box(self, value: SSAValue) -> str:
        """A number as a new Python object (a new reference)."""
        entry, register = self.entry, self.number(value)
        if isinstance(value.type, Float64Type):
            return entry.require_object(entry.call("PyFloat_FromDouble", register))
        if isinstance(value.type, IntegerType) and value.type.width.data == 1:
            return entry.call("PyBool_FromLong", entry.let(f"zext i1 {register} to i64"))
        return entry.require_object(entry.call("PyLong_FromLongLong", register))

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
        found = entry.call("stepwell_compare", handle, str(_kind(op)), str(len(op.sizes.data)), sizes, strides)
        return found, sizes, strides

    def _address(self, pointer: str) -> str:
        return "0" if pointer == "null" else self.entry.let(f"ptrtoint ptr {pointer} to i64")

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
        if not all(use.operation is op or isinstance(use.operation, host.ReleaseOp) for use in op.source.uses):
            source = self._duplicate(source)
        handle = values.handle(source)
        found, sizes, strides = self._compare(op, handle)
        number = self._new_check(op)
        self._refuse(entry.let(f"icmp eq i64 {found}, 2"), number, handle, sizes, strides)
        result = values.define(op.result)
        for name in Value.__slots__:
            setattr(result, name, getattr(source, name))
        values.clear(source)
        result.data = None
        self._restride(result, found, sizes, strides)

    def _duplicate(self, source: Value) -> Value:
        """A handle of our own to the same tensor."""
        entry = self.entry
        entry.require_ok(entry.call("aoti_torch_new_tensor_handle", self.values.handle(source), "%out"))
        made = Value()
        made.handle = entry.load("%out")
        made.handle_slot = entry.keep_handle(made.handle)
        return made

    def _restride(self, value: Value, found: str, sizes: str, strides: str) -> None:
        """Replace the tensor of a value by a copy with other strides when `found` is not 0; its form stays what it
        is."""
        entry = self.entry
        by_handle = value.handle_slot is not None
        old = self.values.handle(value) if by_handle else self.values.object(value)
        place = ("%handles", value.handle_slot) if by_handle else ("%objects", value.object_slot)
        assert place[1] is not None
        before = entry.block
        copy, onward = entry.label(), entry.label()
        entry.do(f"br i1 {entry.let(f'icmp ne i64 {found}, 0')}, label %{copy}, label %{onward}")
        entry.start(copy)
        if not entry.has_lock:
            entry.call("PyEval_RestoreThread", entry.load("%thread"))
        tensor = entry.call("stepwell_wrap", old) if by_handle else old
        callback = entry.item("callback", "copy_strided")
        rank = str(len(self.checks) - 1)
        made = entry.call("stepwell_call", callback, tensor, rank, self._address(sizes), self._address(strides))
        if by_handle:
            entry.call("Py_DecRef", tensor)
        failed, copied = entry.let(f"icmp eq ptr {made}, null"), entry.label()
        entry.do(f"br i1 {failed}, label %fail.python, label %{copied}")
        entry.start(copied)
        new = self._handle_of(made) if by_handle else made
        entry.do(f"store ptr {new}, ptr {entry.at(place[0], place[1])}")
        if by_handle:
            entry.call("Py_DecRef", made)
            entry.call("aoti_torch_delete_tensor_object", old)
        else:
            entry.call("Py_DecRef", old)
        if not entry.has_lock:
            entry.do(f"store ptr {entry.call('PyEval_SaveThread')}, ptr %thread")
        last = entry.block
        entry.do(f"br label %{onward}")
        entry.start(onward)
        now = entry.let(f"phi ptr [ {old}, %{before} ], [ {new}, %{last} ]")
        value.argument = value.object = value.handle = value.data = None
        if by_handle:
            value.handle = now
        else:
            value.object = now

    def _handle_of(self, tensor: str) -> str:
        """A new handle to the tensor of a Python object."""
        entry = self.entry
        inner = entry.let(f"getelementptr i8, ptr {tensor}, i64 {handle_offset()}")
        entry.call("aoti_torch_new_tensor_handle", inner, "%out")
        return entry.load("%out")

    def empty_output(self, op: host.EmptyOutputOp) -> None:
        op.verify_()  # as in from_arena
        entry = self.entry
        type = op.result.type.element_type
        sizes, strides = entry.words(op.sizes.data), entry.words(op.strides.data)
        if self.gpu is not None and op.result.type.device.data != "cpu":
            self.gpu.empty(op, sizes, strides)
            return
        room = entry.size(extent_bytes(op.sizes.data, op.strides.data, element_size(type)))
        code = str(dtype_code(type))
        entry.require_ok(entry.call("stepwell_empty", str(len(op.sizes.data)), sizes, strides, code, room, "%out"))
        self.values.own_handle(op.result, entry.load("%out"))

    def view(self, op: host.ViewOp) -> None:
        entry, source = self.entry, self.values[op.source]
        sizes, strides = entry.words(op.sizes.data), entry.words(op.strides.data)
        offset = "0" if op.offset is None else entry.size(op.offset.data)
        if op.result.type != op.source.type:
            self._view_dtype(op, source, sizes, strides, offset)
            return
        handle = self.values.handle(source)
        rank = str(len(op.sizes.data))
        entry.require_ok(entry.call("aoti_torch__reinterpret_tensor", handle, rank, sizes, strides, offset, "%out"))
        self.values.own_handle(op.result, entry.load("%out"))

    def _view_dtype(self, op: host.ViewOp, source: Value, sizes: str, strides: str, offset: str) -> None:
        """A view with another element type: through Python, which knows what torch allows."""
        entry = self.entry
        entry.take_lock()
        number = self._new_check(op)
        rank = len(op.sizes.data)
        spec = entry.scratch("i64", [str(number), str(rank), offset])
        made = entry.call(
            "stepwell_call",
            entry.item("callback", "view_dtype"),
            self.values.object(source),
            self._address(spec),
            self._address(sizes),
            self._address(strides),
        )
        self.values.own_object(op.result, entry.require_object(made))

    def arena_ptr(self, op: host.ArenaPtrOp) -> None:
        entry = self.entry
        if not self.arena_block:
            self._acquire_arena()
        offset = op.offset.data
        block = self.arena_block
        place = block if offset is as_expr(0) else entry.let(f"getelementptr i8, ptr {block}, i64 {entry.size(offset)}")
        self.values.define(op.result).data = place

    def _acquire_arena(self) -> None:
        entry, size = self.entry, self.program.arena
        bytes = "64" if size is None else entry.call("llvm.smax.i64", entry.size(size.data), "64")
        if self.gpu is not None and self.on_gpu:
            self.arena_block = self.gpu.acquire_arena(bytes)
            return
        entry.uses_arena = True
        arena = self.arena = entry.call("stepwell_arena_acquire", entry.load(f"@{ARENA}"), bytes)
        entry.do(f"store ptr {arena}, ptr %arena")
        entry.fail_if(entry.let(f"icmp eq ptr {arena}, null"), "memory")
        self.arena_block = entry.load(entry.let(f"getelementptr i8, ptr {arena}, i64 8"))

    def from_arena(self, op: host.FromArenaOp) -> None:
        op.verify_()  # torch ends the process where a stride is negative
        entry, type = self.entry, op.result.type.element_type
        data = self.values.data(self.values[op.source])
        exprs = [*op.sizes.data, *op.strides.data]
        if op.offset is not None:
            offset = op.offset.data * element_size(type)
            data = entry.let(f"getelementptr i8, ptr {data}, i64 {entry.size(offset)}")
            exprs.append(offset)
        sizes, strides = entry.words(op.sizes.data), entry.words(op.strides.data)
        if self.gpu is not None and self.on_gpu:
            self.gpu.from_blob(op, data, sizes, strides)
            return
        rank, code = str(len(op.sizes.data)), str(dtype_code(type))
        place = op.source.owner
        if isinstance(place, host.ArenaPtrOp) and all(e.is_const for e in (place.offset.data, *exprs)):
            # the same in every call: the arena keeps it
            made = entry.call("stepwell_arena_view", self.arena, str(entry.views), data, rank, sizes, strides, code)
            entry.views += 1
            entry.fail_if(entry.let(f"icmp eq ptr {made}, null"), "torch")
            self.values.define(op.result).handle = made
            return
        entry.require_ok(entry.call("stepwell_from_blob", data, rank, sizes, strides, code, "%out"))
        self.values.own_handle(op.result, entry.load("%out"))

    def constant(self, op: host.ConstantOp) -> None:
        self.values.define(op.result).object = self.entry.item("constant", op.index.data)

    def launch(self, op: host.LaunchOp) -> None:
        if op.grid is not None:
            assert self.gpu is not None, "a launch with a grid needs the kernels of a GPU"
            self.gpu.launch(op)
            return
        entry = self.entry
        offsets = op.offsets.data if op.offsets is not None else [as_expr(0)] * len(op.inputs)
        memory: list[str] = []
        numbers: list[str] = []
        for value, offset in zip(op.inputs, offsets, strict=True):
            if not host.is_number(value.type):
                address = self.values.data(self.values[value])
                if offset is not as_expr(0):
                    address = entry.let(f"getelementptr i8, ptr {address}, i64 {entry.size(offset)}")
                memory.append(f"ptr {address}")
            else:
                type = "double" if isinstance(value.type, Float64Type) else _integer_text(value.type)
                numbers.append(f"{type} {self.number(value)}")
        if op.entries is not None:
            numbers = [self._table(op, memory, numbers), f"ptr {entry.words(op.sizes.data)}", f"i64 {op.entries.data}"]
            memory = []
        sizes = [f"i64 {entry.size(size)}" for size in op.sizes.data] if op.entries is None else []
        traffic = None if op.bytes is None else op.bytes.data
        if traffic is None or not traffic.is_const or int(traffic) >= CHEAP_BYTES:
            entry.drop_lock()
        arguments = [*memory, *sizes, *numbers]
        kernel = op.kernel.string_value()
        entry.module.declare(kernel, "void", ", ".join(a.rpartition(" ")[0] for a in arguments))
        entry.do(f"call void @{kernel}({', '.join(arguments)})")

    def _table(self, op: host.LaunchOp, memory: list[str], numbers: list[str]) -> str:
        """The table of a launch over a list: a row of addresses and numbers for each entry, 8 bytes each."""
        assert op.entries is not None
        entry, count = self.entry, op.entries.data
        rows = len(memory) // count, len(numbers) // count
        words = [
            word
            for k in range(count)
            for word in (*memory[k * rows[0] : (k + 1) * rows[0]], *numbers[k * rows[1] : (k + 1) * rows[1]])
        ]
        base = entry.alloca(f"[{max(1, len(words))} x i64]", 8)
        for k, word in enumerate(words):
            if word.startswith("i1 "):
                word = f"i64 {entry.let(f'zext {word} to i64')}"
            entry.do(f"store {word}, ptr {entry.at(base, k, 'i64')}")
        return f"ptr {base}"

    def poll(self, op: host.PollOp) -> None:
        self.entry.poll()

    def extern(self, op: host.ExternOp) -> None:
        self.targets.append(op.call.data.target)
        emit_extern(self, op, len(self.targets) - 1)

    def release(self, op: host.ReleaseOp) -> None:
        values = [self.values[value] for value in op.values]
        arguments = [v for v in values if v.argument is not None and v.object_slot is not None]
        if len(arguments) > 2:
            self.values.release_arguments(arguments)
            values = [v for v in values if v not in arguments]
        for value in values:
            self.values.release(value)

    def finish(self, op: host.ReturnOp) -> None:
        entry, leaves = self.entry, op.template.data.args
        entry.take_lock()
        left = Counter(op.values[leaf.index] for leaf in leaves if isinstance(leaf, Arg))
        result = entry.require_object(entry.call("PyList_New", str(len(leaves))))
        entry.keep_object(result)
        slot = entry.objects - 1
        for k, leaf in enumerate(leaves):
            entry.call("PyList_SetItem", result, str(k), self._output(op, leaf, left))
        entry.forget_object(slot)
        entry.leave(result)

    def _output(self, op: host.ReturnOp, leaf: object, left: Counter[SSAValue]) -> str:
        """One output as a new reference; the last use of a value hands over the entry's own."""
        entry = self.entry
        if isinstance(leaf, Arg):
            source = op.values[leaf.index]
            if host.is_number(source.type):
                return self.box(source)
            left[source] -= 1
            if left[source] == 0:
                return self.values.take(self.values[source])
            found = self.values.object(self.values[source])
            entry.call("Py_IncRef", found)
            return found
        if isinstance(leaf, Expr) and not leaf.is_const:
            return entry.require_object(entry.call("PyLong_FromLongLong", entry.size(leaf)))
        found = self.leaf_item(leaf)
        entry.call("Py_IncRef", found)
        return found

    def leaf_item(self, leaf: object) -> str:
        """The object of a template value that is the same in every call (borrowed)."""
        if isinstance(leaf, Obj):
            return self.entry.item("given", leaf.index)
        return self.entry.item("value", int(leaf) if isinstance(leaf, Expr) else leaf)


def _element_type(op: host.LayoutOp) -> Attribute:
    type = op.layout_type()
    assert isinstance(type, host.TensorType)
    return type.element_type


def _kind(op: host.LayoutOp) -> int:
    return kind_code(_element_type(op), op.layout_type().device.data)  # pyright: ignore[reportAttributeAccessIssue]


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
    host.ConstantOp: _Emitter.constant,
    host.LaunchOp: _Emitter.launch,
    host.PollOp: _Emitter.poll,
    host.ExternOp: _Emitter.extern,
    host.ReleaseOp: _Emitter.release,
    host.ReturnOp: _Emitter.finish,
}  # pyright: ignore[reportAssignmentType]

__all__ = ["SYMBOL", "emit_host"]
