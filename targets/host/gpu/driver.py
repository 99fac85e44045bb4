"""The CUDA driver as host programs use it: `libcuda`, found at run time, through ctypes. hip.py is the same for GPUs of AMD's.

    driver = cuda_driver()
    loaded = driver.load(context, kernel, Variant.ALL)
    driver.launch(loaded.function, (grid, 1, 1), loaded.threads, loaded.shared, stream, values)

Native entries call the same functions by their addresses (`symbols`); loading modules and everything that goes wrong comes through here.
Tests put another object with these methods in its place (`use_driver`)."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ....errors import StepwellError
from .descriptors import encode
from .runtime_ir import EXTRA_ARGUMENTS, DriverCode, Variant

if TYPE_CHECKING:  # what makes kernels is large, and programs without any do without it
    from ...triton.boxes import Box, DescriptorArgument
    from ...triton.kernels import GpuKernel
    from .products import ProductLibrary

Maps = Sequence[tuple[int, bytes]]
"""Encoded descriptors, and at which positions they stand in place of the values of a launch."""

SHARED_BYTES = 48 << 10
"""Shared memory that a kernel may have without asking."""


class LaunchError(StepwellError):
    """A kernel that could not be loaded or launched: names it, the user's line and what the driver says."""


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute of CUDA's driver."""

    _fields_ = (("id", ctypes.c_uint32), ("padding", ctypes.c_uint32), ("value", ctypes.c_int32 * 16))


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig of CUDA's driver."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3), ("threads", ctypes.c_uint32 * 3), ("shared", ctypes.c_uint32), ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)), ("count", ctypes.c_uint32),
    )  # fmt: skip


class Loaded(NamedTuple):
    """A variant of a kernel in a context."""

    function: int
    threads: int
    shared: int
    """Bytes of shared memory."""
    boxes: tuple[Box, ...] = ()
    """How the descriptors that it takes are encoded."""


class Driver(Protocol):
    """What launches kernels."""

    def symbols(self) -> dict[str, int]:
        """The addresses of the functions that native entries call (those that runtime.ll declares)."""
        ...

    def context(self) -> int:
        """The context of the calling thread (0: none)."""
        ...

    def load(self, context: int, kernel: GpuKernel, variant: int) -> Loaded:
        """A variant of a kernel in a context."""
        ...

    def encode(self, one: DescriptorArgument, box: Box, words: Sequence[int]) -> tuple[int, bytes]:
        """The driver's code and the bytes of a descriptor: of its address, sizes and strides, `words`."""
        ...

    def launch(
        self, function: int, grid: Sequence[int], threads: int, shared: int, stream: int, values: Sequence[int], overlaps: bool = False,
        maps: Maps = (),
    ) -> int:
        """Launch a function with arguments as 64-bit patterns; the driver's code. `overlaps`: it may begin while what is before it on the
        stream ends. `maps` stand in place of some of the values."""
        ...

    def message(self, code: int) -> str:
        """What a code of the driver means."""
        ...

    def products(self) -> ProductLibrary | None:
        """What multiplies matrices by plans; None where torch does all of that."""
        ...


_CALLS = (
    "cuInit", "cuCtxGetCurrent", "cuCtxSetCurrent", "cuDevicePrimaryCtxRetain", "cuLaunchKernelEx", "cuModuleLoadData",
    "cuModuleGetFunction", "cuFuncSetAttribute", "cuFuncSetCacheConfig", "cuGetErrorName", "cuGetErrorString", "cuTensorMapEncodeTiled",
)  # fmt: skip
_TORCH = ("aoti_torch_create_cuda_guard", "aoti_torch_delete_cuda_guard", "aoti_torch_get_current_cuda_stream")


