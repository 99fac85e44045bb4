"""Products whose programs have equal shares of the steps of all blocks (stream K): values, one launch after the other, what is refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support import import_function, without_data
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.ir import Attribute

from stepwell.dialects import host
from stepwell.dialects.machine import MACHINE, ORDER, MachineAttr
from stepwell.dialects.tt.compute import DotOp
from stepwell.errors import StepwellError
from stepwell.passes.analysis.nest_key import is_nest_in_memory
from stepwell.passes.analysis.schedule_attrs import GPU, schedule_table, update_schedule
from stepwell.passes.manager.instrumentation import Instrumentation
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.targets.cpu.emit.module import emit_kernels
from stepwell.targets.cpu.jit import compile_text
from stepwell.targets.host.emit import emit_host
from stepwell.targets.host.gpu.driver import use_driver
from stepwell.targets.host.load import load_object_code, load_program
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.gpu import InterpretedDriver, interpreted_kernels
from stepwell.tools.interpret.loop import run_loop
from stepwell.tools.interpret.tt.run import run_kernel

from .test_few_rows import found, kernels

ALWAYS = "stream_k=-2.0"
PROGRAMS = 5
SMALL: dict[str, Attribute] = {
    "blocks": ArrayAttr([IntegerAttr(n, i64) for n in (32, 64)]), "reduction_block": IntegerAttr(32, i64), "warps": IntegerAttr(4, i64),
}  # fmt: skip


def randn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) / 4).to(dtype)


def scheduled(function, args, mode="fake", options=ALWAYS, machine="sm_90", programs=PROGRAMS):
    """A graph at level mem, and its module, whose products have shared steps."""
    imported = import_function(function, *args, mode=mode)
    imported.module.attributes[MACHINE] = MachineAttr.get(machine, multiprocessors=programs)
    run(pipeline_to_memory(options), imported.module, context())
    return imported


def pipeline_to_memory(options: str):
    pipeline = default_pipeline("gpu", stages=("nd", "loop", "mem"))
    pipeline.replace("nd-library-products", "nd-library-products{library=never}")
    pipeline.replace("gpu-split-reduction", f"gpu-split-reduction{{{options}}}")
    return pipeline


def with_tile(module: ModuleOp, changes: dict[str, Attribute]) -> ModuleOp:
    """Down to kernels, with another tile of products."""
    for nest in module.walk():
        if is_nest_in_memory(nest) and isinstance(given := schedule_table(nest).get(GPU), DictionaryAttr) and "dot" in given.data:
            update_schedule(nest, {GPU: DictionaryAttr({**given.data, **changes})})
    run(default_pipeline("gpu", stages=["tt"]), module, context())
    module.verify()
    assert len([k for k in kernels(module) if found(k, DotOp) and any(op.name == "scf.while" for op in k.walk())]) == 1
    return module


CASES = {
    "bias and activation": (lambda x, w, b: F.relu(x @ w.t() + b), randn(100, 200), randn(150, 200), randn(150)),
    "by columns": (lambda x, w: x.t() @ w, randn(200, 100), randn(200, 136)),
    "two sums": (lambda x, w, v: F.silu(x @ w.t()) * (x @ v.t()), randn(70, 100), randn(72, 100), randn(72, 100)),
    "f32": (lambda x, w: torch.sigmoid(x @ w), randn(70, 130, dtype=torch.float32), randn(130, 70, dtype=torch.float32)),
    "batches": (lambda x, w: F.gelu(x @ w), randn(3, 70, 100), randn(3, 100, 72)),
    "fewer blocks than programs": (lambda x, w: x @ w, randn(65, 700), randn(700, 68)),
    "a block of one column": (lambda x, w: x @ w, randn(100, 300), randn(300, 65)),
}


@pytest.mark.spread
@pytest.mark.parametrize("name", CASES)
def test_values(name):
    function, *args = CASES[name]
    module = with_tile(scheduled(function, args).module, SMALL)
    (got,) = run_loop(module, args, [], [])
    close = 2e-5 if got.dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got, function(*args), rtol=close, atol=close)


def layer(x, w, b):
    return F.relu(x @ w.t() + b)


def test_sums_do_not_depend_on_when_programs_run():
    """Programs one after the other, which wait for none that comes later, or all at once: the same bits."""
    args = randn(100, 200), randn(150, 200), randn(150)
    module = with_tile(scheduled(layer, args).module, {**SMALL, "copies": IntegerAttr(0, i64)})
    (kernel,) = (k for k in kernels(module) if found(k, DotOp))
    (launch,) = (op for op in found(module, host.LaunchOp) if op.kernel.string_value() == kernel.sym_name.data)
    results: list[torch.Tensor] = []
    for resident in (1, 2, PROGRAMS):
        result, factors = torch.full((100, 150), torch.nan, dtype=torch.bfloat16), iter(args)
        arguments = []
        for kind in (value.type for value in launch.operands):
            is_result = [n.value for n in kind.dims] == [100, 150]
            words = torch.zeros(kind.numel.value, dtype=torch.int64) if kind.element_type == i64 else None
            arguments.append(words if words is not None else result if is_result else next(factors))
        run_kernel(ModuleOp([kernel.clone()]), arguments, [PROGRAMS], resident=resident)
        results.append(result)
    torch.testing.assert_close(results[0], layer(*args), rtol=2e-2, atol=2e-2)
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_launches_of_other_sizes_over_one_workspace():
    """A launch of fewer programs clears the places of those that it does not have."""
    args = randn(100, 200), randn(150, 200), randn(150)
    imported = scheduled(layer, args, mode="symbolic")
    with_tile(imported.module, SMALL)
    run(default_pipeline("gpu", stages=["host"]), imported.module, context())
    driver = InterpretedDriver(imported.module)
    with use_driver(driver):
        text = emit_kernels(imported.module)
        program = next(op for op in imported.module.ops if isinstance(op, host.ProgramOp))
        description = emit_host(text, program, native=True, kernels=interpreted_kernels(imported.module))
        call = load_program(description, load_object_code(compile_text(text.text()), True), imported.constants, imported.objects)
    for rows, columns, terms in [(100, 150, 200), (20, 50, 33), (100, 150, 200), (5, 64, 20), (70, 60, 90), (0, 150, 200), (100, 150, 200)]:
        args = randn(rows, terms), randn(columns, terms), randn(columns)
        (got,) = call(list(args))
        torch.testing.assert_close(got, layer(*args), rtol=2e-2, atol=2e-2)



def test_the_price_decides():
    """81 blocks leave programs of an H100 idle, 242 hardly. A remark has both prices."""
    for size, is_shared in ((2304, True), (2816, False)):
        remarks = []
        x = torch.empty(size, 8192, dtype=torch.bfloat16)
        imported = import_function(lambda x, w: F.relu(x @ w.t()), *without_data((x, x), "cpu"))
        imported.module.attributes[MACHINE] = MachineAttr.get("sm_90")
        run(pipeline_to_memory(""), imported.module, context(), Instrumentation(remarks=remarks.append))
        said = [r.message for r in remarks if r.pass_name == "gpu-split-reduction" and "equal shares" in r.message]
        assert len(said) == is_shared and all("132 programs" in one and "us, by price" in one for one in said), said


NOT_THERE = {"gfx942": {MACHINE: MachineAttr.get("gfx942", multiprocessors=PROGRAMS)}, "a fixed order": {ORDER: StringAttr("fixed")}}


@pytest.mark.parametrize("where", NOT_THERE)
def test_where_sums_are_not_shared(where):
    """Where stores are not seen by all programs, and where sums have a fixed order; a tile by hand is refused."""
    args = randn(100, 200), randn(150, 200), randn(150)
    imported = scheduled(layer, args)
    pipeline = default_pipeline("gpu", stages=["tt"])
    imported.module.attributes.update(NOT_THERE[where])
    with pytest.raises(StepwellError, match="gfx942 keeps" if where == "gfx942" else "sums may have any order"):
        run(pipeline, imported.module, context())
    other = import_function(layer, *args)
    other.module.attributes.update(NOT_THERE[where])
    run(pipeline_to_memory(ALWAYS), other.module, context())
    assert not any("stream_k" in str(schedule_table(nest)) for nest in other.module.walk() if is_nest_in_memory(nest))


REFUSED = {
    "no number of programs": ({"persistent": IntegerAttr(0, i64)}, "persistent says how many"),
    "more programs than the workspace has places": ({"persistent": IntegerAttr(500, i64)}, "the workspace needs"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_tiles_that_cannot_be(what):
    changes, message = REFUSED[what]
    args = randn(100, 200), randn(150, 200), randn(150)
    with pytest.raises(StepwellError, match=message):
        with_tile(scheduled(layer, args).module, changes)


def test_a_workspace_is_needed():
    """For a tile by hand, too."""
    module = scheduled(layer, (randn(100, 200), randn(150, 200), randn(150)), options="").module
    with pytest.raises(StepwellError, match="needs a workspace"):
        with_tile(module, {"persistent": IntegerAttr(3, i64), "stream_k": IntegerAttr(1, i64)})


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_triton_lets_products_of_steps_overlap(target):
    """Though a program has any number of a block's steps."""
    pytest.importorskip("triton", reason="Triton is not installed (the extra 'gpu')")
    from stepwell.targets.triton.compile import compile_kernel
    from stepwell.targets.triton.emit import kernel_modules
    from stepwell.targets.triton.gpu import gpu_target

    x = torch.empty(4096, 4096, dtype=torch.bfloat16)
    module = with_tile(scheduled(lambda x, w: F.relu(x @ w.t()), without_data((x, x), "cpu"), machine=target, programs=132).module, {})
    (kernel,) = (k for k in kernel_modules(module) if found(k, DotOp))
    assert not compile_kernel(kernel, gpu_target(target)).details.get("waiting_products")
