"""Loads whose index wraps, stops or turns round once in a vector take masked loads, not gathers."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

NEST = """
func.func @forward(%x : !mem.buffer<2 x {n} x {t}>, %o : !mem.buffer<2 x {m} x {t}>) {{
  loop.nest (%i = 2, %j = {m}) outs(%oo = %o : !mem.buffer<2 x {m} x {t}>) {{
    %v = loop.load %x[%i, {index}] : !mem.buffer<2 x {n} x {t}> -> {scalar}
    loop.store %v, %oo[%i, %j] : {scalar}, !mem.buffer<2 x {m} x {t}>
  }} attributes {{schedule = {{vector = 1 : i64, lanes = 64 : i64}}}}
  func.return
}}
"""
DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.int8: "i8", torch.int64: "i64", torch.float64: "f64"}


def nest(n, m, index, dtype="f32"):
    return NEST.format(n=n, m=m, index=index, t=dtype, scalar="f32" if dtype == "bf16" else dtype)


def row(n, dtype):
    return torch.randn(2, n).mul(50).to(dtype)


@pytest.mark.spread
@pytest.mark.parametrize("n", [2, 40, 64, 65, 200])
@pytest.mark.parametrize("shift", [1, 3, -1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_wrapped(nests, n, shift, dtype):
    x, o = row(n, dtype), torch.zeros(2, n, dtype=dtype)
    compiled = nests(nest(n, n, f"(%j + {shift % n}) mod {n}", DTYPES[dtype]))
    assert "cpu.gather" not in compiled.text
    compiled(x, o)
    assert torch.equal(o, x.roll(-shift, 1))


@pytest.mark.parametrize("n,m", [(10, 100), (3, 64)])
def test_wrapped_more_than_once(nests, n, m):
    x, o = row(n, torch.float32), torch.zeros(2, m)
    nests(nest(n, m, f"(%j + 1) mod {n}"))(x, o)
    assert torch.equal(o, x[:, (torch.arange(m) + 1) % n])


@pytest.mark.spread
@pytest.mark.parametrize("n", [1, 5, 64, 130])
@pytest.mark.parametrize("index,low,high", [
    ("max(%j - 3, 0)", True, False), ("min(%j + 3, {last})", False, True), ("min(max(%j - 3, 0), {last})", True, True),
    ("max(min(%j - 3, {last}), 0)", True, True),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_stopped(nests, n, index, low, high, dtype):
    m = n if not (low and high) else n + 6
    x, o = row(n, dtype), torch.zeros(2, m, dtype=dtype)
    compiled = nests(nest(n, m, index.format(last=n - 1), DTYPES[dtype]))
    assert "cpu.gather" not in compiled.text
    compiled(x, o)
    place = torch.arange(m) + (-3 if low else 3)
    assert torch.equal(o, x[:, place.clamp(0, n - 1)])


def reflected(x, left, right):
    return F.pad(x.double()[None], (left, right), mode="reflect")[0].to(x.dtype)


TURNED = "max(3 - %j, %j - 3)"


@pytest.mark.spread
@pytest.mark.parametrize("n", [4, 6, 40, 64, 65, 130, 300])
@pytest.mark.parametrize("index,left,right", [
    (TURNED, 3, 0), ("min(%j, {twice} - %j)", 0, 2), (f"min({TURNED}, {{twice}} - {TURNED})", 3, 2),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float64])
def test_turned(nests, n, index, left, right, dtype):
    x, o = row(n, dtype), torch.zeros(2, n + left + right, dtype=dtype)
    compiled = nests(nest(n, n + left + right, index.format(twice=2 * n - 2), DTYPES[dtype]))
    assert "cpu.gather" not in compiled.text
    compiled(x, o)
    assert torch.equal(o, reflected(x, left, right))


def test_indices_that_turn_twice_are_gathered(nests):
    """The first elements come back from the other end."""
    inner = "max(5 - %j, %j - 5)"
    assert "cpu.gather" in nests(nest(3, 12, f"min({inner}, 7 - {inner})")).text


def test_vectors_that_end_at_one_turn_have_one_part_more(nests):
    """Two vectors hold a row of 103: the first has elements before the first turn, the other one none behind the second."""
    assert nests(nest(100, 103, TURNED)).text.count("cpu.load") == 3


def periodic(u):
    return u.roll(1, 0) + u.roll(-1, 0) + u.roll(2, 1) + u.roll(-1, 1) - 4 * u


def replicated(u):
    p = F.pad(u[None], (2, 3), mode="replicate")[0]
    return p[:, 4:] - p[:, :-4]


def circular(u):
    return F.pad(u[None], (1, 2), mode="circular")[0].cumsum(1)


def mirror(u):
    return F.pad(u[None], (3, 1), mode="reflect")[0] * 2


def rolled_sum(u):
    return (u.roll(1, 1) * u).sum(1)


@pytest.mark.long
@pytest.mark.parametrize("fn", [periodic, replicated, circular, mirror, rolled_sum])
@pytest.mark.parametrize("shape", [(1, 4), (7, 33), (3, 300)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_programs(fn, shape, dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(fn, backend="stepwell", dynamic=dynamic)
    for u in (torch.randn(shape), torch.randn(shape[::-1]).t()):
        torch.testing.assert_close(compiled(u), fn(u), rtol=1e-5, atol=1e-5)
