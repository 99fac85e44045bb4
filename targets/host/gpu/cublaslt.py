"""cuBLASLt, the library of NVIDIA's GPUs that multiplies matrices, through ctypes: the copy that torch has loaded.

Numbers are those of its header (cublasLt.h, from CUDA 11.4 on). Sums are in float32 and are not rounded to 16 bits on their way
(`_Sum`), which makes them as exact as torch's, or more so."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from enum import IntEnum
from functools import cache
from math import inf
from typing import TYPE_CHECKING, Any

from .products import Algorithm, Matrix, PlanLimit, Prepared, Problem
from .runtime_ir import DriverCode, Node, ProductLimit

if TYPE_CHECKING:
    from .timer import CudaTimer


class _DataType(IntEnum):
    """cudaDataType_t."""

    float32 = 0
    float16 = 2
    bfloat16 = 14


class _LayoutAttribute(IntEnum):
    """cublasLtMatrixLayoutAttribute_t."""

    BATCH_COUNT = 5
    STRIDED_BATCH_OFFSET = 6


class _DescriptorAttribute(IntEnum):
    """cublasLtMatmulDescAttributes_t."""

    TRANSA = 3
    TRANSB = 4
    EPILOGUE = 7


class _Preference(IntEnum):
    """cublasLtMatmulPreferenceAttributes_t."""

    MAX_WORKSPACE_BYTES = 1
    REDUCTION_SCHEME_MASK = 3
    MIN_ALIGNMENT_A_BYTES = 5
    MIN_ALIGNMENT_B_BYTES = 6
    MIN_ALIGNMENT_C_BYTES = 7
    MIN_ALIGNMENT_D_BYTES = 8


class _Sum(IntEnum):
    """How sums are computed."""

    COMPUTE_32F = 68
    """Of cublasComputeType_t."""
    REDUCTION_SCHEME_COMPUTE_TYPE = 2
    """Of cublasLtReductionScheme_t: parts of a sum are added as float32, in an order that does not change."""


class _Epilogue(IntEnum):
    """cublasLtEpilogue_t."""

    DEFAULT = 1
    RELU = 2
    BIAS = 4
    GELU = 32


class _Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t."""

    _fields_ = (("data", ctypes.c_uint64 * 8),)


class _Found(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", _Algorithm), ("workspace", ctypes.c_size_t), ("state", ctypes.c_int32), ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int32 * 4),
    )  # fmt: skip


class LibraryRefused(Exception):
    """The library gave an error."""


