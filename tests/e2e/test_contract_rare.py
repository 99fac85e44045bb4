"""Behaviours that few users meet: graphs exported by hand, lazy modules, partitioners, tokens, compiled autograd, what logs and
traces say of a compilation. Each test is one behaviour of the contract (its id is in the test's name)."""

from __future__ import annotations

import json
import logging
import re

import pytest
import torch
import torch.nn.functional as F

import stepwell
from stepwell.tools.backend.torch_backend import GraphCompilers, compile_with
from stepwell.tools.backend.torch_backend import stepwell as backend
from stepwell.tools.debug.graph_reports import hint_tf32
from stepwell.tools.options.options import Options

pytestmark = pytest.mark.usefixtures("fresh")


def net(x, w):
    return (x @ w).relu().sum() + x.sin().mean()


def operands():
    return torch.randn(5, 4, requires_grad=True), torch.randn(4, 3, requires_grad=True)


# ---- the entry


def test_ce_07_graphs_exported_with_nested_inputs_and_outputs():
    def fn(given):
        return {"sum": given["a"] + given["b"][0], "rest": [given["a"] * 2, (given["b"][0].cos(),)]}

    given = {"a": torch.randn(3), "b": [torch.randn(3)]}
    graph = torch._dynamo.export(fn)(given).graph_module
    got = torch.compile(graph, backend="stepwell")(given)
    assert isinstance(got["rest"], list) and isinstance(got["rest"][1], tuple)
    torch.testing.assert_close(got, fn(given))


def test_ce_10_a_compiler_of_the_callers_lowers_the_graphs():
    seen = []

    class Recorder(GraphCompilers):
        def _compile(self, gm, example_inputs, kind):
            seen.append(kind)
            return super()._compile(gm, example_inputs, kind)

    x, w = operands()
    fn = torch.compile(net, backend=lambda gm, inputs: compile_with(Recorder(Options()), gm, inputs))
    with torch.no_grad():
        torch.testing.assert_close(fn(x, w), net(x, w))
    assert seen == ["inference"]
    fn(x, w).backward()
    assert seen == ["inference", "forward", "backward"]


def test_ce_14_graph_modules_whose_code_is_made_late():
    from torch.fx._lazy_graph_module import _use_lazy_graph_module

    with _use_lazy_graph_module(True):
        x = torch.randn(4)
        graph = torch.fx.symbolic_trace(lambda x: x.exp() + 1)
        torch.testing.assert_close(backend(graph, [x])(x), x.exp() + 1)
        same = torch.compile(lambda x: x, backend="stepwell", options={"fx_passes": {"post_grad": [lambda gm: gm]}})
        assert same(x) is x


def test_ce_18_forward_and_backward_have_one_number_in_the_log(caplog):
    with caplog.at_level(logging.INFO, "stepwell"):
        for width in (3, 5):
            x, w = torch.randn(6, 4, requires_grad=True), torch.randn(4, width)
            torch.compile(net, backend="stepwell", dynamic=False)(x, w).backward()
    lines = [m for m in caplog.messages if "compiling" in m]
    numbers = [[int(n) for n in re.findall(rf"{done}compiling {kind} graph (\d+)", "\n".join(lines), re.MULTILINE)]
               for kind in ("FORWARDS", "BACKWARDS") for done in ("^", "^done ")]  # fmt: skip
    assert len(set(numbers[0])) == 2 and numbers == [numbers[0]] * 4


def test_opt_09_faults_can_be_put_anywhere_and_eager_may_answer():
    def fault(gm):
        raise RuntimeError("on purpose")

    fn, x = torch.compile(lambda x: x + 1, backend="stepwell", options={"fx_passes": {"post_grad": [fault]}}), torch.randn(3)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="on purpose"):
        fn(x)
    with torch._dynamo.config.patch(suppress_errors=True):
        torch.testing.assert_close(fn(x), x + 1)


# ---- AOTAutograd


