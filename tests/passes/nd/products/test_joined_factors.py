"""Factors of generated products that are concatenations: unpacked weights, rotary embeddings, joined inputs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support import lower

from stepwell.dialects import nd
from stepwell.dialects.mem import ExternOp
from stepwell.dialects.tt.compute import DotOp
from stepwell.dialects.tt.structure import FuncOp
from stepwell.tools.interpret.loop import run_loop

BF16 = torch.bfloat16


def lowered(function, *args, to="tt", mode="fake"):
    return lower(function, *args, to=to, mode=mode, nd_library_products="nd-library-products{library=never tiny=0}")


def numbers(*shape, seed=0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) / 4).to(BF16)


def nibbles(x, q, s, z):
    rows, groups = s.shape
    v = torch.stack([q & 15, q >> 4], -1).reshape(rows, groups, -1).to(x.dtype)
    return F.linear(x, ((v - z[..., None]) * s[..., None]).reshape(rows, -1))


def blocks(x, q, s):
    """The low halves of the bytes of a group are its first half."""
    v = torch.cat([q & 15, q >> 4], -1).to(x.dtype)
    return F.linear(x, (v * s[..., None]).reshape(q.shape[0], -1))


def rotary(x, w, c, s):
    first, second = x.chunk(2, -1)
    return (x * c + torch.cat([-second, first], -1) * s) @ w


def by_rows(x, y, z, w):
    return torch.relu(torch.cat([x, y, z]) @ w)


def joined(x, y, w):
    return torch.relu(F.linear(torch.cat([x, y], -1), w))


def by_columns(x, v, w):
    return x @ torch.cat([v, w], 1)


BYTES = torch.randint(0, 256, (64, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
CASES = {
    "nibbles side by side": (nibbles, numbers(16, 64), BYTES, numbers(64, 2, seed=1), numbers(64, 2, seed=2)),
    "nibbles by blocks": (blocks, numbers(16, 64), BYTES.reshape(64, 2, 16), numbers(64, 2, seed=1)),
    "rotary": (rotary, numbers(32, 64), numbers(64, 48, seed=1), numbers(32, 64, seed=2), numbers(32, 64, seed=3)),
    "rows of three": (by_rows, numbers(7, 32), numbers(1, 32, seed=1), numbers(24, 32, seed=2), numbers(32, 64, seed=3)),
    "joined inputs": (joined, numbers(16, 48), numbers(16, 16, seed=1), numbers(32, 64, seed=2)),
    "columns": (by_columns, numbers(16, 32), numbers(32, 24, seed=1), numbers(32, 40, seed=2)),
}


@pytest.mark.parametrize("case", CASES)
def test_one_kernel_stores_no_factor(case):
    function, *args = CASES[case]
    module = lowered(function, *args).module
    assert len([f for f in module.ops if isinstance(f, FuncOp)]) == 1
    assert 1 <= len([op for op in module.walk() if isinstance(op, DotOp)]) <= 2
    assert not [op for op in module.walk() if isinstance(op, ExternOp)]
    assert not [op for op in module.walk() if op.name == "mem.alloc" and op.properties["kind"].data == "arena"]
    (got,) = run_loop(module, args, [], [])
    exact = function(*(a.double() if a.is_floating_point() else a for a in args))
    error, eager = ((result.double() - exact).abs().max() for result in (got, function(*args)))
    assert error <= 1.2 * eager


def test_parts_of_terms_are_sums_without_a_selection():
    for case in ("nibbles side by side", "nibbles by blocks", "joined inputs"):
        function, *args = CASES[case]
        module = lowered(function, *args, to="nd").module
        assert not [op for op in module.walk() if isinstance(op, nd.CatOp) or op.name == "nd.select"]
        assert len([op for op in module.walk() if isinstance(op, nd.ReduceOp)]) == 2


def test_a_concatenation_that_something_else_needs_stays():
    def function(x, y, w):
        joined = torch.cat([x, y])
        return joined, joined @ w

    module = lowered(function, numbers(16, 32), numbers(16, 32), numbers(32, 64), to="nd").module
    assert [op for op in module.walk() if isinstance(op, nd.CatOp)]


@pytest.mark.parametrize("rows", [1, 0, 40])
def test_sizes_that_are_symbols(rows):
    function, x, y, z, w = CASES["rows of three"]
    found = lowered(function, x, numbers(5, 32), z, w, mode="symbolic")
    args = x, numbers(rows, 32, seed=4), z, w
    (got,) = run_loop(found.module, args, found.constants, found.objects)
    torch.testing.assert_close(got, function(*args), rtol=2e-2, atol=2e-2)