class CudaDriver:
    """`libcuda` of this machine. LaunchError when there is none."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise LaunchError(f"the CUDA driver cannot be loaded: {error}") from error
        self._lock = threading.Lock()
        self._loaded: dict[tuple[int, str], Loaded] = {}
        self._check(self._library.cuInit(0), "cuInit")

    def symbols(self) -> dict[str, int]:
        """See Driver; what torch lacks is left out."""
        found = {name: address_in(self._library, name) for name in _CALLS}
        return {name: address for name, address in {**found, **torch_symbols()}.items() if address}

    def context(self) -> int:
        """See Driver."""
        found = ctypes.c_void_p()
        self._check(self._library.cuCtxGetCurrent(ctypes.byref(found)), "cuCtxGetCurrent")
        return found.value or 0

    def load(self, context: int, kernel: GpuKernel, variant: int) -> Loaded:
        """See Driver; `context` is current."""
        binary = kernel.variant(addresses=variant != Variant.NOTHING, sizes=variant == Variant.ALL)
        key = context, binary.key
        with self._lock:
            found = self._loaded.get(key)
            if found is None:
                function = self._load(kernel, binary.code, binary.name)
                found = self._loaded[key] = Loaded(function, binary.threads, binary.shared, binary.boxes)
        if found.shared > SHARED_BYTES:
            function, place = ctypes.c_void_p(found.function), f"shared memory of {kernel.place}"
            self._check(self._library.cuFuncSetCacheConfig(function, DriverCode.CACHE_PREFER_SHARED.value), place)
            self._check(self._library.cuFuncSetAttribute(function, DriverCode.MAX_DYNAMIC_SHARED_SIZE_BYTES.value, found.shared), place)
        return found

    def _load(self, kernel: GpuKernel, code: bytes, name: str) -> int:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._check(self._library.cuModuleLoadData(ctypes.byref(module), code), f"loading {kernel.place}")
        status = self._library.cuModuleGetFunction(ctypes.byref(function), module, name.encode())
        self._check(status, f"looking up {kernel.place}")
        return function.value or 0

    def encode(self, one: DescriptorArgument, box: Box, words: Sequence[int]) -> tuple[int, bytes]:
        """See Driver."""
        return encode(self._library.cuTensorMapEncodeTiled, one, box, words)

    def launch(
        self, function: int, grid: Sequence[int], threads: int, shared: int, stream: int, values: Sequence[int], overlaps: bool = False,
        maps: Maps = (),
    ) -> int:
        """See Driver."""
        params, _held = parameters(values, maps)
        attribute = LaunchAttribute(DriverCode.PROGRAMMATIC_STREAM_SERIALIZATION.value, 0, (1,))
        config = LaunchConfig(tuple(grid), (threads, 1, 1), shared, stream, ctypes.pointer(attribute), int(overlaps))
        return self._library.cuLaunchKernelEx(ctypes.byref(config), ctypes.c_void_p(function), params, None)

    def message(self, code: int) -> str:
        """See Driver."""
        name, text = ctypes.c_char_p(), ctypes.c_char_p()
        self._library.cuGetErrorName(code, ctypes.byref(name))
        self._library.cuGetErrorString(code, ctypes.byref(text))
        known = [part.value.decode() for part in (name, text) if part.value]
        return ": ".join(known) or f"error {code}"

    def products(self) -> ProductLibrary | None:
        """See Driver."""
        from .cublaslt import cublaslt

        return cublaslt()

    def _check(self, code: int, what: str) -> None:
        if code:
            raise LaunchError(f"{what}: {self.message(code)}")


def parameters(values: Sequence[int], maps: Maps) -> tuple[Any, tuple[Any, ...]]:
    """The addresses of a kernel's arguments as a launch takes them, and what they point to, which has to live as long."""
    words = (ctypes.c_int64 * (len(values) + 1))(*values, 0)
    start = ctypes.addressof(words)
    places = [start + 8 * min(k, len(values)) for k in range(len(values) + EXTRA_ARGUMENTS)]
    held = [(position, ctypes.create_string_buffer(code, len(code))) for position, code in maps]
    for position, room in held:
        places[position] = ctypes.addressof(room)
    return (ctypes.c_void_p * len(places))(*places), (words, *(room for _, room in held))


def torch_symbols() -> dict[str, int | None]:
    """The addresses of what native entries call of torch around launches; None of a function that it lacks."""
    from ..symbols import cuda_shim_address, shim_address

    return {**{name: cuda_shim_address(name) for name in _TORCH}, "torch_from_blob": shim_address("torch_from_blob")}


def address_in(library: ctypes.CDLL, name: str) -> int | None:
    """The address of a function of a library; None where it has none of that name."""
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value if hasattr(library, name) else None


@cache
def _own_driver() -> Driver:
    import torch

    if not torch.version.hip:
        return CudaDriver()
    from .hip import HipDriver

    return HipDriver()


_chosen: list[Driver] = []


def cuda_driver() -> Driver:
    """The driver that launches go to: CUDA's, or HIP where torch is built for that. LaunchError when this machine has none."""
    return _chosen[-1] if _chosen else _own_driver()


@contextmanager
def use_driver(driver: Driver) -> Iterator[Any]:
    """Programs that are loaded inside launch through another driver."""
    _chosen.append(driver)
    try:
        yield driver
    finally:
        _chosen.pop()