def test_aot_04_a_partitioner_of_the_users():
    from torch._functorch.partitioners import default_partition

    saved = []

    def count(split):
        def partition(gm, inputs, **kwargs):
            forward, backward = split(gm, inputs, **kwargs)
            saved.append(len(forward.graph.output_node().args[0]))
            return forward, backward

        return partition

    def chain(x):
        return x.sin().cos().exp().tanh().sum()

    def save_everything(gm, inputs, **kwargs):
        return default_partition(gm, inputs, **kwargs)

    from torch._functorch.partitioners import min_cut_rematerialization_partition

    for split in (min_cut_rematerialization_partition, save_everything):
        torch._dynamo.reset()
        x, y = (torch.linspace(0, 1, 7).requires_grad_() for _ in range(2))
        torch.compile(chain, backend="stepwell", options={"partitioner": count(split)})(x).backward()
        chain(y).backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert saved[1] > saved[0]


def test_aot_08_printing_keeps_its_order_and_takes_no_place_in_the_signature(capfd):
    def fn(x):
        torch._higher_order_ops.print("first {}", 1)
        y = x.sin()
        torch._higher_order_ops.print("second {}", 2)
        return y + 1

    x = torch.randn(3)
    torch.testing.assert_close(torch.compile(fn, backend="stepwell", fullgraph=True)(x), x.sin() + 1)
    out = capfd.readouterr().out
    assert 0 <= out.find("first 1") < out.find("second 2")


def test_aot_09_compiled_autograd_with_hooks():
    """AOT-13 too: the backward graph is not ours to trace again, and hooks run."""
    def step(compiled):
        x, w = (t.detach().clone().requires_grad_() for t in given)
        w.register_hook(lambda g: g * 2)
        fn = torch.compile(net, backend="stepwell") if compiled else net
        loss = fn(x, w)
        if compiled:
            with torch._dynamo.compiled_autograd._enable(torch.compile(backend="stepwell")):
                loss.backward()
        else:
            loss.backward()
        return x.grad, w.grad

    given = operands()
    torch.testing.assert_close(step(True), step(False))


# ---- constants, names, results


def test_cn_02_small_constants_are_part_of_the_code(tmp_path):
    def fn(x):
        return x + torch.tensor([1.0, 2.5, 4.0])

    x = torch.randn(2, 3)
    torch.testing.assert_close(torch.compile(fn, backend="stepwell", options={"debug": str(tmp_path)})(x), fn(x))
    (text,) = tmp_path.glob("*/0_import.mlir")
    assert "nd.literal" in text.read_text() and "nd.constant" not in text.read_text()


def test_cn_13_constants_named_as_buffers_of_the_module():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("_tensor_constant0", torch.arange(9.0))

        def forward(self, x):
            return x * self._tensor_constant0 + torch.tensor([float(k) ** 2 for k in range(9)])

    x = torch.randn(2, 9)
    for module in (Net(), torch.export.export(Net(), (x,)).module()):
        torch.testing.assert_close(torch.compile(module, backend="stepwell")(x), Net()(x))


def test_mut_04_updated_arguments_keep_their_type_beside_results_that_are_no_tensors():
    """OUT-04 too."""
    def fn(x, y):
        x.mul_(y)
        return x.dtype, x + 1, None, x.shape[0]

    x, y = torch.randn(3, dtype=torch.float16), torch.tensor(2.0, dtype=torch.float64)
    own = x.clone()
    got, want = torch.compile(fn, backend="stepwell", dynamic=True)(own, y), fn(x, y)
    assert got[0] is torch.float16 and got[2] is None and got[3] == 3 and own.dtype is torch.float16
    torch.testing.assert_close((got[1], own), (want[1], x))


def test_sg_04_branches_of_the_same_names_in_two_conditionals():
    def fn(x, p):
        def true_fn(x):
            return x.sin()

        def false_fn(x):
            return x.cos()

        y = torch.cond(p, true_fn, false_fn, (x,))

        def outer(y):
            def true_fn(x):
                return x + 1

            def false_fn(x):
                return x - 1

            return torch.cond(p, true_fn, false_fn, (y,))

        return outer(y)

    compiled, x = torch.compile(fn, backend="stepwell", fullgraph=True), torch.randn(3)
    for p in (torch.tensor(True), torch.tensor(False)):
        torch.testing.assert_close(compiled(x, p), fn(x, p))


