"""Programs of a GPU without a GPU: native entries and Python launch through a driver that runs kernels in the interpreter."""

import gc
import re
import struct
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from support import import_function
from torch._subclasses import FakeTensorMode
from xdsl.parser import Parser

from stepwell.dialects import host
from stepwell.errors import CompileError
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.targets.cpu.emit.module import emit_kernels
from stepwell.targets.cpu.jit import compile_text
from stepwell.targets.host import library_errors
from stepwell.targets.host.emit import emit_host
from stepwell.targets.host.gpu import emit as gpu_emit
from stepwell.targets.host.gpu import launches as gpu_launches
from stepwell.targets.host.gpu.driver import LaunchError, use_driver
from stepwell.targets.host.gpu.runtime_ir import Variant
from stepwell.targets.host.load import load_object_code, load_program
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.gpu import InterpretedDriver, interpreted_kernels


@pytest.fixture(params=["native", "python"])
def build(request):
    """A function that makes (callable, driver) of a function and example arguments."""

    def make(function, *args, dynamic=False, module=None, **driver):
        mode = "symbolic" if dynamic else "fake"
        if module is None:
            module = import_function(function, *args, mode=mode).module
            run(default_pipeline("gpu"), module, context())
        program = next(op for op in module.ops if isinstance(op, host.ProgramOp))
        native = request.param == "native"
        with use_driver(InterpretedDriver(module, **driver)) as launcher:
            text = emit_kernels(module)
            description = emit_host(text, program, native=native, kernels=interpreted_kernels(module))
            library = load_object_code(compile_text(text.text()), native)
            return load_program(description, library), launcher

    return make


def check(run, function, *args):
    expected = function(*args)
    got = run([a.clone() if a.storage_offset() == 0 else a for a in args])
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_kernels_and_library_calls_in_one_program(build):
    def layer(x, w, b):
        return (torch.softmax(F.gelu(F.linear(x, w, b)), -1),)

    args = torch.randn(6, 16), torch.randn(24, 16), torch.randn(24)
    run, driver = build(layer, *args)
    for _ in range(3):
        check(run, layer, *args)
    assert len(driver.launches) == 3 * len(driver.loads)  # each kernel is loaded once
    assert all(variant == Variant.ALL for _, _, variant in driver.loads)


def test_what_a_launch_passes(build):
    def scaled(x, n):
        return (x * n,)

    x = torch.randn(3000)
    run, driver = build(scaled, x, torch.tensor(2.5), stream=77)
    check(run, scaled, x, torch.tensor(2.5))
    (launch,) = driver.launches
    assert launch.grid == (3, 1, 1) and launch.threads % 32 == 0 and launch.shared == 0
    assert launch.stream == 0  # entering a device is what finds its stream: this program has none
    assert all(value % 16 == 0 for value in launch.values)


def test_sizes_and_numbers_are_passed_by_their_bits(build):
    text = """builtin.module {
      host.program @forward(%x: !host.tensor<f32>, %f: f64, %b: i1) {
        host.bind s0 = size %x 0 : !host.tensor<f32>
        %y = host.empty_output [s0] strides [1] : !host.tensor<f32>
        host.launch @k(%y : !host.tensor<f32>, %x : !host.tensor<f32>, %f : f64, %b : i1) [s0] grid [(s0 + 3) floordiv 4, 2]
        host.return(%y : !host.tensor<f32>) [arg(0)]
      }
      tt.func public @k(%y: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %x: !tt.ptr<f32>, %n: i64, %f: f64, %b: i1) {
        tt.return
      }
    }"""
    module = Parser(context(), text).parse_module()
    run, driver = build(None, module=module)
    x = torch.randn(10)
    (y,) = run([x, 1.5, True])
    assert y.shape == x.shape
    (launch,) = driver.launches
    assert launch.grid == (3, 2, 1)
    assert launch.values[1:3] == (x.data_ptr(), 10)
    assert struct.pack("<q", launch.values[3]) == struct.pack("<d", 1.5) and launch.values[4] == 1
    run([x[:0], 0.0, False])  # an empty grid: nothing is launched
    assert len(driver.launches) == 1


