"""DV-04: targets from outside: the one of docs/examples/loops_target.py, on the CPU and on a device of its own, and what is refused."""

import importlib.util
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp

import stepwell
from stepwell.passes.cost.machine import machine_of
from stepwell.passes.manager.errors import PipelineError
from stepwell.passes.manager.pass_manager import Pass
from stepwell.passes.manager.pipelines import DEVICES, TARGETS, default_pipeline, parse_pipeline
from stepwell.targets.cpu.target import CpuTarget
from stepwell.targets.target import Kernels, Target, find_target, isolated, target_of
from stepwell.targets.triton.gpu import gpu_target

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/howto/custom-targets.md").read_text()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


@pytest.fixture(name="loops")
def loops_fixture(fresh_targets):
    spec = importlib.util.spec_from_file_location("loops_target", ROOT / "docs/examples/loops_target.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules["loops_target"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["loops_target"]


@pytest.fixture(name="fresh_targets")
def fresh_targets_fixture(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    stepwell.reset_counters()
    with isolated():
        yield
    torch._dynamo.reset()


def program(x, w):
    y = torch.softmax(x @ w, -1)
    x.mul_(2)
    return y.sum(0), x.t()


def compiled_like_eager(**how):
    x, w = torch.randn(4, 5), torch.randn(5, 3)
    expected = x.clone()
    torch.testing.assert_close(torch.compile(program, backend="stepwell", **how)(x, w), program(expected, w))
    torch.testing.assert_close(x, expected)


@pytest.mark.parametrize("dynamic", [False, True])
def test_dv_04_a_target_from_outside_compiles_the_graphs_of_its_device(loops, dynamic, monkeypatch):
    launched = []
    launch = loops.LoopsLauncher.launch
    monkeypatch.setattr(loops.LoopsLauncher, "launch", lambda self, *given: launched.append(given[0]) or launch(self, *given))
    stepwell.register_target(loops.LoopsTarget, replace=True)
    compiled_like_eager(dynamic=dynamic)
    assert len(launched) == stepwell.counters["launches"] > 0
    assert stepwell.counters["compile_seconds"]["loops"] > 0
    launched.clear()
    stepwell.unregister_target("loops")
    torch._dynamo.reset()
    compiled_like_eager(dynamic=dynamic)
    assert not launched


def test_dv_04_gradients_and_passes_of_users_in_its_stages(loops):
    stepwell.register_target(loops.LoopsTarget, replace=True)
    assert stepwell.register_pass("loops", "cse") == "cse"
    model = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.GELU(), torch.nn.LayerNorm(6))
    x = torch.randn(3, 5)
    both = (torch.compile(model, backend="stepwell"), model)
    torch.testing.assert_close(*(torch.autograd.grad(m(x).pow(2).sum(), list(model.parameters())) for m in both))


def test_dv_04_a_device_of_its_own():
    """Graphs on a device that torch did not know, with updates, views, library calls, copies to the CPU, gradients."""
    if not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this torch takes devices from C++ only")
    done = subprocess.run([sys.executable, str(ROOT / "tests/e2e/toy_device.py")], capture_output=True, text=True, timeout=570)
    assert done.returncode == 0, done.stderr
    assert "gradients" in done.stdout and "a copy to the CPU and back 2" in done.stdout


def test_dv_04_graphs_are_kept_under_the_version_of_their_target(loops):
    def kept():
        stepwell.reset_counters()
        torch._dynamo.reset()
        compiled_like_eager(options={"cache": "on"})
        return [stepwell.counters[f"graph_cache_{what}"] for what in ("hits", "misses", "bypasses")]

    assert kept() == [0, 1, 0]  # the CPU's own
    stepwell.register_target(loops.LoopsTarget, replace=True)
    assert kept() == [0, 0, 1]
    stepwell.unregister_target("loops")
    stepwell.register_target(type("Versioned", (Written,), {"version": "1", "loops": loops})(), replace=True)
    assert kept() == [0, 1, 0] and kept()[1:] == [0, 0]
    stepwell.unregister_target("written")
    stepwell.register_target(type("Versioned", (Written,), {"version": "2", "loops": loops})(), replace=True)
    assert kept() == [0, 1, 0]


class Written(Target):
    """Kernels that can be written: all is left to the CPU's pipeline."""

    name = "written"
    devices = ("cpu",)
    stages = TARGETS["cpu"]
    native = True


def test_dv_04_operators_that_the_library_runs(loops):
    class Without(Written):
        fallback = ("aten.softmax", "aten._softmax")

    stepwell.register_target(Without, replace=True)
    compiled_like_eager()
    assert stepwell.counters["extern"] + stepwell.counters["fallback"] > 0


def test_dv_04_its_pipeline_has_a_name(loops):
    stepwell.register_target(loops.LoopsTarget, replace=True)
    assert str(parse_pipeline("stepwell-loops{from=mem to=loops}")) == "builtin.module(loop-to-mem,mem-plan,mem-to-loops)"
    assert str(default_pipeline("loops")).endswith("mem-to-loops,to-host)")


def test_dv_04_the_commands_of_the_page(opt_tool, monkeypatch):
    monkeypatch.chdir(ROOT / "docs/examples")
    kernels, run, verified = (opt_tool(*shlex.split(command)[1:]) for command in COMMANDS)
    assert (kernels.code, run.code, verified.code) == (0, 0, 0), (kernels.err, run.err, verified.err)
    assert '"loops.kernel"' in kernels.out and "host.launch @k0" in kernels.out
    again = opt_tool("axpy.mlir", "--load-module", "loops_target.py", "-p", "stepwell-loops{to=loops}", "--run")
    assert again.out == run.out and run.out.startswith("result 0: float32 8x64")
    assert "loops" not in TARGETS and DEVICES["cpu"] == "cpu"


STAGES = {"nd": ["nd-canonicalize"], "host": ["to-host"]}
WRONG = {
    "a taken name": ({"name": "gpu"}, {}, "there is a target 'gpu' already"),
    "a taken device": ({}, {}, "device 'cpu' is compiled by target 'cpu' already; replace=True takes it over"),
    "an unknown device": ({"devices": ("npuu",)}, {}, "torch knows no kind of device 'npuu'; torch.utils.rename_privateuse1_backend"),
    "a numbered device": ({"devices": ("cuda:1",)}, {}, "torch knows no kind of device 'cuda:1'"),
    "no device": ({"devices": ()}, {}, "target 'toy' names no device"),
    "no name": ({"name": ""}, {}, "'' is no name for a target"),
    "an unknown pass": ({"stages": {**STAGES, "nd": ["nd-canonicalise"]}}, {"replace": True}, "stage 'nd': .*'nd-canonicalise'"),
    "no pass": ({"stages": {**STAGES, "host": [Target]}}, {"replace": True}, "target 'toy', stage 'host'"),
    "no program": ({"stages": {"nd": ["nd-canonicalize"]}}, {}, "the last pass of its last stage is not 'to-host'"),
    "an empty stage": ({"stages": {**STAGES, "nd": []}}, {}, "stage 'nd' has no passes"),
}


@pytest.mark.parametrize("case", WRONG)
def test_dv_04_what_is_refused(case, fresh_targets):
    """ERR-05"""
    given, how, message = WRONG[case]
    if case in ("no program", "an empty stage"):
        how = {"replace": True}
    made = type("Toy", (Target,), {"name": "toy", "devices": ("cpu",), "stages": STAGES, **given})
    before = (dict(TARGETS), dict(DEVICES))
    with pytest.raises(PipelineError, match=message):
        stepwell.register_target(made, **how)
    assert (TARGETS, DEVICES) == before


def test_dv_04_registering_twice_and_taking_out(fresh_targets):
    first, second = (type(name, (Target,), {"name": name, "devices": ("cpu", "cuda"), "stages": STAGES}) for name in ("one", "two"))
    stepwell.register_target(first, replace=True)
    with pytest.raises(PipelineError, match="there is a target 'one' already"):
        stepwell.register_target(first, replace=True)
    stepwell.register_target(second, replace=True)
    assert target_of("cpu").name == target_of("cuda:1").name == "two"
    stepwell.unregister_target("one")
    assert target_of("cpu").name == "two"
    stepwell.unregister_target("two")
    assert target_of("cpu").name == "cpu" and target_of("cuda:0").name == "gpu" and target_of("xpu").name == "cpu"
    with pytest.raises(PipelineError, match="no target 'two' is registered"):
        stepwell.unregister_target("two")
    with pytest.raises(PipelineError, match="no target 'cpu' is registered"):
        stepwell.unregister_target("cpu")
    with pytest.raises(PipelineError, match="there is no target 'two'"):
        find_target("two")
    with pytest.raises(PipelineError, match="is no Target"):
        stepwell.register_target(3)  # pyright: ignore[reportArgumentType]


def test_dv_04_kernels_without_a_launcher(fresh_targets):
    class Forgetful(Written):
        native = False

        def kernels(self, module, device):
            return Kernels([type("Kernel", (), {"name": "k"})()])

    stepwell.register_target(Forgetful, replace=True)
    with pytest.raises(Exception, match="target 'written' launches no kernels"):
        compiled_like_eager()


def test_the_module_names_the_machine_that_there_is(monkeypatch):
    gpu, cpu = find_target("gpu"), find_target("cpu")
    monkeypatch.setattr("stepwell.targets.triton.target.device_multiprocessors", lambda device: 84)
    monkeypatch.setattr("stepwell.targets.triton.target.device_target", lambda device: gpu_target("sm_86"))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    assert str(gpu.machine("cuda:1")) == '#stepwell.machine<"sm_86", multiprocessors = 84, device = 1>'
    assert str(gpu.machine("cuda")) == '#stepwell.machine<"sm_86", multiprocessors = 84>'
    assert str(cpu.machine("cpu")) == '#stepwell.machine<"cpu", threads = 5>'


def test_a_compiled_graph_names_its_machine(fresh_targets, monkeypatch):
    machines = []

    class Watched(CpuTarget):
        name = "watched"

        def kernels(self, module, device):
            machines.append(machine_of(module))
            return super().kernels(module, device)

    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    stepwell.register_target(Watched, replace=True)
    compiled_like_eager()
    assert {m.threads for m in machines} == {3}


def test_what_is_measured_is_in_the_pipeline(monkeypatch):
    gpu = find_target("gpu")
    monkeypatch.setattr("stepwell.targets.triton.target.has_fast_attention", lambda device: True)
    pipeline = default_pipeline("gpu")
    gpu.fit(pipeline, ModuleOp([]), "cuda:1", "unsure")
    assert next(p for p in pipeline.passes() if p.name == "gpu-tune").unsure is True
    pipeline = default_pipeline("gpu")
    pipeline.add("mem", "gpu-tune{least=5}", "before:gpu-schedule")
    gpu.fit(pipeline, ModuleOp([]), "cuda:0", "always")
    assert [p.least for p in pipeline.passes() if p.name == "gpu-tune"] == [5]
    pipeline = default_pipeline("cpu")
    find_target("cpu").fit(pipeline, ModuleOp([]), "cpu", "always")
    assert next(p for p in pipeline.passes() if p.name == "contract-select").measure is True


def test_options_of_a_users_pass_are_the_users():
    @dataclass(frozen=True)
    class Own(Pass):
        name = "own"
        target: str = ""

        def apply(self, ctx, op):
            pass

    pipeline = default_pipeline("gpu")
    pipeline.add("nd", Own, "end")
    find_target("gpu").fit(pipeline, ModuleOp([]), "cuda:0", "never")
    assert next(p for p in pipeline.passes() if p.name == "own").target == ""
