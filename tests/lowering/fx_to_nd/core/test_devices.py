"""Graphs of a GPU and of several devices, traced without a GPU."""

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from stepwell.dialects import host, nd
from stepwell.dialects.tt import structure as tt_structure
from stepwell.lowering.fx.decompositions import decomposition_table
from stepwell.lowering.fx_to_nd import import_graph
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.tools.backend.compile_graph import context


def traced(function, *inputs):
    """The import of a function of fake tensors: each input is (sizes, device) or a tensor."""

    def flat(*args):
        return tuple(pytree.tree_leaves(function(*args)))

    with FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv()):
        args = [torch.empty(i[0], device=i[1]) if isinstance(i, tuple) else i for i in inputs]
        gm = make_fx(flat, decomposition_table=decomposition_table(), tracing_mode="fake")(*args)
    return import_graph(gm, args)


def lowered(function, *inputs):
    """(kernels, operators that the library runs) of a function down to its host program."""
    imported = traced(function, *inputs)
    run(default_pipeline("gpu"), imported.module, context())
    program = host.program_of(imported.module)
    calls = [op.call.data.target for op in program.body.block.ops if isinstance(op, host.ExternOp)]
    return [op for op in imported.module.ops if isinstance(op, tt_structure.FuncOp)], calls


def test_a_graph_of_a_gpu_names_its_device():
    imported = traced(lambda x, y: x * 2 + y, ((4, 5), "cuda"), ((5,), "cuda"))
    assert imported.device == "cuda:0"
    assert '!nd.tensor<4 x 5 x f32, "cuda:0">' in str(imported.module)
    assert traced(lambda x: x * 2, ((4,), "cpu")).device == "cpu"


def test_one_element_of_the_cpu_is_a_number_of_the_kernel():
    """H11, M05"""
    kernels, calls = lowered(lambda x, s: x * s, ((4, 5), "cuda"), ((), "cpu"))
    assert len(kernels) == 1 and calls == ["py"]
    assert [str(t) for t in kernels[0].body.block.arg_types][-1] == "f64"


def test_a_float_that_a_kernel_reads_is_fetched_from_the_cpu_alone():
    """H05"""
    for device, found in (("cpu", ["py"]), ("cuda", [])):
        kernels, calls = lowered(lambda x, s: x * (s.item() + 1), ((4, 5), "cuda"), ((), device))
        assert len(kernels) == 1 and calls == found


def test_a_small_constant_of_the_cpu_stands_in_the_kernel():
    kernels, calls = lowered(lambda x: x * torch.tensor(3.0) + torch.tensor([1.0, 2.0]).to(x.device), ((4, 2), "cuda"))
    assert len(kernels) == 1 and calls == []


def test_a_small_constant_of_the_gpu_stands_in_the_kernel(monkeypatch):
    """With a GPU, tracing makes `torch.tensor(number, device=x.device)` a constant of it, as the masks of flex_attention do."""
    gpu = torch.device("cuda", 0)
    with FakeTensorMode(allow_non_fake_inputs=True):
        args = [torch.empty(4, 5, device=gpu)]
        gm = make_fx(lambda x: (torch.where(x > 0, x, torch.tensor(2.5)),), tracing_mode="fake")(*args)
        constants = [getattr(gm, str(n.target)) for n in gm.graph.nodes if n.op == "get_attr"]
        for node in gm.graph.nodes:
            if isinstance(val := node.meta.get("val"), torch.Tensor):
                node.meta["val"] = torch.empty(val.shape, dtype=val.dtype, device=gpu)
    plain = torch._C.TensorBase.device
    monkeypatch.setattr(torch.Tensor, "device", property(lambda t: gpu if any(t is c for c in constants) else plain.__get__(t)))
    imported = import_graph(gm, args)
    assert len(constants) == 1 and imported.constants == []
    (select,) = [op for op in imported.module.walk() if op.name == "nd.select"]
    numbers = [op.value.value.data for op in imported.module.walk() if isinstance(op, nd.FullOp)]
    assert 2.5 in numbers and all('"cuda:0"' in str(operand.type) for operand in select.operands)


@pytest.mark.parametrize("constant", [torch.tensor(2.0), torch.arange(40.0)[:4]])
def test_a_definition_that_is_written_in_line_may_bring_a_constant_of_the_cpu(constant):
    """As the gradients of flex_attention do."""

    def larger(a, b):
        return torch.where(a > b, a, constant if constant.dim() == 0 else constant.to(a.device))

    kernels, calls = lowered(lambda x: torch.ops.higher_order.associative_scan(larger, [x], ()), ((8, 4), "cuda"))
    assert kernels and not calls
    imported = traced(lambda x: torch.ops.higher_order.associative_scan(larger, [x], ()), ((8, 4), "cuda"))
    selects = [op for op in imported.module.walk() if op.name == "nd.select"]
    assert selects and all("cuda:0" in str(operand.type) for op in selects for operand in op.operands)