def test_a_kernel_that_waits_itself_may_be_launched_early(build):
    text = """builtin.module {
      host.program @forward(%x: !host.tensor<f32>) {
        host.launch @early(%x : !host.tensor<f32>) [] grid [1]
        host.launch @late(%x : !host.tensor<f32>) [] grid [2]
        host.return() []
      }
      tt.func public @early(%x: !tt.ptr<f32>) attributes {overlaps} {
        %0 = tt.elementwise_inline_asm "griddepcontrol.wait; // $0" {constraints = "=r", packed_element = 1 : i32, pure = false} -> i32
        tt.return
      }
      tt.func public @late(%x: !tt.ptr<f32>) {
        tt.return
      }
    }"""
    run, driver = build(None, module=Parser(context(), text).parse_module())
    for _ in range(2):
        run([torch.randn(4)])
    assert [(one.kernel, one.overlaps, one.grid) for one in driver.launches] == [("early", True, (1, 1, 1)), ("late", False, (2, 1, 1))] * 2


def test_addresses_that_are_not_aligned_take_the_other_variant(build):
    def function(x, y):
        return x * 2 + y.sum(), x[1:] + 1

    x, y = torch.randn(40, 16), torch.randn(40, 16)
    run, driver = build(function, x, y)
    check(run, function, x, y)
    shifted = torch.randn(40 * 16 + 1)[1:].view(40, 16)
    check(run, function, shifted, y)
    check(run, function, x, y)
    assert {variant for _, _, variant in driver.loads} == {Variant.ALL, Variant.NOTHING}
    assert len(set(driver.loads)) == len(driver.loads)


def test_dynamic_sizes(build):
    def function(x):
        return (torch.softmax(x * 2, -1), x.sum(0))

    run, _ = build(function, torch.randn(5, 7), dynamic=True)
    for shape in ((5, 7), (2, 300), (33, 2)):
        check(run, function, torch.randn(shape))


def test_sizes_within_bounds_have_a_kernel_of_their_own(build):
    """Rows of 300 are kept on chip up to 512 elements; longer ones run through the kernel for all sizes."""

    def function(x):
        return (torch.softmax(x * 2, -1),)

    run, driver = build(function, torch.randn(5, 300), dynamic=True)
    for shape in ((5, 300), (3, 512), (700, 1), (4, 513), (2, 0), (1, 2000)):
        check(run, function, torch.randn(shape))
    names, near, far = [launch.kernel for launch in driver.launches], "k_mul_softmax", "k_mul_softmax_1"
    assert names == [near, near, near, far, near, far]
    assert {name for _, name, _ in driver.loads} == {near, far}


def test_sizes_are_taken_for_multiples_of_16_where_they_are(build):
    def function(x):
        return (x * 2 + 1,)

    run, driver = build(function, torch.randn(32, 48), dynamic=True)
    for shape in ((32, 48), (16, 32), (32, 40), (5, 7)):
        check(run, function, torch.randn(shape))
    assert [variant for _, _, variant in driver.loads] == [Variant.ALL, Variant.ADDRESSES]
    check(run, function, torch.randn(32 * 48 + 1)[1:].view(32, 48))
    assert [variant for _, _, variant in driver.loads] == [Variant.ALL, Variant.ADDRESSES, Variant.NOTHING]
    assert [launch.variant for launch in driver.launches] == [*[Variant.ALL] * 2, *[Variant.ADDRESSES] * 2, Variant.NOTHING]