class CublasLt:
    """See ProductLibrary."""

    def __init__(self, library: Any) -> None:
        self.library = library
        library.cublasLtGetVersion.restype = ctypes.c_size_t
        self.name = f"cuBLASLt {library.cublasLtGetVersion()}"
        self._handles: dict[int, int] = {}
        self._workspaces: dict[tuple[int, int], Any] = {}
        self._lock = threading.Lock()

    def machine(self, device: str) -> str:
        """See ProductLibrary."""
        import torch

        return f"{torch.cuda.get_device_name(device)} {self.name}"

    def prepared(self, context: int, problem: Problem, bias: int) -> Prepared | None:
        """See ProductLibrary."""
        made = _Prepared(self)
        try:
            made.describe(self._handle(context), problem, bias)
        except LibraryRefused:
            made.release()
            return None
        return made

    def workspace(self, context: int, stream: int, bytes: int, device: str) -> Any:
        """See ProductLibrary. What is recorded gets memory of its own, since it may run beside anything."""
        import torch
        from torch.utils._python_dispatch import _disable_current_modes

        key, recording = (context, stream), _is_recording()
        with self._lock:
            found = None if recording else self._workspaces.get(key)
            if found is None or found.numel() < bytes:
                with _disable_current_modes(), torch._C.DisableTorchFunction():
                    found = torch.empty(bytes, dtype=torch.uint8, device=device)
                if not recording:
                    self._workspaces[key] = found
        return found

    def can_measure(self, device: str) -> bool:
        """See ProductLibrary."""
        return not _is_recording() and _timer(device) is not None

    def seconds(self, node: int, addresses: Sequence[int], stream: int, device: str) -> float:
        """See ProductLibrary."""
        from torch.utils._python_dispatch import _disable_current_modes

        timer = _timer(device)
        if timer is None:
            return inf
        words = (ctypes.c_int64 * Node.KEY).from_address(node)
        x, y, c, z = (ctypes.c_void_p(a) for a in addresses)
        factors = node + 8 * Node.FACTORS
        handle, description, *layouts, algorithm = (ctypes.c_void_p(words[k]) for k in range(Node.HANDLE, Node.WORKSPACE))
        given = (
            handle, description, ctypes.c_void_p(factors), x, layouts[0], y, layouts[1], ctypes.c_void_p(factors + 4), c, layouts[2], z,
            layouts[3], algorithm, ctypes.c_void_p(words[Node.WORKSPACE]), ctypes.c_size_t(words[Node.BYTES]), ctypes.c_void_p(stream),
        )  # fmt: skip
        with _disable_current_modes():
            return timer.seconds_of(lambda: self.library.cublasLtMatmul(*given))

    def call(self, name: str, *given: Any) -> None:
        """Call a function that gives a code. LibraryRefused where that is not 0."""
        if getattr(self.library, name)(*given):
            raise LibraryRefused

    def made(self, name: str, *given: Any) -> ctypes.c_void_p:
        """What a function makes. LibraryRefused."""
        found = ctypes.c_void_p()
        self.call(name, ctypes.byref(found), *given)
        return found

    def set(self, name: str, what: ctypes.c_void_p, attribute: int, value: Any) -> None:
        """Set an attribute of what the library has made. LibraryRefused."""
        self.call(name, what, ctypes.c_int32(attribute), ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)))

    def address(self, name: str) -> int:
        """The address of a function."""
        return ctypes.cast(getattr(self.library, name), ctypes.c_void_p).value or 0

    def _handle(self, context: int) -> int:
        """The library's handle in the current context. LibraryRefused."""
        with self._lock:
            found = self._handles.get(context)
            if found is None:
                found = self._handles[context] = self.made("cublasLtCreate").value or 0
        return found


