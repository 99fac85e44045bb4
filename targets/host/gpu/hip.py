"""HIP as host programs use it: `libamdhip64`, for GPUs of AMD's, through ctypes. What CudaDriver is for NVIDIA's.

torch brings a copy of the library, and a process has to have one alone: the copy that is there already is taken."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .driver import LaunchError, Loaded, Maps, address_in, parameters, torch_symbols
from .runtime_ir import HIP_SYMBOLS, Variant

if TYPE_CHECKING:
    from ...triton.boxes import Box, DescriptorArgument
    from ...triton.kernels import GpuKernel

NAMES = ("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6")


class HipDriver:
    """`libamdhip64` of this machine, or the one at `path`. LaunchError when there is none."""

    def __init__(self, path: str | None = None) -> None:
        self._library = _opened([path] if path else [*_loaded_paths(), *NAMES])
        self._library.hipGetErrorName.restype = self._library.hipGetErrorString.restype = ctypes.c_char_p
        self._lock = threading.Lock()
        self._loaded: dict[tuple[int, str], Loaded] = {}
        self._check(self._library.hipInit(0), "hipInit")

    def symbols(self) -> dict[str, int]:
        """See Driver; those that hip.ll declares, and torch's."""
        found = {name: address_in(self._library, name) for name in HIP_SYMBOLS if name.startswith("hip")}
        return {name: address for name, address in {**found, **torch_symbols()}.items() if address}

    def context(self) -> int:
        """See Driver: HIP's threads have a current device in the place of a context."""
        found = ctypes.c_int32()
        self._check(self._library.hipGetDevice(ctypes.byref(found)), "hipGetDevice")
        return found.value + 1

    def load(self, context: int, kernel: GpuKernel, variant: int) -> Loaded:
        """See Driver; the device of `context` is current."""
        binary = kernel.variant(addresses=variant != Variant.NOTHING, sizes=variant == Variant.ALL)
        key = context, binary.key
        with self._lock:
            found = self._loaded.get(key)
            if found is None:
                function = self._load(kernel, binary.code, binary.name)
                found = self._loaded[key] = Loaded(function, binary.threads, binary.shared)
        return found

    def _load(self, kernel: GpuKernel, code: bytes, name: str) -> int:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._check(self._library.hipModuleLoadData(ctypes.byref(module), code), f"loading {kernel.place}")
        status = self._library.hipModuleGetFunction(ctypes.byref(function), module, name.encode())
        self._check(status, f"looking up {kernel.place}")
        return function.value or 0

    def encode(self, one: DescriptorArgument, box: Box, words: Sequence[int]) -> tuple[int, bytes]:
        """See Driver. Kernels for these GPUs take addresses alone."""
        raise LaunchError("HIP has no descriptors of tensors")

    def launch(
        self, function: int, grid: Sequence[int], threads: int, shared: int, stream: int, values: Sequence[int], overlaps: bool = False,
        maps: Maps = (),
    ) -> int:
        """See Driver; launches do not overlap."""
        params, _held = parameters(values, maps)
        return self._library.hipModuleLaunchKernel(
            ctypes.c_void_p(function), *grid, threads, 1, 1, shared, ctypes.c_void_p(stream), params, None
        )

    def products(self) -> None:
        """See Driver: products are torch's."""

    def message(self, code: int) -> str:
        """See Driver."""
        known = [text.decode() for text in (self._library.hipGetErrorName(code), self._library.hipGetErrorString(code)) if text]
        return ": ".join(known) or f"error {code}"

    def _check(self, code: int, what: str) -> None:
        if code:
            raise LaunchError(f"{what}: {self.message(code)}")


def _opened(names: Sequence[str]) -> ctypes.CDLL:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise LaunchError(f"HIP cannot be loaded: there is no {', '.join(names)}")


def _loaded_paths() -> Iterator[str]:
    """Where the copies of the library are that the process has loaded."""
    try:
        with open("/proc/self/maps") as file:
            paths = [line.split(None, 5)[-1].strip() for line in file if "libamdhip64.so" in line]
    except OSError:
        paths = []
    yield from dict.fromkeys(paths)
