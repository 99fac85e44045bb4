"""Loads in loops of products that Triton does not copy ahead: they are carried from the iteration before."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support import lower
from xdsl.dialects import scf

from stepwell.dialects.tt.compute import DotOp
from stepwell.dialects.tt.memory import LoadOp
from stepwell.dialects.tt.types import shape_of
from stepwell.tools.interpret.loop import run_loop

BF16 = torch.bfloat16


def numbers(*shape, seed=0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) / 4).to(BF16)


def groups(x, q, s):
    rows, count = s.shape
    return F.linear(x, (q.to(x.dtype).reshape(rows, count, -1) * s[..., None]).reshape(rows, -1))


def every_second(x, w):
    return F.linear(x[:, ::2], w)


def side_by_side(x, w):
    return torch.relu(F.linear(x, w))


BYTES = torch.randint(-8, 8, (32, 256), dtype=torch.int8, generator=torch.Generator().manual_seed(1))
CASES = {
    "scales of groups": (groups, numbers(16, 256), BYTES, numbers(32, 4, seed=1)),
    "every second term": (every_second, numbers(16, 2048), numbers(32, 1024, seed=1)),
    "side by side": (side_by_side, numbers(16, 1024), numbers(32, 1024, seed=1)),
}


def lowered(function, *args, **options):
    return lower(function, *args, nd_library_products="nd-library-products{library=never tiny=0}", **options)


def loops_of(module):
    """The loops with products, of a kernel and of its variants for other sizes."""
    found = {op.parent_op() for op in module.walk() if isinstance(op, DotOp)}
    return [op for op in found if isinstance(op, scf.ForOp)]


@pytest.mark.parametrize("case", CASES)
def test_what_lies_apart_is_loaded_an_iteration_ahead(case):
    function, *args = CASES[case]
    module = lowered(function, *args).module
    (one,) = loops_of(module)
    carried = [shape_of(v.type) for v in one.body.block.args[2:]]
    assert carried == {"scales of groups": [], "every second term": [(16, 256)], "side by side": []}[case]
    masks = [op.mask is not None for op in one.body.block.ops if isinstance(op, LoadOp) and shape_of(op.result.type) in carried]
    assert all(masks) and len(masks) == len(carried)  # nothing is read behind the last iteration
    (got,) = run_loop(module, args, [], [])
    torch.testing.assert_close(got, function(*args), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("terms", [2, 130, 300])
def test_terms_may_be_a_symbol(terms):
    def scaled(x, w, t):
        return F.linear(x, (w * t)[:, ::2])

    found = lowered(scaled, numbers(16, 1024), numbers(32, 2048, seed=1), numbers(32, 1, seed=2), mode="symbolic")
    assert all(len(one.body.block.args) > 2 for one in loops_of(found.module))
    args = numbers(16, terms, seed=3), numbers(32, 2 * terms, seed=4), numbers(32, 1, seed=5)
    (got,) = run_loop(found.module, args, found.constants, found.objects)
    torch.testing.assert_close(got, scaled(*args), rtol=2e-2, atol=2e-2)