def test_a_kernel_that_fails_is_named(build):
    def function(x, i):
        return (x[i],)

    x = torch.randn(8)
    run, driver = build(function, x, torch.tensor([1, 2]))
    with pytest.raises(LaunchError, match=r"kernel @k_index .*could not be launched on a grid of 1 x 1 x 1: .*out of range"):
        run([x, torch.tensor([1, 20])])
    check(run, function, x, torch.tensor([3, 2]))
    assert driver.launches


def test_a_grid_that_is_too_large_is_refused(build):
    text = """builtin.module {
      host.program @forward(%x: !host.tensor<f32>, %n: i64) {
        host.bind s0 = value %n : i64
        host.launch @k(%x : !host.tensor<f32>) [] grid [1, s0]
        host.return() []
      }
      tt.func public @k(%x: !tt.ptr<f32>) {
        tt.return
      }
    }"""
    run, driver = build(None, module=Parser(context(), text).parse_module())
    with pytest.raises(LaunchError, match="kernel @k has a grid of 1 x 65536 x 1 programs; a GPU takes at most"):
        run([torch.randn(4), 65536])
    assert not driver.launches


def test_a_program_runs_at_the_level_of_the_host():
    from stepwell.tools.opt.run_ir import run_module

    def function(x, y):
        return torch.softmax(x @ y, -1), x.sum(0)

    args = torch.randn(5, 8), torch.randn(8, 6)
    module = import_function(function, *args).module
    run(default_pipeline("gpu"), module, context())
    for got, expected in zip(run_module(module, context(), args), function(*args), strict=True):
        torch.testing.assert_close(got, expected)


def test_threads_wait_where_one_loads_what_another_stored(build):
    def function(x, w, b):
        h = F.silu(F.group_norm(x, 4, w, b))
        return h, F.max_pool2d(h, 2)

    args = torch.randn(2, 8, 64, 64), torch.rand(8), torch.rand(8)
    run, _ = build(function, *args)
    check(run, function, *args)
    assert any("gpu.barrier" in kernel.text for kernel in run.description.kernels)


def test_a_load_under_the_mask_of_another_loop_is_a_load_of_its_own(build):
    def function(g, x, mean, rstd, w):
        h = torch.ops.aten.silu_backward(g, x)
        return torch.ops.aten.native_group_norm_backward(h, x, mean, rstd, w, 4, 8, 36, 4, [True, True, True])

    x, g, w = torch.randn(4, 8, 6, 6), torch.randn(4, 8, 6, 6), torch.rand(8)
    _, mean, rstd = torch.ops.aten.native_group_norm(x, w, w, 4, 8, 36, 4, 1e-5)
    args = g, x, mean, rstd, w
    run, _ = build(function, *args)
    check(run, function, *args)


def test_running_out_of_memory_has_torchs_type(monkeypatch):
    """Also where the C shim hands no text on: then the allocator's count tells."""
    ooms = {"num_ooms": 0}
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: ooms)
    monkeypatch.setattr(library_errors, "_out_of_memory", {})
    assert type(library_errors.library_error("CUDA out of memory. Tried to allocate 2 GiB", "cuda:0")) is torch.OutOfMemoryError
    assert type(library_errors.library_error("mat1 and mat2 shapes", "cuda:0")) is RuntimeError
    assert type(library_errors.library_error("", "cuda:0")) is RuntimeError
    ooms["num_ooms"] = 2
    assert type(library_errors.library_error("", "cuda:0")) is torch.OutOfMemoryError
    assert type(library_errors.library_error("", "cuda:0")) is RuntimeError
    assert "library operator failed" in str(library_errors.library_error("", "cpu"))


NULLS = """builtin.module {
  host.program @forward(%x: !host.tensor<f32>, %y: !host.tensor<f32>) {
    host.bind s0 = size %y 0 : !host.tensor<f32>
    host.check %x [4, 3] strides [3, 1] "argument 0" : !host.tensor<f32>
    host.check %y [s0] strides [1] "argument 1" : !host.tensor<f32>
    host.launch @k(%y : !host.tensor<f32>, %x : !host.tensor<f32>) [] offsets [0, 8] grid [1]
    host.return() []
  }
  tt.func public @k(%y: !tt.ptr<f32>, %x: !tt.ptr<f32>) {
    tt.return
  }
}"""


