"""Programs and models compiled for 64-bit Arm, on emulated processors of three generations, against eager (AOTI-01, CN-12)."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from arm_processors import COMPILER, PROCESSORS, needs_arm, on
from arm_programs import PROGRAMS, Function
from c_programs import build, call
from package_models import CASES
from torch import nn

from stepwell.targets.host.c.levels import LEVELS
from stepwell.targets.host.c.plan import CEntryError
from stepwell.tools.package.c.export import export_c

TOLERANCES = {torch.float32: (2e-5, 1e-4), torch.float64: (1e-10, 1e-10), torch.bfloat16: (2e-2, 2e-2), torch.float16: (2e-3, 2e-3)}
"""Type -> absolute and relative tolerance."""


def assert_near(got: list[torch.Tensor], want: Any) -> None:
    for a, b in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        atol, rtol = TOLERANCES.get(b.dtype, (0, 0))
        torch.testing.assert_close(a, b, atol=atol, rtol=rtol)


def all_programs(folder: Path, levels: list[str]) -> Path:
    """One program with an entry for each function."""
    entries = {name: (Function(function).eval(), args) for name, (function, args) in PROGRAMS.items()}
    export_c(entries, name="programs", folder=folder, levels=levels)
    return build(folder, "programs", compiler=COMPILER)


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> Path:
    return all_programs(tmp_path_factory.mktemp("arm"), list(PROCESSORS))


def assert_as_eager(programs: Path, processor: str) -> None:
    wrong: list[str] = []
    for name, (function, args) in PROGRAMS.items():
        want = function(*args)
        like = want if isinstance(want, tuple) else (want,)
        try:
            assert_near(call(programs, name, args, like, "1", "2", run=on(processor)), want)
        except AssertionError as error:
            wrong.append(f"{name}: {error}")
    assert not wrong, "\n".join(wrong)


@needs_arm
@pytest.mark.parametrize("level", PROCESSORS)
def test_functions_are_those_of_eager(level, programs):
    assert_as_eager(programs, PROCESSORS[level])


@needs_arm
def test_functions_in_registers_of_sve(tmp_path, monkeypatch):
    """No level of an object has them yet."""
    monkeypatch.setitem(LEVELS, "cpu-armv8.6", ("sve256", 3))
    programs, (function, args) = all_programs(tmp_path, ["cpu-armv8.6"]), PROGRAMS["pointwise"]
    assert_as_eager(programs, "max,sve256=on")
    call(programs, "pointwise", args, [function(*args)], run=on("max,sve256=on"))
    assert on("max,sve=off")(programs, "pointwise", "inputs", "results").returncode == -signal.SIGILL


@needs_arm
@pytest.mark.parametrize("name", ["mlp", "convnet", "decoder_lengths", "embedding", "norms"])
def test_models_are_those_of_eager(name, tmp_path):
    torch.manual_seed(0)
    make, args, shapes, more = CASES[name]
    model = make().eval()
    export_c(model, args, name=name, folder=tmp_path, dynamic_shapes=shapes, levels=["cpu-armv8", "cpu-armv8.6"])
    program = build(tmp_path, name, compiler=COMPILER)
    for given in [args, *more]:
        with torch.no_grad():
            want = model(*given)
        like = want if isinstance(want, tuple) else (want,)
        for level in ("cpu-armv8", "cpu-armv8.6"):
            assert_near(call(program, "forward", given, like, "2", "3", run=on(PROCESSORS[level])), want)


@needs_arm
def test_the_best_level_runs_and_none_is_an_error(programs, tmp_path):
    function, args = PROGRAMS["softmax"]
    for level, processor in PROCESSORS.items():
        call(programs, "softmax", args, function(*args), run=on(processor))
        assert on(processor)(programs, "softmax", "inputs", "results").stdout == f"ran at {level}\n"
    x = torch.randn(2, 2)
    export_c(nn.Linear(2, 2), (x,), name="later", folder=tmp_path, levels=["cpu-armv8.6"])
    with pytest.raises(AssertionError, match=r"none of the instruction sets that the model was compiled for, such as cpu-armv8\.6"):
        call(build(tmp_path, "later", compiler=COMPILER), "forward", [x], [x], run=on("neoverse-n1"))


def test_two_architectures_are_refused(tmp_path):
    with pytest.raises(CEntryError, match="an object is for x86-64 or for 64-bit Arm, not for both"):
        export_c(nn.Linear(2, 2), (torch.randn(2, 2),), name="two", folder=tmp_path, levels=["cpu-v3", "cpu-armv8"])


def test_an_object_for_arm(tmp_path):
    """It is made on every machine."""
    export_c(nn.Linear(2, 2), (torch.randn(2, 2),), name="one", folder=tmp_path, levels=["cpu-armv8"])
    data = (tmp_path / "one.o").read_bytes()
    assert data[:4] == b"\x7fELF" and int.from_bytes(data[18:20], "little") == 183