class _Prepared:
    """See Prepared."""

    def __init__(self, library: CublasLt) -> None:
        self.library = library
        self.head: tuple[int, ...] = ()
        self._handle = ctypes.c_void_p()
        self._description = ctypes.c_void_p()
        self._layouts: list[ctypes.c_void_p] = []

    def describe(self, handle: int, problem: Problem, bias: int) -> None:
        """Tell the library of a problem. LibraryRefused."""
        library = self.library
        self._handle = ctypes.c_void_p(handle)
        self._description = library.made("cublasLtMatmulDescCreate", ctypes.c_int32(_Sum.COMPUTE_32F), ctypes.c_int32(_DataType.float32))
        attributes: dict[int, Any] = {
            _DescriptorAttribute.TRANSA: ctypes.c_int32(problem.left.transposed),
            _DescriptorAttribute.TRANSB: ctypes.c_int32(problem.right.transposed),
            _DescriptorAttribute.EPILOGUE: ctypes.c_uint32(_epilogue(problem)),
            **({DriverCode.BIAS_POINTER: ctypes.c_void_p(bias)} if problem.has_bias else {}),
        }
        for attribute, value in attributes.items():
            library.set("cublasLtMatmulDescSetAttribute", self._description, attribute, value)
        for one in (problem.left, problem.right, problem.added, problem.result):
            self._layout(_DataType[problem.type], one, problem.batch)
        functions = (library.address("cublasLtMatmul"), library.address("cublasLtMatmulDescSetAttribute"))
        self.head = (*functions, handle, self._description.value or 0, *(one.value or 0 for one in self._layouts))

    def _layout(self, type: int, one: Matrix, batch: int) -> None:
        library = self.library
        sizes = ctypes.c_uint64(one.rows), ctypes.c_uint64(one.columns), ctypes.c_int64(one.leading)
        made = library.made("cublasLtMatrixLayoutCreate", ctypes.c_int32(type), *sizes)
        self._layouts.append(made)
        if batch > 1:
            library.set("cublasLtMatrixLayoutSetAttribute", made, _LayoutAttribute.BATCH_COUNT, ctypes.c_int32(batch))
            library.set("cublasLtMatrixLayoutSetAttribute", made, _LayoutAttribute.STRIDED_BATCH_OFFSET, ctypes.c_int64(one.step))

    def proposed(self, count: int) -> Sequence[Algorithm]:
        """See Prepared."""
        library, found, returned = self.library, (_Found * count)(), ctypes.c_int32()
        try:
            preference = library.made("cublasLtMatmulPreferenceCreate")
        except LibraryRefused:
            return ()
        try:
            limits: dict[_Preference, Any] = {
                _Preference.MAX_WORKSPACE_BYTES: ctypes.c_uint64(PlanLimit.WORKSPACE_BYTES),
                _Preference.REDUCTION_SCHEME_MASK: ctypes.c_uint32(_Sum.REDUCTION_SCHEME_COMPUTE_TYPE),
                **{_Preference[f"MIN_ALIGNMENT_{name}_BYTES"]: ctypes.c_uint32(ProductLimit.ALIGNMENT) for name in "ABCD"},
            }
            for attribute, value in limits.items():
                library.set("cublasLtMatmulPreferenceSetAttribute", preference, attribute, value)
            given = (self._handle, self._description, *self._layouts, preference, ctypes.c_int32(count), found, ctypes.byref(returned))
            library.call("cublasLtMatmulAlgoGetHeuristic", *given)
        except LibraryRefused:
            return ()
        finally:
            library.library.cublasLtMatmulPreferenceDestroy(preference)
        return [Algorithm(bytes(one.algorithm), one.workspace) for one in found[: returned.value] if one.state == 0]

    def checked(self, code: bytes) -> Algorithm | None:
        """See Prepared."""
        if len(code) != ctypes.sizeof(_Algorithm):
            return None
        algorithm, found = _Algorithm.from_buffer_copy(code), _Found()
        given = (self._handle, self._description, *self._layouts, ctypes.byref(algorithm), ctypes.byref(found))
        if self.library.library.cublasLtMatmulAlgoCheck(*given) or found.workspace > PlanLimit.WORKSPACE_BYTES:
            return None
        return Algorithm(code, found.workspace)

    def release(self) -> None:
        """See Prepared."""
        library = self.library.library
        for one in self._layouts:
            library.cublasLtMatrixLayoutDestroy(one)
        if self._description:
            library.cublasLtMatmulDescDestroy(self._description)
        self._layouts, self._description = [], ctypes.c_void_p()


def _epilogue(problem: Problem) -> int:
    """What is computed behind a product: the bits of a bias and of an activation together."""
    bias = _Epilogue.BIAS if problem.has_bias else 0
    return (bias | _Epilogue[problem.activation.upper()] if problem.activation else bias) or _Epilogue.DEFAULT


def _is_recording() -> bool:
    """Whether what is launched now is kept, to be run later."""
    import torch

    return torch.cuda.is_current_stream_capturing()


def _timer(device: str) -> CudaTimer | None:
    from .timer import cuda_timer

    return cuda_timer(int(device.partition(":")[2] or 0))


@cache
def cublaslt() -> CublasLt | None:
    """The library that belongs to torch; None where there is none."""
    import torch

    if torch.version.cuda is None or torch.version.hip:
        return None
    try:
        return CublasLt(ctypes.CDLL(f"libcublasLt.so.{torch.version.cuda.partition('.')[0]}"))
    except (OSError, AttributeError):
        return None