def test_a_buffer_without_memory_is_refused_before_the_launch(build):
    """A storage that was freed, as sharded parameters are, or a tensor that is none; a tensor without elements has no address either."""
    run, driver = build(None, module=Parser(context(), NULLS).parse_module())
    x = torch.rand(4, 3)
    run([x, torch.empty(0)])
    assert len(driver.launches) == 1
    x.untyped_storage().resize_(0)
    with pytest.raises(Exception, match="operand 1 of the launch has elements but no memory"):
        run([x, torch.empty(0)])
    assert len(driver.launches) == 1


def test_an_address_that_is_no_allocations_is_refused_by_the_interpreter(build):
    run, driver = build(None, module=Parser(context(), NULLS).parse_module())
    function, here = driver.load(0, interpreted_kernels(Parser(context(), NULLS).parse_module())[0], Variant.ALL)[0], torch.rand(4, 3)
    assert driver.launch(function, (1, 1, 1), 32, 0, 0, [here.data_ptr(), here.data_ptr()]) == 0
    assert driver.launch(function, (1, 1, 1), 32, 0, 0, [here.data_ptr(), 0x1234560]) != 0
    assert "argument 1: the address 0x1234560 lies in no allocation" in driver.message(999)


def test_operands_on_several_devices_are_refused_while_compiling():
    text = re.sub(r'(%x ?: |0" : )!host.tensor<f32>', r'\1!host.tensor<f32, "cuda:0">', NULLS)
    module = Parser(context(), text).parse_module()
    said = "kernel @k of host program @forward has operands on several devices: 0 (%y of f32) on cpu, 1 (%x of f32) on cuda:0"
    with pytest.raises(CompileError, match=re.escape(said)):
        emit_host(emit_kernels(module), host.program_of(module), native=False, kernels=interpreted_kernels(module))


WORKSPACES = """builtin.module {
  host.program @forward(%x: !host.tensor<i64, "DEVICE">, %y: !host.tensor<i64, "DEVICE">) arena 1024 {
    %a = host.arena_ptr 0
    %b = host.arena_ptr 512
    %v = host.workspace 24 else %a
    %w = host.workspace 8 else %b
    host.launch @clear(%v : !host.ptr) [] grid [1] clears
    host.launch @clear(%w : !host.ptr) [] grid [1] clears
    host.launch @count(%x : !host.tensor<i64, "DEVICE">, %v : !host.ptr) [] grid [1]
    host.launch @count(%y : !host.tensor<i64, "DEVICE">, %w : !host.ptr) [] grid [1]
    host.launch @count(%y : !host.tensor<i64, "DEVICE">, %w : !host.ptr) [] grid [1]
    host.return() []
  }
  tt.func public @clear(%w: !tt.ptr<i64> {tt.divisibility = 16 : i32}) {
    %zero = arith.constant 0 : i64
    tt.store %w, %zero : !tt.ptr<i64>
    tt.return
  }
  tt.func public @count(%x: !tt.ptr<i64>, %w: !tt.ptr<i64> {tt.divisibility = 16 : i32}) {
    %one = arith.constant 1 : i64
    %n = tt.atomic_rmw add, relaxed, gpu, %w, %one : (!tt.ptr<i64>, i64) -> i64
    tt.store %x, %n : !tt.ptr<i64>
    tt.return
  }
}"""
"""Gives how often the kernels have been launched over their workspaces."""


