"""What the native entry takes from the process: functions of CPython, of libtorch and of libc, by name and address.

A torch version that lacks one of the required names makes `missing()` say so, and the Python path runs instead. The
functions of the stable C shim (`aoti_torch_*`) report an exception as a return code; its text needs
`torch_exception_get_what_without_backtrace`, so a torch without that function has its library operators called
through Python."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path
from typing import Any

PYTHON = (
    "PyBool_FromLong", "PyErr_Clear", "PyErr_Fetch", "PyErr_Format", "PyErr_NormalizeException", "PyErr_Occurred", "PyErr_Restore",
    "PyEval_RestoreThread",
    "PyEval_SaveThread", "PyFloat_AsDouble", "PyFloat_FromDouble", "PyList_New", "PyList_SetItem",
    "PyLong_AsLongLong", "PyLong_FromLongLong", "PyObject_IsTrue", "PyObject_Size", "PyObject_Vectorcall",
    "PySequence_GetItem", "PyType_IsSubtype", "Py_DecRef", "Py_IncRef",
)  # fmt: skip
PYTHON_DATA = ("PyExc_MemoryError", "PyExc_RuntimeError", "PyExc_TypeError", "PyList_Type", "_Py_NoneStruct")
TORCH = (
    "aoti_torch__reinterpret_tensor", "aoti_torch_clone_preserve_strides", "aoti_torch_delete_tensor_object", "aoti_torch_empty_strided",
    "aoti_torch_get_data_ptr", "aoti_torch_get_device_index", "aoti_torch_get_device_type", "aoti_torch_get_dim", "aoti_torch_get_dtype",
    "aoti_torch_get_numel", "aoti_torch_get_size", "aoti_torch_get_sizes", "aoti_torch_get_stride", "aoti_torch_get_strides",
    "aoti_torch_grad_mode_is_enabled", "aoti_torch_grad_mode_set_enabled", "aoti_torch_item_int64",
    "aoti_torch_new_tensor_handle",
    "torch_from_blob",
)  # fmt: skip
TORCH_ERROR = "torch_exception_get_what_without_backtrace"
LIBC = ("aligned_alloc", "calloc", "free", "posix_memalign", "pthread_mutex_lock", "pthread_mutex_unlock")
WRAP = "_Z16THPVariable_WrapRKN2at10TensorBaseE"
"""`PyObject* THPVariable_Wrap(const at::TensorBase&)` of libtorch_python: a new reference to the Python object of a
tensor."""


def _address(library: ctypes.CDLL | Any, name: str) -> int | None:
    try:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    except AttributeError:
        return None


@cache
def _library(name: str) -> ctypes.CDLL | None:
    import torch

    path = Path(torch.__file__).parent / "lib" / name
    try:
        return ctypes.CDLL(str(path))
    except OSError:
        return None


@cache
def handle_offset() -> int | None:
    """Bytes from a tensor's Python object to its `at::Tensor` (what the C shim calls a handle); None when it is not
    found."""
    import torch

    probe = torch.empty(0)
    for offset in (16, 24, 32):
        if ctypes.c_void_p.from_address(id(probe) + offset).value == probe._cdata:
            return offset
    return None


def _wrap_address() -> int | None:
    library = _library("libtorch_python.so")
    found = None if library is None else _address(library, WRAP)
    if found is None:
        import torch

        guards = torch._C._dynamo.guards  # pyright: ignore[reportAttributeAccessIssue]
        found = getattr(guards, "_torchinductor_thp_variable_wrap", None)
    return found


def shim_address(name: str) -> int | None:
    """The address of a C function of libtorch_cpu, or None."""
    library = _library("libtorch_cpu.so")
    return None if library is None else _address(library, name)


def cuda_shim_address(name: str) -> int | None:
    """The address of a C function of libtorch_cuda, or of libtorch_hip in a torch for GPUs of AMD's; None where there is none."""
    library = _library("libtorch_cuda.so") or _library("libtorch_hip.so")
    return None if library is None else _address(library, name)


@cache
def _resolve() -> tuple[dict[str, int], tuple[str, ...]]:
    found: dict[str, int | None] = {}
    for name in (*PYTHON, *PYTHON_DATA):
        found[name] = _address(ctypes.pythonapi, name)
    for name in TORCH:
        found[name] = shim_address(name)
    libc = ctypes.CDLL(None)
    for name in LIBC:
        found[name] = _address(libc, name)
    python = _library("libtorch_python.so")
    found["THPVariableClass"] = None if python is None else _address(python, "THPVariableClass")
    found["stepwell_wrap"] = _wrap_address()
    absent = [name for name, address in found.items() if not address]
    if not sys.platform.startswith("linux") or sys.maxsize < 2**32:
        absent.append(f"a 64-bit Linux (this is {sys.platform})")
    if sys.implementation.name != "cpython" or getattr(sys, "_is_gil_enabled", lambda: True)() is False:
        absent.append("CPython with its global lock")
    elif handle_offset() is None:
        absent.append("the at::Tensor inside a torch.Tensor object")
    return {name: address for name, address in found.items() if address}, tuple(absent)


def symbols() -> dict[str, int]:
    """Name -> address of everything that is there."""
    return _resolve()[0]


def missing() -> tuple[str, ...]:
    """What the native entry needs and this process lacks."""
    return _resolve()[1]


@cache
def error_text_available() -> bool:
    """Whether the C shim can tell the text of an exception."""
    return shim_address(TORCH_ERROR) is not None
