"""What the passes before mem-to-tt make of nests; that the values stay the same is checked in test_programs.py."""

from __future__ import annotations

import math

import pytest
import torch
from support import lower
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from xdsl.dialects import gpu
from xdsl.parser import Parser

from stepwell.dialects import loop, mem
from stepwell.dialects.tt.memory import LoadOp, StoreOp
from stepwell.dialects.tt.structure import FuncOp
from stepwell.lowering.fx.decompositions import decomposition_table
from stepwell.lowering.fx_to_nd import import_graph
from stepwell.passes.analysis.nest_key import is_nest_in_memory
from stepwell.passes.loop.fusion.sharing.profit import MAX_ROW_PRODUCTS
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.targets.triton.emit import kernel_modules, kernel_of
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.loop import run_loop
from stepwell.tools.interpret.tt.run import run_kernel


def nests(function, *args):
    """The nests of a program at the end of the stage `mem`, and the module."""

    module = lower(function, *args, to="mem", target="gpu").module
    return [n for n in module.walk() if is_nest_in_memory(n)], module


def inside(nest, kind):
    return [op for op in loop.walk_bodies(nest) if isinstance(op, kind)]


def norm_backward(g, x, mean, rstd, w):
    return torch.ops.aten.native_layer_norm_backward(g, x, [x.shape[-1]], mean, rstd, w, w, [True, True, True])


def empty(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype)


def test_rows_and_the_columns_summed_over_them_are_one_nest():
    found, module = nests(norm_backward, empty(4096, 96), empty(4096, 96), empty(4096, 1), empty(4096, 1), empty(96))
    rows, columns = found
    assert [s.value for s in rows.loop_sizes] == [264]
    assert sum(op.store_mode == "add" for op in inside(rows, loop.StoreOp)) == 2
    # the normalised rows are not kept in memory: nothing of their size is allocated but the gradient
    sizes = [a.result.type.dims for a in module.walk() if isinstance(a, mem.AllocOp)]
    assert sum([d.value for d in dims] == [4096, 96] for dims in sizes) == 1
    # but computed again where the gradient is stored, and the columns are added up there too
    assert [[d.value for d in op.loop_sizes] for op in inside(rows, loop.ForOp | loop.ReduceOp)] == [[96], [16], [96], [96]]
    assert [s.value for s in columns.loop_sizes] == [96] and columns.block.first_op.kind_names == ["sum", "sum"]


def test_parts_that_do_not_divide_the_rows_store_where_there_is_one():
    found, _ = nests(norm_backward, empty(1031, 8), empty(1031, 8), empty(1031, 1), empty(1031, 1), empty(8))
    whole, _ = found
    rows = next(o for o in inside(whole, loop.ForOp) if inside(o, loop.ForOp))
    assert [s.value for s in (*whole.loop_sizes, *rows.loop_sizes)] == [264, 4]
    assert len({s.mask for s in inside(rows, loop.StoreOp)}) == 1 and None not in {s.mask for s in inside(rows, loop.StoreOp)}
    # weights are the same in every row
    assert {o.mask is None for o in inside(rows, loop.LoadOp)} == {True, False}
    found, _ = nests(norm_backward, empty(1056, 8), empty(1056, 8), empty(1056, 1), empty(1056, 1), empty(8))
    assert not any(o.mask for o in inside(found[0], loop.StoreOp))


def test_few_rows_stay_apart():
    found, _ = nests(norm_backward, empty(64, 96), empty(64, 96), empty(64, 1), empty(64, 1), empty(96))
    assert not any(op.store_mode == "add" for n in found for op in inside(n, loop.StoreOp))


@pytest.mark.parametrize(("columns", "kinds"), [(60000, [["softmax"]]), (1000, [["max"], ["sum"]])])
def test_long_rows_are_read_once_for_maximum_and_sum(columns, kinds):
    """N30"""
    found, _ = nests(lambda x: torch.softmax(x, -1), empty(300, columns))
    (nest,) = [n for n in found if inside(n, loop.ReduceOp)]
    assert [r.kind_names for r in inside(nest, loop.ReduceOp)] == kinds
    # what is stored is stored once
    assert len(inside(nest, loop.StoreOp)) == 1


@pytest.mark.parametrize("function", [torch.logsumexp, torch.var, torch.argmax])
def test_only_the_last_block_of_a_row_has_a_mask(function):
    _, module = nests(lambda x: function(x, -1), empty(5336, 50304))
    run(default_pipeline("gpu", stages=["tt"]), module, context())
    first, last = (op for op in module.walk() if isinstance(op, LoadOp))
    assert first.mask is None and last.mask is not None


def test_the_sum_of_exponentials_below_what_is_finite_of_a_maximum():
    found, _ = nests(lambda x: torch.logsumexp(x, -1), empty(1000, 60000))
    (nest,) = [n for n in found if inside(n, loop.ReduceOp)]
    assert [r.kind_names for r in inside(nest, loop.ReduceOp)] == [["softmax"]]


