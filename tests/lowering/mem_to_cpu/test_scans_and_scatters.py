"""Scans, combining stores, random numbers."""

from __future__ import annotations

import pytest
import torch


def buffer(*dims: object, strides: str = "", dtype: str = "f32") -> str:
    shape = " x ".join(f"{d}" for d in dims)
    return f"!mem.buffer<{shape}{' x ' if dims else ''}{dtype}{strides}>"


SCAN = """
func.func @forward(%x : {b}, %o : {b}) {{
  loop.nest ({outer}) outs(%oo = %o : {b}) {{
    loop.scan ({inner}) {kind} {{
      %a = loop.load %x[%i, %j] : {b} -> {t}
      loop.yield %a : {t}
    }} do ({again}, %r : {t}) {{
      loop.store %r, %oo[{at}] : {t}, {b}
    }}
  }}
  func.return
}}
"""


def scan(rows, cols, axis, kind, dtype="f32"):
    outer, inner, again, at = ("%i", "%j", "%k", "%i, %k") if axis == 1 else ("%j", "%i", "%k", "%k, %j")
    sizes = (rows, cols)
    return SCAN.format(
        b=buffer(rows, cols, dtype=dtype), outer=f"{outer} = {sizes[1 - axis]}", inner=f"{inner} = {sizes[axis]}",
          kind=kind, again=again,
        at=at, t=dtype,
    )  # fmt: skip


@pytest.mark.spread
@pytest.mark.parametrize("rows,cols", [(5, 100), (3, 1), (70, 16), (2, 1000), (1, 33)])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", ["sum", "prod", "logsumexp"])
def test_scans(nests, rows, cols, axis, kind):
    x, o = 1 + torch.randn(rows, cols) / 50, torch.zeros(rows, cols)
    nests(scan(rows, cols, axis, kind))(x, o)
    want = {"sum": torch.cumsum, "prod": torch.cumprod, "logsumexp": torch.logcumsumexp}[kind](x.double(), axis)
    torch.testing.assert_close(o, want.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [1, 16, 37, 200])
def test_dynamic_scan(nests, size):
    x, o = torch.randn(3, size), torch.zeros(3, size)
    nests(scan(3, "s0", 1, "sum"))(x, o, s0=size)
    torch.testing.assert_close(o, x.cumsum(1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("axis", [0, 1])
def test_integer_scan(nests, axis):
    x, o = torch.randint(-5, 5, (20, 30)), torch.zeros(20, 30, dtype=torch.int64)
    nests(scan(20, 30, axis, "sum", "i64"))(x, o)
    assert torch.equal(o, x.cumsum(axis))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", ["max", "min"])
def test_running_extreme_with_index(nests, kind, axis):
    """Catalogue A21."""
    b, n = buffer(9, 40), buffer(9, 40, dtype="i64")
    outer, inner, at = ("%i = 9", "%j = 40", "%i, %k") if axis == 1 else ("%j = 40", "%i = 9", "%k, %j")
    text = f"""
    func.func @forward(%x : {b}, %o : {b}, %p : {n}) {{
      loop.nest ({outer}) outs(%oo = %o : {b}, %pp = %p : {n}) {{
        loop.scan ({inner}) {kind} {{
          %a = loop.load %x[%i, %j] : {b} -> f32
          %n = loop.index {inner[:2]} : i64
          loop.yield %a, %n : f32, i64
        }} do (%k, %r : f32, %q : i64) {{
          loop.store %r, %oo[{at}] : f32, {b}
          loop.store %q, %pp[{at}] : i64, {n}
        }}
      }}
      func.return
    }}"""
    x = torch.randint(-3, 3, (9, 40)).float()
    x[4, 7] = float("nan")
    o, p = torch.zeros(9, 40), torch.zeros(9, 40, dtype=torch.int64)
    nests(text)(x, o, p)
    values, places = (torch.cummax if kind == "max" else torch.cummin)(x, axis)
    torch.testing.assert_close(o, values, equal_nan=True, rtol=0, atol=0)
    assert torch.equal(p, places)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32, torch.int8, torch.bool, torch.bfloat16])
