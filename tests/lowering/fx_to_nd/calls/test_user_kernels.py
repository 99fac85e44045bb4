"""Users' Triton kernels in a graph, without Triton: launches at every level, what they write to, sizes, numbers, unaligned memory."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table, triton_kernel_wrapper_functional, triton_kernel_wrapper_mutation
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from xdsl.parser import Parser

from stepwell.dialects import host, nd
from stepwell.dialects.nd.call_args import KERNEL_CALL
from stepwell.dialects.tt import structure as tt_structure
from stepwell.errors import StepwellError
from stepwell.lowering.fx_to_nd import import_graph
from stepwell.lowering.fx_to_nd.core.tt_functions import with_parameters, written_arguments
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.passes.manager.verify import verify_ir
from stepwell.targets.cpu.emit.module import emit_kernels
from stepwell.targets.cpu.jit import compile_text
from stepwell.targets.host.emit import emit_host
from stepwell.targets.host.gpu.driver import use_driver
from stepwell.targets.host.load import load_object_code, load_program
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.gpu import InterpretedDriver, interpreted_kernels
from stepwell.tools.interpret.loop import run_loop
from stepwell.tools.interpret.nd import run_nd

AXPY = """
tt.func public @axpy(%x: !tt.ptr<f32> {H}, %out: !tt.ptr<f32> {H}, %n: i32, %stride: i32, %scale: f32) {
  %c = arith.constant 16 : i32
  %p = tt.get_program_id x : i32
  %b = arith.muli %p, %c : i32
  %r = tt.make_range {end = 16 : i32, start = 0 : i32} : tensor<16xi32>
  %s = tt.splat %b : i32 -> tensor<16xi32>
  %i = arith.addi %s, %r : tensor<16xi32>
  %ns = tt.splat %n : i32 -> tensor<16xi32>
  %m = arith.cmpi slt, %i, %ns : tensor<16xi32>
  %ss = tt.splat %stride : i32 -> tensor<16xi32>
  %at = arith.muli %i, %ss : tensor<16xi32>
  %xs = tt.splat %x : !tt.ptr<f32> -> tensor<16x!tt.ptr<f32>>
  %xp = tt.addptr %xs, %at : tensor<16x!tt.ptr<f32>>, tensor<16xi32>
  %v = tt.load %xp, %m : tensor<16x!tt.ptr<f32>>
  %k = tt.splat %scale : f32 -> tensor<16xf32>
  %y = arith.mulf %v, %k : tensor<16xf32>
  %os = tt.splat %out : !tt.ptr<f32> -> tensor<16x!tt.ptr<f32>>
  %op = tt.addptr %os, %i : tensor<16x!tt.ptr<f32>>, tensor<16xi32>
  tt.store %op, %y, %m : tensor<16x!tt.ptr<f32>>
  tt.return
}""".replace("{H}", "{tt.divisibility = 16 : i32}")
NAMES = ("x", "out", "n", "stride", "scale")


class Kernel:
    """What the importer sees of a triton.JITFunction."""

    params = tuple(
        SimpleNamespace(name=name, is_constexpr=False, do_not_specialize=name in ("n", "stride"), has_default=False, default=None)
        for name in NAMES
    )


KERNEL = Kernel()
asked = []


def make_kernel(requests, samples, grids, device):
    """As Triton's front end would make it."""
    asked.append((requests, samples, grids, device))
    module = Parser(context(), AXPY).parse_module()
    (function,) = module.ops
    with_parameters(function, NAMES, requests[0].fixed, requests[0].passed)
    return 0, module


