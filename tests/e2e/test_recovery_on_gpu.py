"""Failures of Triton, of its assembler and of the driver end no program on the GPU of the machine: what cannot be built is left to ATen.
Passes that fail are tested without a GPU (tests/tools/test_fault_injection.py)."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest
import torch

import stepwell

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.fixture(autouse=True)
def recovering(monkeypatch, tmp_path):
    """As a user has it, with nothing kept of other programs."""
    monkeypatch.delenv("STEPWELL_ON_FAILURE", raising=False)
    monkeypatch.setenv("STEPWELL_CACHE", "on")
    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("stepwell.tools.recovery.report.REDUCTION_SECONDS", 0.0)
    monkeypatch.setattr("stepwell.tools.recovery.recover.SEARCH_SECONDS", 4.0)
    monkeypatch.setattr("stepwell.tools.debug.compile_log._said", set())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    torch._dynamo.reset()
    torch.manual_seed(0)
    stepwell.reset_counters()
    yield
    torch._dynamo.reset()


def program(x, w):
    """A product, rows, a scan and columns: several kernels, forward and backward."""
    h = torch.tanh(x @ w)
    return torch.softmax(h, -1).sum(0), h.cumsum(1) * 2


def step(run):
    generator = torch.Generator("cuda").manual_seed(1)
    args = [torch.randn(*shape, device="cuda", generator=generator).requires_grad_() for shape in ((24, 40), (40, 48))]
    found = run(*args)
    return [*found, *torch.autograd.grad(sum(t.square().sum() for t in found), args)]


def recovers(caplog, run=program, args=None, **how):
    """The program gives eager's results, with one warning: what it says."""
    compiled = torch.compile(run, backend="stepwell", **how)
    want, got = (step(f) if args is None else f(*args) for f in (run, compiled))
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)
    said = [r.getMessage() for r in caplog.records if r.name == "stepwell" and "the program runs on" in r.getMessage()]
    assert len(said) == 1 and stepwell.counters["recovered"], (said, stepwell.counters["recovered"])
    return said[0]


def injected(*_, **__):
    raise ValueError("injected")


@pytest.mark.parametrize(
    ("step_of_the_toolchain", "dynamic"),
    [
        ("toolchain._parse", False), ("toolchain._assemble", True), ("compile.build", False), ("compile.kernel_key", False),
        ("compile.fingerprint", False), ("kernels.start_kernels", True), ("target.device_target", False),
    ],
)  # fmt: skip
def test_a_step_of_the_toolchain_that_fails(step_of_the_toolchain, dynamic, monkeypatch, caplog):
    monkeypatch.setattr(f"stepwell.targets.triton.{step_of_the_toolchain}", injected)
    assert "injected" in recovers(caplog, dynamic=dynamic)


def refusing(monkeypatch, is_refused):
    """ptxas refuses the kernels whose text is."""
    run = subprocess.run

    def ptxas(command, *args, **how):
        if "-v" in command and is_refused(Path(command[-3]).read_text()):
            return subprocess.CompletedProcess(command, 255, "", "ptxas fatal   : (C7600) injected\n")
        return run(command, *args, **how)

    monkeypatch.setattr("stepwell.targets.triton.toolchain.subprocess.run", ptxas)


def test_an_assembler_that_refuses_every_kernel(monkeypatch, caplog):
    refusing(monkeypatch, lambda text: True)
    assert "injected" in recovers(caplog)


def test_an_assembler_that_refuses_one_kernel(monkeypatch, caplog):
    """The operators of that kernel alone are left to ATen: running sums are f64, nothing else of the program is."""
    refusing(monkeypatch, lambda text: "add.f64" in text or "add.rn.f64" in text)

    def parts(x, y):
        return torch.tanh(x @ x).cumsum(1), torch.softmax(y, -1).sum(0)

    x, y = torch.randn(64, 64, device="cuda"), torch.randn(300, 500, device="cuda")
    said = recovers(caplog, parts, [x, y])
    assert "injected" in said and "cumsum" in said and "softmax" not in said and stepwell.counters["kernels"], said


def test_no_assembler(monkeypatch, caplog):
    def lost(*_, **__):
        raise FileNotFoundError("there is no ptxas")

    monkeypatch.setattr("stepwell.targets.triton.toolchain.subprocess.run", lost)
    recovers(caplog)


def test_a_driver_that_loads_no_kernel(monkeypatch, caplog):
    from stepwell.targets.triton.target import GpuTarget

    monkeypatch.setattr(GpuTarget, "load", injected)
    assert "injected" in recovers(caplog)
