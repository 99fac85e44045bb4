"""Grouped products (experts) as nests: rows that pick their matrix, and sums of the terms of a group."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from support import lower
from xdsl.dialects import scf

import stepwell
from stepwell.dialects.host import LaunchOp
from stepwell.dialects.mem import ExternOp
from stepwell.dialects.tt.blocks import DescriptorLoadOp
from stepwell.dialects.tt.compute import DotOp
from stepwell.dialects.tt.structure import FuncOp
from stepwell.dialects.tt.types import shape_of
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.tools.interpret.loop import run_loop
from stepwell.tools.interpret.target import InterpretedTarget

pytestmark = pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this torch has no grouped products")

BF16 = torch.bfloat16
ROWS, TERMS, COLUMNS = 152, 72, 88
ENDS = {
    "odd": [3, 70, 71, ROWS],
    "empty": [0, 64, 64, ROWS],
    "one has all": [0, 0, ROWS, ROWS],
    "some rows have none": [10, 20, 90, 133],
    "one": [ROWS],
}


def numbers(*shape, scale=1.0, dtype=BF16):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * scale).to(dtype)


def ends(name):
    return torch.tensor(ENDS[name], dtype=torch.int32)


def grouped(x, w, at):
    return torch._grouped_mm(x, w, offs=at)


def gated(x, w, v, at):
    return F.silu(grouped(x, w, at)) * grouped(x, v, at)


def layers(x, w, v, at):
    return grouped(F.relu(grouped(x, w, at)), v.transpose(1, 2), at)


def columns(x, w, at):
    return grouped(w.transpose(1, 2), x.t(), at)


def by_group(x, y, at):
    return grouped(x.t(), y, at)


X, Y = numbers(ROWS, TERMS), numbers(ROWS, COLUMNS)


def weights(groups, scale=0.2):
    return numbers(groups, TERMS, COLUMNS, scale=scale)


PROGRAMS = {
    "activation": (lambda x, w, at: F.silu(grouped(x, w, at)), lambda n: (X, weights(n)), 1),
    "two matrices": (gated, lambda n: (X, weights(n), weights(n, 0.3)), 2),
    "two layers": (layers, lambda n: (X, weights(n), weights(n, 0.3)), 2),
    "columns": (columns, lambda n: (X, weights(n)), 1),
    "terms": (by_group, lambda n: (X, Y), 2),
}
PIPELINE = "nd-library-products{tiny=0 library=never}"


def lowered(function, *args):
    return lower(function, *args, nd_library_products=PIPELINE).module


def found(module, kind):
    return [op for op in module.walk() if isinstance(op, kind)]


def same(got, want, last):
    """Rows that no group has are whatever memory held in eager."""
    rows = [k for k, n in enumerate(want.shape) if n == ROWS]
    for k in rows:
        got, want = got.narrow(k, 0, last), want.narrow(k, 0, last)
    torch.testing.assert_close(got.float(), want.float(), rtol=4e-2, atol=4e-2)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("sizes", ENDS)
def test_grouped_products(name, sizes):
    function, factors, dots = PROGRAMS[name]
    at = ends(sizes)
    args = (*factors(len(at)), at)
    module = lowered(function, *args)
    assert len(found(module, DotOp)) == dots and not found(module, ExternOp)
    (got,) = run_loop(module, args, [], [])
    same(got, function(*args), int(at[-1]))


@pytest.mark.parametrize("sizes", [name for name in ENDS if name != "one"])
def test_blocks_begin_where_a_group_does(sizes):
    """No kernel before the product, no loop over matrices in it; as many blocks of rows more as there are groups."""
    function, factors, _ = PROGRAMS["activation"]
    at = ends(sizes)
    module = lowered(function, *factors(len(at)), at)
    (kernel,) = found(module, FuncOp)
    (launch,) = found(module, LaunchOp)
    (dot,) = found(kernel, DotOp)
    rows, width = shape_of(dot.results[0].type)
    assert f"grid [{(-(-ROWS // rows) + len(at)) * -(-COLUMNS // width)}]" in str(launch)
    assert len(found(kernel, scf.ForOp)) <= 1


def test_matrices_that_rows_name_are_gone_through():
    """Rows that are not known to be sorted: a program goes through the matrices of its block."""
    args = (X, weights(4), torch.tensor([3, 1, 0, 2] * (ROWS // 4)))

    def picked(x, w, which):
        return torch.bmm(x[:, None], w[which])[:, 0]

    (got,) = run_loop(lowered(picked, *args), args, [], [])
    torch.testing.assert_close(got, picked(*args), rtol=4e-2, atol=4e-2)


def test_gradients():
    """By rows a grouped product, by matrices sums of rows."""
    at, x, w = ends("odd"), X.clone().requires_grad_(), weights(4).requires_grad_()

    def step(x, w, at):
        y = F.silu(grouped(x, w, at))
        return torch.autograd.grad(y, (x, w), torch.ones_like(y))

    pipeline = default_pipeline("gpu")
    pipeline.replace("nd-library-products", PIPELINE)
    stepwell.register_target(InterpretedTarget, replace=True)
    try:
        options = {"cache": "off", "pipeline": str(pipeline)}
        y = torch.compile(lambda x, w, at: F.silu(grouped(x, w, at)), backend="stepwell", options=options)(x, w, at)
        got = torch.autograd.grad(y, (x, w), torch.ones_like(y))
    finally:
        stepwell.unregister_target("interpreted")
        torch._dynamo.reset()
    for mine, theirs in zip(got, step(x, w, at), strict=True):
        torch.testing.assert_close(mine.float(), theirs.float(), rtol=4e-2, atol=4e-2)


def test_ends_of_64_bits_that_are_cast():
    """Blocks begin where a group does, in both layers: no kernel counts the groups of each row."""

    def narrowed(x, w, v, at):
        return layers(x, w, v, at.int())

    args = X, weights(4), numbers(4, COLUMNS, TERMS, scale=0.3).transpose(1, 2), ends("odd").long()
    module = lowered(narrowed, *args)
    assert len(found(module, FuncOp)) == len(found(module, DotOp)) == 2
    torch.testing.assert_close(run_loop(module, list(args), [], [])[0].float(), narrowed(*args).float(), rtol=4e-2, atol=4e-2)


def test_few_rows_of_many_groups():
    """Rows of a decoding step: each group has a block of its own, so that all matrices are read at once."""
    x, w = X[:12], numbers(8, TERMS, 320, scale=0.2)
    at = torch.tensor([1, 1, 4, 5, 5, 9, 11, 12], dtype=torch.int32)
    module = lowered(lambda x, w, at: F.silu(grouped(x, w, at)), x, w, at)
    (kernel,) = [op for op in module.walk() if isinstance(op, FuncOp) and found(op, DotOp)]
    assert len(found(kernel, scf.ForOp)) == 1 and not found(module, ExternOp)  # over terms, and not over matrices
    torch.testing.assert_close(run_loop(module, [x, w, at], [], [])[0].float(), F.silu(grouped(x, w, at)).float(), rtol=4e-2, atol=4e-2)


def test_gradients_of_two_layers():
    """All are products by units for matrices: conditions are computed where the bounds are needed, factors rounded once for all groups."""

    def backward(x, w, v, h, dy, at):
        act = F.relu(h)
        dh = torch.where(act <= 0, 0, grouped(dy, v, at))
        return grouped(x.t(), dh, at), grouped(dh, w.transpose(1, 2), at), grouped(act.t(), dy, at)

    args = X, weights(4), numbers(4, TERMS, COLUMNS, scale=0.2), Y, numbers(ROWS, TERMS), ends("odd")
    module = lowered(backward, *args)
    assert len(found(module, DotOp)) == 6 and not found(module, ExternOp)
    for got, want in zip(run_loop(module, args, [], []), backward(*args), strict=True):
        torch.testing.assert_close(got.float(), want.float(), rtol=4e-2, atol=4e-2)


def test_rows_in_any_order_pick_their_matrix():
    """As a program spells it: no sorting is needed, and nothing but rows that have a matrix see it."""

    def experts(x, w, which):
        return F.relu(torch.bmm(x[:, None], w[which])[:, 0])

    which = torch.randint(0, 5, (ROWS,), generator=torch.Generator().manual_seed(1))
    which[which == 2] = 3
    w = weights(5)
    w[4] = math.nan
    w[2] = math.inf
    module = lowered(experts, X, w, which)
    assert len(found(module, DotOp)) == 1
    (got,) = run_loop(module, [X, w, which], [], [])
    torch.testing.assert_close(got.float(), experts(X, w, which).float(), rtol=4e-2, atol=4e-2, equal_nan=True)


def test_groups_do_not_see_the_terms_of_others():
    at, x, y = ends("odd"), X.clone(), Y.clone()
    x[5], y[70] = math.nan, math.inf
    module = lowered(by_group, x, y, at)
    (got,) = run_loop(module, [x, y, at], [], [])
    assert [bool(one.isfinite().all()) for one in got] == [True, False, False, True]


def test_factors_are_copied_as_blocks():
    """The matrix of a row is one more dimension of its blocks; where a block of terms is not all of one group, elements are loaded."""
    at = ends("odd")
    assert len(found(lowered(grouped, numbers(256, 64), numbers(4, 64, 128), at), DescriptorLoadOp)) == 2
    loaded = lower(by_group, numbers(4096, 256), numbers(4096, 256), at, nd_library_products=PIPELINE).module
    assert len(found(loaded, DotOp)) == 2 and len(found(loaded, DescriptorLoadOp)) == 2


@pytest.mark.parametrize("rows", [ROWS, 40])
def test_sizes_that_are_symbols(rows):
    pipeline = default_pipeline("gpu")
    pipeline.replace("nd-library-products", PIPELINE)
    stepwell.register_target(InterpretedTarget, replace=True)
    at = ends("odd").clamp(max=rows)
    try:
        options = {"cache": "off", "pipeline": str(pipeline)}
        compiled = torch.compile(lambda x, w, at: F.silu(grouped(x, w, at)), backend="stepwell", dynamic=True, options=options)
        got = compiled(X[:rows], weights(4), at)
        torch.testing.assert_close(got, F.silu(grouped(X[:rows], weights(4), at)), rtol=4e-2, atol=4e-2)
    finally:
        stepwell.unregister_target("interpreted")
        torch._dynamo.reset()


@pytest.mark.parametrize("name", ["activation", "terms"])
def test_kernels_compile(name):
    """Without spills, and no product waits for another one (C7515)."""
    pytest.importorskip("triton", reason="Triton is not installed (the extra 'gpu')")
    from stepwell.targets.triton.compile import compile_kernel
    from stepwell.targets.triton.emit import kernel_modules
    from stepwell.targets.triton.gpu import gpu_target

    x, w, y, at = (torch.empty(n, dtype=BF16) for n in ((8192, 2048), (8, 2048, 1536), (8192, 1536), (8,)))
    module = lowered(*((PROGRAMS[name][0], x, w) if name == "activation" else (by_group, x, y)), at.int())
    kernels = [one for one in kernel_modules(module) if found(one, DotOp)]
    for kernel in kernels:
        built = compile_kernel(kernel, gpu_target("sm_90"))
        assert not built.details["spills"] and not built.details.get("waiting_products")
