"""Rows that several programs share: values against eager, programs by turns in the interpreter; what is refused; nobody waits for ever."""

from __future__ import annotations

import io
import math
import re

import pytest
import torch
import torch.nn.functional as F
from support import import_function
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, ModuleOp, bf16, f16, i64
from xdsl.parser import Parser
from xdsl.printer import Printer

from stepwell.dialects import host, mem
from stepwell.dialects.machine import MACHINE, MachineAttr
from stepwell.dialects.tt import structure as tt_structure
from stepwell.dialects.tt.compute import ElementwiseInlineAsmOp
from stepwell.dialects.tt.memory import LoadOp
from stepwell.dialects.tt.types import element_of
from stepwell.errors import StepwellError
from stepwell.lowering.fx.decompositions import decomposition_table
from stepwell.lowering.fx_to_nd import import_graph
from stepwell.passes.analysis.nest_key import is_nest_in_memory
from stepwell.passes.analysis.schedule_attrs import schedule_table, update_schedule
from stepwell.passes.gpu.shared_rows import HEADER_WORDS, part_of
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline, parse_pipeline
from stepwell.passes.manager.verify import verify_ir
from stepwell.targets.cpu.emit.module import emit_kernels
from stepwell.targets.cpu.jit import compile_text
from stepwell.targets.host.emit import emit_host
from stepwell.targets.host.gpu.driver import use_driver
from stepwell.targets.host.load import load_object_code, load_program
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.gpu import InterpretedDriver, interpreted_kernels
from stepwell.tools.interpret.loop import run_loop
from stepwell.tools.interpret.tt.run import KernelError, run_kernel

BF16 = torch.bfloat16
SMALL = "alone=100 part=64 most=256 least=0"
"""Options with which rows of a few hundred elements are shared, by six programs at most."""


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def layer_norm(x, w, b):
    return F.layer_norm(x, x.shape[-1:], w, b)


def group_norm(x, w, b):
    return F.silu(F.group_norm(x, 2, w, b))


def with_ten_channels(x, w, b):
    assert x.shape[1] == 10  # the others are symbols
    return group_norm(x, w, b)


def batch_norm(x, w, b, mean, var):
    return F.relu(F.batch_norm(x, mean, var, w, b, training=True)), mean, var


def batch_norm_backward(g, x, w, mean, rstd):
    return torch.ops.aten.native_batch_norm_backward(g, x, w, None, None, mean, rstd, True, 1e-5, [True, True, True])


