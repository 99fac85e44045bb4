"""Packages with code for 64-bit Arm: made everywhere, refused elsewhere, run on emulated processors (AOTI-01)."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import pytest
import torch
from arm_packages import driver, run_entry
from arm_processors import PROCESSORS, needs_arm
from arm_programs import PROGRAMS, Function
from package_models import CASES
from torch import nn

import stepwell
from stepwell.targets.package.errors import PackageError
from stepwell.targets.package.format import open_package
from stepwell.targets.package.layout import Feature
from stepwell.targets.package.signature import Signature
from stepwell.tools.package import levels

LEVELS = list(PROCESSORS)


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    return driver(tmp_path_factory.mktemp("driver"))


def test_a_package_for_two_machines_runs_here(tmp_path, monkeypatch):
    path, x = tmp_path / "both", torch.randn(3, 8)
    net = nn.Linear(8, 2).eval()
    stepwell.export(net, (x,), to=path, targets=["cpu-armv8.2", "cpu-v3"], ir=False, samples=False)
    assert path.read_bytes()[24] == Feature.ARM
    if platform.machine() == "x86_64":
        loaded = stepwell.load(path)
        assert loaded.target == "cpu-v3" and loaded.native
        torch.testing.assert_close(loaded(x), net(x))
        with pytest.raises(PackageError, match=r"cpu-armv8\.2: it is code for aarch64, and this machine is x86_64\); .* such as cpu-v3"):
            stepwell.load(path, target="cpu-armv8.2")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    with pytest.raises(PackageError, match=r"cpu-v3: it is code for x86_64, and this machine is aarch64\); .* such as cpu-armv8"):
        stepwell.load(path, target="cpu-v3")
    with open_package(path) as file:
        signature: Signature = file.load(Signature, "signature")
        assert [(t.name, t.machine) for t in signature.targets] == [("cpu-v3", "x86_64"), ("cpu-armv8.2", "aarch64")]
        assert {s.target for s in file.of_kind("code") if s.name == "runtime"} == {"", "aarch64"}


def test_levels_of_the_machine(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    needs = {name: set(levels.level_of(name).target.features) for name in LEVELS}
    for count, name in enumerate(LEVELS):
        monkeypatch.setattr(levels, "cpu_features", lambda name=name: needs[name])
        assert levels.default_levels("cpu") == tuple(reversed(LEVELS[: count + 1]))
    with pytest.raises(PackageError, match=r"there is no target 'aarch64'; there are: cpu-v3, cpu-v4, cpu-armv8,"):
        levels.level_of("aarch64")


def packaged(path: Path, model: nn.Module, args: tuple[torch.Tensor, ...], shapes: Any = None) -> None:
    stepwell.export(model.eval(), args, to=path, dynamic_shapes=shapes, targets=LEVELS, ir=False, samples=False)


@needs_arm
def test_sizes_of_an_entry_are_those_of_the_call(tmp_path, program):
    torch.manual_seed(0)
    make, args, shapes, more = CASES["mlp"]
    model, path = make().eval(), tmp_path / "package"
    packaged(path, model, args, shapes)
    for given in [args, *more]:
        for level in LEVELS:
            (got,) = run_entry(path, level, given, PROCESSORS[level], program)
            torch.testing.assert_close(got, model(*given).detach(), atol=2e-5, rtol=1e-4)


@needs_arm
@pytest.mark.parametrize("name", ["softmax", "reductions", "product_s8", "product_bf16"])
def test_entries_are_those_of_eager(name, tmp_path, program):
    function, args = PROGRAMS[name]
    want, path = function(*args), tmp_path / "package"
    packaged(path, Function(function), args)
    for level in LEVELS:
        got = run_entry(path, level, args, PROCESSORS[level], program)
        for a, b in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
            atol, rtol = (2e-2, 2e-2) if b.dtype == torch.bfloat16 else (2e-5, 1e-4)
            torch.testing.assert_close(a, b, atol=atol, rtol=rtol)