@pytest.mark.parametrize(
    ("function", "args", "loops"),
    [
        (lambda x, i, v: x.index_add(0, i, v), (empty(9, 8), torch.zeros(30, dtype=torch.int64), empty(30, 8)), [30, 8]),
        (lambda x, i, v: x.scatter_add(1, i, v), (empty(4, 9), torch.zeros(4, 30, dtype=torch.int64), empty(4, 30)), [4, 30]),
    ],
)
def test_scatters_run_in_parallel(function, args, loops):
    found, _ = nests(function, *args)
    assert [s.value for s in found[-1].loop_sizes] == loops


def test_a_scatter_without_an_atomic_operation_stays_in_order():
    found, _ = nests(
        lambda x, i, v: x.scatter_reduce(0, i, v, "prod"), empty(9), torch.zeros(30, dtype=torch.int64), empty(30)
    )
    assert any(o.sequential is not None for n in found for o in inside(n, loop.ForOp))


def test_parts_of_a_reduction_are_even_and_lie_side_by_side():
    """D20, KG-12"""
    found, module = nests(lambda x: x.sum((0, 2, 3)), empty(64, 32, 28, 28).to(memory_format=torch.channels_last))
    parts, merge = found
    columns, count = (s.value for s in parts.loop_sizes)
    (reduce,) = inside(parts, loop.ReduceOp)
    each = 1
    for size in reduce.loop_sizes:
        each *= size.value
    assert columns == 32 and count * each == 64 * 28 * 28
    stored = next(a.result.type for a in module.walk() if isinstance(a, mem.AllocOp) and a.kind.data == "arena")
    assert [d.value for d in stored.dims] == [count, 32]
    assert [s.value for s in merge.loop_sizes][:1] == [32]


def windows(x):
    y = x.sigmoid()
    return y, torch.nn.functional.avg_pool2d(y, 2)


def gate(x):
    p = torch.softmax(x, -1)
    return p * (p >= p.amax(-1, keepdim=True))


@pytest.mark.parametrize("shape", [(70, 64), (3, 9000)])
def test_values_that_loops_overwrite_one_after_the_other_are_computed_again(shape):
    """Exponentials, shares and what is left of these would take turns in the result."""
    (nest,), _ = nests(gate, empty(*shape))
    assert len(inside(nest, loop.StoreOp)) == 1


def test_a_thread_loads_nothing_that_another_one_may_have_stored():
    """Not even from where the program has stored, in the same order: Triton gives a thread as many elements side by side as it loads at
    once, which are more than it stores at once."""
    _, module = nests(windows, empty(2, 16, 64, 64, dtype=torch.bfloat16))
    run(default_pipeline("gpu", stages=["tt"]), module, context())
    stored, loads = set(), 0
    for op in module.walk():
        if isinstance(op, FuncOp | gpu.BarrierOp):
            stored.clear()
        elif isinstance(op, StoreOp):
            stored.add(op.operands[0])
        elif isinstance(op, LoadOp):
            loads += 1
            assert op.operands[0] not in stored, op
    assert loads >= 5


def test_positions_of_parts_keep_64_bits():
    """The parts of a tensor of more than 2**31 elements are few, their positions are not small."""
    with FakeTensorMode():
        x = torch.empty(3_000_000_000, dtype=torch.int8)
        gm = make_fx(lambda x: (x.argmax(),), decomposition_table=decomposition_table(), tracing_mode="fake")(x)
    module = import_graph(gm, [x]).module
    run(default_pipeline("gpu"), module, context())
    last = kernel_modules(module)[-1]
    values, positions, found = torch.zeros(2000, dtype=torch.int8), torch.arange(2000) * 1_500_000, torch.zeros((), dtype=torch.int64)
    values[1900] = 5
    assert [str(t) for t in kernel_of(last).body.block.arg_types] == ["!tt.ptr<i64>", "!tt.ptr<i8>", "!tt.ptr<i64>"]
    run_kernel(last, [found, values, positions], [1])
    assert found.item() == 1900 * 1_500_000


def small_layers(x, *weights):
    for w in weights:
        x = torch.nn.functional.layer_norm(torch.nn.functional.gelu(x @ w), (w.shape[1],))
    return x