# ---- what is said


@pytest.fixture
def hints():
    """The messages of torch's performance hints."""
    found, logger = [], logging.getLogger("stepwell.tools.debug.graph_reports.__perf_hints")
    torch._logging.set_logs(perf_hints=True)

    class Keep(logging.Handler):
        def emit(self, record):
            found.append(record.getMessage())

    handler = Keep()
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)
    torch._logging.set_logs()


def test_op_09_hints_name_what_runs_in_the_library(hints, monkeypatch):
    """DBG-11 too."""
    monkeypatch.setattr("stepwell.tools.debug.compile_log._said", set())
    for _ in range(2):
        torch._dynamo.reset()
        torch.compile(lambda x: torch._aminmax(x)[0] + 1, backend="stepwell", options={"cache": "off"})(torch.randn(3))
    assert hints == ["aten._aminmax.default runs through ATen: nothing is fused with it"]


def test_pass_08_tf32_is_hinted_at_once(caplog, monkeypatch, fresh):
    module = _imported(lambda x: x @ x, torch.randn(4, 4))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr("stepwell.tools.debug.compile_log._said", set())
    for device, said in (("cpu", 0), ("cuda:0", 1), ("cuda:0", 1)):
        hint_tf32(module, device)
        assert sum("set_float32_matmul_precision" in m for m in caplog.messages) == said


def _imported(fn, *inputs):
    from torch.fx.experimental.proxy_tensor import make_fx

    from stepwell.lowering.fx_to_nd import import_graph

    return import_graph(make_fx(lambda *args: (fn(*args),), tracing_mode="fake")(*inputs), inputs).module


def test_pass_12_the_log_says_which_options_were_changed(caplog, monkeypatch):
    monkeypatch.delenv("STEPWELL_ON_FAILURE")
    with caplog.at_level(logging.INFO, "stepwell"):
        torch.compile(lambda x: x + 1, backend="stepwell", options={"numerics": "eager", "cache": "off"})(torch.randn(3))
    (line,) = [m for m in caplog.messages if m.startswith("compiling INFERENCE")]
    assert line.endswith("with numerics='eager', cache='off'")


def test_dbg_06_the_log_lists_matrix_products(caplog):
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3), torch.nn.Linear(3, 16, bias=False))
    with caplog.at_level(logging.INFO, "stepwell"), torch.no_grad():
        torch.compile(model, backend="stepwell", options={"cache": "off"})(torch.randn(5, 8))
    (table,) = [m for m in caplog.messages if m.startswith("matrix products")]
    rows = [line.split() for line in table.splitlines()[1:]]
    assert rows[0] == ["type", "B", "M", "N", "K", "count"]
    assert {tuple(r[1:]) for r in rows[1:]} == {("1", "5", "16", "8", "1"), ("1", "5", "3", "16", "1"), ("1", "5", "16", "3", "1")}


def test_dbg_08_a_dump_is_replayed_without_the_model(tmp_path):
    """The commands of the dump make the same kernels from the IR of the import. DBG-13: its graph has sizes, strides and devices."""
    import os
    import shlex

    from stepwell.tools.opt.main import main

    def fn(x):
        return (x.t() * 2).softmax(-1)

    torch.compile(fn, backend="stepwell", options={"debug": str(tmp_path)})(torch.randn(3, 4))
    (folder,) = tmp_path.iterdir()
    assert 'f32[4, 3][1, 4]cpu' in (folder / "graph.py").read_text().replace('"', "")
    commands = [shlex.split(line)[1:] for line in (folder / "README.txt").read_text().splitlines() if line.startswith("opt-tool")]
    want = (folder / "kernels.ll").read_text()
    (folder / "kernels.ll").unlink()
    here = os.getcwd()
    os.chdir(folder)
    try:
        for command in commands:
            assert main(command) in (0, None)
    finally:
        os.chdir(here)
    # what a kernel is called comes from the places of its operators, which the text of a dump leaves out
    assert "k_mul_softmax" in want and (folder / "kernels.ll").read_text() == want.replace("k_mul_softmax", "k0")


