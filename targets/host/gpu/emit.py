"""The parts of a native entry that concern a GPU: entering the device, memory on it, launches of kernels.

A launch fills a record on the stack and calls the runtime; what is rare (a kernel that is not loaded yet, a refused launch) calls Python
and goes on."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import Float64Type, IntegerType
from xdsl.ir import SSAValue

from ....dialects import host
from ....dialects.expr import as_expr
from ..checks import has_elements
from ..description import GPU_TABLE
from ..element_types import dtype_code
from ..entry_code import launch_words
from ..workspaces import workspace_bytes, workspace_places
from .descriptors import site_text
from .runtime_ir import SIZES_SHIFT, TABLE_HEAD, TABLE_WORKSPACES, VARIANT_BYTES, Product, Variant

if TYPE_CHECKING:
    from ...triton.kernels import GpuKernel
    from ..emit import _Emitter


class DeviceType(IntEnum):
    """c10::DeviceType of the devices that programs can use."""

    cpu = 0
    cuda = 1


def device_codes(device: str) -> tuple[int, int]:
    """c10::DeviceType and index of a device as tensor types name it (`cpu`: index -1)."""
    kind, _, index = device.partition(":")
    return DeviceType[kind].value, int(index or 0) if kind != "cpu" else -1


def program_device(program: host.ProgramOp) -> str:
    """The device of a program: that of the GPU among its tensors, else the CPU."""
    block = program.body.block
    values = (*block.args, *(r for op in block.ops for r in op.results))
    devices = {v.type.device.data for v in values if isinstance(v.type, host.TensorType)} - {"cpu", "any"}
    with_kernels = {
        v.type.device.data
        for op in block.ops
        if isinstance(op, host.LaunchOp)
        for v in op.inputs
        if isinstance(v.type, host.TensorType)
    }
    return next(iter(sorted(with_kernels & devices) or sorted(devices)), "cpu")


def filled_operands(op: host.LaunchOp) -> int:
    """A bit for each of the first 63 memory operands of a launch: whether it is a tensor that has elements, so that it must have an
    address. What the program takes memory for itself is not asked for."""
    memory = [value for value in op.inputs if not host.is_number(value.type)][:63]
    return sum(1 << k for k, value in enumerate(memory) if not _is_own(value) and has_elements(value))


def _is_own(value: SSAValue) -> bool:
    """Whether the program takes the memory of an operand itself."""
    return isinstance(value.owner, (host.ArenaPtrOp, host.EmptyOutputOp, host.WorkspaceOp))


class GpuEntry:
    """The GPU's part of one entry."""

    def __init__(self, emitter: _Emitter, device: str, kernels: Sequence[GpuKernel]):
        self.emitter = emitter
        self.device = device
        self.kernels = {kernel.name: (k, kernel) for k, kernel in enumerate(kernels)}
        """Name -> number in the program's table, and the kernel."""
        self.sites = 0
        """How many launches with descriptors there are, and products."""
        self.table = ""
        self.workspaces = ""
        """The register of the address of the memory that stays; null where the stream is not the default one."""
        self.places = workspace_places(emitter.program)
        emitter.entry.uses_gpu = True

    def enter(self) -> None:
        """Make the device current and find the table of its context."""
        entry = self.emitter.entry
        entry.guards_device = self.device != "cpu"
        if entry.guards_device:
            code = entry.call("stepwell_gpu_enter", self.device.partition(":")[2] or "0", "%gpu")
            entry.do(f"store i64 {entry.let(f'sext i32 {code} to i64')}, ptr %where")
            entry.fail_if(entry.let(f"icmp ne i32 {code}, 0"), "raise_device")
        if not self.kernels:
            return
        context = entry.load(entry.let("getelementptr i8, ptr %gpu, i64 16"))
        known = entry.load(f"@{GPU_TABLE}")
        first, ask, onward = entry.label(), entry.label(), entry.label()
        entry.do(f"br i1 {entry.let(f'icmp eq ptr {known}, null')}, label %{ask}, label %{first}")
        entry.start(first)
        same = entry.let(f"icmp eq ptr {entry.load(known)}, {context}")
        entry.do(f"br i1 {same}, label %{onward}, label %{ask}")
        entry.start(ask)
        callback, number = entry.item("callback", "gpu_table"), entry.let(f"ptrtoint ptr {context} to i64")
        made = entry.call("stepwell_call", callback, "null", number, "0", "0")
        entry.fail_if(entry.let(f"icmp eq ptr {made}, null"), "python")
        entry.call("Py_DecRef", made)
        fresh, last = entry.load(f"@{GPU_TABLE}"), entry.block
        entry.do(f"br label %{onward}")
        entry.start(onward)
        self.table = entry.let(f"phi ptr [ {known}, %{first} ], [ {fresh}, %{last} ]")
        if self.places:
            self._enter_workspaces(context)

    def _enter_workspaces(self, context: str) -> None:
        """Find the memory that stays on the default stream; Python makes it at the first call there."""
        entry = self.emitter.entry
        stream = entry.load(entry.let("getelementptr i8, ptr %gpu, i64 8"))
        before = entry.block
        default, ask, onward = entry.label(), entry.label(), entry.label()
        entry.do(f"br i1 {entry.let(f'icmp eq ptr {stream}, null')}, label %{default}, label %{onward}")
        entry.start(default)
        place = entry.let(f"getelementptr i8, ptr {self.table}, i64 {TABLE_WORKSPACES}")
        known = entry.load(place)
        entry.do(f"br i1 {entry.let(f'icmp eq ptr {known}, null')}, label %{ask}, label %{onward}")
        entry.start(ask)
        callback, number = entry.item("callback", "gpu_workspaces"), entry.let(f"ptrtoint ptr {context} to i64")
        made = entry.call("stepwell_call", callback, "null", number, str(workspace_bytes(self.emitter.program)), "0")
        entry.fail_if(entry.let(f"icmp eq ptr {made}, null"), "python")
        entry.call("Py_DecRef", made)
        fresh, last = entry.load(place), entry.block
        entry.do(f"br label %{onward}")
        entry.start(onward)
        self.workspaces = entry.let(f"phi ptr [ null, %{before} ], [ {known}, %{default} ], [ {fresh}, %{last} ]")

    def index(self, number: int) -> str:
        """The number of a GPU that the program names, in the process that it runs in; -1, of the CPU, is itself."""
        return str(number) if number < 0 else self.emitter.entry.call("stepwell_gpu_index", str(number))

    # -- memory

    def acquire_arena(self, size: str) -> str:
        """The address of fresh memory of the device, which the entry owns until it returns."""
        entry, (kind, index) = self.emitter.entry, device_codes(self.device)
        sizes, steps = entry.scratch("i64", [size]), entry.constant_words([1])
        entry.require_ok(entry.call("aoti_torch_empty_strided", "1", sizes, steps, "0", str(kind), self.index(index), "%out"))
        handle = entry.load("%out")
        entry.keep_handle(handle)
        entry.require_ok(entry.call("aoti_torch_get_data_ptr", handle, "%out"))
        return entry.load("%out")

    def empty(self, op: host.EmptyOutputOp, sizes: str, strides: str) -> None:
        """A new tensor of the device."""
        entry, type = self.emitter.entry, op.result.type
        kind, index = device_codes(type.device.data)
        rank, code = str(len(op.sizes.data)), str(dtype_code(type.element_type))
        entry.require_ok(entry.call("aoti_torch_empty_strided", rank, sizes, strides, code, str(kind), self.index(index), "%out"))
        self.emitter.values.own_handle(op.result, entry.load("%out"))

    def from_blob(self, op: host.FromArenaOp, data: str, sizes: str, strides: str) -> None:
        """A tensor over memory of the arena."""
        entry, type = self.emitter.entry, op.result.type
        index = device_codes(type.device.data)[1]
        rank, code = str(len(op.sizes.data)), str(dtype_code(type.element_type))
        entry.require_ok(entry.call("stepwell_gpu_from_blob", data, rank, sizes, strides, code, self.index(index), "%out"))
        self.emitter.values.own_handle(op.result, entry.load("%out"))

    def workspace(self, op: host.WorkspaceOp) -> None:
        """The program's memory that stays, or that of the call."""
        entry, values = self.emitter.entry, self.emitter.values
        other = values.data(values[op.other])
        own = entry.let(f"getelementptr i8, ptr {self.workspaces}, i64 {self.places[op]}")
        values.define(op.result).data = entry.let(f"select i1 {self._has_workspaces()}, ptr {own}, ptr {other}")

    def _has_workspaces(self) -> str:
        return self.emitter.entry.let(f"icmp ne ptr {self.workspaces}, null")

    # -- launches

    def launch(self, op: host.LaunchOp) -> None:
        """Launch a kernel on the stream of the call."""
        entry = self.emitter.entry
        number, kernel = self.kernels[op.kernel.string_value()]
        words, pointers = self._arguments(op)
        grid = [entry.size(e) for e in op.grid.data] if op.grid is not None else []
        grid += ["1"] * (3 - len(grid))
        if op.clears is not None:  # an empty grid is not launched
            grid[0] = entry.let(f"select i1 {self._has_workspaces()}, i64 0, i64 {grid[0]}")
        addresses = self._together([pointers[k] for k in kernel.aligned if k in pointers])
        if kernel.even:
            low = entry.let(f"shl i64 {self._together([words[k] for k in kernel.even])}, {SIZES_SHIFT}")
            addresses = entry.let(f"or i64 {addresses}, {low}")
        site = self._site(kernel) if kernel.described else "0"
        record = entry.scratch("i64", [*grid, str(len(words)), addresses, str(filled_operands(op)), site, *words])
        variants = entry.let(f"getelementptr i8, ptr {self.table}, i64 {TABLE_HEAD + len(Variant) * VARIANT_BYTES * number}")
        stream = entry.load(entry.let("getelementptr i8, ptr %gpu, i64 8"))
        entry.drop_lock()
        code = entry.call("stepwell_gpu_launch", variants, record, stream)
        self._rescue(code, number, variants, record)

    def _arguments(self, op: host.LaunchOp) -> tuple[list[str], dict[int, str]]:
        """The arguments as i64, and those among them that are addresses which nobody vouches for, by position."""
        emitter, entry = self.emitter, self.emitter.entry
        offsets = op.offsets.data if op.offsets is not None else [as_expr(0)] * len(op.inputs)
        memory: list[str] = []
        numbers: list[str] = []
        pointers: dict[int, str] = {}
        for value, offset in zip(op.inputs, offsets, strict=True):
            if host.is_number(value.type):
                numbers.append(self._bits(value))
                continue
            address = entry.let(f"ptrtoint ptr {emitter.values.data(emitter.values[value])} to i64")
            if offset is not as_expr(0):
                start, address = address, entry.let(f"add i64 {address}, {entry.size(offset)}")
                if not _is_own(value):  # null stays null
                    address = entry.let(f"select i1 {entry.let(f'icmp eq i64 {start}, 0')}, i64 0, i64 {address}")
            # memory that torch's allocator has given begins at multiples of 512
            if not _is_own(value):
                pointers[len(memory)] = address
            memory.append(address)
        return launch_words(entry, op, memory, numbers), pointers

    def _site(self, kernel: GpuKernel) -> str:
        """The address of what is kept of a launch's descriptors."""
        entry, name = self.emitter.entry, f"@stepwell_descriptors{self.sites}"
        self.sites += 1
        entry.module.globals.append(site_text(name, kernel.described))
        return entry.let(f"ptrtoint ptr {name} to i64")

    # -- products of the library

    def product(self, number: int, handles: Sequence[str]) -> str:
        """Compute call `number`, a product of the tensors of these handles, as it was planned (products.py), and go to the label that is
        given back; go on where torch is to compute it. Python's lock is not held."""
        entry, site = self.emitter.entry, f"@stepwell_product{self.sites}"
        self.sites += 1
        entry.module.globals.append(f"{site} = internal global ptr null")
        tensors, count = entry.scratch("ptr", handles), str(len(handles))
        first = entry.call("stepwell_gpu_product", site, tensors, count, "%gpu")
        before, unknown, known, others, done = entry.block, *(entry.label() for _ in range(4))
        entry.do(f"br i1 {entry.let(f'icmp eq i32 {first}, {Product.UNKNOWN}')}, label %{unknown}, label %{known}")
        entry.start(unknown)
        entry.call("PyEval_RestoreThread", entry.load("%thread"))
        words = entry.scratch("i64", [str(number), *(entry.let(f"ptrtoint ptr {p} to i64") for p in (site, tensors)), count])
        address, state = (entry.let(f"ptrtoint ptr {p} to i64") for p in (words, "%gpu"))
        self._require(entry.call("stepwell_call", entry.item("callback", "gpu_product"), "null", address, state, "0"))
        second = entry.call("stepwell_gpu_product", site, tensors, count, "%gpu")
        asked = entry.block
        entry.do(f"br label %{known}")
        entry.start(known)
        code = entry.let(f"phi i32 [ {first}, %{before} ], [ {second}, %{asked} ]")
        entry.do(f"br i1 {entry.let(f'icmp eq i32 {code}, 0')}, label %{done}, label %{others}")
        entry.start(others)
        return done

    def _bits(self, value: SSAValue) -> str:
        """A number as 64 bits."""
        entry, register, type = self.emitter.entry, self.emitter.number(value), value.type
        if isinstance(type, Float64Type):
            return entry.let(f"bitcast double {register} to i64")
        return entry.let(f"zext i1 {register} to i64") if isinstance(type, IntegerType) and type.width.data == 1 else register

    def _together(self, addresses: list[str]) -> str:
        total = "0"
        for k, address in enumerate(dict.fromkeys(addresses)):
            total = address if k == 0 else self.emitter.entry.let(f"or i64 {total}, {address}")
        return total

    def _rescue(self, code: str, number: int, variants: str, record: str) -> None:
        """Where a launch did not take place: Python loads the kernel and launches again, or raises."""
        entry = self.emitter.entry
        rare, onward = entry.label(), entry.label()
        entry.do(f"br i1 {entry.let(f'icmp ne i32 {code}, 0')}, label %{rare}, label %{onward}")
        entry.start(rare)
        entry.call("PyEval_RestoreThread", entry.load("%thread"))
        words = entry.scratch("i64", [
            entry.let(f"sext i32 {code} to i64"), str(number), entry.let(f"ptrtoint ptr {variants} to i64"),
            entry.let(f"ptrtoint ptr {record} to i64"),
        ])  # fmt: skip
        address, state = entry.let(f"ptrtoint ptr {words} to i64"), entry.let("ptrtoint ptr %gpu to i64")
        self._require(entry.call("stepwell_call", entry.item("callback", "gpu_launch"), "null", address, state, "0"))
        entry.do(f"br label %{onward}")
        entry.start(onward)

    def _require(self, made: str) -> None:
        """Leave where a callback, called with Python's lock, has raised; else drop what it gave, and the lock."""
        entry = self.emitter.entry
        failed, going_on = entry.let(f"icmp eq ptr {made}, null"), entry.label()
        entry.do(f"br i1 {failed}, label %fail.python, label %{going_on}")
        entry.start(going_on)
        entry.call("Py_DecRef", made)
        entry.do(f"store ptr {entry.call('PyEval_SaveThread')}, ptr %thread")