@pytest.mark.parametrize("layers", [MAX_ROW_PRODUCTS, 3 * MAX_ROW_PRODUCTS + 2, 5 * MAX_ROW_PRODUCTS])
def test_a_program_does_a_few_layers_and_those_between_the_first_and_the_last_are_one_kernel(layers):
    found, module = nests(small_layers, empty(32, 64), *(empty(64, 64) for _ in range(layers)))
    assert len(found) == -(-layers // MAX_ROW_PRODUCTS)
    run(default_pipeline("gpu", stages=["tt"]), module, context())
    assert len(kernel_modules(module)) == min(3, len(found))


def two_layers(x, a, b, w, c):
    """The first layer's values are loaded, added to, and stored again where they were."""
    h = torch.relu(x @ w + a)
    return h, torch.relu(h @ w + b) + c


@pytest.mark.parametrize("rows", [32, 3])
def test_threads_that_share_an_element_load_it_before_it_is_overwritten(rows):
    """A tile of fewer elements than threads lies in several threads at once."""
    _, module = nests(two_layers, empty(rows, 64), empty(64), empty(64), empty(64, 64), empty(64))
    run(default_pipeline("gpu", stages=["tt"]), module, context())
    again, threads, loaded = 0, 0, {}
    for op in module.walk():
        if isinstance(op, FuncOp):
            threads = 32 * op.attributes["num_warps"].value.data
        if isinstance(op, FuncOp | gpu.BarrierOp):
            loaded.clear()
        elif isinstance(op, LoadOp):
            loaded[op.operands[0]] = op
        elif isinstance(op, StoreOp):
            shape = op.operands[0].type.get_shape()
            again += math.prod(shape) < threads
            assert op.operands[0] not in loaded or math.prod(shape) >= threads, op
    assert again >= 2


IN_PLACE = """builtin.module {{
  func.func @forward(%x: !mem.buffer<{numbers} x f32>, %z: !mem.buffer<{numbers} x f32>) {{
    %v = mem.view {viewed} : (!mem.buffer<{numbers} x f32>) -> !mem.buffer<1 x {numbers} x f32>
    loop.nest (%i = 1, %j = {numbers}) outs(%out = %v : !mem.buffer<1 x {numbers} x f32>) {{
      %a = loop.load %x[%{place}] : !mem.buffer<{numbers} x f32> -> f32
      %b = arith.addf %a, %a : f32
      loop.store %b, %out[%i, %j] : f32, !mem.buffer<1 x {numbers} x f32>
    }}
    func.return
  }}
}}"""


@pytest.mark.parametrize(
    "numbers, viewed, place, barriers",
    [
        (16, "%x", "j", 1),  # several threads have each element
        (16, "%z", "j", 0),
        (1024, "%x", "j", 0),  # each thread overwrites what it loads
        (1024, "%z", "i", 0),
    ],
)
def test_a_view_is_the_memory_that_it_is_a_view_of(numbers, viewed, place, barriers):
    module = Parser(context(), IN_PLACE.format(numbers=numbers, viewed=viewed, place=place)).parse_module()
    run(default_pipeline("gpu", stages=["tt"]), module, context())
    assert sum(isinstance(op, gpu.BarrierOp) for op in module.walk()) == barriers
    x, z = torch.arange(float(numbers)), torch.zeros(numbers)
    run_loop(module, [x, z])
    assert torch.equal(x if viewed == "%x" else z, 2 * torch.arange(float(numbers)) if place == "j" else torch.zeros(numbers))


def test_kernels_are_shared_by_nests_with_views_of_the_same_buffers():
    first, second = (IN_PLACE.format(numbers=16, viewed=v, place="j") for v in ("%x", "%z"))
    body = second[second.index("%v = ") : second.index("func.return")].replace("%v", "%w").replace("%out", "%last")
    both = first.replace("    func.return", f"    {body}    {body.replace('%w', '%u')}    func.return")
    module = Parser(context(), both).parse_module()
    run(default_pipeline("gpu", stages=["tt"]), module, context())
    assert [sum(isinstance(op, gpu.BarrierOp) for op in f.walk()) for f in module.ops if isinstance(f, FuncOp)] == [1, 0]


TWO_STORES = """builtin.module {{
  func.func @forward(%x: !mem.buffer<{rows} x 8 x f32>, %y: !mem.buffer<{rows} x 16 x f32>) {{
    loop.nest (%i = {rows}) outs(%out = %y : !mem.buffer<{rows} x 16 x f32>) {{
      loop.for (%j = 8) {{
        %a = loop.load %x[%i, %j] : !mem.buffer<{rows} x 8 x f32> -> f32
        loop.store %a, %out[%i, {first}] : f32, !mem.buffer<{rows} x 16 x f32>
      }}
      loop.for (%k = 8) {{
        %b = loop.load %x[%i, %k] : !mem.buffer<{rows} x 8 x f32> -> f32
        %c = arith.addf %b, %b : f32
        loop.store %c, %out[%i, {second}] : f32, !mem.buffer<{rows} x 16 x f32>
      }}
    }}
    func.return
  }}
}}"""


@pytest.mark.spread
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize(
    "first, second, barriers",
    [("%j", "%k + 8", 0), ("%j + 8", "%k", 0), ("%j * 2", "%k * 2 + 1", 0), ("%j", "%k * 2", 1), ("%j", "%k + 7", 1), ("%j", "-%k + 7", 1)],
)
def test_what_two_loops_store_to_one_place_is_stored_in_their_order(rows, first, second, barriers):
    module = Parser(context(), TWO_STORES.format(rows=rows, first=first, second=second)).parse_module()
    run(default_pipeline("gpu", stages=["tt"]), module, context())
    assert sum(isinstance(op, gpu.BarrierOp) for op in module.walk()) == barriers
    x, y = torch.randn(rows, 8), torch.zeros(rows, 16)
    run_loop(module, [x, y])
    expected = torch.zeros(rows, 16)
    for k in range(8):
        expected[:, eval(first.replace("%j", "k"))] = x[:, k]
    for k in range(8):
        expected[:, eval(second.replace("%k", "k"))] = 2 * x[:, k]
    assert torch.equal(y, expected)
