"""Graphs of several devices, run without a GPU: each part in its own device's program, kernels in the interpreter, memory of the CPU."""

from typing import Any

import pytest
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from stepwell.dialects import host
from stepwell.lowering.fx.decompositions import decomposition_table
from stepwell.lowering.fx_to_nd import import_graph
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.targets.cpu.emit.module import emit_kernels
from stepwell.targets.cpu.jit import compile_text
from stepwell.targets.host import arguments, emit
from stepwell.targets.host.gpu import emit as gpu_emit
from stepwell.targets.host.gpu.driver import use_driver
from stepwell.targets.host.load import load_object_code, load_program
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.gpu import InterpretedDriver, interpreted_kernels

FIRST, SECOND, CPU = "cuda:0", "cuda:1", "cpu"


@pytest.fixture
def compile_devices(no_gpu, monkeypatch):
    """A function that compiles a graph traced on pretended devices: (callable, [(device, driver of its program)...], the main one last)."""
    monkeypatch.setattr(arguments, "kind_code", lambda element_type, device: emit.dtype_code(element_type) & 1023 | 255 << 10)
    monkeypatch.setattr(gpu_emit, "device_codes", lambda device: (0, -1))

    def make(function, *inputs, dynamic=False, edit=None):
        programs = []

        def program(gm, args=()):
            imported = import_graph(gm, args, compile_body=program)
            module = imported.module
            run(default_pipeline("cpu" if imported.device == "cpu" else "gpu"), module, context())
            driver = InterpretedDriver(module, stream=70 + len(programs)) if imported.device != "cpu" else None
            programs.append((imported.device, driver))
            with use_driver(driver):
                text = emit_kernels(module)
                kernels = interpreted_kernels(module) if driver else []
                description = emit.emit_host(text, host.program_of(module), native=True, kernels=kernels, device=imported.device)
                library = load_object_code(compile_text(text.text()), True)
                loaded = load_program(description, library, imported.constants, imported.objects)
            return lambda values: loaded([values[k] for k in imported.inputs])

        mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
        with mode:
            named = {n: _symbol(mode.shape_env, n) for size, _ in inputs for n in size} if dynamic else {}
            args = [torch.empty(tuple(named.get(n, n) for n in size), device=device) for size, device in inputs]
            gm = make_fx(lambda *a: function(*a), decomposition_table=decomposition_table())(*args)
        for node in gm.graph.nodes:  # copies between devices that there are not
            if "device" in node.kwargs:
                node.kwargs = {**node.kwargs, "device": torch.device("cpu")}
        if edit is not None:
            edit(gm.graph)
        return program(gm, args), programs

    return make


def _symbol(env, n) -> Any:
    """A size that is not fixed; n in the example."""
    symbol = env.create_symbol(n, ConstantSource(f"n{n}"), DimDynamic.DYNAMIC)
    return env.create_symintnode(symbol, hint=n, source=ConstantSource(f"n{n}"))


def plain(function, *args):
    """What a function gives where all devices are the CPU."""
    move = torch.Tensor.to
    return function(*args, to=lambda t, device: move(t, CPU, copy=True))


def check(call, function, *args):
    expected = plain(function, *args)
    for got, want in zip(call([a.clone() for a in args]), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)  # some are exponentials of what was rounded
        assert got.stride() == want.stride()


def two_gpus(x, y, w, to=torch.Tensor.to):
    hidden = torch.softmax(x @ w, -1) * 2
    there = torch.relu(to(hidden, SECOND) + y).sum(-1, keepdim=True) * y
    back = torch.softmax(to(there.t(), FIRST) + 1, -1)
    return back, there.t(), (to(back, SECOND) + there).exp() * 2


library_on_the_cpu = pytest.mark.skipif(
    torch.backends.cuda.is_built(), reason="operators of torch for CUDA, which this build has, take no tensors of the CPU"
)


def test_each_device_has_programs_of_its_own(compile_devices):
    """DV-05: and its driver is that of its device."""
    call, programs = compile_devices(two_gpus, ((8, 8), FIRST), ((8, 8), SECOND), ((8, 8), FIRST))
    check(call, two_gpus, *(torch.randn(8, 8) for _ in range(3)))
    assert len(programs) == 3 and len({device for device, _ in programs}) == 2
    for device, driver in programs:
        assert set(driver.entered) == {int(device[-1])}
        assert {launch.stream for launch in driver.launches} == {driver.stream}  # the current one of its device
    kernels = sum(len(driver.loads) for _, driver in programs)
    assert kernels == sum(len(driver.launches) for _, driver in programs) <= 6


def cpu_and_gpu(x, y, to=torch.Tensor.to):
    running = (y * 2 + 1).cumsum(0)
    return x * 2 + to(running, FIRST), running.view(-1, 1), (running.exp() + running[1:2]).sum(0)


