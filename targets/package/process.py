"""What a package takes from the process: addresses of functions, the instruction sets of the CPU, the runtime that entries share."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from ..cpu.features import machine_name
from ..host.gpu.runtime_ir import FIRST_GPU, is_hip
from ..host.runtime.callables import HostRuntime
from ..host.runtime.settings import settle_runtime
from ..host.symbols import TORCH_ERROR, cuda_shim_address, handle_offset, missing, shim_address, symbols
from .errors import PackageError
from .format import PackageFile
from .image import ImageTable, MappedImage, map_image

if TYPE_CHECKING:
    from ..host.gpu.driver import Driver

HIP = "hip"
"""The target of the section with the runtime of launches on GPUs of AMD's."""

log = logging.getLogger("stepwell")

_lock = threading.RLock()
_kept: dict[str, Any] = {}
"""By the checksums of their code and its table: runtimes and functions that packages of the process share, for good."""


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
                if line.startswith(("flags", "Features")):  # x86, Arm
                    return frozenset(line.partition(":")[2].split())
    except OSError:
        pass
    return frozenset()


def runtime_target() -> str:
    """The target of the sections with the runtime for this machine: that of x86-64 has none, since files of the first version have no
    other."""
    machine = machine_name()
    return "" if machine == "x86_64" else machine


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


def _shared(file: PackageFile, name: str, target: str, make: Callable[[], Any], more: str = "") -> Any:
    # equal code for two targets may have other names for its functions
    key = " ".join((file.section("code", name, target).sha256, file.section("code-table", name, target).sha256, more))
    with _lock:
        found = _kept.get(key)
        if found is None:
            found = _kept[key] = make()
    return found


def host_image(file: PackageFile, first: int = 0) -> MappedImage:
    """The host runtime of a package, mapped once in the process for programs to whose numbers of GPUs `first` is added. PackageError for a
    package of release 0.1.0, whose programs run on the first GPU alone."""

    def make() -> MappedImage:
        image = mapped(file, "runtime", runtime_target(), forever=True)
        settle_runtime(image)
        if first and FIRST_GPU not in image:
            raise file.error("a release wrote it whose packages run on the first GPU alone; CUDA_VISIBLE_DEVICES says which that is")
        if first:
            ctypes.c_int32.from_address(image.address(FIRST_GPU)).value = first
        return image

    return _shared(file, "runtime", runtime_target(), make, str(first or ""))


def functions_image(file: PackageFile, target: str) -> MappedImage | None:
    """The products and attention that programs for a target share; None where they need none."""
    if file.find("code", "functions", target) is None:
        return None
    return _shared(file, "functions", target, lambda: mapped(file, "functions", target, forever=True))


def gpu_image(file: PackageFile, driver: Driver, first: int = 0) -> MappedImage:
    """The part of the runtime that launches on a GPU, for a driver; `first` as of `host_image`."""
    addresses, host = driver.symbols(), host_image(file, first)
    api = HIP if is_hip(addresses) else ""
    with _lock:
        key = f"{id(driver)} {first} {file.section('code', 'gpu-runtime', api).sha256}"
        if key not in _kept:
            own = {name: host.address(name) for name in (FIRST_GPU,) if name in host}
            resolve = lambda name: own.get(name) or addresses.get(name) or process_address(name)  # noqa: E731
            _kept[key] = driver, mapped(file, "gpu-runtime", api, resolve, forever=True)
        return _kept[key][1]


def host_runtime(file: PackageFile, first: int = 0) -> HostRuntime:
    """What the surroundings of native entries take from the runtime of a package; `first` as of `host_image`."""
    return HostRuntime(
        host_image(file, first).address("stepwell_arena_clear"),
        lambda driver: gpu_image(file, driver, first).address("stepwell_gpu_launch"),
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
    section = file.section("code", "selftest", runtime_target())
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
        record: ProgramRecord = file.load(ProgramRecord, "program", "selftest", runtime_target())
        image = mapped(file, "selftest", runtime_target(), resolve=entry_resolver(file, None))
        run = native_callable(description_of(record, []), image, (), (), host_runtime(file))
        problem = problem_of(run)
    except Exception as error:  # whatever it is, the other path runs without
        problem = f"{type(error).__name__}: {error}"
    return "" if problem is None else f"the self-test of native entries failed ({problem})"


def entry_resolver(
    file: PackageFile, functions: MappedImage | None, driver: Driver | None = None, first: int = 0
) -> Callable[[str], int | None]:
    """Addresses for an entry: of the package's runtime and functions, then of the process; `first` as of `host_image`."""

    def resolve(name: str) -> int | None:
        for image in (functions, host_image(file, first) if name.startswith("stepwell_") else None):
            if image is not None and name in image:
                return image.address(name)
        if driver is not None and name.startswith("stepwell_gpu") and name in (gpu := gpu_image(file, driver, first)):
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
