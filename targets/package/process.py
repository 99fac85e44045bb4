"""What a package takes from the process: addresses of functions, the instruction sets of the CPU, the runtime that entries share."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from ..host.runtime.callables import HostRuntime
from ..host.runtime.settings import settle_runtime
from ..host.symbols import TORCH_ERROR, cuda_shim_address, handle_offset, missing, shim_address, symbols
from .errors import PackageError
from .format import PackageFile
from .image import ImageTable, MappedImage, map_image

if TYPE_CHECKING:
    from ..host.gpu.driver import Driver

log = logging.getLogger("stepwell")

_lock = threading.RLock()
_kept: dict[str, Any] = {}
"""By the checksum of their code: runtimes and functions that packages of the process share, for good."""


@cache
def process_address(name: str) -> int | None:
    """The address of a function or datum of CPython, libc, torch or what torch brings (Sleef, OpenMP); None where there is none."""
    found = symbols().get(name)
    if found is not None:
        return found
    for find in (_in_process, shim_address, cuda_shim_address, _in_libm):
        if (address := find(name)) is not None:
            return address
    return _no_text() if name == TORCH_ERROR else None


@cache
def _no_text() -> int:
    """The address of what tells no text of an exception, for a torch whose C shim does not: messages do without then."""
    function = ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: None)
    _kept["no text"] = function
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _in_process(name: str) -> int | None:
    return _address(ctypes.CDLL(None), name)


def _in_libm(name: str) -> int | None:
    try:
        return _address(ctypes.CDLL("libm.so.6"), name)
    except OSError:
        return None


def _address(library: Any, name: str) -> int | None:
    try:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    except AttributeError:
        return None


@cache
def cpu_features() -> frozenset[str]:
    """What the CPU has, as Linux names it in /proc/cpuinfo; empty where the system does not tell."""
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("flags"):
                    return frozenset(line.partition(":")[2].split())
    except OSError:
        pass
    return frozenset()


def mapped(
    file: PackageFile, name: str, target: str = "", resolve: Callable[[str], int | None] = process_address, forever: bool = False
) -> MappedImage:
    """A code image of a package, checked and mapped."""
    section = file.section("code", name, target)
    table: ImageTable = file.load(ImageTable, "code-table", name, target)
    file.check(section)
    try:
        table.check(name, section.size)
        return map_image(name, table, file.range(section), resolve, forever)
    except PackageError as error:
        raise file.error(str(error)) from None


def _shared(file: PackageFile, name: str, target: str, make: Callable[[], Any]) -> Any:
    key = file.section("code", name, target).sha256
    with _lock:
        found = _kept.get(key)
        if found is None:
            found = _kept[key] = make()
    return found


def host_image(file: PackageFile) -> MappedImage:
    """The host runtime of a package, mapped once in the process."""

    def make() -> MappedImage:
        image = mapped(file, "runtime", forever=True)
        settle_runtime(image)
        return image

    return _shared(file, "runtime", "", make)


def functions_image(file: PackageFile, target: str) -> MappedImage | None:
    """The products and attention that programs for a target share; None where they need none."""
    if file.find("code", "functions", target) is None:
        return None
    return _shared(file, "functions", target, lambda: mapped(file, "functions", target, forever=True))


def gpu_image(file: PackageFile, driver: Driver) -> MappedImage:
    """The part of the runtime that launches on a GPU, for a driver."""
    addresses = driver.symbols()
    with _lock:
        key = f"{id(driver)} {file.section('code', 'gpu-runtime').sha256}"
        if key not in _kept:
            image = mapped(file, "gpu-runtime", resolve=lambda name: addresses.get(name) or process_address(name), forever=True)
            _kept[key] = driver, image
        return _kept[key][1]


def runs_on_gpu(capability: int, multiprocessors: int, device: str) -> str:
    """Why code for a GPU does not run on a device of torch; "" where it does."""
    import torch

    if not torch.cuda.is_available() or torch.version.hip:
        return "torch finds no GPU of NVIDIA's"
    major, minor = torch.cuda.get_device_capability(device)
    # binaries run on later GPUs of their generation, those from Hopper on (which use its own instructions) on no other
    fits = major == capability // 10 and (minor == capability % 10 if major >= 9 else minor >= capability % 10)
    if not fits:
        return f"the GPU is an sm_{major}{minor}"
    found = torch.cuda.get_device_properties(device).multi_processor_count
    return f"the GPU has {found} multiprocessors, and {multiprocessors} are needed" if found < multiprocessors else ""


def host_runtime(file: PackageFile) -> HostRuntime:
    """What the surroundings of native entries take from the runtime of a package."""
    return HostRuntime(
        host_image(file).address("stepwell_arena_clear"), lambda driver: gpu_image(file, driver).address("stepwell_gpu_launch")
    )


def why_not_native(file: PackageFile, offset: int) -> str:
    """Why native entries of a package cannot run in this process; "" where they can. `offset`: of the `at::Tensor` in a tensor's object."""
    choice = os.environ.get("STEPWELL_HOST") or "native"
    if choice not in ("native", "python"):
        raise PackageError(f"STEPWELL_HOST is '{choice}'; known: native, python")
    if choice == "python":
        return "STEPWELL_HOST=python"
    if absent := missing():
        return f"this process lacks {', '.join(absent)}"
    if handle_offset() != offset:
        return f"this torch keeps tensors at {handle_offset()} of their objects, the package expects {offset}"
    section = file.section("code", "selftest")
    with _lock:
        key = f"selftest {section.sha256}"
        if key not in _kept:
            _kept[key] = _selftest_problem(file)
    return _kept[key]


def _selftest_problem(file: PackageFile) -> str:
    from ..host.runtime.callables import native_callable
    from ..host.selftest import problem_of
    from .programs import ProgramRecord, description_of

    try:
        record: ProgramRecord = file.load(ProgramRecord, "program", "selftest")
        image = mapped(file, "selftest", resolve=entry_resolver(file, None))
        run = native_callable(description_of(record, []), image, (), (), host_runtime(file))
        problem = problem_of(run)
    except Exception as error:  # whatever it is, the other path runs without
        problem = f"{type(error).__name__}: {error}"
    return "" if problem is None else f"the self-test of native entries failed ({problem})"


def entry_resolver(file: PackageFile, functions: MappedImage | None, driver: Driver | None = None) -> Callable[[str], int | None]:
    """Addresses for an entry: of the package's runtime and functions, then of the process."""

    def resolve(name: str) -> int | None:
        for image in (functions, host_image(file) if name.startswith("stepwell_") else None):
            if image is not None and name in image:
                return image.address(name)
        if driver is not None and name.startswith("stepwell_gpu") and name in (gpu := gpu_image(file, driver)):
            return gpu.address(name)
        return process_address(name)

    return resolve


def kernel_resolver(functions: MappedImage | None) -> Callable[[str], int | None]:
    """Addresses for an image of which only kernels are called: what its entry needs and is nowhere is the address of nothing."""

    def resolve(name: str) -> int | None:
        if functions is not None and name in functions:
            return functions.address(name)
        found = process_address(name)
        return found if found is not None or not _of_entry(name) else 0

    return resolve


def _of_entry(name: str) -> bool:
    """Whether only entries call a symbol."""
    return name.startswith(("stepwell_", "Py", "_Py", "aoti_torch_", "torch_", "cu", "THP"))