def test_what_is_computed_on_the_cpu_runs_in_its_kernels(compile_devices):
    call, programs = compile_devices(cpu_and_gpu, ((6, 8), FIRST), ((8,), CPU))
    check(call, cpu_and_gpu, torch.randn(6, 8), torch.randn(8))
    assert [device for device, _ in programs] == ["cpu", FIRST]
    assert len(programs[-1][1].launches) == 1  # no kernel of the GPU copies what lies on the CPU


@library_on_the_cpu
def test_copies_on_another_device_are_the_librarys(compile_devices):
    """A value that is both returned and the new value of an argument."""

    def function(x, y, to=torch.Tensor.to):
        there = torch.ops.aten.mm(y, y.t())
        return (x * 2).sin() + to(there, FIRST), there

    def write(graph):
        y = [n for n in graph.nodes if n.op == "placeholder"][1]
        value = next(n for n in graph.nodes if n.target is torch.ops.aten.mm.default)
        with graph.inserting_before(list(graph.nodes)[-1]):
            graph.call_function(torch.ops.aten.copy_.default, (y, value)).meta = dict(value.meta)

    call, programs = compile_devices(function, ((8, 8), FIRST), ((8, 8), SECOND), edit=write)
    x, y = torch.randn(8, 8), torch.randn(8, 8)
    ours = y.clone()
    got = call([x, ours])
    for a, b in zip(got, plain(function, x, y), strict=True):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(ours, y @ y.t())
    assert len({t.data_ptr() for t in (*got, ours)}) == 3
    (device, driver), = programs
    assert device == FIRST and len(driver.launches) == 1


@library_on_the_cpu
def test_sizes_of_parts_are_symbols(compile_devices):
    call, programs = compile_devices(two_gpus, ((8, 8), FIRST), ((8, 8), SECOND), ((8, 8), FIRST), dynamic=True)
    for n in (8, 5, 33):
        check(call, two_gpus, *(torch.randn(n, n) for _ in range(3)))
    assert len(programs) == 3


def test_several_results_and_views_of_them_leave_a_part(compile_devices):
    aten = torch.ops.aten

    def function(x, w, y, u, to=torch.Tensor.to):
        here = torch.softmax(x @ w, -1)
        spread, mean = aten.var_mean.correction(torch.relu(to(here, SECOND) @ u), [1], keepdim=True)
        there = spread * y
        halves = aten.split.Tensor(there, 4, 1)
        columns = aten.var_mean.correction(spread + mean * y, [0])[0]
        return (to(spread, FIRST) + here.sum(-1, keepdim=True)).sum(0), mean * 2, columns, halves[1], aten.view(there, [2, 4, 8]) + 1

    call, programs = compile_devices(function, ((8, 8), FIRST), ((8, 8), FIRST), ((8, 8), SECOND), ((8, 8), SECOND))
    check(call, function, *(torch.randn(8, 8) for _ in range(4)))
    assert {device for device, _ in programs} == {FIRST, SECOND}


def test_an_optimiser_that_counts_its_steps_on_the_cpu(compile_devices):
    def step(p, g, m, n, to=torch.Tensor.to):
        (n,) = torch._foreach_add([n], 1)
        m = torch.lerp(m, g, 0.1)
        return p - 1e-3 * (m / (1 - 0.9**n)), m, n

    call, programs = compile_devices(step, *[((5, 6), FIRST)] * 3, ((), CPU))
    check(call, step, *(torch.rand(5, 6) for _ in range(3)), torch.tensor(3.0))
    assert [device for device, _ in programs] == [CPU, FIRST]


def test_a_part_of_one_operator_is_the_librarys(compile_devices):
    def function(x, y, to=torch.Tensor.to):
        return x * 2 + 1, y.exp()

    call, programs = compile_devices(function, ((4, 5), FIRST), ((4, 5), SECOND))
    check(call, function, torch.randn(4, 5), torch.randn(4, 5))
    assert [device for device, _ in programs] == [FIRST]


def test_writes_come_after_what_reads_their_argument(compile_devices):
    def function(x, y, to=torch.Tensor.to):
        doubled = (y * 2).exp() + 1
        moved = ((to(doubled, FIRST) + x).sin() * 2).cos() * x + 1
        return moved, (to(moved, SECOND) * 3 + y).exp()

    def write(graph):
        y = [n for n in graph.nodes if n.op == "placeholder"][1]
        value = next(n for n in graph.nodes if n.target is torch.ops.aten.add.Tensor)
        last = list(graph.nodes)[-1]
        with graph.inserting_before(last):
            graph.call_function(torch.ops.aten.copy_.default, (y, value)).meta = dict(value.meta)

    call, programs = compile_devices(function, ((4, 5), FIRST), ((4, 5), SECOND), edit=write)
    x, y = torch.randn(4, 5), torch.rand(4, 5)  # no large exponentials, whose sines would differ in the last digits
    ours = y.clone()
    got = call([x, ours])
    for a, b in zip(got, plain(function, x, y), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-3, atol=1e-4)  # the sine of an exponential: its last bit counts
    torch.testing.assert_close(ours, (y * 2).exp() + 1)
    assert len(programs) > 1
