"""Kernels that have descriptors of their buffers: what a lowering asks for, down to the launch."""

import pytest
import torch
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from xdsl.dialects import arith
from xdsl.dialects.builtin import f32, i32, i64
from xdsl.ir import Block, Region
from xdsl.parser import Parser

from stepwell.dialects import host
from stepwell.dialects.expr import as_expr, free_syms, linear_coeff, sym
from stepwell.dialects.mem import BufferType
from stepwell.dialects.tt.blocks import DescriptorLoadOp, DescriptorStoreOp
from stepwell.dialects.tt.structure import FuncOp, GetProgramIdOp, ReturnOp
from stepwell.dialects.tt.types import ptr, tensor
from stepwell.lowering import mem_to_tt
from stepwell.lowering.fx.decompositions import decomposition_table
from stepwell.lowering.fx_to_nd import import_graph
from stepwell.lowering.mem_to_tt.builder import Builder
from stepwell.lowering.mem_to_tt.descriptors import describe, may_describe
from stepwell.lowering.outline import Arguments
from stepwell.passes.cost.machine.gpu import MACHINES
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.targets.cpu.emit.module import emit_kernels
from stepwell.targets.cpu.jit import compile_text
from stepwell.targets.host.emit import emit_host
from stepwell.targets.host.gpu.driver import use_driver
from stepwell.targets.host.gpu.runtime_ir import Variant
from stepwell.targets.host.load import load_object_code, load_program
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.gpu import InterpretedDriver, interpreted_kernels
from stepwell.tools.interpret.loop import run_loop

ROWS, COLUMNS = 16, 32


def doubled(name, nest, info, tile, gpu, exact, typical):
    """A kernel for `x + x` on matrices, block by block: what lower_nest gives for a nest."""
    arguments = Arguments(nest, info)
    types = [ptr(f32)] * len(arguments.buffers) + [i64] * len(arguments.sizes)
    entry = Block(arg_types=types)
    out, x = list(arguments.buffers)[0], list(arguments.buffers)[-1]
    block = tensor((ROWS, COLUMNS), f32)
    described = []
    for buffer in (out, x):
        access = next(a for a in info.root.all_accesses() if a.buffer is buffer)
        first = access.offset
        for one in access.node.loops:
            first = first - one.dim * linear_coeff(access.offset, one.dim)
        layout = out.type.dims, buffer.type.stride_exprs, (ROWS, COLUMNS)
        assert may_describe(gpu, buffer, *layout, typical, first)
        described.append(describe(entry, arguments, buffer, *layout, first))
        assert describe(entry, arguments, buffer, *layout, first) is described[-1]  # once
    b = Builder(entry)
    program = b.place(GetProgramIdOp.make(0)).results[0]
    begin = [b.mul(program, b.int(ROWS)), b.int(0)]
    value = b.place(DescriptorLoadOp.create(operands=[described[1], *begin], result_types=[block])).results[0]
    total = b.pure(arith.AddfOp, (value, value), block)
    b.place(DescriptorStoreOp.create(operands=[described[0], total, *begin]))
    b.place(ReturnOp.create())
    rows = out.type.dims[0]
    return FuncOp.make(name, Region(entry), hints=[{} for _ in entry.args]), arguments, (rows + ROWS - 1) // ROWS


def lowered(monkeypatch, function, *args, stages=None):
    monkeypatch.setattr(mem_to_tt, "lower_nest", doubled)
    gm = make_fx(functionalize(function), decomposition_table=decomposition_table(), tracing_mode="symbolic")(*args)
    module = import_graph(gm, args).module
    run(default_pipeline("gpu") if stages is None else default_pipeline("gpu", stages=stages), module, context())
    return module


def twice(x):
    return (x + x,)


def test_a_launch_describes_the_buffers_of_its_nest(monkeypatch):
    module = lowered(monkeypatch, twice, torch.randn(40, 20))
    launch = next(op for op in module.walk() if isinstance(op, host.LaunchOp))
    out, x = launch.described
    assert (out.operand, x.operand) == (0, 1) and out.strides[1].value == x.strides[1].value == 1
    assert len({x.sizes, out.sizes}) == 1 and x.sizes[0].value is None and x.offset.value == 0
    kernel = next(op for op in module.ops if isinstance(op, FuncOp))
    assert "overlaps" in kernel.attributes  # launched while the kernel before it ends
    again = Parser(context(), str(module)).parse_module()
    assert str(again) == str(module)