def lowest(x):
    """A row whose first half is -inf, so that programs have nothing but it; and one that is -inf throughout."""
    x = x.clone()
    x[0, : x.shape[1] // 2] = -torch.inf
    x[1] = -torch.inf
    return x


PROGRAMS = {
    "softmax": (lambda x: torch.softmax(x, -1), randn(3, 300)),
    "softmax of bf16": (lambda x: torch.softmax(x, -1), randn(3, 320, dtype=BF16)),
    "softmax of f16, odd": (lambda x: torch.softmax(x, -1), randn(3, 301, dtype=torch.float16)),
    "softmax of f64": (lambda x: torch.softmax(x, -1), randn(2, 300).double()),
    "softmax of -inf": (lambda x: torch.softmax(x, -1), lowest(randn(3, 300))),
    "softmax, strided": (lambda x: torch.softmax(x[:, ::2], -1), randn(3, 600)),
    "log-softmax": (lambda x: torch.log_softmax(x, -1), randn(3, 300)),
    "softmax and dropout": (lambda x, m: torch.softmax(x, -1) * m, randn(3, 300), randn(3, 300)),
    "softmax backward": (lambda g, y: torch.ops.aten._softmax_backward_data(g, y, -1, torch.float32), randn(3, 300), randn(3, 300)),
    "layer norm": (layer_norm, randn(3, 300), randn(300), randn(300)),
    "layer norm, a program without a part": (layer_norm, randn(2, 193), randn(193), randn(193)),
    "RMS norm": (lambda x, w: F.rms_norm(x, (300,), w), randn(3, 300), randn(300)),
    "residual and norm": (lambda x, y, w: (x + y, F.rms_norm(x + y, (300,), w)), randn(3, 300), randn(3, 300), randn(300)),
    "group norm": (group_norm, randn(2, 10, 6, 8), randn(10), randn(10)),
    "group norm, odd": (group_norm, randn(1, 10, 7, 9), randn(10), randn(10)),
    "batch norm": (batch_norm, randn(6, 3, 9, 7), randn(3), randn(3), randn(3), randn(3).abs()),
    "batch norm of 2 x 2": (batch_norm, randn(64, 3, 2, 2), randn(3), randn(3), randn(3), randn(3).abs()),
    "batch norm backward": (batch_norm_backward, randn(6, 3, 9, 7), randn(6, 3, 9, 8)[..., :7], randn(3), randn(3), randn(3).abs()),
    "batch norm backward, in place": (
        lambda g, x, w, mean, rstd, y: batch_norm_backward(torch.ops.aten.threshold_backward(g, y, 0), x, w, mean, rstd),
        *(randn(3, 3, 8, 16), randn(3, 3, 16, 8).mT, randn(3), randn(3), randn(3).abs(), randn(3, 3, 8, 16)),
    ),
    "standard deviation": (lambda x: (x - x.mean(-1, True)) / x.std(-1, keepdim=True), randn(3, 300)),
    "argmax": (lambda x: (x.argmax(-1), x - x.amax(-1, True)), randn(3, 300)),
    "any": (lambda x: torch.where((x > 2.5).any(-1, True), x, -x), randn(3, 300)),
    "integers": (lambda x: x - x.sum(-1, True), torch.arange(900).reshape(3, 300)),
}


def lowered(function, args, options: str = SMALL, stages=("nd", "loop", "mem", "tt"), machine="sm_90,multiprocessors=24", mode="fake"):
    given = [a.clone() for a in args]
    imported = import_function(function, *given, mode=mode)
    pipeline = default_pipeline("gpu", stages=stages)
    pipeline.replace("gpu-online-softmax", "gpu-online-softmax{longest=100}")
    pipeline.replace("gpu-cooperative-rows", f"gpu-cooperative-rows{{{options}}}")
    imported.module.attributes[MACHINE] = MachineAttr.from_text(machine)
    if "tt" in stages:
        pipeline.remove("tt-overlap-launches")
    run(pipeline, imported.module, context())
    verify_ir(imported.module)
    return imported


def shared(module: ModuleOp) -> list[tt_structure.FuncOp]:
    """The kernels whose programs wait for each other."""
    return [f for f in module.ops if isinstance(f, tt_structure.FuncOp) and any(op.name == "scf.while" for op in f.walk())]


def check(imported, function, args) -> None:
    check_values(run_loop(imported.module, [a.clone() for a in args], imported.constants, imported.objects), function, args)


def check_values(got, function, args) -> None:
    expected = pytree.tree_leaves(function(*[a.clone() for a in args]))
    for a, b in zip(got, expected, strict=True):
        close = {BF16: 2e-2, torch.float16: 2e-3}.get(b.dtype, 2e-5)
        torch.testing.assert_close(a.reshape(b.shape), b, rtol=close, atol=close, equal_nan=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name):
    function, *args = PROGRAMS[name]
    imported = lowered(function, args)
    assert len(shared(imported.module)) == 1
    check(imported, function, args)


@pytest.mark.parametrize("length", [3, 4, 5])
def test_rows_of_a_few_elements_are_shared_like_long_ones(length):
    """Elsewhere a loop of a few iterations is straight code; here each program would do all of a row, and read what the first stores."""

    def function(x, y):
        h = F.layer_norm(x, x.shape[-1:]) + y
        return h, F.layer_norm(h, x.shape[-1:]) * 0.5

    args = randn(3, length), randn(3, length)
    imported = lowered(function, args, "alone=1 part=2 most=64 least=0")
    assert len(shared(imported.module)) == 1
    check(imported, function, args)


OTHER_SIZES = {
    "softmax": [(3, 300), (1, 511), (4, 512), (2, 513), (5, 2), (2, 4000)],
    "softmax of bf16": [(2, 320), (3, 33), (2, 1025)],
    "RMS norm": [(2, 290), (3, 17), (2, 600)],
    "argmax": [(2, 299), (3, 512), (2, 700)],
    "group norm": [(2, 10, 6, 8), (1, 10, 8, 8), (3, 10, 2, 5), (2, 10, 9, 8), (2, 10, 16, 17)],
    "batch norm": [(6, 3, 9, 7), (8, 3, 16, 8), (2, 3, 2, 2), (7, 3, 12, 5), (9, 3, 9, 7), (3, 3, 20, 20)],
}
"""Sizes below the bounds of a row (those of the example, rounded up), at them, and beyond."""


@pytest.mark.parametrize("name", OTHER_SIZES)
def test_values_where_lengths_are_symbols(name):
    function, x, *rest = PROGRAMS[name]
    if name == "RMS norm":
        function, rest = lambda x: F.rms_norm(x, (x.shape[1],)), []
    if name == "group norm":
        function = with_ten_channels
    imported = lowered(function, [x, *rest], mode="symbolic")
    assert len(shared(imported.module)) == 1
    assert "bounds" in str(lowered(function, [x, *rest], mode="symbolic", stages=("nd", "loop", "mem")).module)
    for shape in OTHER_SIZES[name]:
        check(imported, function, [randn(*shape, dtype=x.dtype), *rest])


def rows_of_halves(count: int) -> list[torch.Tensor]:
    return [randn(2 + k, 9000, dtype=BF16)[:2] for k in range(count)]


HALVES = {
    "softmax": (lambda x: torch.softmax(x, -1), randn(3, 9000, dtype=BF16)),
    "log-softmax": (lambda x: torch.log_softmax(x, -1), randn(2, 9600, dtype=torch.float16)),
    "softmax of -inf": (lambda x: torch.softmax(x, -1), lowest(randn(3, 9000)).to(BF16)),
    "softmax backward": (lambda g, y: torch.ops.aten._softmax_backward_data(g, y, -1, BF16), *rows_of_halves(2)),
    "layer norm": (layer_norm, randn(3, 9000, dtype=BF16), randn(9000, dtype=BF16), randn(9000, dtype=BF16)),
    "part of a row": (lambda x: torch.softmax(x[:, 8:9008], -1), randn(3, 9048, dtype=BF16)),
    "residual and norm": (
        lambda x, y, w: (x + y, F.rms_norm(x + y, (9000,), w)), *rows_of_halves(2), randn(9000, dtype=BF16),
    ),
    "standard deviation": (lambda x: (x - x.mean(-1, True)) / x.std(-1, keepdim=True), randn(3, 9000, dtype=BF16)),
    "a product": (lambda x, y: torch.softmax(x * y, -1), *rows_of_halves(2)),  # multiplied again in what subtracts the maximum
}  # fmt: skip


LONGER = {"residual and norm": lambda x, y, w: (x + y, F.rms_norm(x + y, (36000,), w))}
"""Programs that name the length of their rows, for rows four times as long."""


@pytest.mark.parametrize("name", HALVES)
def test_numbers_of_16_bits_are_kept_as_they_are(name):
    """Blocks of 2048 at most, each loaded once and widened again where it is needed again."""
    function, *args = HALVES[name]
    options = "alone=1000 part=4096 most=8192 least=0"
    imported = lowered(function, args, options)
    (kernel,) = shared(imported.module)
    again = [op for op in kernel.walk() if isinstance(op, ElementwiseInlineAsmOp)]
    loads = [op for op in kernel.walk() if isinstance(op, LoadOp) and element_of(op.result.type) in (bf16, f16)]
    assert again and all(element_of(op.operands[0].type) in (bf16, f16) for op in again)
    assert len(loads) == len({op.operands[0] for op in loads})
    assert max(math.prod(op.result.type.get_shape()) for op in loads) <= 2048
    check(imported, function, args)
    assert "tt.elementwise_inline_asm" not in str(lowered(function, args, options, machine="gfx942,multiprocessors=24").module)


WIDE = {
    "an odd length": (lambda x: torch.softmax(x, -1), randn(2, 8191, dtype=BF16)),
    "no multiple of a vector": (lambda x: torch.softmax(x, -1), randn(2, 9004, dtype=BF16)),
    "an odd stride": (lambda x: torch.softmax(x[:, :9000], -1), randn(3, 9001, dtype=BF16)),
    "an odd start": (lambda x: torch.softmax(x[:, 1:9001], -1), randn(3, 9008, dtype=BF16)),
    "every second": (lambda x: torch.softmax(x[:, ::2], -1), randn(2, 18000, dtype=BF16)),
    "positions": (lambda x: (x.argmax(-1), x - x.amax(-1, True)), randn(3, 9000, dtype=BF16)),
    "one tensor of 32 bits": (lambda x, y: torch.softmax(x * y, -1), randn(2, 9000, dtype=BF16), randn(2, 9000)),
    "a sum that all loops want": (lambda x, y: torch.softmax(x / 8 + y, -1), *rows_of_halves(2)),
    "a residual that is not stored": (lambda x, y, w: F.rms_norm(x + y, (9000,), w), *rows_of_halves(2), randn(9000, dtype=BF16)),
}


@pytest.mark.parametrize("name", WIDE)
def test_numbers_of_16_bits_that_are_kept_wide(name):
    """Those that come one by one; and two that are added up first: as they are they take as many registers, and are added each time."""
    function, *args = WIDE[name]
    imported = lowered(function, args, "alone=1000 part=4096 most=8192 least=0")
    assert len(shared(imported.module)) == 1 and "tt.elementwise_inline_asm" not in str(imported.module)
    check(imported, function, args)


def test_a_sum_that_is_kept_takes_the_place_of_one_tensor():
    """As many programs share a row of x + y as one of x where both load vectors; otherwise each number of x and y has a register first."""

    def programs(function, *args) -> int:
        return int(re.findall(r"group = (\d+)", str(lowered(function, args, "", stages=("nd", "loop", "mem"), machine="sm_90").module))[0])

    for dtype, columns, share in ((BF16, 65536, 8), (BF16, 65535, 16), (torch.float32, 65536, 16)):
        x, y = (torch.empty(2048, columns, dtype=dtype) for _ in range(2))
        assert programs(lambda x, y: torch.softmax(x / 8 + y, -1), x, y) == share


def test_halves_are_refused_where_there_is_no_assembly_of_nvidia():
    function, *args = HALVES["softmax"]
    module = lowered(function, args, "alone=1000 part=4096 most=8192 least=0", stages=("nd", "loop", "mem")).module
    with pytest.raises(StepwellError, match="gfx942 has no instructions for a tile with halves"):
        module.attributes[MACHINE] = MachineAttr.get("gfx942")
        run(["mem-to-tt"], module, context())


def test_long_rows_of_16_bits_are_shared_by_programs_that_keep_them_so():
    for dtype, target, share in ((BF16, "sm_90", True), (torch.float32, "sm_90", False), (BF16, "gfx942", False)):
        x, stages = torch.empty(4096, 40000, dtype=dtype), ("nd", "loop", "mem")
        module = lowered(lambda x: torch.softmax(x, -1), [x], "", machine=target, stages=stages).module
        assert ("group = " in str(module)) == share


def test_all_programs_of_a_row_go_on_with_the_same_numbers():
    function, *args = PROGRAMS["standard deviation"]
    imported = lowered(function, args)
    first, second = (run_loop(imported.module, args, imported.constants, imported.objects)[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.spread
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942"])
@pytest.mark.parametrize("name", ["softmax of bf16", "softmax of f64", "batch norm", "argmax", "any"])
def test_triton_compiles_it(name, target):
    pytest.importorskip("triton", reason="Triton is not installed (the extra 'gpu')")
    from stepwell.targets.triton.compile import compile_kernels
    from stepwell.targets.triton.gpu import gpu_target

    function, *args = PROGRAMS[name]
    modules = [ModuleOp([k.clone()]) for k in shared(lowered(function, args, machine=f"{target},multiprocessors=24").module)]
    (built,) = compile_kernels(modules, gpu_target(target))
    assert isinstance(built.code, bytes) and built.code.startswith(b"\x7fELF")


@pytest.mark.parametrize("name", HALVES)
def test_registers_suffice_for_rows_of_16_bits_with_triton(name):
    """Of those that the tile has ptxas puts few into memory (Triton 3.6: none, but for two of a thread)."""
    pytest.importorskip("triton", reason="Triton is not installed (the extra 'gpu')")
    from stepwell.targets.triton.compile import compile_kernel
    from stepwell.targets.triton.gpu import gpu_target

    function, *args = HALVES[name]
    options = "alone=1000 part=8192 most=16384 least=0"
    wide = [torch.cat([a] * 4, -1) for a in args]
    (kernel,) = shared(lowered(LONGER.get(name, function), wide, options).module)
    built = compile_kernel(ModuleOp([kernel.clone()]), gpu_target("sm_90"))
    assert built.details["spills"] <= 128


def test_warps_wait_without_the_others():
    """Each warp leaves the loop by itself: a barrier in it would be one that not all of them reach."""
    pytest.importorskip("triton", reason="Triton is not installed (the extra 'gpu')")
    from stepwell.targets.triton.compile import compile_kernel
    from stepwell.targets.triton.gpu import gpu_target

    function, *args = PROGRAMS["layer norm"]
    (kernel,) = shared(lowered(function, args).module)
    text = compile_kernel(ModuleOp([kernel.clone()]), gpu_target("sm_90"), stage="ptx").code
    assert isinstance(text, str)
    first = text.index("ld.volatile.global")
    label = text.rindex("$L__BB0_", 0, first)
    body = text[label : text.index("bra", first)]
    assert "bar.sync" not in body and "atom." not in body


def test_nothing_is_touched_before_the_kernels_in_front_are_done():
    pytest.importorskip("triton", reason="Triton is not installed (the extra 'gpu')")
    from stepwell.targets.triton.compile import compile_kernel
    from stepwell.targets.triton.gpu import gpu_target

    function, *args = PROGRAMS["group norm"]
    module = lowered(function, args).module
    run(["tt-overlap-launches"], module, context())
    (kernel,) = shared(module)
    text = compile_kernel(ModuleOp([kernel.clone()]), gpu_target("sm_90"), stage="ptx").code
    assert isinstance(text, str)
    waits = text.index("griddepcontrol.wait")
    assert waits < min(text.index(access) for access in ("atom.", "ld.global", "ld.volatile.global", "st.global"))


# ---- waiting


def kernel_and_arguments(rows: int = 3):
    x = randn(rows, 300)
    module = lowered(lambda x: torch.softmax(x, -1), [x]).module
    (kernel,) = shared(module)
    launches = [op for op in module.walk() if op.name == "host.launch"]
    grid = next(op.grid.data[0].value for op in launches if op.kernel.string_value() == kernel.sym_name.data)
    words = next(op for op in module.walk() if op.name == "mem.alloc" and op.result.type.element_type == i64).result.type.dims[0].value
    return ModuleOp([kernel.clone()]), grid, [torch.empty_like(x), torch.zeros(words, dtype=torch.int64), x], torch.softmax(x, -1)


def test_as_many_programs_as_share_a_row_are_enough():
    module, grid, arguments, expected = kernel_and_arguments()
    run_kernel(module, arguments, [grid], resident=grid // 3)
    torch.testing.assert_close(arguments[0], expected)


def test_with_fewer_they_would_wait_for_ever():
    module, grid, arguments, _ = kernel_and_arguments()
    with pytest.raises(KernelError, match=r"programs wait for each other, and none of them goes on"):
        run_kernel(module, arguments, [grid], resident=grid // 3 - 1)


def test_memory_that_is_not_zero_is_found_out():
    """A ticket beyond the rows leads outside of the tensors."""
    module, grid, arguments, _ = kernel_and_arguments()
    arguments[1][0] = grid
    with pytest.raises(KernelError, match=r"tt.load"):
        run_kernel(module, arguments, [grid])


# ---- one launch after the other


def run_again(module, grid, arguments, times):
    """What is in the workspace after each of several launches over it."""
    for _ in range(times):
        arguments[0].fill_(torch.nan)
        run_kernel(module, arguments, [grid])
        yield arguments[1].clone()


def test_halves_take_turns():
    """A launch fills its half, leaves zeros in the other one, and says so in the first word."""
    module, grid, arguments, expected = kernel_and_arguments()
    half = (len(arguments[1]) - HEADER_WORDS) // 2
    for k, left in enumerate(run_again(module, grid, arguments, 5)):
        torch.testing.assert_close(arguments[0], expected)
        first, second = left[HEADER_WORDS : HEADER_WORDS + half], left[HEADER_WORDS + half :]
        used, idle = (second, first) if k % 2 else (first, second)
        assert (used != 0).all() and not idle.any()
        assert left[0] == (0 if k % 2 else -(1 << 63)) and not left[1:HEADER_WORDS].any()


def test_where_the_workspace_is_cleared_the_second_half_may_hold_anything():
    module, grid, arguments, expected = kernel_and_arguments()
    half = (len(arguments[1]) - HEADER_WORDS) // 2
    for _ in range(3):
        arguments[1][HEADER_WORDS + half :] = 77
        arguments[1][: HEADER_WORDS + half] = 0  # what the nest before it does
        next(run_again(module, grid, arguments, 1))
        torch.testing.assert_close(arguments[0], expected)


def compiled(imported, driver):
    """The program of a graph, whose launches go to `driver`."""
    run(default_pipeline("gpu", stages=["host"]), imported.module, context())
    with use_driver(driver):
        text = emit_kernels(imported.module)
        program = next(op for op in imported.module.ops if isinstance(op, host.ProgramOp))
        description = emit_host(text, program, native=True, kernels=interpreted_kernels(imported.module))
        return load_program(description, load_object_code(compile_text(text.text()), True), imported.constants, imported.objects)


@pytest.mark.parametrize("name", PROGRAMS)
def test_workspaces_that_stay_need_no_clearing(name):
    function, *args = PROGRAMS[name]
    imported = lowered(function, args)
    driver = InterpretedDriver(imported.module)
    call = compiled(imported, driver)
    clearing = {op.kernel.string_value() for op in imported.module.walk() if isinstance(op, host.LaunchOp) and op.clears is not None}
    assert len(clearing) == 1
    for _ in range(3):
        check_values(call([a.clone() for a in args]), function, args)
    assert driver.launches and not clearing & {launch.kernel for launch in driver.launches}


def two_norms(x, w, b, y):
    return layer_norm(x, w, b), torch.softmax(y, -1)


def test_kernels_of_one_program_have_workspaces_of_their_own():
    args = randn(3, 300), randn(300), randn(300), randn(2, 400)
    imported = lowered(two_norms, args)
    assert len(shared(imported.module)) == 2
    driver = InterpretedDriver(imported.module)
    call = compiled(imported, driver)
    for _ in range(3):
        check_values(call([a.clone() for a in args]), two_norms, args)
    assert len(driver.launches) == 6


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_workspaces_whose_size_is_a_symbol_are_always_cleared(mode):
    function, x = PROGRAMS["softmax"]
    module = lowered(function, [x], mode=mode).module
    launches = [op for op in module.walk() if isinstance(op, host.LaunchOp)]
    (made,) = (op for op in module.walk() if isinstance(op, mem.AllocOp) and op.result.type.element_type == i64)
    assert (made.workspace is None) == (mode == "symbolic")
    assert [op.clears is not None for op in launches][0] == (mode == "fake")


# ---- the pass


@pytest.mark.parametrize("shape", [(256, 512, 14, 14), (2048, 256, 7, 7), (16384, 1024, 2, 2)])
def test_short_runs_are_not_code_of_their_own(shape):
    """A kernel with a block for each image of a channel takes Triton a minute."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        args = [torch.empty(shape), *(torch.empty(shape[1]) for _ in range(4))]
        imported = import_function(lambda *given: tuple(batch_norm(*given)), *args, mode="real")
    run(default_pipeline("gpu", stages=("nd", "loop", "mem", "tt")), imported.module, context())
    assert not shared(imported.module)
    assert all(sum(1 for _ in kernel.walk()) < 400 for kernel in imported.module.ops)


def cooperative(function, *args, options: str = SMALL):
    module = lowered(function, args, options, stages=("nd", "loop", "mem")).module
    nests = [n for n in module.walk() if is_nest_in_memory(n)]
    return nests, [n for n in nests if "group" in getattr(schedule_table(n).get("gpu"), "data", {})]


def test_statistics_and_what_is_computed_from_them_become_one_nest():
    function, *args = PROGRAMS["batch norm"]
    nests, found = cooperative(function, *args)
    assert len(nests) == 2 and found == nests[1:]  # the workspace, and all of the norm


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (lambda x: torch.softmax(x, -1), [randn(3, 90)]),  # a program keeps it
        (lambda x: torch.softmax(x, -1), [randn(3, 3000)]),  # more programs than may wait for each other
        (lambda x: x.sum(-1), [randn(3, 300)]),  # read once
        (lambda x: torch.softmax(x, 0), [randn(300, 40)]),  # columns
        (lambda x: x.cumsum(-1) / x.sum(-1, True), [randn(3, 300)]),  # in order
    ],
)
def test_what_stays_as_it_is(function, args):
    _, found = cooperative(function, *args)
    assert not found


def test_small_nests_stay_as_they_are():
    _, found = cooperative(lambda x: torch.softmax(x, -1), randn(3, 300), options="alone=100 part=64 most=256")
    assert not found


def test_parts_begin_where_vectors_do():
    assert [part_of(n, 4) for n in (64, 96, 60, 61, 0)] == [16, 24, 16, 16, 0]
    assert part_of(60, 4, run=5) == 15  # blocks begin with each run anyway
    assert all(part_of(n, g) * g >= n for n in range(0, 900, 7) for g in range(2, 33))


def test_tiles_are_printed_read_and_obeyed():
    function, *args = PROGRAMS["group norm"]
    imported = lowered(function, args, stages=("nd", "loop", "mem"))
    text = io.StringIO()
    Printer(stream=text).print_op(imported.module)
    assert "group = " in text.getvalue() and "registers = " in text.getvalue()
    imported.module = Parser(context(), text.getvalue()).parse_module()
    run(default_pipeline("gpu", stages=["tt"]), imported.module, context())
    assert len(shared(imported.module)) == 1
    check(imported, function, args)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"group": 33}, "a group has 1 to 32 programs"),
        ({"segment": 7}, "the last of the loops inside is as long as a segment, or as several"),
        ({"blocks": None}, "shares one row"),
    ],
)
def test_tiles_that_do_not_fit_are_refused(entry, message):
    from xdsl.dialects.builtin import ArrayAttr

    _, (nest,) = cooperative(lambda x: torch.softmax(x, -1), randn(4, 300))
    made = {key: ArrayAttr([IntegerAttr(2, i64)]) if value is None else IntegerAttr(value, i64) for key, value in entry.items()}
    tile = schedule_table(nest)["gpu"]
    assert isinstance(tile, DictionaryAttr)
    update_schedule(nest, {"gpu": DictionaryAttr({**tile.data, **made})})
    module = nest.get_toplevel_object()
    assert isinstance(module, ModuleOp)
    with pytest.raises(StepwellError, match=message):
        run(default_pipeline("gpu", stages=["tt"]), module, context())


def test_rows_of_any_number():
    """The number of rows is a symbol; one kernel serves all of them."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    function, x = PROGRAMS["softmax"]
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    shape = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    with mode:
        fake = mode.from_tensor(x, symbolic_context=shape)
        gm = make_fx(lambda x: (function(x),), decomposition_table=decomposition_table(), tracing_mode="real")(fake)
    imported = import_graph(gm, [fake])
    pipeline = default_pipeline("gpu", stages=["nd", "loop", "mem", "tt"])
    pipeline.replace("gpu-online-softmax", "gpu-online-softmax{longest=100}")
    pipeline.replace("gpu-cooperative-rows", f"gpu-cooperative-rows{{{SMALL}}}")
    run(pipeline, imported.module, context())
    assert len(shared(imported.module)) == 1
    for rows in (1, 2, 5):
        check(imported, function, [randn(rows, 300)])


RELOADED = """
func.func @forward(%x: !mem.buffer<1 x 600 x f32>, %m: !mem.buffer<1 x f32>, %y: !mem.buffer<1 x 600 x f32>) {
  loop.nest (%i = 1) outs(%out = %y : !mem.buffer<1 x 600 x f32>, %kept = %m : !mem.buffer<1 x f32>) {
    %sum = loop.reduce (%j = 600) sum {
      %a = loop.load %x[%i, %j] : !mem.buffer<1 x 600 x f32> -> f32
      loop.yield %a : f32
    } -> f32
    loop.store %sum, %kept[%i] : f32, !mem.buffer<1 x f32>
    loop.for (%k = 600) {
      %b = loop.load %x[%i, %k] : !mem.buffer<1 x 600 x f32> -> f32
      %s = loop.load %kept[0] : !mem.buffer<1 x f32> -> f32
      %c = arith.subf %b, %s : f32
      loop.store %c, %out[%i, %k] : f32, !mem.buffer<1 x 600 x f32>
    }
  }
  func.return
}
"""


@pytest.mark.parametrize("text, shared", [(RELOADED, False), (RELOADED.replace("loop.load %kept[0]", "loop.load %m0[0]"), True)])
def test_what_one_program_stores_for_a_row_is_not_read_from_memory(text, shared):
    """The others would read it before it is there."""
    text = text.replace("%y: !mem.buffer<1 x 600 x f32>)", "%y: !mem.buffer<1 x 600 x f32>, %m0: !mem.buffer<1 x f32>)")
    module = Parser(context(), text).parse_module()
    run(parse_pipeline(f"gpu-cooperative-rows{{{SMALL}}}"), module, context())
    assert ("group = " in str(module)) == shared
