"""nd-library-products: which products and convolutions become calls."""

import pytest
import torch
import torch.nn.functional as F
from support import import_function
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline
from stepwell.passes.mem.arena.peak import peak_bytes
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.nd import run_nd


def r(*sizes):
    return torch.randn(sizes)


CASES = {
    "product": (lambda x, y: x @ y, (r(3, 4), r(4, 5)), ["aten.mm.default"]),
    "bias": (lambda x, w, b: F.gelu(F.linear(x, w, b)), (r(3, 4), r(5, 4), r(5)), ["aten.addmm.default"]),
    "bias of rows": (lambda x, y, b: x @ y + b[:, None], (r(3, 4), r(4, 5), r(3)), ["aten.mm.default"]),
    "product needed twice": (lambda x, y, b: (x @ y + b, x @ y * 2), (r(3, 4), r(4, 5), r(5)), ["aten.mm.default"]),
    "batch": (lambda x, y: x @ y, (r(2, 3, 4), r(2, 4, 5)), ["aten.bmm.default"]),
    "two batches": (lambda x, y: x @ y, (r(2, 6, 3, 4), r(2, 6, 4, 5)), ["aten.bmm.default"]),
    "convolution": (lambda x, w, b: F.conv2d(x, w, b), (r(1, 2, 6, 6), r(3, 2, 3, 3), r(3)), []),
}