def test_a_part_of_a_tensor_begins_behind_its_first_element(monkeypatch):
    part = lambda x: (x[2:, 8:28] + x[2:, 8:28],)  # noqa: E731
    module = lowered(monkeypatch, part, torch.randn(40, 32))
    _, x = next(op for op in module.walk() if isinstance(op, host.LaunchOp)).described
    (columns,) = free_syms(x.offset)
    assert x.offset is columns * 8 + 32 and x.sizes[1].value == 20 and x.strides[0] is columns
    run_native, driver = loaded(module, True)
    for shape, variant in (((40, 32), Variant.ALL), ((20, 36), Variant.ALL), ((20, 35), Variant.NOTHING)):
        given = torch.randn(shape)
        assert torch.equal(run_native([given])[0], part(given)[0])
        assert driver.launches[-1].variant == variant


def loaded(module, native):
    """The program of a module, and the driver that it launches through."""
    program = next(op for op in module.ops if isinstance(op, host.ProgramOp))
    with use_driver(InterpretedDriver(module)) as driver:
        text = emit_kernels(module)
        description = emit_host(text, program, native=native, kernels=interpreted_kernels(module))
        return load_program(description, load_object_code(compile_text(text.text()), native)), driver


@pytest.mark.parametrize("native", [True, False])
def test_programs_with_descriptors_run(monkeypatch, native):
    module = lowered(monkeypatch, twice, torch.randn(40, 20))
    call, driver = loaded(module, native)
    for shape, variant in (((40, 20), Variant.ALL), ((3, 32), Variant.ALL), ((33, 27), Variant.NOTHING), ((1, 8), Variant.ALL)):
        x = torch.randn(shape)
        assert torch.equal(call([x])[0], x + x)
        assert driver.launches[-1].variant == variant and driver.launches[-1].overlaps
    assert not call([torch.randn(0, 20)])[0].numel()


def test_launches_with_descriptors_run_at_the_level_of_tt(monkeypatch):
    x = torch.randn(40, 20)
    module = lowered(monkeypatch, twice, x, stages=["nd", "loop", "mem", "tt"])
    for one in (x, torch.randn(17, 27)):
        assert torch.equal(run_loop(module, [one])[0], one + one)


def test_what_is_not_worth_a_descriptor():
    gpu, n = MACHINES["sm_90"], sym("s0")
    matrix = Block(arg_types=[BufferType.get([64, 64], f32)]).args[0]

    def asked(sizes=(64, 64), strides=(64, 1), block=(16, 32), typical=None, offset=0, on=gpu):
        return may_describe(on, matrix, sizes, strides, block, typical or {}, offset)

    assert asked() and asked(offset=4) and asked(strides=(n, 1), typical={n: 36})
    assert not asked(on=MACHINES["sm_80"]) and not asked(on=MACHINES["gfx942"])
    assert not asked(strides=(63, 1)) and not asked(strides=(n, 1), typical={n: 35}) and not asked(strides=(0, 1))
    assert not asked(strides=(1, 64)) and not asked(offset=2) and not asked(sizes=(0, 64))
    assert not asked(block=(16, 2)) and not asked(block=(24, 32)) and not asked(block=(32,))


def test_arguments_behind_a_descriptor_of_another_shape():
    entry = Block(arg_types=[ptr(f32)])
    arguments = Arguments.__new__(Arguments)
    buffer = Block(arg_types=[BufferType.get([4, 8, 64], f32)]).args[0]
    arguments.buffers, arguments.scalars, arguments.symbols, arguments.derived, arguments.described = {buffer: None}, {}, [], [], []
    first = describe(entry, arguments, buffer, (4, 8, 64), (512, 64, 1), (1, 8, 32))
    second = describe(entry, arguments, buffer, (as_expr(64),), (1,), (64,), offset=512)
    assert [first.index, second.index] == [1, 8]
    assert [a.type for a in entry.args[2:8]] == [i32] * 3 + [i64] * 3 and [a.type for a in entry.args[9:]] == [i32, i64]
    assert describe(entry, arguments, buffer, (4, 8, 64), (512, 64, 1), (1, 8, 32)) is first and len(entry.args) == 11
    assert [(d.operand, int(d.offset)) for d in arguments.descriptors] == [(0, 0), (0, 2048)]