@pytest.fixture
def counters(build, request, monkeypatch):
    """A function that makes (count, driver): `count()` calls the program above on the stream `driver.stream`, in the context
    `driver.current`, and gives both numbers. All memory is the CPU's."""
    native = request.node.callspec.params["build"] == "native"
    monkeypatch.setattr(gpu_emit, "device_codes", lambda device: (0, -1))
    zeros = gpu_launches._zeros
    monkeypatch.setattr(gpu_launches, "_zeros", lambda bytes, device: zeros(bytes, "cpu"))

    def make(device="cuda:0" if native else "cpu", **driver):
        module = Parser(context(), WORKSPACES.replace("DEVICE", device)).parse_module()
        run, launcher = build(None, module=module, **driver)
        if not native:
            monkeypatch.setattr(gpu_launches.GpuLaunches, "_here", lambda self: (launcher.current, launcher.stream))

        def count():
            x, y = torch.full((2, 1), -1)
            run([x, y])
            return x.item(), y.item()

        return count, launcher

    return make


def test_workspaces_stay_on_the_default_stream(counters):
    count, driver = counters(context=5)
    assert [count() for _ in range(3)] == [(0, 1), (1, 3), (2, 5)]
    assert [launch.kernel for launch in driver.launches] == ["count"] * 9
    assert len({launch.values[1] for launch in driver.launches}) == 2
    assert all(launch.values[1] % 16 == 0 for launch in driver.launches)


def test_workspaces_of_other_streams_are_cleared_in_every_call(counters):
    count, driver = counters(context=5, stream=77)
    assert [count() for _ in range(3)] == [(0, 1)] * 3
    assert [launch.kernel for launch in driver.launches] == ["clear", "clear", "count", "count", "count"] * 3
    driver.stream = 0
    assert [count() for _ in range(2)] == [(0, 1), (1, 3)]
    driver.stream = 77
    assert count() == (0, 1)
    driver.stream = 0
    assert count() == (2, 5)


def test_each_context_and_each_program_has_workspaces_of_its_own(counters):
    count, driver = counters(context=5)
    assert count() == (0, 1)
    driver.current = 6
    assert [count() for _ in range(2)] == [(0, 1), (1, 3)]
    driver.current = 5
    assert count() == (1, 3)
    other, _ = counters(context=5)
    assert other() == (0, 1) and count() == (2, 5)


def test_threads_that_call_first_at_once_have_the_same_workspaces(counters, monkeypatch):
    count, _ = counters(context=5)
    zeros, both = gpu_launches._zeros, threading.Barrier(2)

    def slow(*args):
        both.wait(timeout=60)
        return zeros(*args)

    monkeypatch.setattr(gpu_launches, "_zeros", slow)
    with ThreadPoolExecutor(2) as pool:
        found = [call.result() for call in [pool.submit(count) for _ in range(2)]]
    assert sorted(x for x, _ in found) == [0, 1]
    assert count()[0] == 2


def test_a_call_without_memory_for_workspaces_fails_and_the_next_one_works(counters, monkeypatch):
    count, _ = counters(device="cpu")
    zeros = gpu_launches._zeros

    def none(*args):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(gpu_launches, "_zeros", none)
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        count()
    monkeypatch.setattr(gpu_launches, "_zeros", zeros)
    assert [count() for _ in range(2)] == [(0, 1), (1, 3)]


def test_workspaces_go_with_their_program(counters, monkeypatch):
    zeros, made = gpu_launches._zeros, []

    def noted(*args):
        found = zeros(*args)
        made.append(weakref.ref(found))
        return found

    monkeypatch.setattr(gpu_launches, "_zeros", noted)
    count, _ = counters(context=5)
    count()
    gc.collect()
    assert [ref() is not None for ref in made] == [True]
    del count
    gc.collect()
    assert [ref() for ref in made] == [None]


def test_workspaces_are_real_where_a_mode_makes_tensors_fake():
    with FakeTensorMode():
        found = gpu_launches._zeros(24, "cpu")
    assert type(found) is torch.Tensor and found.tolist() == [0] * 24