def test_what_happens_on_another_gpu_is_no_fallback(no_gpu):
    imported = traced(lambda x, y: (x * 2 + 1, (y + 1).sum(0)), ((4, 5), "cuda:0"), ((4, 5), "cuda:1"))
    assert imported.device == "cuda:0"
    assert imported.counts.fallback == 0 and set(imported.counts.names["extern"]) == {"aten.add.Tensor", "aten.sum.dim_IntList"}


def test_what_happens_on_the_cpu_goes_through_the_library():
    kernels, calls = lowered(lambda x, y: (x * 2, (y + 1).sum(0)), ((4, 5), "cuda"), ((4, 5), "cpu"))
    assert len(kernels) == 1
    assert calls == ["aten.add.Tensor", "aten.sum.dim_IntList"]


def test_random_numbers_take_their_seeds_on_the_gpu():
    module = traced(lambda x: torch.nn.functional.dropout(x, 0.5, True), ((8,), "cuda")).module
    (seeds,) = [op for op in module.walk() if isinstance(op, nd.ExternOp)]
    assert 'device("cuda:0")' in str(seeds) and '"cuda:0"' in str(seeds.results[0].type)


def test_scatters_without_an_atomic_operation_are_library_calls():
    """OP-18, L01"""
    def function(x, y):
        index = torch.zeros(6, dtype=torch.int64, device=x.device)
        return x.scatter_reduce(0, index, y, "prod")

    _, calls = lowered(function, ((4,), "cuda"), ((6,), "cuda"))
    assert calls == ["aten.scatter_reduce.two"]


def test_results_that_are_none_keep_the_places_of_the_others():
    def function(x, w, g):
        return torch.ops.aten.convolution_backward(g, x, w, [3], [1], [0], [1], False, [0], 1, [False, True, False])[1]

    imported = traced(function, ((2, 4, 9), "cuda"), ((3, 4, 2), "cuda"), ((2, 3, 8), "cuda"))
    run(default_pipeline("gpu"), imported.module, context())
    (call,) = [op for op in host.program_of(imported.module).body.block.ops if isinstance(op, host.ExternOp)]
    assert tuple(call.kept.data) == (1,)


def test_one_element_that_only_the_library_reads_may_be_anywhere():
    def function(q):
        attention = torch.ops.aten._scaled_dot_product_efficient_attention
        return attention(q, q, q, None, True)

    imported = traced(function, ((1, 2, 8, 16), "cuda"))
    run(default_pipeline("gpu"), imported.module, context())
    text = str(host.program_of(imported.module))
    assert '!host.tensor<i64, "any">' in text


def test_copies_between_devices_happen_once_where_the_program_says():
    """DV-08, D12, L03: to the CPU and back; kernels of the GPU before and after."""

    def function(x):
        total = (x * 2).sum(0).cpu()
        return x + (total.sort()[0] + 1).to(x.device), total

    kernels, calls = lowered(function, ((4, 5), "cuda"))
    assert len(kernels) == 2
    assert [c for c in calls if "_to_copy" in c or "device_put" in c] == ["aten._to_copy.default"] * 2


def test_constants_are_made_where_they_are_needed():
    """A25, D12: numbers that a program makes on one device and moves to another are no copies."""
    kernels, calls = lowered(lambda x: x + torch.ones(5).to(x.device), ((4, 5), "cuda"))
    assert len(kernels) == 1 and calls == []


def test_a_library_call_runs_where_its_operands_are():
    """D07: the type of its result says the device."""
    module = traced(lambda x: torch.linalg.inv(x) + 1, ((4, 4), "cuda")).module
    calls = [op for op in module.walk() if isinstance(op, nd.ExternOp)]
    assert calls and all('"cuda:0"' in str(result.type) for op in calls for result in op.results if "f32" in str(result.type))


def test_a_large_constant_of_the_cpu_is_copied_as_the_program_says(no_gpu):
    """CN-06: where there is a GPU while compiling it is copied then, once."""
    table = torch.arange(100.0)
    kernels, calls = lowered(lambda x: x + table.to(x.device), ((4, 100), "cuda"))
    assert len(kernels) == 1 and calls == ["aten._to_copy.default"]


