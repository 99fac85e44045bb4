"""contract-epilogue: what is computed from a product element by element runs on its sums; values against eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support import import_function

import stepwell
from stepwell.dialects import loop, nd
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.loop import run_loop


def gelu(x, w, b):
    return F.gelu(F.linear(x, w, b), approximate="tanh")


def residual(x, w, b):
    return F.linear(x, w, b) * b + x[..., : w.shape[0]]


def channels_behind(x, w, b):
    """Rows in two dimensions, columns in the first one."""
    y = F.hardswish(F.linear(x, w, b)).reshape(4, -1, w.shape[0]).permute(2, 0, 1)
    return y * 2 + 1


def gate(x, w, b):
    return F.linear(x, w) * torch.sigmoid(b * 3) - x.mean(-1, keepdim=True)


def two_readers(x, w, b):
    y = torch.relu(F.linear(x, w, b))
    return y * 3, y + 1


def read_with_its_activation(x, w, b):
    p = F.linear(x, w)
    return torch.tanh(p), p


def a_later_tensor(x, w, b):
    p = F.linear(x, w)
    other = torch.cumsum(F.linear(x, w * 2), 1)
    return p + other


def a_sum_of_products(x, w, b):
    return F.linear(x, w) + F.linear(x + 1, w) + F.linear(x * 2, w)


def a_reduction(x, w, b):
    return torch.softmax(F.linear(x, w, b) * 2, -1)


def shifted(x, w, b):
    return torch.relu(F.linear(x, w, b)).roll(1, 0) + 1


def scaled_by_a_place(x, w, b):
    return F.linear(x, w) * torch.arange(w.shape[0]) + torch.arange(x.shape[0])[:, None]


def joined_with_another(x, w, b):
    """Each product is stored into a part of a larger tensor."""
    return torch.cat([F.linear(x, w), F.linear(x, w * 2)], 1), torch.cat([F.linear(x, w).relu(), F.linear(x, w * 3)])


FUNCTIONS = [
    joined_with_another, gelu, residual, channels_behind, gate, two_readers, read_with_its_activation, a_later_tensor, a_reduction, shifted,
    scaled_by_a_place, a_sum_of_products,
]  # fmt: skip


def inputs(rows, columns, terms, dtype=torch.float32):
    torch.manual_seed(0)
    return torch.randn(rows, terms).to(dtype), torch.randn(columns, terms).to(dtype) / 8, torch.randn(columns).to(dtype)


def check(function, given, compiled, tolerance=1e-4):
    got, want = compiled(*given), function(*given)
    exact = function(*(x.double() for x in given))
    pairs = zip(*((t,) if isinstance(t, torch.Tensor) else t for t in (got, want, exact)), strict=True)
    for a, b, c in pairs:
        assert a.dtype == b.dtype and a.shape == b.shape
        torch.testing.assert_close(a.double(), c.double(), atol=tolerance, rtol=tolerance)


@pytest.mark.spread
@pytest.mark.parametrize("shape", [(24, 70, 80), (4, 16, 33), (8, 200, 200)], ids=str)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_values(function, shape):
    torch._dynamo.reset()
    check(function, inputs(*shape), torch.compile(function, backend="stepwell", dynamic=False))


@pytest.mark.spread
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_types(function, dtype):
    torch._dynamo.reset()
    tolerance = 1e-8 if dtype is torch.float64 else 0.2
    check(function, inputs(24, 70, 80, dtype), torch.compile(function, backend="stepwell", dynamic=False), tolerance)


def test_sizes_that_are_symbols_and_none():
    torch._dynamo.reset()
    f = torch.compile(residual, backend="stepwell", dynamic=True)
    for shape in ((24, 70, 80), (7, 16, 33), (60, 31, 40)):
        check(residual, inputs(*shape), f)
    for shape in ((0, 70, 80), (24, 70, 0)):
        x, w, b = inputs(*shape)
        torch.testing.assert_close(torch.compile(gelu, backend="stepwell")(x, w, b), gelu(x, w, b))


def test_on_several_threads():
    before = torch.get_num_threads()
    torch._dynamo.reset()
    try:
        torch.set_num_threads(2)
        check(gelu, inputs(300, 500, 200), torch.compile(gelu, backend="stepwell", dynamic=False))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "function, nests", [(gelu, 0), (residual, 0), (two_readers, 1), (read_with_its_activation, 1), (a_sum_of_products, 1)]
)
def test_what_is_taken(function, nests):
    given = inputs(24, 70, 80)
    found = import_function(function, *given)
    run(parse_pipeline("nd-canonicalize,nd-to-loop,contract-epilogue,loop-fuse"), found.module, context())
    found.module.verify()
    assert sum(isinstance(op, loop.NestOp) for op in found.module.walk()) == nests
    for got, want in zip(run_loop(found.module, list(given), found.constants, found.objects), _list(function(*given)), strict=True):
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


def one_row(x, w, b):
    y = torch.relu(F.linear(x[:1], w, b))
    return y @ w


def reshaped(x, w, b):
    return torch.relu(F.linear(x, w, b)).reshape(2, -1, w.shape[0])


@pytest.mark.parametrize("function, views", [(gelu, 0), (one_row, 0), (reshaped, 1)], ids=lambda f: getattr(f, "__name__", str(f)))
def test_readers_take_the_result_itself_where_their_indices_are_its_own(function, views):
    """The view that is left is the program's own."""
    given = inputs(24, 70, 80)
    found = import_function(function, *given)
    run(parse_pipeline("nd-canonicalize,nd-to-loop,contract-epilogue"), found.module, context())
    found.module.verify()
    assert sum(isinstance(op, nd.IndexViewOp) for op in found.module.walk()) == views
    (got,) = run_loop(found.module, list(given), found.constants, found.objects)
    torch.testing.assert_close(got, function(*given), atol=1e-4, rtol=1e-4)


def _list(results):
    return [results] if isinstance(results, torch.Tensor) else list(results)


@pytest.mark.parametrize("force", ["gemm", "library"])
def test_who_computes_the_product(force):
    """A call of the library has the epilogue behind it, as a nest."""
    given = inputs(24, 70, 80)
    found = import_function(gelu, *given)
    stages = "nd-canonicalize,nd-to-loop,contract-epilogue,loop-to-mem"
    run(parse_pipeline(f"{stages},contract-select{{force={force}}}"), found.module, context())
    found.module.verify()
    kinds = [type(op) for op in found.module.walk() if isinstance(op, loop.NestOp | loop.ContractOp)]
    assert kinds == ([loop.ContractOp] if force == "gemm" else [loop.ContractOp, loop.NestOp])
    run(parse_pipeline("mem-to-cpu"), found.module, context())
    found.module.verify()


@pytest.mark.parametrize("options", [{"no_fuse": ["gelu"]}, {"no_fuse": ["add"]}, {"fuse": [["gelu", "mul"]]}], ids=str)
def test_directives_keep_operations_out_of_it(options):
    def program(x, w, b):
        return F.gelu(F.linear(x, w) + b) * 2

    given = inputs(24, 70, 80)
    kernels = []
    for more in ({}, options):
        torch._dynamo.reset()
        stepwell.reset_counters()
        torch.testing.assert_close(torch.compile(program, backend="stepwell", options=more)(*given), program(*given), atol=1e-4, rtol=1e-4)
        kernels.append(stepwell.counters["bytes_written"])
    assert kernels[1] > kernels[0]
