"""Launches through HIP, without a GPU of AMD's: a library that notes what it is asked stands for libamdhip64."""

import ctypes
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from stepwell.targets.host.gpu import driver as drivers
from stepwell.targets.host.gpu import hip
from stepwell.targets.host.gpu.driver import LaunchError, address_in, cuda_driver
from stepwell.targets.host.gpu.launches import GpuLaunches
from stepwell.targets.host.gpu.runtime_ir import DRIVER_SYMBOLS, HIP_SYMBOLS, RECORD_HEAD, VARIANT_BYTES, Refusal, is_hip
from stepwell.targets.host.runtime.runtime import gpu_runtime

SOURCE = Path(__file__).with_name("fake_hip.c")
TORCH = tuple(name for name in HIP_SYMBOLS if not name.startswith("hip"))


@dataclass(frozen=True)
class Binary:
    name: str
    code: bytes
    threads: int = 256
    shared: int = 1 << 16
    key: str = ""
    boxes: tuple = ()


@dataclass(frozen=True)
class Kernel:
    name: str = "k"
    place: str = "kernel @k (model.py:3)"
    aligned: tuple = (0,)
    even: tuple = (1,)
    overlaps: bool = False
    described: tuple = ()

    def variant(self, addresses, sizes):
        return Binary("ABC"[addresses + sizes], f"{self.name} {addresses} {sizes}".encode(), key=f"{self.name} {addresses} {sizes}")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The path of the library, compiled."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    path = tmp_path_factory.mktemp("hip") / "libfakehip.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O0", str(SOURCE), "-o", str(path)], check=True)
    return str(path)


@pytest.fixture
def fake(library, monkeypatch):
    """A driver with the library behind it, and what the library noted of the last launch."""
    own = ctypes.CDLL(library)
    monkeypatch.setattr(hip, "torch_symbols", lambda: {name: address_in(own, name) for name in TORCH})
    return hip.HipDriver(library), (ctypes.c_int64 * 13).in_dll(own, "recorded")


def test_programs_in_python_launch(fake):
    driver, recorded = fake
    launches = GpuLaunches("f", "cpu", [Kernel(), Kernel("bad")], driver)
    launches.launch(0, (5, 2), [4096, 32])
    assert list(recorded)[:12] == [1000 + ord("C"), 5, 2, 1, 256, 1, 1, 1 << 16, 0, 4096, 32, 0]
    launches.launch(0, (5,), [4097, 32])
    assert recorded[0] == 1000 + ord("A")
    with pytest.raises(LaunchError, match=r"kernel @k \(model.py:3\) could not be .* 77 x 1 x 1: hipErrorInvalidValue: invalid argument"):
        launches.launch(0, (77,), [4096, 32])
    with pytest.raises(LaunchError, match=r"loading kernel @k \(model.py:3\): error 209"):
        launches.launch(1, (1,), [4096, 32])


def test_native_entries_launch(fake):
    """The runtime of native entries enters a device, launches and leaves."""
    driver, recorded = fake
    functions = gpu_runtime(driver)
    state = (ctypes.c_int64 * 3)()
    enter = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p)(functions["stepwell_gpu_enter"])
    assert enter(3, state) == 0 and list(state)[1:] == [503, 4] and recorded[12] == 3 and driver.context() == 4
    variants = (ctypes.c_int64 * (3 * VARIANT_BYTES // 8))()
    record = (ctypes.c_int64 * (RECORD_HEAD + 2))(7, 1, 1, 2, 0, 0, 0, 4096, 48)
    launch = ctypes.CFUNCTYPE(ctypes.c_int32, *3 * (ctypes.c_void_p,))(functions["stepwell_gpu_launch"])
    assert launch(variants, record, state[1]) == Refusal.MISSING
    loaded = driver.load(driver.context(), Kernel(), 0)
    variants[:3] = loaded.function, loaded.threads, loaded.shared
    assert launch(variants, record, state[1]) == 0
    assert list(recorded)[:12] == [1000 + ord("C"), 7, 1, 1, 256, 1, 1, 1 << 16, 503, 4096, 48, 0]
    record[0] = 77
    assert launch(variants, record, state[1]) == 1 and driver.message(1) == "hipErrorInvalidValue: invalid argument"
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(functions["stepwell_gpu_leave"])(state)
    assert state[0] == 0 and driver.context() == 0


def test_the_driver_says_which_runtime_it_needs(fake):
    driver, _ = fake
    assert set(driver.symbols()) == HIP_SYMBOLS and is_hip(driver.symbols()) and not is_hip(dict.fromkeys(DRIVER_SYMBOLS, 1))


def test_a_torch_for_amd_has_hip_as_its_driver(library, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(hip, "_loaded_paths", lambda: iter([library]))
    drivers._own_driver.cache_clear()
    assert isinstance(cuda_driver(), hip.HipDriver)
    drivers._own_driver.cache_clear()


def test_a_machine_without_hip_is_told():
    with pytest.raises(LaunchError, match="HIP cannot be loaded: there is no libnowhere.so"):
        hip.HipDriver("libnowhere.so")
