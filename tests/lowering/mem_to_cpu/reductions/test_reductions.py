"""Reductions: rows, columns, whole tensors, several kinds at once, arg-reductions, Welford, online softmax, windows."""

from __future__ import annotations

import math

import pytest
import torch

KINDS = {"sum": torch.sum, "prod": torch.prod, "max": torch.amax, "min": torch.amin}


def buffer(*dims: object, strides: str = "", dtype: str = "f32") -> str:
    shape = " x ".join(f"{d}" for d in dims)
    return f"!mem.buffer<{shape}{' x ' if dims else ''}{dtype}{strides}>"


def reduce_text(shape, axes, kind, dtype="f32", t="f32", strides=""):
    x = buffer(*shape, dtype=dtype, strides=strides)
    kept = [k for k in range(len(shape)) if k not in axes]
    o = buffer(*(shape[k] for k in kept), dtype=dtype)
    outer = ", ".join(f"%i{k} = {shape[k]}" for k in kept)
    inner = ", ".join(f"%i{k} = {shape[k]}" for k in axes)
    at = ", ".join(f"%i{k}" for k in range(len(shape)))
    out = ", ".join(f"%i{k}" for k in kept)
    return f"""
    func.func @forward(%x : {x}, %o : {o}) {{
      loop.nest ({outer}) outs(%oo = %o : {o}) {{
        %r = loop.reduce ({inner}) {kind} {{
          %a = loop.load %x[{at}] : {x} -> {t}
          loop.yield %a : {t}
        }} -> {t}
        loop.store %r, %oo[{out}] : {t}, {o}
      }}
      func.return
    }}"""


SHAPES = [
    ((7, 100), (1,)), ((7, 100), (0,)), ((300, 5), (0,)), ((5, 3), (1,)), ((4, 1000), (1,)), ((1000, 130), (0,)),
    ((3, 4, 50), (1,)), ((3, 40, 5), (0, 2)), ((4, 6, 7, 8), (0, 2, 3)), ((10, 200), (0, 1)), ((17,), (0,)), ((0, 5),
      (0,)), ((5, 0), (1,)),
]  # fmt: skip


@pytest.mark.spread
@pytest.mark.parametrize("shape,axes", SHAPES)
@pytest.mark.parametrize("kind", list(KINDS))
def test_kinds(nests, shape, axes, kind):
    """Catalogue A09."""
    x = torch.randn(shape)
    if kind == "prod":
        x = 1 + x / 100
    kept = [shape[k] for k in range(len(shape)) if k not in axes]
    o = torch.full(kept, 9.0)
    nests(reduce_text(shape, axes, kind))(x, o)
    if x.numel() == 0:
        identity = {"sum": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}[kind]
        assert torch.equal(o, torch.full(kept, identity))
        return
    want = KINDS[kind](x.double(), dim=axes) if kind != "prod" else _prod(x.double(), axes)
    torch.testing.assert_close(o, want.float(), rtol=1e-4, atol=1e-4)