def test_running_extremes_along_rows(dtype):
    """Rows of every length around a vector, with ties, NaN and infinities, of known and unknown length."""
    torch.manual_seed(5)
    for dynamic in (False, True):
        torch._dynamo.reset()
        f = torch.compile(lambda x: (*x.cummax(1), *x.cummin(1)), backend="stepwell", dynamic=dynamic)
        for size in (1, 16, 53) if dynamic else (37,):
            x = torch.randint(-3, 4, (6, size)).to(dtype)
            if dtype.is_floating_point:
                x[1, size // 2], x[2, size // 3], x[3, 0], x[4] = float("nan"), float("inf"), -float("inf"), -float("inf")
            want = *x.cummax(1), *x.cummin(1)
            for got, expected in zip(f(x), want, strict=True):
                torch.testing.assert_close(got, expected, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_running_log_sums_of_special_values(dtype):
    torch.manual_seed(6)
    x = torch.randn(7, 50, dtype=dtype) * 30
    inf = float("inf")
    x[0, 20], x[1, 3], x[2, :20], x[3], x[4, 9:12] = float("nan"), inf, -inf, -inf, inf
    x[5], x[6] = torch.linspace(-500, 500, 50), torch.linspace(500, -500, 50)
    got = torch.compile(lambda x: x.logcumsumexp(1), backend="stepwell")(x)
    torch.testing.assert_close(got, x.double().logcumsumexp(1).to(dtype), equal_nan=True, rtol=1e-5, atol=1e-5)


@pytest.mark.spread
@pytest.mark.parametrize("c", [1, 32, 70])
@pytest.mark.parametrize("mode,reference", [("add", "sum"), ("max", "amax"), ("min", "amin"), ("prod", "prod")])
def test_combining_rows(nests, c, mode, reference):
    n, e = 10, 57
    x, o, i = buffer(e, c), buffer(n, c), buffer(e, dtype="i64")
    text = f"""
    func.func @forward(%x : {x}, %i : {i}, %o : {o}) {{
      loop.nest (%e = {e}, %c = {c}) outs(%oo = %o : {o}) {{
        %k = loop.load %i[%e] : {i} -> i64
        %b = loop.bound %k, {n} "index out of range" : i64
        %a = loop.load %x[%e, %c] : {x} -> f32
        loop.store %a, %oo[%b, %c] {mode} : f32, {o}
      }}
      func.return
    }}"""
    xs, ix, os = torch.randn(e, c), torch.randint(0, n, (e,)), torch.randn(n, c)
    want = os.scatter_reduce(0, ix[:, None].expand(e, c), xs, reference)
    nests(text)(xs, ix, os)
    torch.testing.assert_close(os, want)


def test_scatter_of_single_elements_meets(nests):
    """Catalogue A08."""
    n, e = 7, 1000
    x, o, i = buffer(e), buffer(n), buffer(e, dtype="i64")
    text = f"""
    func.func @forward(%x : {x}, %i : {i}, %o : {o}) {{
      loop.nest (%e = {e}) outs(%oo = %o : {o}) {{
        %k = loop.load %i[%e] : {i} -> i64
        %b = loop.bound %k, {n} "index out of range" : i64
        %a = loop.load %x[%e] : {x} -> f32
        loop.store %a, %oo[%b] add : f32, {o}
      }}
      func.return
    }}"""
    xs, ix, os = torch.randn(e), torch.randint(0, n, (e,)), torch.zeros(n)
    nests(text)(xs, ix, os)
    torch.testing.assert_close(os, torch.zeros(n).index_add(0, ix, xs))


def test_plain_scatter_and_masked_store(nests):
    e = 50
    x, o, i = buffer(e), buffer(e), buffer(e, dtype="i64")
    text = f"""
    func.func @forward(%x : {x}, %i : {i}, %o : {o}, %p : {o}) {{
      loop.nest (%e = {e}) outs(%oo = %o : {o}, %pp = %p : {o}) {{
        %zero = arith.constant 0.0 : f32
        %k = loop.load %i[%e] : {i} -> i64
        %b = loop.bound %k, {e} "index out of range" : i64
        %a = loop.load %x[%e] : {x} -> f32
        %c = arith.cmpf ogt, %a, %zero : f32
        loop.store %a, %oo[%b] : f32, {o}
        loop.store %a, %pp[%e] if %c : f32, {o}
      }}
      func.return
    }}"""
    xs, ix, os, ps = torch.randn(e), torch.randperm(e), torch.zeros(e), torch.full((e,), -1.0)
    nests(text)(xs, ix, os, ps)
    assert torch.equal(os, torch.zeros(e).scatter(0, ix, xs))
    assert torch.equal(ps, torch.where(xs > 0, xs, torch.tensor(-1.0)))


def philox(seed: int, block: int) -> list[int]:
    """Philox4x32-10, written down from Salmon et al. 2011."""
    key = [seed & 0xFFFFFFFF, seed >> 32]
    c = [block & 0xFFFFFFFF, block >> 32, 0, 0]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ key[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ key[1], a & 0xFFFFFFFF]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


RANDOM = """
func.func @forward(%s : {s}, %o : {o}) {{
  loop.nest (%i = {n}) outs(%oo = %o : {o}) {{
    %seed = loop.load %s[0] : {s} -> i64
    %first = loop.load %s[1] : {s} -> i64
    %k = loop.index %i : i64
    %at = arith.addi %k, %first : i64
    %r = loop.random "{kind}" %seed, %at : i64, i64 -> {t}
    loop.store %r, %oo[%i] : {t}, {o}
  }}
  func.return
}}
"""


def test_random_words_are_philox(nests):
    n = 101
    o = torch.zeros(n, dtype=torch.int64)
    seeds = torch.tensor([(5 << 32) + 77, 6])
    nests(RANDOM.format(s=buffer(2, dtype="i64"), o=buffer(n, dtype="i64"), n=n, kind="randint", t="i64"))(seeds, o)
    want = [philox(int(seeds[0]), (k + 6) // 4)[(k + 6) % 4] for k in range(n)]
    assert o.tolist() == want


def test_random_floats(nests):
    n = 1 << 16
    o = torch.zeros(n)
    seeds = torch.tensor([1234, 0])
    nests(RANDOM.format(s=buffer(2, dtype="i64"), o=buffer(n), n=n, kind="rand", t="f32"))(seeds, o)
    assert 0 <= o.min() and o.max() < 1 and abs(o.mean() - 0.5) < 0.01
    assert o[5].item() == (philox(1234, 1)[1] >> 8) / 2**24
    nests(RANDOM.format(s=buffer(2, dtype="i64"), o=buffer(n), n=n, kind="randn", t="f32"))(seeds, o)
    assert abs(o.mean()) < 0.02 and abs(o.std() - 1) < 0.02 and abs((o**4).mean() - 3) < 0.2


@pytest.mark.parametrize("c", [1, 3, 20])
def test_free_loops_leave_a_sequential_one(nests, c):
    """The gradient of nearest upsampling: rows and columns meet, planes do not."""
    n, h, w, oh, ow = 2, 5, 4, 11, 9
    x, o, i, j = buffer(n, c, oh, ow), buffer(n, c, h, w), buffer(oh, dtype="i64"), buffer(ow, dtype="i64")
    text = f"""
    func.func @forward(%x : {x}, %i : {i}, %j : {j}, %o : {o}) {{
      loop.nest () outs(%oo = %o : {o}) {{
        loop.for (%h = {oh}, %w = {ow}) {{
          %a = loop.load %i[%h] : {i} -> i64
          %ab = loop.bound %a, {h} "index" wrap : i64
          %b = loop.load %j[%w] : {j} -> i64
          %bb = loop.bound %b, {w} "index" wrap : i64
          loop.for (%n = {n}, %c = {c}) {{
            %v = loop.load %x[%n, %c, %h, %w] : {x} -> f32
            loop.store %v, %oo[%n, %c, %ab, %bb] add : f32, {o}
          }}
        }} attributes {{sequential}}
      }}
      func.return
    }}"""
    xs, ii, jj = torch.randn(n, c, oh, ow), torch.randint(-h, h, (oh,)), torch.randint(0, w, (ow,))
    os = torch.randn(n, c, h, w)
    want = os.clone()
    want.index_put_(
        (torch.arange(n)[:, None, None, None], torch.arange(c)[:, None, None], ii[:, None], jj), xs, accumulate=True
    )
    nests(text)(xs, ii, jj, os)
    torch.testing.assert_close(os, want)


@pytest.mark.spread
@pytest.mark.parametrize("size", [1, 17, 1000])
@pytest.mark.parametrize("reduce", ["sum", "prod", "amax", "amin", None])
def test_scatter_of_computed_values(reduce, size):
    """Values in vectors, combined one after the other; of those that overwrite each other the last one stays."""
    torch.manual_seed(8)
    i, x, o = torch.randint(0, 12, (size,)), torch.randn(size), torch.randn(12)
    if reduce is None:
        i = torch.randperm(1000)[:size]
        o = torch.randn(1000)

    def f(o, i, x):
        y = torch.exp(x).sin()
        return o.scatter(0, i, y) if reduce is None else o.scatter_reduce(0, i, y, reduce)

    torch.testing.assert_close(torch.compile(f, backend="stepwell", dynamic=size == 17)(o, i, x), f(o, i, x), rtol=1e-4, atol=1e-4)


def test_last_of_equal_places_stays():
    i, x = torch.arange(1000) % 7, torch.randn(1000)
    o = torch.compile(lambda o, i, x: o.index_put((i,), (x * 2).sin()), backend="stepwell")(torch.zeros(7), i, x)
    torch.testing.assert_close(o, (x * 2).sin()[-6 - 1 :][torch.argsort(i[-7:])])


def test_places_that_are_sums_of_indices():
    """Indices computed from positions are index expressions: overlapping windows add up without loaded indices."""
    x = torch.randn(2, 4 * 9, 64)
    f = lambda x: torch.nn.functional.fold(x, (8, 8), 3, padding=1)  # noqa: E731
    torch.testing.assert_close(torch.compile(f, backend="stepwell")(x), f(x))
    table, places = torch.randn(31, 5), torch.arange(16)
    g = lambda t: t[(places[None] - places[:, None]) + 15].permute(2, 0, 1) + t[-1 - places // 2, 0]  # noqa: E731
    torch.testing.assert_close(torch.compile(g, backend="stepwell")(table), g(table))


def test_arithmetic_that_leaves_its_type():
    """A product of a position that wraps around is no index."""
    f = lambda x: (torch.arange(50) * 6364136223846793005 + 1442695040888963407) * x  # noqa: E731
    g = lambda x: (torch.arange(50, dtype=torch.int32) * 100_000_000 + 5) + x  # noqa: E731
    assert torch.equal(torch.compile(f, backend="stepwell")(torch.arange(50)), f(torch.arange(50)))
    assert torch.equal(torch.compile(g, backend="stepwell")(torch.arange(50, dtype=torch.int32)), g(torch.arange(50, dtype=torch.int32)))


def test_threads_do_not_share_iterations_that_meet_at_what_a_reduction_finds(nests):
    n = 2048
    x, o = buffer(n, n), buffer(2 * n)
    run = nests(f"""
    func.func @forward(%x : {x}, %o : {o}) {{
      loop.nest (%i = {n}) outs(%oo = %o : {o}) {{
        %best, %place = loop.reduce (%n = {n}) argmax {{
          %one = loop.load %x[%n, %i] : {x} -> f32
          %number = loop.index %n : i64
          loop.yield %one, %number : f32, i64
        }} -> f32, i64
        %b = loop.bound %place, {n} "index out of range" : i64
        loop.store %best, %oo[%b + %i] add : f32, {o}
      }}
      func.return
    }}""")
    assert "cpu.parallel" not in run.text
    xs, os = torch.eye(n).flip(0), torch.zeros(2 * n)
    run(xs, os)
    assert os[n - 1] == n
    assert os.sum() == n
