"""Products of few rows: one kernel, which computes the other matrix as it reads it, by units for matrix products."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support import import_function, without_data

import stepwell
from stepwell.dialects.machine import MACHINE, MachineAttr
from stepwell.dialects.mem import ExternOp
from stepwell.dialects.tt.compute import DotOp
from stepwell.dialects.tt.memory import LoadOp
from stepwell.dialects.tt.shape import TransOp
from stepwell.dialects.tt.structure import FuncOp
from stepwell.dialects.tt.types import shape_of
from stepwell.errors import StepwellError
from stepwell.passes.analysis.nest_key import is_nest_in_memory
from stepwell.passes.analysis.schedule_attrs import GPU, schedule_table, update_schedule
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.loop import run_loop
from stepwell.tools.interpret.target import InterpretedTarget

BF16 = torch.bfloat16


def empty(*shape, dtype=BF16):
    return torch.empty(shape, dtype=dtype)


def imported(function, *args):
    """A program; nothing is computed."""
    return import_function(function, *without_data(args, "cpu")).module


def lowered(function, *args, stages=("nd", "loop", "mem", "tt"), options=""):
    """A program down to kernels."""
    module = imported(function, *args)
    pipeline = default_pipeline("gpu", stages=stages)
    if options:
        pipeline.replace("nd-library-products", f"nd-library-products{{{options}}}")
    run(pipeline, module, context())
    module.verify()
    return module


def kernels(module):
    return [f for f in module.ops if isinstance(f, FuncOp)]


def found(module, kind):
    return [op for op in module.walk() if isinstance(op, kind)]


def layer(x, w):
    return F.silu(x @ w.t())


def test_what_computes_the_matrix_is_part_of_the_product():
    """N34: weights of bytes are not written out."""
    module = lowered(
        lambda x, w, s: (x @ w.to(x.dtype).t()) * s, empty(16, 8192), empty(28672, 8192, dtype=torch.int8), empty(28672)
    )
    (kernel,) = kernels(module)
    assert len(found(kernel, DotOp)) == 1 and not found(module, ExternOp)
    assert "sitofp" in str(kernel)
    assert not [op for op in module.walk() if op.name == "mem.alloc" and op.properties["kind"].data == "arena"]


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "dtype"),
    [(16, 8192, 1020, BF16), (2048, 2048, 2048, torch.float64)],
    ids=["odd rows", "f64"],
)
def test_other_products_are_the_librarys(rows, columns, depth, dtype):
    module = lowered(layer, empty(rows, depth, dtype=dtype), empty(columns, depth, dtype=dtype))
    assert len(found(module, ExternOp)) == 1 and not found(module, DotOp)


def test_more_rows_than_a_program_has_are_several_programs():
    x, w = (torch.randn(n, 1024, generator=torch.Generator().manual_seed(n)).bfloat16() / 16 for n in (130, 1024))
    (got,) = run_loop(lowered(layer, x, w, options="library=never"), [x, w], [], [])
    torch.testing.assert_close(got, layer(x, w), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("target", "calls"), [("sm_75", 1), ("sm_80", 0), ("gfx942", 0)])
def test_gpus_without_units_for_products_call_the_library(target, calls):
    pipeline = default_pipeline("gpu", stages=("nd", "loop", "mem", "tt"))
    module = imported(layer, empty(16, 1024), empty(8192, 1024))
    module.attributes[MACHINE] = MachineAttr.get(target, multiprocessors=40)
    run(pipeline, module, context())
    assert len(found(module, ExternOp)) == calls == 1 - len(found(module, DotOp))


@pytest.mark.parametrize(("columns", "parts"), [(14336, 1), (4096, 1), (1024, 4), (512, 8), (128, 16)])
def test_sums_are_split_where_there_are_few_columns(columns, parts):
    module = lowered(layer, empty(16, 8192), empty(columns, 8192), stages=("nd", "loop", "mem"))
    shapes = [[str(n) for n in op.loop_sizes] for op in module.walk() if is_nest_in_memory(op)]
    assert shapes == ([["16", str(columns), str(parts)]] if parts > 1 else []) + [["16", str(columns)]]


def test_rows_that_a_table_names_take_room_as_others_do():
    """Those of the other matrix: their places are loaded, and not the loops of the nest."""
    x, w, which = empty(64, 4096), empty(10000, 4096), empty(8192, dtype=torch.int64)
    shapes = []
    for module in (lowered(lambda x, w, i: F.silu(F.linear(x, w[i])), x, w, which), lowered(layer, x, empty(8192, 4096))):
        found_here = (shape_of(op.result.type) for op in found(module, LoadOp))
        shapes.append(next(shape for shape in found_here if len(shape) == 2 and 1 not in shape))
    assert shapes[0] == shapes[1]


def test_matrices_are_loaded_as_they_lie():
    by_rows = lowered(lambda x, w: x @ w, empty(16, 1024), empty(1024, 16384))
    by_columns = lowered(lambda x, w: x @ w.t(), empty(16, 1024), empty(16384, 1024))
    assert not found(by_rows, TransOp) and len(found(by_columns, TransOp)) == 1
    shapes = [[shape_of(op.result.type) for op in found(m, LoadOp)] for m in (by_rows, by_columns)]
    assert shapes[0] == [(16, 128), (128, 128)] == shapes[1]


def test_two_matrices_are_read_by_one_loop_and_what_follows_is_computed_once():
    """A gate and its values, then the product that reads both: what is between them is not computed for each column of the latter."""

    def gated(x, v, w, o):
        return (F.silu(x @ v.t()) * (x @ w.t())) @ o.t()

    first, second = kernels(lowered(gated, empty(16, 4096), empty(11008, 4096), empty(11008, 4096), empty(4096, 11008)))
    assert len(found(first, DotOp)) == 2 and len(found(second, DotOp)) == 1
    assert "math.exp" in str(first) and "math.exp" not in str(second)


def test_one_row_goes_on_to_the_next_product_only_where_its_columns_follow_each_other():
    def twice(x, v, w):
        return F.silu(x @ v.t()) @ w.t()

    module = lowered(twice, empty(1, 4096), empty(11008, 4096), empty(4096, 11008), stages=("nd", "loop", "mem"))
    assert [[str(n) for n in op.loop_sizes] for op in module.walk() if is_nest_in_memory(op)] == [["11008"], ["4096"]]


def test_scales_of_groups_are_the_same_for_a_block():
    def grouped(x, w, s):
        return x @ (w.to(x.dtype).view(8192, 8, 128) * s[..., None]).view(8192, 1024).t()

    (kernel,) = kernels(lowered(grouped, empty(16, 1024), empty(8192, 1024, dtype=torch.int8), empty(8192, 8)))
    shapes = [shape_of(op.result.type) for op in found(kernel, LoadOp)]
    assert len(shapes) == 3 and sum(1 in shape for shape in shapes) == 1, shapes
    assert not [op for op in kernel.walk() if op.name == "arith.remsi" and shape_of(op.results[0].type)]


def test_a_bias_is_added_before_the_sum_is_rounded():
    (kernel,) = kernels(lowered(F.linear, empty(16, 1024), empty(16384, 1024), empty(16384)))
    assert str(kernel).index("arith.addf") < str(kernel).index("arith.truncf")


def test_a_tile_of_something_else_has_no_dot():
    module = lowered(lambda x, w: (x[:, None] * w).sum(-1), empty(16, 1024), empty(8192, 1024), stages=("nd", "loop", "mem"))
    (nest,) = (op for op in module.walk() if is_nest_in_memory(op))
    product = lowered(layer, empty(16, 1024), empty(8192, 1024), stages=("nd", "loop", "mem"))
    tile = next(schedule_table(op)[GPU] for op in product.walk() if is_nest_in_memory(op))
    update_schedule(nest, {GPU: tile})
    with pytest.raises(StepwellError, match="with dot the loops inside are sums of products, of one factor along each of the axes"):
        run(default_pipeline("gpu", stages=["tt"]), module, context())


@pytest.fixture
def interpreted():
    """Programs run in the interpreter."""
    stepwell.register_target(InterpretedTarget, replace=True)
    yield
    stepwell.unregister_target("interpreted")
    torch._dynamo.reset()


def test_rows_may_be_a_symbol_that_is_known_to_be_small(interpreted):
    torch.manual_seed(0)
    w, s = torch.randint(-127, 128, (136, 264), dtype=torch.int8), torch.randn(136).bfloat16()

    def product(x):
        return (x @ w.to(x.dtype).t()) * s

    compiled = torch.compile(product, backend="stepwell", options={"cache": "off"})
    for rows in (9, 30, 2):
        x = (torch.randn(rows, 264) / 32).bfloat16()
        torch._dynamo.mark_dynamic(x, 0, min=2, max=48)
        torch.testing.assert_close(compiled(x), product(x), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("rows", [0, 1, 5, 64])
def test_training_and_strides(interpreted, rows):
    """The gradient of the rows is a product of few rows too, by the matrix the other way round."""
    torch.manual_seed(rows)
    w = (torch.randn(136, 528) / 16).bfloat16()[:, ::2].requires_grad_()
    x = (torch.randn(rows, 528) / 8).bfloat16()[:, 1::2].requires_grad_()
    compiled = torch.compile(lambda x, w: F.gelu(F.linear(x, w)), backend="stepwell", options={"cache": "off"})
    expected, got = F.gelu(F.linear(x, w)), compiled(x, w)
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)
    wanted = torch.autograd.grad(expected.float().square().sum(), (x, w))
    for a, b in zip(torch.autograd.grad(got.float().square().sum(), (x, w)), wanted, strict=True):
        assert a.stride() == b.stride()
        torch.testing.assert_close(a, b, rtol=5e-2, atol=5e-2)
