"""Products that are generated whatever they cost, with what stands around them: one kernel each, and eager's numbers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support import lower, without_data
from torch.utils import _pytree as pytree
from xdsl.dialects.builtin import bf16

import stepwell
from stepwell.dialects.mem import ExternOp
from stepwell.dialects.tt.compute import DotOp
from stepwell.dialects.tt.structure import FuncOp
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.tools.interpret.loop import run_loop
from stepwell.tools.interpret.target import InterpretedTarget

BF16 = torch.bfloat16


def lowered(function, *args, stages=("nd", "loop", "mem", "tt"), library="never"):
    """A program down to kernels, no product of which is the library's."""
    return lower(function, *args, to=stages[-1], nd_library_products=f"nd-library-products{{tiny=0 library={library}}}").module


def numbers(*shape, dtype=BF16, scale=1.0):
    made = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * scale
    return made.to(dtype)


def whole(*shape):
    return torch.randint(-127, 128, shape, generator=torch.Generator().manual_seed(0), dtype=torch.int8)


def gated(x, w, v):
    return F.silu(F.linear(x, w)) * F.linear(x, v)


def half_gated(x, w):
    gate, values = F.linear(x, w).chunk(2, -1)
    return F.gelu(gate, approximate="tanh") * values


def residual_and_norm(x, h, w, g):
    h = h + F.linear(x, w)
    return h, F.layer_norm(h, (h.shape[-1],), g)


def quantised(x, w, s):
    y = F.relu(F.linear(x, w))
    return y, (y.float() / s).clamp(-448, 448).to(torch.float8_e4m3fn)


def scores(q, k, bias):
    return torch.softmax((q @ k.transpose(-1, -2)).float() * 0.125 + bias, -1)


