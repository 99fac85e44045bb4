"""From a description and linked code to a callable: nothing here needs a compiler.

A native entry is a C function that finds its Python objects in a table; the other path is the program as Python source."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from ....dialects.support.record import Record
from ....errors import StepwellError
from ...cpu.symbols import ERROR_SLOT
from ..description import ALIGNED, ARENA, GPU_TABLE, OBJECTS, SYMBOL, Item, ProgramDescription, python_value, resolve_operator
from ..interpreted.python_runtime import PythonRuntime, call_aligned, copy_strided, flatten_results, keep_results, reinterpret
from ..launch_records import recorded_while_profiled
from ..library_errors import call_text, failed_call, library_error
from ..messages import kernel_error, layout_error
from ..steps import Kind
from ..symbols import symbols

if TYPE_CHECKING:
    from ..gpu.driver import Driver
    from ..gpu.launches import GpuLaunches


class HostUnavailable(StepwellError):
    """The process lacks what native entries need; the message names it."""


class Code(Protocol):
    """Linked code: its exported symbols. It stays where it is as long as this object lives."""

    def address(self, name: str) -> int:
        """The address of an exported symbol; KeyError."""
        ...

    def __contains__(self, name: str) -> bool: ...

    def function(self, name: str, *argument_types: Any) -> Any:
        """A ctypes function without result."""
        ...

    def error_values(self) -> tuple[int, ...]:
        """The values that the message of the first failed check shows."""
        ...


class HostRuntime(Record):
    """What a native entry's surroundings take from the runtime that it was linked with.

    arena_clear: the address of `stepwell_arena_clear`; gpu_launch: the address of `stepwell_gpu_launch` for a driver."""

    arena_clear: int
    gpu_launch: Callable[[Driver], int]


_METH_FASTCALL = 0x80


class _MethodDef(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


class _Callbacks:
    """The functions that an entry calls when something is wrong or rare; all are f(object or None, a, b, c)."""

    def __init__(
        self,
        description: ProgramDescription,
        library: Code | None,
        gpu: GpuLaunches | None = None,
        gpu_launch: Callable[[Driver], int] | None = None,
    ):
        self.description = description
        self.library = library
        self.gpu = gpu
        self._gpu_launch = gpu_launch

    def raise_check(self, tensor: Any, number: int, sizes: int, strides: int) -> None:
        check = self.description.checks[number]
        if tensor is not None:
            want, steps = _words(sizes, check.rank), _words(strides, check.rank)
        elif check.argument is None:
            raise AssertionError(f"{check.label} gave no tensor where its fake kernel gives one")
        else:
            # an argument: `sizes` is the address of the frame of arguments, `strides` that of the sizes that the
            # entry computed
            tensor = ctypes.cast(_words(sizes, check.argument + 1)[check.argument], ctypes.py_object).value
            words = check.words
            if strides:
                values = _words(strides, max(words, default=-1) + 1)
                words = tuple(values[k] for k in words)
            want, steps = words[: check.rank], words[check.rank :]
        message = layout_error(tensor, check.label, want, steps, check.dtype, check.device)
        raise AssertionError(message or f"{check.label} does not have the layout that the program was compiled for")

    def raise_assert(self, _: Any, number: int, b: int, c: int) -> None:
        raise AssertionError(self.description.asserts[number])

    def raise_operator(self, _: Any, number: int, text: int, frame: int) -> None:
        call = self.description.calls[number]
        operands = [None if r is None else _tensor(frame, r) for r in call.operands]
        raise failed_call(call.call, operands, _text(text), self.description.device, self.description.name)

    def note_operator(self, error: Any, number: int, frame: int, c: int) -> None:
        call = self.description.calls[number]
        operands = [None if r is None else _tensor(frame, r) for r in call.operands]
        error.add_note(f"in {call_text(call.call, operands)}, called by host program @{self.description.name}")

    def raise_torch(self, _: Any, number: int, text: int, c: int) -> None:
        error = library_error(_text(text), self.description.device)
        error.add_note(f"while host program @{self.description.name} makes or looks at tensors")
        raise error

    def raise_kernel(self, _: Any, number: int, b: int, c: int) -> None:
        values = self.library.error_values() if self.library is not None else ()
        raise kernel_error(self.description.messages[number - 1], values)

    def raise_device(self, _: Any, code: int, b: int, c: int) -> None:
        assert self.gpu is not None
        raise self.gpu.refused_device(code)

    def gpu_table(self, _: Any, context: int, b: int, c: int) -> None:
        assert self.gpu is not None
        self.gpu.table(context)

    def gpu_workspaces(self, _: Any, context: int, bytes: int, c: int) -> None:
        assert self.gpu is not None
        self.gpu.table_workspaces(context, bytes)

    def gpu_launch(self, _: Any, words: int, state: int, c: int) -> None:
        assert self.gpu is not None and self._gpu_launch is not None
        launch = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
        self.gpu.rescue(_words(words, 4), _words(state, 3), launch(self._gpu_launch(self.gpu.driver)))

    def gpu_product(self, _: Any, words: int, state: int, c: int) -> None:
        assert self.gpu is not None
        number, site, handles, count = _words(words, 4)
        operands = [_wrapped(handle) for handle in _words(handles, count)]
        _, stream, context = _words(state, 3)
        self.gpu.products(self.description.measures).plan(self.description.calls[number].call, operands, site, context, stream)

    def copy_strided(self, tensor: Any, number: int, sizes: int, strides: int) -> Any:
        rank = tensor.dim()
        return copy_strided(tensor, _words(sizes, rank), _words(strides, rank))

    def view_dtype(self, tensor: Any, spec: int, sizes: int, strides: int) -> Any:
        number, rank, offset = _words(spec, 3)
        dtype = self.description.checks[number].dtype
        return reinterpret(tensor, _words(sizes, rank), _words(strides, rank), dtype, offset)


def _words(address: int, count: int) -> tuple[int, ...]:
    """`count` i64 at an address."""
    return tuple((ctypes.c_int64 * count).from_address(address)) if count else ()


def _text(address: int) -> str:
    return ctypes.string_at(address).decode(errors="replace") if address else ""


def _tensor(frame: int, word: int) -> Any:
    """The tensor that a reference (steps.py) means in the frame of an entry; None where there is none (any more)."""
    parts, kind, place = _words(frame, 8), word & 7, word >> 3
    if kind in (Kind.OBJECT, Kind.ITEM):
        (address,) = _words(parts[0 if kind == Kind.OBJECT else 6] + 8 * place, 1)
        return ctypes.cast(address, ctypes.py_object).value if address else None
    if kind not in (Kind.HANDLE, Kind.VIEW):
        return None
    (handle,) = _words(parts[1] + 8 * place if kind == Kind.HANDLE else parts[5] + 8 * (4 + place), 1)
    return _wrapped(handle) if handle else None


def _wrapped(handle: int) -> Any:
    """The tensor of a handle."""
    return ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p)(symbols()["stepwell_wrap"])(handle)


class _Items:
    """Makes the objects of an item table."""

    def __init__(
        self,
        description: ProgramDescription,
        constants: Sequence[Any],
        objects: Sequence[Any],
        library: Code | None,
        gpu: GpuLaunches | None = None,
        gpu_launch: Callable[[Driver], int] | None = None,
    ):
        self._callbacks = _Callbacks(description, library, gpu, gpu_launch)
        self._name = description.name
        self._constants = constants
        self._objects = objects

    def make(self, item: Item) -> Any:
        if item.kind == "callback":
            return getattr(self._callbacks, item.value)
        if item.kind == "operator":
            found = resolve_operator(item.value)
            return functools.partial(call_aligned, found) if item.value in ALIGNED else found
        if item.kind == "names":
            return item.value
        if item.kind == "kept":
            return functools.partial(keep_results, item.value)
        if item.kind == "flatten":
            return functools.partial(flatten_results, item.value)
        if item.kind == "value":
            return python_value(item.value)
        table, what = (self._constants, "constant") if item.kind == "constant" else (self._objects, "object")
        if item.value >= len(table):
            raise ValueError(f"host program @{self._name} needs {what} {item.value}, {len(table)} are given")
        return table[item.value]


class _Keep:
    """What must live as long as a native entry: it is the `self` of the C function. Its end frees the arena."""

    def __init__(self, library: Code, objects: list[Any], views: int, arena_clear: int):
        self.library = library
        self.objects = objects
        self.method: _MethodDef | None = None
        # not in the library: when all this dies in one cycle, the library may be unloaded before __del__ runs
        self._arena = (ctypes.c_int64 * (4 + views))(0, 0, 0, views)
        # the address too: at the end of the interpreter the module's names may be gone
        self._address = ctypes.addressof(self._arena)
        self._clear = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(arena_clear)
        ctypes.c_void_p.from_address(library.address(ARENA)).value = self._address  # last: __del__ runs where it fails

    def __del__(self) -> None:
        self._clear(self._address)


def native_callable(
    description: ProgramDescription, library: Code, constants: Sequence[Any], objects: Sequence[Any], runtime: HostRuntime
) -> Any:
    """The native entry of a program as a callable: one list in, which it empties, a list out."""
    gpu = None
    if GPU_TABLE in library:
        from ..gpu.driver import cuda_driver
        from ..gpu.launches import GpuLaunches

        slot = library.address(GPU_TABLE)
        gpu = GpuLaunches(description.name, description.device, description.kernels, cuda_driver(), slot)
    items = _Items(description, constants, objects, library, gpu, runtime.gpu_launch)
    table = [items.make(item) for item in description.items]
    keep = _Keep(library, table, description.arena_views, runtime.arena_clear)
    if table:
        addresses = (ctypes.c_void_p * len(table))(*map(id, table))
        ctypes.memmove(library.address(OBJECTS), addresses, ctypes.sizeof(addresses))
    method = _MethodDef(description.name.encode(), library.address(SYMBOL), _METH_FASTCALL, None)
    keep.method = method
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    return functools.partial(make(ctypes.addressof(method), keep, None))


_KINDS = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "d": ctypes.c_double, "b": ctypes.c_bool}


def python_callable(
    description: ProgramDescription,
    library: Code | None,
    constants: Sequence[Any],
    objects: Sequence[Any],
    launcher: Any = None,
    current: Callable[[str], AbstractContextManager[Any]] = nullcontext,
) -> Any:
    """The program as Python, called as the native one. `launcher` launches kernels that are not in the library; in the context that
    `current` gives for the program's device it runs."""
    items = _Items(description, constants, objects, library)
    scope: dict[str, Any] = {"rt": PythonRuntime(_error_reader(library), description.messages, launcher)}
    for k, item in enumerate(description.python_items):
        if item.kind != "kernel":
            scope[f"i{k}"] = items.make(item)
            continue
        name, signature = item.value
        if library is None:
            raise HostUnavailable(f"host program @{description.name} launches @{name}, but no library is given")
        scope[f"i{k}"] = recorded_while_profiled(name, library.function(name, *(_KINDS[kind] for kind in signature)))
    exec(compile(description.python, f"<host program @{description.name}>", "exec"), scope)
    program = scope["program"]

    def run(args: list[Any]) -> list[Any]:
        import torch

        with torch.no_grad(), current(description.device):
            return program(args)

    run.library = library  # pyright: ignore[reportFunctionMemberAccess]
    return run


def _error_reader(library: Code | None) -> Callable[[], tuple[int, Sequence[int]]]:
    if library is None or ERROR_SLOT not in library:
        return lambda: (0, ())
    slot = ctypes.c_int32.from_address(library.address(ERROR_SLOT))

    def take() -> tuple[int, Sequence[int]]:
        number = slot.value
        if not number:
            return 0, ()
        slot.value = 0
        return number, library.error_values()

    return take
