"""Models as C programs: against eager, in an environment without Python and torch (AOTI-01, CN-12)."""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from c_programs import build, call, needs_compiler, run_alone
from torch import nn
from torch.export import Dim

from stepwell.targets.host.c import weights
from stepwell.targets.host.c.plan import CEntryError
from stepwell.tools.package.c.export import export_c

pytestmark = needs_compiler
ROOT = Path(__file__).resolve().parents[4]


class Counter(nn.Module):
    """A state that every call updates."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("state", torch.zeros(4, 8))

    def forward(self, x):
        self.calls.add_(1)
        self.state.copy_(torch.tanh(self.linear(x) + self.state))
        return {"twice": self.state * 2, "calls": self.calls}


class Lookup(nn.Module):
    """An index that may be wrong."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 16)

    def forward(self, x):
        return torch.softmax(self.table(x), -1)


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Three entries of one object, and what they are in eager mode."""
    torch.manual_seed(0)
    batch = Dim("batch", max=64)
    mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8)).eval()
    models = {"mlp": mlp, "counter": Counter().eval(), "lookup": Lookup().eval()}
    entries = {
        "mlp": (mlp, (torch.randn(4, 16),), None, ({0: batch},)),
        "counter": (copy.deepcopy(models["counter"]), (torch.randn(4, 8),)),
        "lookup": (models["lookup"], (torch.randint(0, 10, (3,)),)),
    }
    folder = tmp_path_factory.mktemp("three")
    export_c(entries, name="three", folder=folder)
    return build(folder, "three"), models


def test_sizes_of_a_range(three):
    program, models = three
    for rows in (1, 2, 33, 64):
        x = torch.randn(rows, 16)
        (y,) = call(program, "mlp", [x], [x])
        torch.testing.assert_close(y, models["mlp"](x).detach())


def test_a_size_outside_of_its_range_is_an_error(three):
    program, _ = three
    with pytest.raises(AssertionError, match=r"size 65 at dim=0 is not in the range 0 to 64 for argument 0 \(input\)"):
        call(program, "mlp", [torch.randn(65, 16)], [])
    with pytest.raises(AssertionError, match=r"expected size 15==16, stride 1==1 at dim=1 for argument 0 \(input\)"):
        call(program, "mlp", [torch.randn(2, 15)], [])


def test_updated_buffers_live_in_the_model(three):
    program, models = three
    model, x = copy.deepcopy(models["counter"]), torch.randn(4, 8)
    for _ in range(3):
        want = model(x)
    twice, calls = call(program, "counter", [x], [x, torch.zeros((), dtype=torch.int64)], "3")
    torch.testing.assert_close(twice, want["twice"].detach())
    assert calls == 3
    header = (program.parent / "three.h").read_text()
    assert "counter(x: float32[4, 8]) -> (twice: float32[4, 8], calls: int64[])" in header


def test_threads_have_models_of_their_own(three):
    program, models = three
    model, x = copy.deepcopy(models["counter"]), torch.randn(4, 8)
    for _ in range(20):
        want = model(x)
    twice, calls = call(program, "counter", [x], [x, torch.zeros((), dtype=torch.int64)], "20", "8")
    torch.testing.assert_close(twice, want["twice"].detach())
    assert calls == 20


def test_an_input_that_is_not_read_and_a_result_that_is_there_twice(tmp_path):
    def function(x, unused):
        y = x * 2 + 0.5
        return y, y, x

    x, unused = torch.randn(3, 4), torch.zeros(2, dtype=torch.int32)
    export_c(function, (x, unused), name="odd", folder=tmp_path, levels=["cpu-v3"])
    assert re.search(r"forward\(\w+: float32\[3, 4\], \w+: int32\[2\]\)", (tmp_path / "odd.h").read_text())
    got = call(build(tmp_path, "odd"), "forward", [x, unused], [x, x, x])
    torch.testing.assert_close(got, [x * 2 + 0.5, x * 2 + 0.5, x])


def test_a_number_is_a_tensor_without_dimensions(tmp_path):
    class Times(nn.Module):
        def forward(self, x, n: int):
            return x * n, x.new_ones(n)

    x, n = torch.randn(3, 4), torch.tensor(5)
    export_c(Times(), (x, 7), name="number", folder=tmp_path, dynamic_shapes=({}, Dim.DYNAMIC), levels=["cpu-v3"])
    first, second = call(build(tmp_path, "number"), "forward", [x, n], [x, x])
    torch.testing.assert_close((first, second), (x * 5, torch.ones(5)))


def test_the_whole_interface(three):
    done = run_alone(build(three[0].parent, "three", ROOT / "tests/c_interface.c"))
    assert (done.returncode, done.stdout) == (0, "good\n"), done.stdout + done.stderr


def test_the_header_is_one_of_cplusplus(three, tmp_path):
    if shutil.which("g++") is None:
        pytest.skip("there is no C++ compiler")
    (tmp_path / "use.cpp").write_text('#include "three.h"\nint main() { return three_find("mlp") != three_entry_mlp; }\n')
    command = ["g++", "-Wall", "-Wextra", "-Werror", f"-I{three[0].parent}", "use.cpp", three[0].parent / "three.o", "-o", "use"]
    subprocess.run([*command, "-lm", "-lpthread"], cwd=tmp_path, check=True)
    subprocess.run([tmp_path / "use"], check=True)


def test_a_check_of_a_kernel_is_an_error(three):
    program, models = three
    x = torch.tensor([1, 9, 0])
    (y,) = call(program, "lookup", [x], [torch.zeros(1)])
    torch.testing.assert_close(y, models["lookup"](x).detach())
    with pytest.raises(AssertionError, match="embedding: index 10 is out of bounds for dimension 0 with size 10"):
        call(program, "lookup", [torch.tensor([1, 10, 0])], [])


def test_the_object_needs_the_c_library_alone_and_shows_the_interface_alone(three):
    program, _ = three
    lines = subprocess.run(["nm", str(program.parent / "three.o")], capture_output=True, text=True, check=True).stdout.split("\n")
    shown = {line.split()[-1] for line in lines if " T " in line}
    assert all(name.startswith("three_") for name in shown) and "three_run" in shown
    needed = {line.split()[-1] for line in lines if " U " in line}
    assert not [name for name in needed if name.startswith(("Py", "aoti", "GOMP", "omp", "Sleef", "stepwell"))]


def test_a_level_that_the_processor_has_not_is_an_error(three, tmp_path):
    done = run_alone(three[0], "mlp", "missing", "results")
    assert done.returncode != 0  # the driver itself fails without inputs
    with pytest.raises(CEntryError, match="there is no level 'cpu-v9'; levels are cpu-v4, cpu-v3, cpu-v1"):
        export_c(nn.Linear(2, 2), (torch.randn(1, 2),), name="none", folder=tmp_path, levels=["cpu-v9"])


@pytest.mark.parametrize(
    ("function", "args", "message"),
    [
        (lambda x: torch.linalg.qr(x)[1], (torch.eye(3),), r"aten\.linalg_qr is computed by torch's library, which a C program"),
        (lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), (torch.ones(3),), "choose in Python which .* choose in C"),
        (lambda x: x[x > 0], (torch.randn(8),), "sizes that depend on values|is computed by torch's library"),
    ],
    ids=["library", "branches", "values"],
)
def test_what_only_the_library_has_is_refused_by_name(function, args, message, tmp_path):
    with pytest.raises(CEntryError, match=message):
        export_c(function, args, name="refused", folder=tmp_path)


class IntegerProducts(nn.Module):
    """Products of integers, which wrap."""

    def forward(self, a, b, c):
        small = (a % 256).to(torch.uint8)
        return torch.addmm(c, a, b, beta=2, alpha=-3), torch.bmm(a[None], b[None]), small @ small.t(), a @ b[:, 0]


@pytest.mark.parametrize("depth", [6, 1, 0])
def test_products_of_integers(depth, tmp_path):
    big = 1 << 30
    args = tuple(torch.randint(-big, big, size, dtype=torch.int32) for size in ((5, depth), (depth, 4), (5, 4)))
    rows = Dim("rows", max=9)
    export_c(IntegerProducts(), args, name="whole", folder=tmp_path, dynamic_shapes=({0: rows}, None, {0: rows}), levels=["cpu-v3"])
    want = IntegerProducts()(*args)
    for got, one in zip(call(build(tmp_path, "whole"), "forward", args, want), want, strict=True):
        assert torch.equal(got, one)


def test_the_program_of_the_reference(tmp_path):
    page = (ROOT / "docs/reference/c-interface.md").read_text()
    python, program = (re.search(rf"```{language}\n(.*?)```", page, re.DOTALL) for language in ("python", "c"))
    assert python is not None and program is not None
    here: dict[str, object] = {}
    exec(python[1].replace('"build"', repr(str(tmp_path))), here)
    (tmp_path / "page.c").write_text(program[1])
    done = run_alone(build(tmp_path, "net", tmp_path / "page.c"))
    x = torch.tensor([[1.0, 2, 3, 4], [0, 0, 0, 0], [-1, 0.5, 2, -3]])
    got = torch.tensor([[float(n) for n in line.split()] for line in done.stdout.splitlines()])
    torch.testing.assert_close(got, here["model"](x).detach(), atol=2e-5, rtol=0)


def test_weights_that_code_does_not_reach_are_behind_everything_else(tmp_path, monkeypatch):
    """As for weights of more than 1.5 GB; those are too large for a test."""
    monkeypatch.setattr(weights, "NEAR_BYTES", 0)
    torch.manual_seed(0)
    models = {"mlp": nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8)).eval(), "counter": Counter().eval()}
    entries = {"mlp": (models["mlp"], (torch.randn(4, 16),)), "counter": (copy.deepcopy(models["counter"]), (torch.randn(4, 8),))}
    export_c(entries, name="far", folder=tmp_path, levels=["cpu-v3"])
    sections = subprocess.run(["readelf", "-SW", tmp_path / "far.o"], capture_output=True, text=True, check=True).stdout
    assert ".lrodata.stepwell_c_weights" in sections and ".rodata.stepwell_c_weights" not in sections.replace(".lrodata", "")
    program = build(tmp_path, "far")
    for name, (_, args) in entries.items():
        want = models[name](*args)
        want = list(want.values()) if isinstance(want, dict) else [want]
        for got, one in zip(call(program, name, args, want), want, strict=True):
            torch.testing.assert_close(got, one.detach(), atol=2e-5, rtol=1e-4)


def test_a_name_is_one_of_c(tmp_path):
    with pytest.raises(ValueError, match=r"'my-net' is no name in C"):
        export_c(nn.Linear(2, 2), (torch.randn(1, 2),), name="my-net", folder=tmp_path)