@pytest.mark.parametrize("device", ["xpu", "mps"])
def test_a_device_without_kernels_is_left_to_the_library(device, no_gpu):
    """DV-02, DV-03: where there is no code generator for a device, each operator on it runs through ATen, beside a GPU's kernels too."""
    imported = traced(lambda x: (x * 2).sum(0), ((4, 5), device))
    calls = [op for op in imported.module.walk() if isinstance(op, nd.ExternOp)]
    assert imported.device == "cpu" and len(calls) == 2
    kernels, targets = lowered(lambda x, y: (x * 2, y + 1), ((4, 5), "cuda"), ((4, 5), device))
    assert len(kernels) == 1 and targets == ["aten.add.Tensor"]


def test_unknown_gpus_and_targets_are_named():
    """L02, ERR-05"""
    from stepwell.passes.manager.errors import PipelineError
    from stepwell.targets.triton.gpu import TargetError, gpu_target

    with pytest.raises(TargetError, match="sm_19x"):
        gpu_target("sm_19x")
    with pytest.raises(PipelineError, match="there is no target 'tpu'"):
        default_pipeline("tpu")


def test_tables_that_come_from_indices_alone_are_computed_in_place():
    """Places and weights of an interpolation: no launch of their own, and what was clamped is not checked."""
    kernels, calls = lowered(lambda x: torch.nn.functional.interpolate(x, scale_factor=2.0, mode="bilinear") + 1, ((2, 3, 16, 16), "cuda"))
    assert len(kernels) == 1 and not calls
    assert "tt.assert" not in str(kernels[0])


SCATTERS = {
    "index_add": lambda x, i, v: x.index_add(0, i, v),
    "index_put, accumulated": lambda x, i, v: x.index_put((i,), v, accumulate=True),
    "index_put": lambda x, i, v: x.index_put((i,), v),
    "scatter_add": lambda x, i, v: x.scatter_add(0, i.unsqueeze(1).expand_as(v), v),
    "scatter_reduce": lambda x, i, v: x.scatter_reduce(0, i.unsqueeze(1).expand_as(v), v, "sum"),
    "embedding": lambda x, i, v: torch.ops.aten.embedding_dense_backward(v, i, 20, -1, False),
}
NO_ORDER = {
    "index_fill": lambda x, i, v: x.index_fill(0, i, 2.0),
    "scatter of a number": lambda x, i, v: x.scatter(0, i.unsqueeze(1).expand_as(v), 2.0),
    "gather": lambda x, i, v: x.index_select(0, i),
    "under a mask": lambda x, i, v: x.index_put((x > 0,), x.sum()),
}


@pytest.fixture(name="deterministic")
def deterministic_fixture():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def scatter_calls(function, device):
    found = traced(function, ((20, 8), device), (torch.arange(5) if device == "cpu" else ((5,), device)), ((5, 8), device))
    return [op.call.data.target for op in found.module.walk() if isinstance(op, nd.ExternOp)]


def with_indices(function):
    """Fake tensors are made of floats: the indices are whole ones."""
    return lambda x, i, v: function(x, i.long(), v)


@pytest.mark.parametrize("name", SCATTERS)
def test_writes_in_any_order_are_the_librarys_where_the_program_forbids_them(name, deterministic):
    assert len(scatter_calls(with_indices(SCATTERS[name]), "cuda")) == 1
    assert scatter_calls(SCATTERS[name], "cpu") == []


@pytest.mark.parametrize("name", NO_ORDER)
def test_writes_whose_order_does_not_matter_stay(name, deterministic):
    assert scatter_calls(with_indices(NO_ORDER[name]), "cuda") == []


@pytest.mark.parametrize("name", SCATTERS)
def test_scatters_are_kernels(name):
    assert scatter_calls(with_indices(SCATTERS[name]), "cuda") == []


def test_a_number_that_comes_of_sizes_is_computed_by_the_kernel():
    """What torch makes of `x / math.sqrt(x.shape[1])` where sizes are symbols: tensors of one number on the CPU."""

    def scaled(x):
        n = torch.ops.prims.convert_element_type.default(torch.scalar_tensor(x.shape[1]), torch.float64).sqrt()
        return x / n

    kernels, calls = lowered(scaled, ((4, 9), "cuda"))
    assert len(kernels) == 1 and calls == []


def test_a_number_that_is_wanted_on_the_cpu_stays_there():
    def scaled(x):
        n = torch.scalar_tensor(x.shape[1]).sqrt() + 1
        return x / n, n

    imported = traced(scaled, ((4, 9), "cuda"))
    assert "!nd.tensor<f32>" in str(imported.module).split("return")[-1]
