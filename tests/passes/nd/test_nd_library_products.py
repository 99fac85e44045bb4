"""nd-library-products: which products and convolutions become calls."""

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from stepwell.lowering.decompositions import decomposition_table
from stepwell.lowering.fx_to_nd import import_graph
from stepwell.passes.manager import run
from stepwell.passes.pipelines import parse_pipeline
from stepwell.tools.compile_graph import context
from stepwell.tools.interpret_nd import run_nd


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

    def flat(*inputs):
        return tuple(pytree.tree_leaves(function(*inputs)))

    gm = make_fx(flat, decomposition_table=decomposition_table(), tracing_mode="fake")(*args)
    module = import_graph(gm, args).module
    run(parse_pipeline("nd-canonicalize,nd-library-products"), module, context())
    module.verify()
    found = [op.call.data.target for op in module.walk() if op.name == "nd.extern"]
    assert found == calls and not any(op.name == "nd.matmul" for op in module.walk())
    assert all(len(op.operands) == 2 for op in module.walk() if op.name == "nd.conv")
    expected = function(*args)
    expected = [expected] if isinstance(expected, torch.Tensor) else expected
    for got, wanted in zip(run_nd(module, list(args), (), (), "forward"), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
