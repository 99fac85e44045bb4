"""The host runtime of the process: the pool, the arena and the helpers of every entry, linked once and kept for good.

Tensors that outlive a program are freed by code of this module, so it is never unloaded.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from functools import cache

from ...cpu.cache import shared_object
from ...cpu.jit import Library, load_object
from ..gpu.driver import Driver, LaunchError, cuda_driver
from ..gpu.runtime_ir import DRIVER_SYMBOLS, FIRST_GPU, GPU_FUNCTIONS, HIP_SYMBOLS, gpu_runtime_text, is_hip
from ..symbols import handle_offset, missing, symbols
from .callables import HostRuntime, HostUnavailable
from .runtime_ir import FUNCTIONS, runtime_text
from .settings import settle_runtime

log = logging.getLogger("stepwell")

_lock = threading.Lock()
_library: Library | None = None


def library() -> Library:
    """The runtime, linked at the first call. HostUnavailable when something that it needs is missing."""
    global _library
    with _lock:
        if _library is None:
            absent = missing()
            if absent:
                raise HostUnavailable(f"native host programs need {', '.join(absent)}")
            offset = handle_offset()
            assert offset is not None
            _library = load_object(shared_object(runtime_text(offset)), symbols())
            settle_runtime(_library)
        return _library


@cache
def entry_symbols() -> dict[str, int]:
    """Every address that an entry may refer to, beside the shims of the operators that it calls."""
    found = dict(symbols())
    runtime = library()
    found.update((name, runtime.address(name)) for name in FUNCTIONS)
    return found


@cache
def host_runtime() -> HostRuntime:
    """What the surroundings of native entries take from the runtime of the process."""
    return HostRuntime(entry_symbols()["stepwell_arena_clear"], lambda driver: gpu_runtime(driver)["stepwell_gpu_launch"])


_gpu_libraries: dict[int, tuple[Driver, Library]] = {}


def gpu_runtime(driver: Driver) -> dict[str, int]:
    """What launches on a GPU need of the runtime, for one driver. HostUnavailable where torch or the driver lacks something."""
    first = library().address(FIRST_GPU)
    with _lock:
        found = _gpu_libraries.get(id(driver))
        if found is None:
            addresses = {**symbols(), **driver.symbols(), FIRST_GPU: first}
            absent = sorted((HIP_SYMBOLS if is_hip(addresses) else DRIVER_SYMBOLS) - addresses.keys())
            if absent:
                raise HostUnavailable(f"native launches need {', '.join(absent)}")
            found = _gpu_libraries[id(driver)] = driver, load_object(shared_object(gpu_runtime_text(is_hip(addresses))), addresses)
    return {name: found[1].address(name) for name in GPU_FUNCTIONS}


@cache
def native_launches() -> bool:
    """Whether native entries can launch on a GPU here (found out once, loudly when they cannot). Where there is no driver the program
    says so when it is loaded."""
    try:
        gpu_runtime(cuda_driver())
    except HostUnavailable as reason:
        log.warning("programs of a GPU run through Python: %s", reason)
        return False
    except LaunchError:
        pass
    return True


def pool_held_bytes() -> int:
    """Bytes of free memory that the pool keeps for later tensors and arenas."""
    return ctypes.c_int64.from_address(library().address("stepwell_pool_held")).value


def set_pool_limit(size: int) -> None:
    """How many bytes of free memory the pool may keep; what is over it goes back to the system when it is freed."""
    ctypes.c_int64.from_address(library().address("stepwell_pool_limit")).value = size


def empty_pool() -> None:
    """Give the free memory of the pool back to the system."""
    ctypes.CFUNCTYPE(None)(library().address("stepwell_pool_trim"))()
