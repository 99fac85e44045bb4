"""Models for GPUs as C programs, on a stand-in for the driver: what is launched, copied and given back. Kernels themselves are tested
elsewhere; with Triton they are compiled for real."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from c_programs import needs_compiler
from torch import nn
from torch.export import Dim

from stepwell.dialects.tt.structure import FuncOp
from stepwell.targets.host.c.plan import CEntryError
from stepwell.targets.triton.kernels import Binary, multiples_of_16
from stepwell.tools.package.c import entries
from stepwell.tools.package.c.export import export_c

pytestmark = needs_compiler
TESTS = Path(__file__).resolve().parents[3]


class Counter(nn.Module):
    """Products, a state that every call updates, and a view as a result."""

    def __init__(self):
        super().__init__()
        self.linear, self.out = nn.Linear(64, 48), nn.Linear(48, 8)
        self.register_buffer("calls", torch.zeros(4))

    def forward(self, x):
        self.calls.add_(1)
        return self.out(torch.relu(self.linear(x))).unsqueeze(1), self.calls * 2


def kernels_without_code(module, level):
    """Kernels whose code is the beginning of an ELF file."""
    functions = [op for op in module.ops if isinstance(op, FuncOp) and op.is_kernel]
    made = []
    for function in functions:
        name = function.sym_name.data
        aligned, even = multiples_of_16(function)
        binary = Binary(name, b"\x7fELF" + level.encode(), 128, 1024, "key")
        one = SimpleNamespace(name=name, aligned=aligned, even=even, variant=lambda addresses, sizes, one=binary: one)
        made.append(one)
        one.ptx = lambda addresses, sizes: f"//\n.target {level}\n"
    return made


@pytest.fixture(scope="module")
def counter(tmp_path_factory):
    """A program for two GPUs, beside a stand-in for the driver."""
    folder = tmp_path_factory.mktemp("counter")
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        if find_spec("triton") is None:
            patch.setattr(entries, "gpu_kernels", kernels_without_code)
        rows = Dim("rows", max=64)
        levels = ["sm_80", "sm_90"]
        export_c(Counter().eval(), (torch.randn(16, 64),), name="counter", folder=folder, dynamic_shapes=({0: rows},), levels=levels)
    gcc(folder, "-shared", "-fPIC", "-o", "libcuda.so.1", str(TESTS / "fake_cuda.c"))
    names = ["-DNAME=counter", '-DHEADER="counter.h"', "-I."]
    gcc(folder, *names, "-o", "program", str(TESTS / "c_gpu_driver.c"), "counter.o", "-lm", "-lpthread", "-ldl")
    return folder


def gcc(folder, *words):
    subprocess.run(["gcc", "-O1", "-Wall", "-Wextra", "-Werror", *words], cwd=folder, check=True)


def run(folder, *words, **environment):
    program = ["./program", "forward", "inputs", "results", *words]
    return subprocess.run(program, cwd=folder, capture_output=True, text=True, check=False, env={"LD_LIBRARY_PATH": ".", **environment})


@pytest.mark.parametrize(("capability", "level"), [("80", "sm_80"), ("86", "sm_80"), ("90", "sm_90"), ("100", "ptx_80")])
def test_the_best_level_of_the_device_runs_and_everything_is_given_back(counter, capability, level, monkeypatch):
    for name, value in {"LD_LIBRARY_PATH": str(counter), "FAKE_CAPABILITY": capability}.items():
        monkeypatch.setenv(name, value)
    (counter / "inputs").write_bytes(torch.tensor([2, 5, 64]).numpy().tobytes() + bytes(5 * 64 * 4))
    done = run(counter, "3", FAKE_CAPABILITY=capability)
    assert done.returncode == 0, done.stdout
    launches = re.findall(r"^\w+ grid (\d+) \d+ \d+ threads \d+$", done.stdout, re.MULTILINE)
    assert launches and len(launches) % 3 == 0
    assert f"ran at {level}" in done.stdout
    # what is left is the program's own: an input, two results, a context
    assert "left: memory 3, modules 0, contexts 1" in done.stdout


def test_devices_that_the_model_is_not_for(counter):
    done = run(counter, "1", FAKE_CAPABILITY="75")
    assert done.returncode == 3 and "compiled for GPUs of capability 90, and device 0 has 75" in done.stdout


def has_driver():
    try:
        return bool(ctypes.CDLL("libcuda.so.1"))
    except OSError:
        return False


@pytest.mark.skipif(has_driver(), reason="this machine has a driver")
def test_no_driver(counter, tmp_path):
    for name in ("counter.o", "counter.h"):
        shutil.copy(counter / name, tmp_path / name)
    text = '#include <stdio.h>\n#include "counter.h"\nint main(void) { return puts(counter_error(counter_open())) < 0; }\n'
    (tmp_path / "alone.c").write_text(text)
    gcc(tmp_path, "-o", "alone", "alone.c", "counter.o", "-lm", "-lpthread", "-ldl")
    done = subprocess.run(["./alone"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "the CUDA driver cannot be opened: there is no libcuda.so.1\n"


def test_the_interface_of_a_gpu(counter):
    header = (counter / "counter.h").read_text()
    assert "counter_model *counter_open_on(int32_t device, void *stream);" in header
    assert "forward(x: float32[" in header
    shown = subprocess.run(["nm", "counter.o"], cwd=counter, capture_output=True, text=True, check=True).stdout
    assert " T counter_open_on" in shown and " T counter_stream" in shown and "GOMP" not in shown.replace(" t GOMP", "")


def test_tensors_of_the_processor_are_refused(counter, tmp_path):
    text = (TESTS / "c_gpu_driver.c").read_text().replace("in[k].device.device_type = entry->input[k].device_type;", "")
    (counter / "host.c").write_text(text)
    names = ["-DNAME=counter", '-DHEADER="counter.h"', "-I."]
    gcc(counter, *names, "-o", "host", "host.c", "counter.o", "-lm", "-lpthread", "-ldl")
    command, environment = ["./host", "forward", "inputs", "results", "1"], {"LD_LIBRARY_PATH": "."}
    done = subprocess.run(command, cwd=counter, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 3 and "expected a tensor of DLPack's device type 2, number 0, got 1, 0 for argument 0 (x)" in done.stdout


def test_processors_and_gpus_are_objects_of_their_own(tmp_path):
    with pytest.raises(CEntryError, match="an object is for processors or for GPUs, not for both"):
        export_c(nn.Linear(2, 2), (torch.randn(1, 2),), name="both", folder=tmp_path, levels=["cpu-v3", "sm_90"])