def axpy(x, out, n, stride, scale):
    """A launch as torch's wrapper makes it: the new value of `out`."""
    kernel = kernel_side_table.add_kernel(KERNEL)
    constants = kernel_side_table.add_constant_args({})
    given = {"x": x, "out": out, "n": n, "stride": stride, "scale": scale}
    return triton_kernel_wrapper_functional(
        kernel_idx=kernel, constant_args_idx=constants, grid=[((n + 15) // 16, 1, 1)], tma_descriptor_metadata={}, kwargs=given,
        tensors_to_clone=["x", "out"],
    )["out"]  # fmt: skip


def imported(function, *shapes, symbolic=False, device="cpu"):
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv() if symbolic else None)
    with mode:
        args = [torch.empty(s, device=device) for s in shapes]
    if symbolic:
        args = [mode.from_tensor(torch.empty(s), static_shapes=False) for s in shapes]
    gm = make_fx(function, tracing_mode="symbolic" if symbolic else "fake", _allow_non_fake_inputs=True)(*args)
    asked.clear()
    return import_graph(gm, args, make_kernel=make_kernel)


def lowered(found, *stages):
    run(default_pipeline("gpu", stages=stages), found.module, context())
    verify_ir(found.module)
    return found.module


def scaled(x):
    return (axpy(x * 2, torch.empty(x.shape[0]), x.shape[0], x.stride(0), 2.5) + 1,)


def check(found, function, *args):
    for got, expected in zip(found, function(*args), strict=True):
        torch.testing.assert_close(got, expected)


def meaning(x):
    return (x * 2 * 2.5 + 1,)


@pytest.mark.parametrize("size", [1, 7, 100])
def test_a_launch_runs_at_every_level(size):
    found, x = imported(scaled, (size,)), torch.randn(size)
    check(run_nd(found.module, [x]), meaning, x)
    for stages in (("nd",), ("loop",), ("mem",), ("tt",)):
        lowered(found, *stages)
        check(run_loop(found.module, [x]), meaning, x)
        again = Parser(context(), str(found.module)).parse_module()
        check(run_loop(again, [x]), meaning, x)


def test_opt_tool_runs_a_file_with_a_kernel():
    from stepwell.tools.opt.run_ir import run_module

    found, x = imported(scaled, (40,)), torch.randn(40)
    for stages in (("nd",), ("loop",), ("mem",), ("tt",), ("host",)):
        lowered(found, *stages)
        check(run_module(found.module, context(), [x]), meaning, x)


def test_what_torch_empty_gave_is_not_filled():
    found = imported(scaled, (100,))
    module = lowered(found, "nd", "loop", "mem", "tt")
    launches = [op for op in module.walk() if isinstance(op, host.LaunchOp)]
    assert [op.kernel.string_value() for op in launches] == ["k_mul", "axpy", "k_add"]
    assert [int(e) for e in launches[1].grid.data] == [7, 1, 1]


@pytest.mark.parametrize("native", [True, False])
def test_the_program_of_the_graph_launches_it(native):
    """OP-14, D10."""
    found = imported(scaled, (100,))
    module = lowered(found, "nd", "loop", "mem", "tt", "host")
    with use_driver(InterpretedDriver(module)) as driver:
        text = emit_kernels(module)
        description = emit_host(text, host.program_of(module), native=native, kernels=interpreted_kernels(module))
        program = load_program(description, load_object_code(compile_text(text.text()), native))
        x = torch.randn(100)
        check(program([x]), meaning, x)
    assert [launch.kernel for launch in driver.launches] == ["k_mul", "axpy", "k_add"]


def test_numbers_of_the_graph_stand_in_the_kernel():
    found = imported(scaled, (100,))
    (((request,), samples, grids, device),) = asked
    assert request.fixed == {"n": 100, "stride": 1, "scale": 2.5} and request.passed == ("x", "out")
    assert list(request.signature.values()) == ["*fp32", "*fp32", "i32", "i32", "fp32"]
    assert [s.bytes for s in samples] == [400, 400] and grids == [(7, 1, 1)] and device == "cpu"
    (kernel,) = [op for op in found.module.ops if isinstance(op, tt_structure.FuncOp)]
    assert len(kernel.body.block.args) == 2


def test_sizes_are_passed():
    def function(x):
        return (axpy(x.t()[0], torch.empty(x.shape[0]), x.shape[0], x.stride(0), 3.0),)

    found = imported(function, (8, 6), symbolic=True)
    (((request,), samples, _, _),) = asked
    assert request.passed == ("x", "out", "n", "stride") and request.signature["n"] == "i32"
    assert [s.value for s in samples[2:]] == [8, 6]
    module = lowered(found, "nd", "loop", "mem", "tt")
    for shape in ((8, 6), (33, 5), (1, 40)):
        x = torch.randn(shape)
        check(run_loop(module, [x]), lambda x: (x[:, 0] * 3,), x)


def test_a_number_of_the_run_is_passed():
    def function(x, s):
        return (axpy(x, torch.empty(x.shape[0]), x.shape[0], 1, s.item()),)

    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    with mode:
        args = [torch.empty(20), torch.empty(())]
    gm = make_fx(function, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*args)
    asked.clear()
    found = import_graph(gm, args, make_kernel=make_kernel)
    assert asked[0][0][0].passed[-1] == "scale"
    module = lowered(found, "nd", "loop", "mem", "tt")
    x = torch.randn(20)
    check(run_loop(module, [x, torch.tensor(1.5)], found.constants, found.objects), lambda x: (x * 1.5,), x)


def test_an_argument_is_written_in_place():
    graph = Graph()
    with FakeTensorMode() as mode:
        vals = [torch.empty(40), torch.empty(40)]
    x, out = (graph.placeholder(name) for name in ("x", "out"))
    for node, val in zip((x, out), vals, strict=True):
        node.meta["val"] = val
    kwargs = {"x": x, "out": out, "n": 40, "stride": 1, "scale": 2.0}
    node = graph.call_function(
        triton_kernel_wrapper_mutation, (), {
            "kernel_idx": kernel_side_table.add_kernel(KERNEL), "constant_args_idx": kernel_side_table.add_constant_args({}),
            "grid": [(3, 1, 1)], "tma_descriptor_metadata": {}, "kwargs": kwargs,
        },
    )  # fmt: skip
    node.meta["val"] = None
    graph.output(())
    assert mode is vals[0].fake_mode
    found = import_graph(GraphModule({}, graph), vals, make_kernel=make_kernel)
    module = lowered(found, "nd", "loop", "mem", "tt")
    assert sum(isinstance(op, host.LaunchOp) for op in module.walk()) == 1  # no copies
    a, b = torch.randn(40), torch.zeros(40)
    run_loop(module, [a, b])
    torch.testing.assert_close(b, a * 2)


def test_memory_that_is_not_aligned_takes_a_kernel_without_the_hint():
    def function(x):
        return (axpy((x * 2)[1:], torch.empty(19), 19, 1, 1.0),)

    found = imported(function, (20,))
    module = lowered(found, "nd", "loop", "mem", "tt")
    kernels = {f.sym_name.data: f for f in module.ops if isinstance(f, tt_structure.FuncOp)}
    assert not kernels["axpy_any0"].arg_attrs.data[0].data and kernels["axpy_any0"].arg_attrs.data[1].data
    x = torch.randn(20)
    check(run_loop(module, [x]), lambda x: (x[1:] * 2,), x)


def test_equal_kernels_stand_once_and_others_get_names():
    def function(x):
        first = axpy(x, torch.empty(10), 10, 1, 2.0)
        second = axpy(first, torch.empty(10), 10, 1, 2.0)
        return (axpy(second, torch.empty(10), 10, 1, 3.0),)

    found = imported(function, (10,))
    assert [f.sym_name.data for f in found.module.ops if isinstance(f, tt_structure.FuncOp)] == ["axpy", "axpy_1"]
    x = torch.randn(10)
    check(run_loop(lowered(found, "nd", "loop", "mem", "tt"), [x]), lambda x: (x * 12,), x)


def test_without_a_kernel_triton_launches_it():
    def refuse(*_):
        raise StepwellError("it needs something that there is not")

    with FakeTensorMode(allow_non_fake_inputs=True):
        args = [torch.empty(20)]
    gm = make_fx(scaled, tracing_mode="fake", _allow_non_fake_inputs=True)(*args)
    for hook in (None, refuse):
        found = import_graph(gm, args, make_kernel=hook)
        (call,) = [op for op in found.module.walk() if isinstance(op, nd.ExternOp)]
        assert call.call.data.target == "py" and found.counts.names["extern"]["triton_kernel_wrapper_functional"] == 1
    found = import_graph(gm, args, make_kernel=make_kernel)
    (call,) = [op for op in found.module.walk() if isinstance(op, nd.ExternOp)]
    assert call.call.data.target == KERNEL_CALL and not found.counts.extern


@pytest.mark.parametrize(
    ("body", "written"),
    [
        ("tt.store %out, %v : !tt.ptr<f32>", {1}),
        ("%u = tt.atomic_rmw fadd, relaxed, gpu, %x, %v, %t : (!tt.ptr<f32>, f32, i1) -> f32", {0}),
        ("%q = tt.addptr %x, %n : !tt.ptr<f32>, i32\n%p = arith.select %t, %q, %out : !tt.ptr<f32>\n"
         "tt.store %p, %v : !tt.ptr<f32>", {0, 1}),
        ("%p = scf.for %i = %n to %n step %n iter_args(%a = %out) -> (!tt.ptr<f32>) : i32 {\n tt.store %a, %v : !tt.ptr<f32>\n"
         "scf.yield %x : !tt.ptr<f32>\n}", {0, 1}),
        ("", set()),
    ],
)  # fmt: skip
def test_what_a_kernel_writes_to(body, written):
    text = f"""tt.func public @k(%x: !tt.ptr<f32>, %out: !tt.ptr<f32>, %n: i32) {{
      %t = arith.constant true
      %v = tt.load %x : !tt.ptr<f32>
      {body}
      tt.return
    }}"""
    (function,) = Parser(context(), text).parse_module().ops
    assert written_arguments(function) == written