def test_dbg_04_phases_and_keys_are_in_the_trace(tmp_path, monkeypatch):
    """FXC-14 too: the texts of two keys differ in the line that made the second a miss."""
    import stepwell.tools.debug.trace as traced

    events, artefacts = [], {}

    def record(name, metadata_fn=dict, *, payload_fn=lambda: None, **given):
        if name == "chromium_event":
            events.append(json.loads(json.dumps(payload_fn())))
        else:
            artefacts.setdefault(metadata_fn()["name"], []).append(payload_fn())

    monkeypatch.setattr(traced._log, "handlers", [logging.NullHandler()])
    monkeypatch.setattr("torch._logging._internal.trace_structured", record)
    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(tmp_path))
    for shift in (1, 2):
        torch._dynamo.reset()
        torch.compile(lambda x, s=shift: x + s, backend="stepwell", options={"cache": "on"})(torch.randn(3))
    whole = next(e for e in events if e["name"].startswith("stepwell inference graph"))
    inner = [e for e in events if e["name"] in ("stepwell import", "stepwell loop", "stepwell object")]
    assert len(inner) >= 3 and whole["ph"] == "X"
    assert any(whole["ts"] - 1e3 <= e["ts"] and e["ts"] + e["dur"] <= whole["ts"] + whole["dur"] + 1e3 for e in inner)
    first, second = (text.splitlines() for text in artefacts["stepwell_graph_cache_key"])
    assert [(a, b) for a, b in zip(first, second, strict=True) if a != b] == [("int 1", "int 2")]


def test_dbg_12_compilations_are_waited_for(monkeypatch):
    names = []

    class Counter:
        def __init__(self, name):
            self.name = name

        def guard(self):
            from contextlib import nullcontext

            names.append(self.name)
            return nullcontext()

    monkeypatch.setattr(torch.monitor, "_WaitCounter", Counter)
    with torch.no_grad():
        torch.compile(lambda x: F.relu(x) + 3, backend="stepwell")(torch.randn(3))
    assert names.count("pytorch.wait_counter.stepwell_compile") == 1


def test_fxc_10_what_the_cache_saves_is_counted(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(tmp_path))
    for _ in range(2):
        assert stepwell.counters["seconds_saved"] == 0
        torch._dynamo.reset()
        torch.compile(lambda x: x.sin() * 3, backend="stepwell", options={"cache": "on"})(torch.randn(3))
    assert stepwell.counters["graph_cache_hits"] == 1 and stepwell.counters["seconds_saved"] > 0


# ---- GPUs that are not here


def _on_devices(*tensors):
    """A graph that hands on tensors without memory, given by device and type."""
    from torch._subclasses import FakeTensor, FakeTensorMode

    graph, mode = torch.fx.Graph(), FakeTensorMode()
    for k, (device, dtype) in enumerate(tensors):
        node = graph.placeholder(f"x{k}")
        node.meta["val"] = FakeTensor(mode, torch.empty(3, dtype=dtype, device="meta"), torch.device(device))
    graph.output(tuple(graph.nodes))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def test_pass_05_passes_run_with_the_only_gpu_of_their_graph(no_gpu, monkeypatch):
    from contextlib import contextmanager

    from stepwell.tools.extensions.fx_passes import run_fx_passes

    current, seen = ["cuda:0"], []

    @contextmanager
    def device(wanted):
        current.append(str(wanted))
        yield
        current.pop()

    places = (["cuda:1", "cpu"], ["cuda:1", "cuda:2"], ["cpu"], ["cuda:2", "cuda:2"])
    graphs = [_on_devices(*((place, torch.float32) for place in one)) for one in places]  # before torch thinks that there is a GPU
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for gm in graphs:
        run_fx_passes({"joint": [lambda gm: seen.append(current[-1])]}, "joint", gm)
    assert seen == ["cuda:1", "cuda:0", "cuda:0", "cuda:2"] and current == ["cuda:0"]