X, W = numbers(130, 72), numbers(100, 72, scale=0.2)
# Program, arguments, products in each kernel; kernels of few programs may be launched together, as one.
PROGRAMS = {
    "activation": (lambda x, w, b: F.gelu(F.linear(x, w, b)), [X, W, numbers(100)], [1]),
    "columns side by side": (
        lambda x, w: F.silu(x @ w), [numbers(97, 65, dtype=torch.float16), numbers(65, 129, dtype=torch.float16)], [1],
    ),
    "both transposed": (lambda x, w: F.silu(x.t() @ w.t()), [numbers(72, 130), W], [1]),
    "a batch": (lambda x, y: torch.tanh(torch.bmm(x, y) * 0.125 + 1), [numbers(3, 70, 16), numbers(3, 16, 90)], [1]),
    "a batch of one matrix": (lambda x, y: F.relu(x @ y.t()), [numbers(3, 70, 40), numbers(90, 40)], [1]),
    "two matrices": (gated, [X, W, numbers(100, 72, scale=0.3)], [2]),
    "halves of one matrix": (half_gated, [numbers(2, 33, 72), numbers(160, 72, scale=0.2)], [2]),
    "residual, then a norm": (residual_and_norm, [X, numbers(130, 100), W, numbers(100)], [1, 0]),
    "two results, one quantised": (quantised, [X, W, torch.tensor(0.02)], [1]),
    "scores": (scores, [numbers(2, 3, 66, 32), numbers(2, 3, 66, 32), numbers(3, 66, 66)], [1, 0]),
    "low rank beside it": (
        lambda x, w, a, b: F.relu(F.linear(x, w) + F.linear(F.linear(x, a), b)),
        [X, W, numbers(16, 72, scale=0.2), numbers(100, 16, scale=0.2)], [1, 2],
    ),
    "bytes": (lambda x, q, s: F.silu(F.linear(x, q.to(x.dtype) * s[:, None])), [X, whole(100, 72), numbers(100, scale=0.01)], [0, 1]),
    "rows of two loops": (lambda x, w: F.silu(F.linear(x[:, 1:12], w)), [numbers(7, 13, 72), W], [1]),
    "rows and columns of two loops": (
        lambda x, w: F.silu(torch.einsum("abk,cdk->abcd", x[:, :5], w[:, 2:])), [numbers(13, 7, 40), numbers(9, 12, 40, scale=0.2)], [1],
    ),
    "two layers": (lambda x, w, v: F.linear(F.gelu(F.linear(x, w)), v), [X, W, numbers(300, 100, scale=0.2)], [1, 1]),
    "siblings": (lambda x, w, v: (F.linear(x, w).relu(), F.linear(x, v).sigmoid()), [X, W, numbers(100, 72, scale=0.3)], [1, 1]),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_generated_products(name):
    function, args, dots = PROGRAMS[name]
    module = lowered(function, *args)
    found = [f for f in module.ops if isinstance(f, FuncOp)]
    assert sum(isinstance(op, DotOp) for f in found for op in f.walk()) == sum(dots) and len(found) <= len(dots)
    assert not [op for op in module.walk() if isinstance(op, ExternOp)]
    expected = pytree.tree_leaves(function(*args))
    for got, want in zip(run_loop(module, args, [], []), expected, strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        torch.testing.assert_close(got.float(), want.float(), rtol=4e-2, atol=4e-2)


def nests(module):
    return [[str(n) for n in op.loop_sizes] for op in module.body.block.walk() if op.name == "loop.nest"]


def test_products_of_the_same_rows_are_nests_of_their_own():
    """Each has its sums in registers; those that meet share a nest."""
    function, args, _ = PROGRAMS["siblings"]
    assert nests(lowered(function, *args, stages=("nd", "loop"))) == [["130", "100"], ["130", "100"]]
    function, args, _ = PROGRAMS["two matrices"]
    assert nests(lowered(function, *args, stages=("nd", "loop"))) == [["130", "100"]]


@pytest.mark.parametrize("folded", [False, True])
def test_a_factor_that_is_a_result_is_stored_once(folded):
    """What backward needs of a layer is what the next layer takes, by rows of a batch, too."""

    def layers(x, w, v):
        hidden = torch.relu(F.linear(x, w))
        return F.linear(hidden.flatten(0, -2) if folded else hidden, v), hidden

    args = [torch.empty(*((8, 512) if folded else (4096,)), 1024, dtype=BF16), torch.empty(4096, 1024, dtype=BF16)]
    module = lowered(layers, *without_data([*args, args[1].mT], "cpu"), stages=("nd", "loop"))
    assert [len(op.results) for op in module.walk() if op.name == "loop.nest"] == [1, 1]


def test_what_a_row_reads_is_stored_rounded():
    """Fewer bytes than what the row makes of it."""
    function, args, _ = PROGRAMS["scores"]
    module = lowered(function, *args, stages=("nd", "loop"))
    first, second = [op for op in module.walk() if op.name == "loop.nest"]
    assert first.results[0].type.element_type == bf16 and len(second.loop_sizes) == 3


def test_factors_that_are_computed_are_stored_for_many_rows():
    function, args, _ = PROGRAMS["bytes"]
    assert nests(lowered(function, *args, stages=("nd", "loop"))) == [["72", "100"], ["130", "100"]]


@pytest.mark.parametrize("name", ["activation", "a batch", "halves of one matrix"])
def test_sizes_that_are_symbols(name):
    function, args, _ = PROGRAMS[name]
    pipeline = default_pipeline("gpu")
    pipeline.replace("nd-library-products", "nd-library-products{tiny=0 library=never}")
    stepwell.register_target(InterpretedTarget, replace=True)
    try:
        compiled = torch.compile(function, backend="stepwell", dynamic=True, options={"cache": "off", "pipeline": str(pipeline)})
        for rows in (args[0].shape[-2], 17):
            some = [args[0][..., :rows, :], *args[1:]]
            torch.testing.assert_close(compiled(*some), function(*some), rtol=4e-2, atol=4e-2)
    finally:
        stepwell.unregister_target("interpreted")
        torch._dynamo.reset()


def test_dropout_has_the_numbers_of_torch():
    def dropped(x, w, h):
        return h + F.dropout(F.linear(x, w), 0.3, True)

    module = lowered(dropped, X, W, numbers(130, 100), stages=("nd", "loop"))
    (nest,) = [op for op in module.walk() if op.name == "loop.nest"]
    assert any(op.name == "loop.random" for op in nest.walk()) and any(op.name == "loop.reduce" for op in nest.walk())