def _prod(x, axes):
    for a in sorted(axes, reverse=True):
        x = x.prod(a)
    return x


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", ["max", "min"])
def test_nan_is_kept(nests, kind, axis):
    x = torch.randn(40, 70)
    x[3, 5] = math.nan
    x[9, 69] = math.nan
    o = torch.zeros(40 if axis == 1 else 70)
    nests(reduce_text((40, 70), (axis,), kind))(x, o)
    torch.testing.assert_close(o, KINDS[kind](x, dim=axis), equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("size", [1, 15, 64, 1000, 4097])
def test_dynamic_rows_and_columns(nests, size):
    for shape, axis in ((("s0", 33), 0), ((33, "s0"), 0), (("s0", 33), 1), ((33, "s0"), 1)):
        concrete = tuple(size if d == "s0" else d for d in shape)
        x = torch.randn(concrete)
        o = torch.zeros(concrete[1 - axis])
        nests(reduce_text(shape, (axis,), "sum"))(x, o, s0=size)
        torch.testing.assert_close(o, x.sum(axis), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["any", "all", "xor"])
@pytest.mark.parametrize("shape,axes", [((9, 100), (1,)), ((100, 9), (0,))])
def test_bools(nests, kind, shape, axes):
    x = torch.rand(shape) > (0.98 if kind == "any" else 0.02 if kind == "all" else 0.5)
    kept = [shape[k] for k in range(2) if k not in axes]
    o = torch.zeros(kept, dtype=torch.bool)
    nests(reduce_text(shape, axes, kind, dtype="i1", t="i1"))(x, o)
    want = {"any": x.any(axes[0]), "all": x.all(axes[0]), "xor": x.sum(axes[0]) % 2 == 1}[kind]
    assert torch.equal(o, want)


@pytest.mark.spread
@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod"])
@pytest.mark.parametrize("shape,axes", [((9, 100), (1,)), ((100, 9), (0,)), ((5, 5), (0, 1))])
def test_integers(nests, kind, shape, axes):
    x = torch.randint(-9, 9, shape)
    kept = [shape[k] for k in range(2) if k not in axes]
    o = torch.zeros(kept, dtype=torch.int64)
    nests(reduce_text(shape, axes, kind, dtype="i64", t="i64"))(x, o)
    assert torch.equal(o, _prod(x, axes) if kind == "prod" else KINDS[kind](x, dim=axes))


@pytest.mark.parametrize("dtype,torch_type", [("bf16", torch.bfloat16), ("f64", torch.float64)])
@pytest.mark.parametrize("axes", [(0,), (1,)])
def test_other_floats(nests, dtype, torch_type, axes):
    x = torch.randn(50, 70).to(torch_type)
    o = torch.zeros(70 if axes == (0,) else 50, dtype=torch_type)
    nests(reduce_text((50, 70), axes, "sum", dtype=dtype, t="f64" if dtype == "f64" else "f32"))(x, o)
    torch.testing.assert_close(
        o, x.double().sum(axes).to(torch_type), rtol=1e-2 if dtype == "bf16" else 1e-12, atol=1e-5
    )


def arg_text(shape, axis, kind, dtype="f32"):
    n = shape[1 - axis]
    x, o, v = buffer(*shape, dtype=dtype), buffer(n, dtype="i64"), buffer(n, dtype=dtype)
    outer, inner = ("%i", "%j") if axis == 1 else ("%j", "%i")
    return f"""
    func.func @forward(%x : {x}, %o : {o}, %v : {v}) {{
      loop.nest ({outer} = {n}) outs(%oo = %o : {o}, %vv = %v : {v}) {{
        %m, %k = loop.reduce ({inner} = {shape[axis]}) {kind} {{
          %a = loop.load %x[%i, %j] : {x} -> {dtype}
          %n = loop.index {inner} : i64
          loop.yield %a, %n : {dtype}, i64
        }} -> {dtype}, i64
        loop.store %k, %oo[{outer}] : i64, {o}
        loop.store %m, %vv[{outer}] : {dtype}, {v}
      }}
      func.return
    }}"""


@pytest.mark.spread
@pytest.mark.parametrize("shape", [(6, 100), (6, 5), (6, 3000), (200, 3)])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", ["argmax", "argmin"])
def test_arg_reductions(nests, shape, axis, kind):
    x = torch.randint(-3, 3, shape).float()
    x[0] = -math.inf
    x[1, shape[1] // 2] = math.nan
    x[1, shape[1] // 2 + 1] = math.nan
    n = shape[1 - axis]
    o, v = torch.full((n,), -7), torch.zeros(n)
    nests(arg_text(shape, axis, kind))(x, o, v)
    want = torch.argmax(x, axis) if kind == "argmax" else torch.argmin(x, axis)
    assert torch.equal(o, want)
    picked = x.gather(axis, want.unsqueeze(axis)).squeeze(axis)
    torch.testing.assert_close(v, picked, equal_nan=True, rtol=0, atol=0)


def test_arg_of_integers(nests):
    x = torch.randint(-3, 3, (6, 77))
    o, v = torch.zeros(6, dtype=torch.int64), torch.zeros(6, dtype=torch.int64)
    nests(arg_text((6, 77), 1, "argmax", dtype="i64"))(x, o, v)
    assert torch.equal(o, x.argmax(1)) and torch.equal(v, x.amax(1))


SOFTMAX = """
func.func @forward(%x : {b}, %o : {b}) {{
  loop.nest ({outer}) outs(%oo = %o : {b}) {{
    %m = loop.reduce ({inner}) max {{
      %a = loop.load %x[%i, %j] : {b} -> f32
      loop.yield %a : f32
    }} -> f32
    %s = loop.reduce ({inner}) sum {{
      %a = loop.load %x[%i, %j] : {b} -> f32
      %d = arith.subf %a, %m : f32
      %e = math.exp %d : f32
      loop.yield %e : f32
    }} -> f32
    loop.for ({inner}) {{
      %a = loop.load %x[%i, %j] : {b} -> f32
      %d = arith.subf %a, %m : f32
      %e = math.exp %d : f32
      %q = arith.divf %e, %s : f32
      loop.store %q, %oo[%i, %j] : f32, {b}
    }}
  }}
  func.return
}}
"""


@pytest.mark.parametrize("rows,cols", [(5, 100), (3, 7), (40, 64), (2, 5000)])
@pytest.mark.parametrize("axis", [0, 1])
def test_softmax(nests, rows, cols, axis):
    outer, inner = (f"%i = {rows}", f"%j = {cols}") if axis == 1 else (f"%j = {cols}", f"%i = {rows}")
    x, o = torch.randn(rows, cols), torch.zeros(rows, cols)
    nests(SOFTMAX.format(b=buffer(rows, cols), outer=outer, inner=inner))(x, o)
    torch.testing.assert_close(o, x.softmax(axis))


ONLINE = """
func.func @forward(%x : {b}, %o : {v}, %p : {v}) {{
  loop.nest ({outer}) outs(%oo = %o : {v}, %pp = %p : {v}) {{
    %m, %s = loop.reduce ({inner}) softmax {{
      %a = loop.load %x[%i, %j] : {b} -> f32
      loop.yield %a : f32
    }} -> f32, f32
    loop.store %m, %oo[{at}] : f32, {v}
    loop.store %s, %pp[{at}] : f32, {v}
  }}
  func.return
}}
"""


@pytest.mark.parametrize("rows,cols", [(5, 100), (300, 20), (3, 20001)])
@pytest.mark.parametrize("axis", [0, 1])
def test_online_softmax(nests, rows, cols, axis):
    """N30, M22: Catalogue A19."""
    outer, inner, at = (f"%i = {rows}", f"%j = {cols}", "%i") if axis == 1 else (f"%j = {cols}", f"%i = {rows}", "%j")
    x = torch.randn(rows, cols) * 5
    x[0, 0] = -math.inf
    n = x.shape[1 - axis]
    o, p = torch.zeros(n), torch.zeros(n)
    nests(ONLINE.format(b=buffer(rows, cols), v=buffer(n), outer=outer, inner=inner, at=at))(x, o, p)
    assert torch.equal(o, x.amax(axis))
    torch.testing.assert_close(p, (x - x.amax(axis, keepdim=True)).exp().sum(axis), rtol=1e-5, atol=1e-5)


WEIGHED = """
func.func @forward(%x : {b}, %w : {b}, %o : {v}, %p : {v}, %q : {v}) {{
  loop.nest ({outer}) outs(%oo = %o : {v}, %pp = %p : {v}, %qq = %q : {v}) {{
    %m, %s, %d = loop.reduce ({inner}) softmax_dot {{
      %a = loop.load %x[%i, %j] : {b} -> f32
      %c = loop.load %w[%i, %j] : {b} -> f32
      loop.yield %a, %c : f32, f32
    }} -> f32, f32, f32
    loop.store %m, %oo[{at}] : f32, {v}
    loop.store %s, %pp[{at}] : f32, {v}
    loop.store %d, %qq[{at}] : f32, {v}
  }}
  func.return
}}
"""


@pytest.mark.parametrize("rows,cols", [(5, 100), (300, 20), (3, 20001)])
@pytest.mark.parametrize("axis", [0, 1])
def test_weighed_rows(nests, rows, cols, axis):
    """A row without anything gives -inf, 0, 0; one with an infinite value NaN."""
    outer, inner, at = (f"%i = {rows}", f"%j = {cols}", "%i") if axis == 1 else (f"%j = {cols}", f"%i = {rows}", "%j")
    x, w = torch.randn(rows, cols) * 5, torch.randn(rows, cols)
    across = x if axis == 1 else x.T
    across[0] = -math.inf
    across[1, 2] = math.inf
    across[2, :2] = -math.inf
    n = x.shape[1 - axis]
    o, p, q = (torch.zeros(n) for _ in range(3))
    nests(WEIGHED.format(b=buffer(rows, cols), v=buffer(n), outer=outer, inner=inner, at=at))(x, w, o, p, q)
    assert torch.equal(o, x.amax(axis))
    powers = (x - x.amax(axis, keepdim=True)).exp()
    total, dot = powers.sum(axis), (powers * w).sum(axis)
    total[0] = dot[0] = 0
    torch.testing.assert_close(p, total, rtol=1e-5, atol=1e-5, equal_nan=True)
    torch.testing.assert_close(q, dot, rtol=1e-4, atol=1e-4, equal_nan=True)


WELFORD = """
func.func @forward(%x : {b}, %o : {v}, %p : {v}, %q : {v}) {{
  loop.nest ({outer}) outs(%oo = %o : {v}, %pp = %p : {v}, %qq = %q : {v}) {{
    %m, %s, %n = loop.reduce ({inner}) welford {{
      %a = loop.load %x[{index}] : {b} -> f32
      loop.yield %a : f32
    }} -> f32, f32, f32
    loop.store %m, %oo[{at}] : f32, {v}
    loop.store %s, %pp[{at}] : f32, {v}
    loop.store %n, %qq[{at}] : f32, {v}
  }}
  func.return
}}
"""


@pytest.mark.parametrize(
    "shape,axes",
    [
        ((5, 100), (1,)),
        ((100, 5), (0,)),
        ((3, 20001), (1,)),
        ((1000, 70), (0,)),
        ((4, 6, 50), (0, 2)),
        ((2, 3, 9000), (0, 2)),
    ],
)
def test_welford(nests, shape, axes):
    """Catalogue A18."""
    x = torch.randn(shape) + 1000
    kept = [k for k in range(len(shape)) if k not in axes]
    (n,) = [shape[k] for k in kept]
    names = [f"%i{k}" for k in range(len(shape))]
    text = WELFORD.format(
        b=buffer(*shape), v=buffer(n), outer=f"%i{kept[0]} = {n}", at=f"%i{kept[0]}", index=", ".join(names),
        inner=", ".join(f"%i{k} = {shape[k]}" for k in axes),
    )  # fmt: skip
    o, p, q = torch.zeros(n), torch.zeros(n), torch.zeros(n)
    nests(text)(x, o, p, q)
    count = math.prod(shape[k] for k in axes)
    assert torch.equal(q, torch.full((n,), float(count)))
    torch.testing.assert_close(o, x.double().mean(axes).float(), rtol=1e-6, atol=1e-4)
    torch.testing.assert_close(p / count, x.double().var(axes, correction=0).float(), rtol=1e-4, atol=1e-5)


def test_dynamic_welford(nests):
    text = WELFORD.format(
        b=buffer("s0", "s1"), v=buffer("s0"), outer="%i = s0", inner="%j = s1", index="%i, %j", at="%i"
    )
    for rows, cols in ((3, 5), (2, 9000), (4, 130)):
        x = torch.randn(rows, cols) + 10
        o, p, q = torch.zeros(rows), torch.zeros(rows), torch.zeros(rows)
        nests(text)(x, o, p, q, s0=rows, s1=cols)
        torch.testing.assert_close(p / cols, x.var(1, correction=0), rtol=1e-4, atol=1e-5)


def test_several_kinds_at_once(nests):
    """Catalogue A20."""
    b, v = buffer(9, 333), buffer(9)
    text = f"""
    func.func @forward(%x : {b}, %o : {v}, %p : {v}, %q : {v}) {{
      loop.nest (%i = 9) outs(%oo = %o : {v}, %pp = %p : {v}, %qq = %q : {v}) {{
        %s, %m, %w0, %w1, %w2 = loop.reduce (%j = 333) sum, max, welford {{
          %a = loop.load %x[%i, %j] : {b} -> f32
          %b = arith.mulf %a, %a : f32
          loop.yield %b, %a, %a : f32, f32, f32
        }} -> f32, f32, f32, f32, f32
        loop.store %s, %oo[%i] : f32, {v}
        loop.store %m, %pp[%i] : f32, {v}
        loop.store %w1, %qq[%i] : f32, {v}
      }}
      func.return
    }}"""
    x, o, p, q = torch.randn(9, 333), torch.zeros(9), torch.zeros(9), torch.zeros(9)
    nests(text)(x, o, p, q)
    torch.testing.assert_close(o, (x * x).sum(1))
    assert torch.equal(p, x.amax(1))
    torch.testing.assert_close(q / 333, x.var(1, correction=0))


@pytest.mark.parametrize("w,stride", [(20, 1), (41, 2), (7, 2)])
def test_windows(nests, w, stride):
    """Max pooling with padding: a small reduction inside of the vector loop."""
    n, h = 3, 11
    oh, ow = (h + 2 - 3) // stride + 1, (w + 2 - 3) // stride + 1
    x, o = buffer(n, h, w), buffer(n, oh, ow)
    text = f"""
    func.func @forward(%x : {x}, %o : {o}) {{
      loop.nest (%n = {n}, %i = {oh}, %j = {ow}) outs(%oo = %o : {o}) {{
        %low = arith.constant 0xFF800000 : f32
        %zero = arith.constant 0 : index
        %hh = arith.constant {h} : index
        %ww = arith.constant {w} : index
        %m = loop.reduce (%a = 3, %b = 3) max {{
          %r = loop.index %i * {stride} + %a - 1 : index
          %c = loop.index %j * {stride} + %b - 1 : index
          %c0 = arith.cmpi sge, %r, %zero : index
          %c1 = arith.cmpi slt, %r, %hh : index
          %c2 = arith.cmpi sge, %c, %zero : index
          %c3 = arith.cmpi slt, %c, %ww : index
          %c4 = arith.andi %c0, %c1 : i1
          %c5 = arith.andi %c2, %c3 : i1
          %in = arith.andi %c4, %c5 : i1
          %v = loop.load %x[%n, %i * {stride} + %a - 1, %j * {stride} + %b - 1] if %in else %low : {x} -> f32
          loop.yield %v : f32
        }} -> f32
        loop.store %m, %oo[%n, %i, %j] : f32, {o}
      }}
      func.return
    }}"""
    xs, os = torch.randn(n, h, w), torch.zeros(n, oh, ow)
    nests(text)(xs, os)
    assert torch.equal(os, torch.nn.functional.max_pool2d(xs, 3, stride, 1))


def test_long_sums_keep_their_precision(nests):
    """Catalogue A14."""
    x = torch.full((1 << 22,), 0.1)
    o = torch.zeros(())
    nests(reduce_text((1 << 22,), (0,), "sum"))(x, o)
    torch.testing.assert_close(o, x.double().sum().float(), rtol=1e-5, atol=0)
    y = torch.full((1 << 18, 16), 0.1)
    p = torch.zeros(16)
    nests(reduce_text((1 << 18, 16), (0,), "sum"))(y, p)
    torch.testing.assert_close(p, y.double().sum(0).float(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("kind", ["welford", "softmax", "sum", "argmax"])
def test_reduction_over_one_element(nests, kind):
    """A loop of size 1 goes in normalising; what is left has no loop at all."""
    if kind == "argmax":
        text, outs = arg_text((5, 1), 1, kind), [torch.full((5,), -1), torch.zeros(5)]
        want = [torch.zeros(5, dtype=torch.int64), None]
    elif kind == "sum":
        text, outs, want = reduce_text((5, 1), (1,), kind), [torch.zeros(5)], [None]
    elif kind == "softmax":
        text = ONLINE.format(b=buffer(5, 1), v=buffer(5), outer="%i = 5", inner="%j = 1", at="%i")
        outs, want = [torch.zeros(5), torch.zeros(5)], [None, torch.ones(5)]
    else:
        text = WELFORD.format(b=buffer(5, 1), v=buffer(5), outer="%i = 5", inner="%j = 1", index="%i, %j", at="%i")
        outs, want = [torch.zeros(5) for _ in range(3)], [None, torch.zeros(5), torch.ones(5)]
    x = torch.randn(5, 1)
    nests(text)(x, *outs)
    for got, expected in zip(outs, want, strict=True):
        assert torch.equal(got, x[:, 0] if expected is None else expected)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "shape,axes", [((1 << 21,), (0,)), ((1024, 1500), (0, 1)), ((100003, 16), (0,)), ((3, 700000), (0, 1))]
)
def test_threads_share_a_reduction(nests, shape, axes, threads):
    """Catalogue A13."""
    x = torch.randn(shape)
    kept = [shape[k] for k in range(len(shape)) if k not in axes]
    run = nests(reduce_text(shape, axes, "sum"))
    assert "cpu.parallel" in run.text
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        o = torch.zeros(kept)
        run(x, o)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(o, x.double().sum(axes).float(), rtol=1e-5, atol=2e-3)


def test_threads_share_welford_and_arg_reductions(nests):
    x = torch.randn(1, 1 << 20) + 5
    o, p, q = torch.zeros(1), torch.zeros(1), torch.zeros(1)
    text = WELFORD.format(
        b=buffer(1, 1 << 20), v=buffer(1), outer="%i = 1", inner=f"%j = {1 << 20}", index="%i, %j", at="%i"
    )
    run = nests(text)
    assert "cpu.parallel" in run.text
    run(x, o, p, q)
    torch.testing.assert_close(p / (1 << 20), x.var(1, correction=0), rtol=1e-4, atol=1e-5)
    k, v = torch.zeros(1, dtype=torch.int64), torch.zeros(1)
    nests(arg_text((1, 1 << 20), 1, "argmin"))(x, k, v)
    assert torch.equal(k, x.argmin(1))


@pytest.mark.spread
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", ["welford", "softmax"])
@pytest.mark.parametrize("rows,cols", [(3, 100), (200, 5), (2, 40001), (4, 16)])
def test_bodies_that_update_in_place_run_once(nests, rows, cols, kind, axis):
    """The body loads what it overwrites: running it twice would change the values."""
    outer, inner, at = (f"%i = {rows}", f"%j = {cols}", "%i") if axis == 1 else (f"%j = {cols}", f"%i = {rows}", "%j")
    b, n = buffer(rows, cols), cols if axis == 0 else rows
    v = buffer(n)
    results = "%m, %s, %c" if kind == "welford" else "%m, %s"
    types = "f32, f32, f32" if kind == "welford" else "f32, f32"
    text = f"""
    func.func @forward(%x : {b}, %o : {v}, %p : {v}) {{
      loop.nest ({outer}) outs(%xx = %x : {b}, %oo = %o : {v}, %pp = %p : {v}) {{
        %three = arith.constant 3.0 : f32
        {results} = loop.reduce ({inner}) {kind} {{
          %a = loop.load %xx[%i, %j] : {b} -> f32
          %d = arith.mulf %a, %three : f32
          loop.store %d, %xx[%i, %j] : f32, {b}
          loop.yield %d : f32
        }} -> {types}
        loop.store %m, %oo[{at}] : f32, {v}
        loop.store %s, %pp[{at}] : f32, {v}
      }}
      func.return
    }}"""
    x = torch.randn(rows, cols)
    y, o, p = x.clone(), torch.zeros(n), torch.zeros(n)
    nests(text)(y, o, p)
    want = x * 3
    assert torch.equal(y, want)
    if kind == "welford":
        torch.testing.assert_close(o, want.mean(axis), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(p, want.var(axis, correction=0) * want.shape[axis], rtol=1e-4, atol=1e-4)
    else:
        assert torch.equal(o, want.amax(axis))
        torch.testing.assert_close(p, (want - want.amax(axis, keepdim=True)).exp().sum(axis), rtol=1e-4, atol=1e-5)