def test_dv_07_a_gpu_without_bfloat16_runs_the_graph_eagerly(no_gpu, monkeypatch):
    from stepwell.tools.backend.torch_backend import emulates_bf16

    half = _on_devices(("cuda:1", torch.bfloat16), ("cpu", torch.float32))
    single = _on_devices(("cuda:1", torch.float32), ("cpu", torch.bfloat16))
    assert emulates_bf16(half) == ""  # there is no GPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"old {device}")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert emulates_bf16(half) == "old cuda:1" and emulates_bf16(single) == ""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert emulates_bf16(half) == ""


def test_dv_07_says_so(monkeypatch, caplog):
    monkeypatch.setattr("stepwell.tools.backend.torch_backend.emulates_bf16", lambda gm: "an old GPU")
    x = torch.randn(4)
    with caplog.at_level(logging.WARNING, "stepwell"):
        got = torch.compile(lambda x: x.sin() + 1, backend="stepwell", options={"cache": "off"})(x)
    assert torch.equal(got, x.sin() + 1)
    assert "an old GPU does not compute in bfloat16" in caplog.text


def test_cm_07_kernels_are_compiled_at_once_and_failures_are_raised(monkeypatch, tmp_path):
    """By threads: Triton's compiler lets others run. One that fails is an error of its kernel, and keeps nobody waiting."""
    import threading

    from stepwell.targets.triton import compile as compiling
    from stepwell.targets.triton.gpu import KernelOptions, gpu_target

    together = threading.Barrier(2)

    def build(text, target, options, stage):
        together.wait(timeout=60)
        if text == "bad":
            raise ValueError("no such kernel")
        return compiling.Built(stage, text.upper(), {"name": text})

    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiling, "build", build)
    monkeypatch.setattr(compiling, "_workers", lambda: 2)
    monkeypatch.setattr(compiling, "_pool", None)
    target, options = gpu_target("sm_90"), KernelOptions()
    jobs = [compiling._submit(text, text, target, options, "ptx") for text in ("a", "b", "c", "bad")]
    assert [job.result(60).code for job in jobs[:3]] == ["A", "B", "C"]
    with pytest.raises(ValueError, match="no such kernel"):
        jobs[3].result(60)
    compiling._pool.shutdown()


# ---- rules that give nonsense, operators that give nothing


@pytest.mark.parametrize("given, message", [("wrong", "gave 'wrong', not a value"), ((1, 2), "gave .*, not a value")])
def test_a03_a_rule_that_gives_no_value_is_named(given, message, monkeypatch):
    from stepwell.errors import StepwellError
    from stepwell.lowering.fx_to_nd.core import registry

    monkeypatch.setitem(registry.REGISTRY, torch.ops.aten.sinc.default, lambda b, x: given)
    monkeypatch.setattr(registry, "_RESOLVED", {})
    with pytest.raises(StepwellError, match=f"sinc.*{message}"):
        _imported(torch.sinc, torch.randn(3))


def test_a02_an_operator_that_only_writes_is_before_its_readers():
    """And behind those that read what was there: it has no result that would say so."""
    with torch.library._scoped_library("a02", "FRAGMENT") as library:
        library.define("into(Tensor x, Tensor(a!) one, Tensor(b!) two) -> ()")
        library.impl("into", lambda x, one, two: (one.copy_(x + 1), two.copy_(x * 2), None)[-1], "CompositeExplicitAutograd")

        def fn(x, one, two):
            before = one.sum() + two
            torch.ops.a02.into(x.sin(), one, two[1:])
            between = one * two[1:]
            torch.ops.a02.into(x, two[:-1], one)
            return before, between, one + two[:-1]

        inputs = [torch.randn(4), torch.randn(4), torch.randn(5)]
        mine, theirs = [x.clone() for x in inputs], [x.clone() for x in inputs]
        got = torch.compile(fn, backend="stepwell", options={"cache": "off"})(*mine)
        torch.testing.assert_close(got, fn(*theirs))
        torch.testing.assert_close(mine, theirs)