@pytest.mark.parametrize("name", CASES)
def test_calls_and_values(name):
    function, args, calls = CASES[name]

    module = import_function(function, *args).module
    run(parse_pipeline("nd-canonicalize,nd-library-products{tiny=0 library=always}"), module, context())
    module.verify()
    found = [op.call.data.target for op in module.walk() if op.name == "nd.extern"]
    assert found == calls and not any(op.name == "nd.matmul" for op in module.walk())
    for op in module.walk():
        if op.name == "nd.conv":
            assert len(op.operands) == 2
            assert all(len(one.data["operands"]) == 2 for one in op.attributes.get("layout_choices", ()))
    expected = function(*args)
    expected = [expected] if isinstance(expected, torch.Tensor) else expected
    for got, wanted in zip(run_nd(module, list(args), (), (), "forward"), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def lowered(function, args, passes):
    module = import_function(function, *args).module
    run(parse_pipeline(passes), module, context())
    module.verify()
    return module


def calls(module):
    return [op.call.data.target for op in module.walk() if op.name == "nd.extern"]


FEW = {
    "product": (lambda x, y: x @ y, (r(3, 4), r(4, 5))),
    "bias": (lambda x, w, b: F.linear(x, w, b), (r(3, 4), r(5, 4), r(5))),
    "16 bits": (lambda x, y: x @ y, (r(3, 70).bfloat16(), r(70, 5).bfloat16())),
    "batches": (lambda x, y: x @ y, (r(2, 6, 3, 4), r(2, 6, 4, 5))),
    "batch, transposed": (lambda x, y: x.mT @ y.mT, (r(6, 3, 4), r(6, 5, 3))),
    "no rows": (lambda x, y: x @ y, (r(0, 4), r(4, 5))),
    "no depth": (lambda x, y: x @ y, (r(3, 0), r(0, 5))),
    "one": (lambda x, y: x @ y, (r(1, 1), r(1, 1))),
}


@pytest.mark.parametrize("name", FEW)
def test_products_of_few_numbers_are_sums(name):
    function, args = FEW[name]
    module = lowered(function, args, "nd-canonicalize,nd-library-products")
    assert calls(module) == [] and not any(op.name == "nd.matmul" for op in module.walk())
    (got,) = run_nd(module, list(args), (), (), "forward")
    torch.testing.assert_close(got, function(*args), rtol=1e-5 if got.dtype == torch.float32 else 1e-2, atol=1e-5)
    assert calls(lowered(lambda x, y: x @ y, (r(64, 64), r(64, 33)), "nd-canonicalize,nd-library-products")) == ["aten.mm.default"]


def b(*sizes):
    return torch.randn(sizes, dtype=torch.bfloat16)


PADDED = {
    # operands, sizes of the operands of the call
    "columns": (lambda x, w: x @ w, (b(2048, 512), b(512, 4097)), [(2048, 512), (512, 4104)]),
    "columns of a layer": (lambda x, w, c: F.linear(x, w, c), (b(2048, 512), b(4097, 512), b(4097)), [(4104,), (2048, 512), (512, 4104)]),
    "depth": (lambda x, w: x @ w, (b(2048, 1537), b(1537, 2048)), [(2048, 1544), (1544, 2048)]),
    "rows that lie as columns": (lambda x, w: x.t() @ w, (b(512, 4097), b(512, 2048)), [(4104, 512), (512, 2048)]),
    "depth between the rows": (lambda x, w: x.t() @ w, (b(1537, 2048), b(1537, 2048)), [(2048, 1537), (1537, 2048)]),
    "aligned": (lambda x, w: x @ w, (b(2048, 512), b(512, 4096)), [(2048, 512), (512, 4096)]),
    "few rows": (lambda x, w: x @ w, (b(8, 512), b(512, 4097)), [(8, 512), (512, 4097)]),
}


@pytest.mark.parametrize("name", PADDED)
def test_misaligned_rows_are_padded(name):
    function, args, want = PADDED[name]
    module = lowered(function, args, "nd-canonicalize,nd-library-products")
    (call,) = [op for op in module.walk() if op.name == "nd.extern"]
    assert [tuple(d.value for d in o.type.dims) for o in call.operands] == want
    (got,) = run_nd(module, list(args), (), (), "forward")
    torch.testing.assert_close(got, function(*args), rtol=2e-2, atol=2e-1)


def symbolic(function, args, dynamic, passes):
    """The graph with a symbol for dimension `d` of argument `k`, for each (k, d) of `dynamic`."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    kinds = [[DimDynamic.DYNAMIC if (k, d) in dynamic else DimDynamic.STATIC for d in range(a.dim())] for k, a in enumerate(args)]
    fakes = [mode.from_tensor(a, symbolic_context=StatelessSymbolicContext(kind)) for a, kind in zip(args, kinds, strict=True)]
    module = import_function(function, *fakes, mode="real").module
    run(parse_pipeline(passes), module, context())
    module.verify()
    return module


def test_known_sizes_are_padded_beside_symbols():
    x, w, c = b(2048, 512), b(4097, 512), b(4097)
    module = symbolic(F.linear, (x, w, c), {(0, 0)}, "nd-canonicalize,nd-library-products")
    (call,) = [op for op in module.walk() if op.name == "nd.extern"]
    assert [[d.value for d in o.type.dims] for o in call.operands] == [[4104], [None, 512], [512, 4104]]
    for rows in (2048, 3):
        (got,) = run_nd(module, [x[:rows], w, c], (), (), "forward")
        torch.testing.assert_close(got, F.linear(x[:rows], w, c), rtol=2e-2, atol=2e-1)
    # a symbol itself is not padded, and few rows do not pay
    module = symbolic(lambda x, w: x @ w, (x, b(512, 4097)), {(1, 1)}, "nd-canonicalize,nd-library-products")
    assert not any(op.name == "nd.pad" for op in module.walk())
    module = symbolic(F.linear, (b(4, 512), w, c), {(0, 0)}, "nd-canonicalize,nd-library-products")
    assert not any(op.name == "nd.pad" for op in module.walk())


def test_padding_is_for_16_bits():
    args = (r(2048, 512), r(512, 4097))
    module = lowered(lambda x, w: x @ w, args, "nd-canonicalize,nd-library-products")
    assert not any(op.name == "nd.pad" for op in module.walk())


PARTS = "nd-canonicalize,nd-library-products{part=2097152}"


@pytest.mark.parametrize(
    "function",
    [lambda x, w, c: x @ w, lambda x, w, c: F.linear(x, w.t(), c), lambda x, w, c: (x @ w).view(2, 1000, 4097)],
    ids=["product", "bias", "another shape"],
)
def test_a_padded_result_for_the_caller_is_made_by_parts(function):
    args = (b(2000, 512), b(512, 4097), b(4097))
    module = lowered(function, args, PARTS)
    rows = [op.results[0].type.dims[0].value for op in module.walk() if op.name == "nd.extern"]
    assert rows == [256] * 7 + [208]
    (got,) = run_nd(module, list(args), (), (), "forward")
    torch.testing.assert_close(got, function(*args), rtol=2e-2, atol=2e-1)
    assert len(calls(lowered(function, args, "nd-canonicalize,nd-library-products{part=0}"))) == 1
    assert len(calls(lowered(function, args, "nd-canonicalize,nd-library-products"))) == 1  # 16 MB are not large


@pytest.mark.parametrize("columns", [4097, 4098, 4103])
@pytest.mark.parametrize("with_bias", [False, True])
def test_the_weight_of_a_linear_layer_by_parts_is_not_copied(columns, with_bias):
    """The last columns come from a product of the last 8 rows of the weight."""
    args = (b(2000, 512), b(columns, 512), *((b(columns),) if with_bias else ()))
    module = lowered(F.linear, args, PARTS)
    sizes = [tuple(d.value for d in op.results[0].type.dims) for op in module.walk() if op.name == "nd.extern"]
    assert sizes == [*[(256, 4096)] * 7, (208, 4096), (2000, 8)]
    assert not any(op.name == "nd.pad" for op in module.walk())
    (got,) = run_nd(module, list(args), (), (), "forward")
    torch.testing.assert_close(got, F.linear(*args), rtol=2e-2, atol=2e-1)
    run(parse_pipeline("stepwell-gpu{from=loop to=mem}"), module, context())
    allocated = [op.result.type for op in module.walk() if op.name == "mem.alloc"]
    assert not any(512 in [d.value for d in t.dims] for t in allocated), "of the operands there are views alone"


def test_one_part_is_in_memory_at_a_time():
    """Catalogue J05: a padded weight that every part reads is larger than a part: one product later is no gain, all are."""
    for weight, padded in ((b(512, 4097), 512 * 4104 * 2), (b(4097, 512).t(), 0)):
        for part, beside in ((0, 2000), (2097152, 256)):
            passes = f"nd-canonicalize,nd-library-products{{part={part}}},stepwell-gpu{{from=loop to=mem}}"
            (func,) = (op for op in lowered(lambda x, w: x @ w, (b(2000, 512), weight), passes).ops if op.name == "func.func")
            assert peak_bytes(func) <= 2000 * 4097 * 2 + beside * 4104 * 2 + (padded if part else 0) + 2000 * 16 + 4096


def test_a_padded_result_that_stays_inside_is_made_at_once():
    """What reads it reads the padded rows, without a copy; and the caller may want other strides."""
    args = (b(2000, 512), b(512, 4097))
    for function in (lambda x, w: (x @ w).sum(1), lambda x, w: (x @ w).t(), lambda x, w: x @ w[:, :4096]):
        assert len(calls(lowered(function, args, PARTS))) == 1


def test_rows_that_are_a_symbol_are_one_part():
    module = symbolic(lambda x, w: x @ w, (b(2000, 512), b(512, 4097)), {(0, 0)}, PARTS)
    assert calls(module) == ["aten.mm.default"]
