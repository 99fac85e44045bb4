"""Pointwise nests: loops merged, strides, masks, dtypes, casts, gathers."""

from __future__ import annotations

import pytest
import torch

BINARY = """
func.func @forward(%x : {x}, %y : {y}, %o : {o}) {{
  loop.nest ({loops}) outs(%oo = %o : {o}) {{
    %a = loop.load %x[{xi}] : {x} -> {t}
    %b = loop.load %y[{yi}] : {y} -> {t}
    %c = arith.addf %a, %b : {t}
    loop.store %c, %oo[{oi}] : {t}, {o}
  }}
  func.return
}}
"""


def buffer(*dims: object, strides: str = "", dtype: str = "f32") -> str:
    shape = " x ".join(f"{d}" for d in dims)
    return f"!mem.buffer<{shape}{' x ' if dims else ''}{dtype}{strides}>"


@pytest.mark.parametrize(
    "shape",
    [(1,), (3,), (16,), (17,), (64,), (100,), (5, 7), (3, 64), (33, 130), (2, 3, 4, 5), (70000,), (0, 5), (4, 0)],
)
def test_contiguous(nests, shape):
    loops = ", ".join(f"%i{k} = {s}" for k, s in enumerate(shape))
    at = ", ".join(f"%i{k}" for k in range(len(shape)))
    b = buffer(*shape)
    run = nests(BINARY.format(x=b, y=b, o=b, loops=loops, xi=at, yi=at, oi=at, t="f32"))
    x, y, o = torch.randn(shape), torch.randn(shape), torch.full(shape, 7.0)
    run(x, y, o)
    assert torch.equal(o, x + y)
    assert run.text.count("scf.for") <= 2, "contiguous loops are one loop"


@pytest.mark.parametrize("rows,cols", [(4, 4), (5, 100), (100, 33), (300, 7), (1, 50), (50, 1)])
def test_broadcasts(nests, rows, cols):
    x, y, o = torch.randn(rows, cols), torch.randn(cols), torch.zeros(rows, cols)
    text = BINARY.format(
        x=buffer(rows, cols),
        y=buffer(cols),
        o=buffer(rows, cols),
        loops=f"%i = {rows}, %j = {cols}",
        xi="%i, %j",
        yi="%j",
        oi="%i, %j",
        t="f32",
    )
    nests(text)(x, y, o)
    assert torch.equal(o, x + y)
    z = torch.randn(rows)
    text = BINARY.format(
        x=buffer(rows, cols),
        y=buffer(rows),
        o=buffer(rows, cols),
        loops=f"%i = {rows}, %j = {cols}",
        xi="%i, %j",
        yi="%i",
        oi="%i, %j",
        t="f32",
    )
    nests(text)(x, z, o)
    assert torch.equal(o, x + z[:, None])


@pytest.mark.parametrize("rows,cols", [(16, 16), (64, 64), (37, 41), (100, 130), (200, 16), (5, 9)])
def test_transposed_operand(nests, rows, cols):
    x, y, o = torch.randn(rows, cols), torch.randn(cols, rows), torch.zeros(rows, cols)
    text = BINARY.format(
        x=buffer(rows, cols), y=buffer(rows, cols, strides=f", [1, {rows}]"), o=buffer(rows, cols),
        loops=f"%i = {rows}, %j = {cols}", xi="%i, %j", yi="%i, %j", oi="%i, %j", t="f32",
    )  # fmt: skip
    run = nests(text)
    run(x, y, o)
    assert torch.equal(o, x + y.t())
    if rows >= 16 and cols >= 16:
        assert "cpu.transpose" in run.text


def test_permuted_copy_writes_across(nests):
    n, c, h, w = 2, 20, 5, 9
    x, o = torch.randn(n, c, h, w), torch.zeros(n, h, w, c)
    text = f"""
    func.func @forward(%x : {buffer(n, c, h, w)}, %o : {buffer(n, h, w, c)}) {{
      loop.nest (%n = {n}, %h = {h}, %w = {w}, %c = {c}) outs(%oo = %o : {buffer(n, h, w, c)}) {{
        %a = loop.load %x[%n, %c, %h, %w] : {buffer(n, c, h, w)} -> f32
        %b = arith.addf %a, %a : f32
        loop.store %b, %oo[%n, %h, %w, %c] : f32, {buffer(n, h, w, c)}
      }}
      func.return
    }}"""
    nests(text)(x, o)
    assert torch.equal(o, x.permute(0, 2, 3, 1) * 2)


@pytest.mark.parametrize("size", [5, 100, 5000])
def test_dynamic_sizes(nests, size):
    b = buffer("s0", 3)
    run = nests(BINARY.format(x=b, y=b, o=b, loops="%i = s0, %j = 3", xi="%i, %j", yi="%i, %j", oi="%i, %j", t="f32"))
    x, y, o = torch.randn(size, 3), torch.randn(size, 3), torch.zeros(size, 3)
    run(x, y, o, s0=size)
    assert torch.equal(o, x + y)


@pytest.mark.parametrize("rows,cols", [(3, 5), (7, 200), (129, 64)])
def test_dynamic_strides(nests, rows, cols):
    b = "!mem.buffer<s0 x s1 x f32, [s2, 1]>"
    run = nests(
        BINARY.format(
            x=b,
            y=buffer("s1"),
            o=buffer("s0", "s1"),
            loops="%i = s0, %j = s1",
            xi="%i, %j",
            yi="%j",
            oi="%i, %j",
            t="f32",
        )
    )
    base, y, o = torch.randn(rows, cols + 3), torch.randn(cols), torch.zeros(rows, cols)
    run(base[:, :cols], y, o, s0=rows, s1=cols, s2=cols + 3)
    assert torch.equal(o, base[:, :cols] + y)


@pytest.mark.parametrize("step", [2, 3])
def test_strided_load(nests, step):
    n = 101
    x, y, o = torch.randn(step * n), torch.randn(n), torch.zeros(n)
    text = BINARY.format(
        x=buffer(step * n),
        y=buffer(n),
        o=buffer(n),
        loops=f"%i = {n}",
        xi=f"%i * {step}",
        yi=f"-%i + {n - 1}",
        oi="%i",
        t="f32",
    )
    nests(text)(x, y, o)
    assert torch.equal(o, x[::step] + y.flip(0))


@pytest.mark.parametrize("name,torch_type", [("f64", torch.float64), ("bf16", torch.bfloat16), ("f16", torch.float16)])
def test_float_types(nests, name, torch_type):
    n = 77
    x, y, o = (torch.randn(n).to(torch_type) for _ in range(3))
    b = buffer(n, dtype=name)
    t = "f64" if name == "f64" else "f32"
    nests(BINARY.format(x=b, y=b, o=b, loops=f"%i = {n}", xi="%i", yi="%i", oi="%i", t=t))(x, y, o)
    assert torch.equal(o, x + y)


def test_integers_bools_and_casts(nests):
    n = 75
    text = f"""
    func.func @forward(%x : {buffer(n, dtype="i64")}, %m : {buffer(n, dtype="i1")}, %u : {buffer(n, dtype="ui8")}, %o
      : {buffer(n)}, %p : {buffer(n, dtype="i1")}) {{
      loop.nest (%i = {n}) outs(%oo = %o : {buffer(n)}, %pp = %p : {buffer(n, dtype="i1")}) {{
        %c3 = arith.constant 3 : i64
        %a = loop.load %x[%i] : {buffer(n, dtype="i64")} -> i64
        %m0 = loop.load %m[%i] : {buffer(n, dtype="i1")} -> i1
        %u0 = loop.load %u[%i] : {buffer(n, dtype="ui8")} -> i8
        %b = arith.muli %a, %c3 : i64
        %j = loop.index %i * 2 : i64
        %k = arith.addi %b, %j : i64
        %f = arith.sitofp %k : i64 to f32
        %g = arith.uitofp %u0 : i8 to f32
        %r = arith.select %m0, %f, %g : f32
        loop.store %r, %oo[%i] : f32, {buffer(n)}
        %c10 = arith.constant 10 : i64
        %t = arith.cmpi slt, %j, %c10 : i64
        %v = arith.xori %t, %m0 : i1
        loop.store %v, %pp[%i] : i1, {buffer(n, dtype="i1")}
      }}
      func.return
    }}"""
    x, m, u = torch.randint(-9, 9, (n,)), torch.rand(n) > 0.5, torch.randint(0, 255, (n,)).to(torch.uint8)
    o, p = torch.zeros(n), torch.zeros(n, dtype=torch.bool)
    nests(text)(x, m, u, o, p)
    j = torch.arange(n) * 2
    assert torch.equal(o, torch.where(m, (x * 3 + j).float(), u.float()))
    assert torch.equal(p, (j < 10) ^ m)


def test_concatenation_by_masks(nests):
    rows, a, b = 6, 40, 50
    text = f"""
    func.func @forward(%x : {buffer(rows, a)}, %y : {buffer(rows, b)}, %o : {buffer(rows, a + b)}) {{
      loop.nest (%i = {rows}, %j = {a + b}) outs(%oo = %o : {buffer(rows, a + b)}) {{
        %ca = arith.constant {a} : index
        %z = arith.constant 0.0 : f32
        %jj = loop.index %j : index
        %low = arith.cmpi slt, %jj, %ca : index
        %high = arith.cmpi sge, %jj, %ca : index
        %v = loop.load %x[%i, %j] if %low else %z : {buffer(rows, a)} -> f32
        %w = loop.load %y[%i, %j - {a}] if %high else %v : {buffer(rows, b)} -> f32
        loop.store %w, %oo[%i, %j] : f32, {buffer(rows, a + b)}
      }}
      func.return
    }}"""
    x, y, o = torch.randn(rows, a), torch.randn(rows, b), torch.zeros(rows, a + b)
    nests(text)(x, y, o)
    assert torch.equal(o, torch.cat([x, y], 1))


def test_padding_by_masks(nests):
    h, w = 5, 19
    text = f"""
    func.func @forward(%x : {buffer(h, w)}, %o : {buffer(h + 2, w + 3)}) {{
      loop.nest (%i = {h + 2}, %j = {w + 3}) outs(%oo = %o : {buffer(h + 2, w + 3)}) {{
        %zero = arith.constant 0 : index
        %hh = arith.constant {h} : index
        %ww = arith.constant {w} : index
        %fill = arith.constant -1.5 : f32
        %i1 = loop.index %i - 1 : index
        %j1 = loop.index %j - 2 : index
        %c0 = arith.cmpi sge, %i1, %zero : index
        %c1 = arith.cmpi slt, %i1, %hh : index
        %c2 = arith.cmpi sge, %j1, %zero : index
        %c3 = arith.cmpi slt, %j1, %ww : index
        %c4 = arith.andi %c0, %c1 : i1
        %c5 = arith.andi %c2, %c3 : i1
        %c = arith.andi %c4, %c5 : i1
        %v = loop.load %x[%i - 1, %j - 2] if %c else %fill : {buffer(h, w)} -> f32
        loop.store %v, %oo[%i, %j] : f32, {buffer(h + 2, w + 3)}
      }}
      func.return
    }}"""
    x, o = torch.randn(h, w), torch.zeros(h + 2, w + 3)
    nests(text)(x, o)
    assert torch.equal(o, torch.nn.functional.pad(x, (2, 1, 1, 1), value=-1.5))


def test_divided_indices_are_split(nests):
    """Rotation of halves: the last index is read modulo its half."""
    rows, n = 5, 128
    text = f"""
    func.func @forward(%x : {buffer(rows, n)}, %y : {buffer(rows, 2, n // 2)}, %o : {buffer(rows, n)}) {{
      loop.nest (%i = {rows}, %j = {n}) outs(%oo = %o : {buffer(rows, n)}) {{
        %a = loop.load %x[%i, (%j + {n // 2}) mod {n}] : {buffer(rows, n)} -> f32
        %b = loop.load %y[%i, %j floordiv {n // 2}, %j mod {n // 2}] : {buffer(rows, 2, n // 2)} -> f32
        %c = arith.addf %a, %b : f32
        loop.store %c, %oo[%i, %j] : f32, {buffer(rows, n)}
      }}
      func.return
    }}"""
    x, y, o = torch.randn(rows, n), torch.randn(rows, 2, n // 2), torch.zeros(rows, n)
    run = nests(text)
    run(x, y, o)
    assert torch.equal(o, x.roll(n // 2, 1) + y.reshape(rows, n))


GATHER = """
func.func @forward(%w : {w}, %idx : {i}, %o : {o}) {{
  loop.nest (%i = {n}, %j = {c}) outs(%oo = %o : {o}) {{
    %k = loop.load %idx[%i] : {i} -> i64
    %b = loop.bound %k, {v} "index out of range" wrap : i64
    %a = loop.load %w[%b, %j] : {w} -> f32
    loop.store %a, %oo[%i, %j] : f32, {o}
  }}
  func.return
}}
"""


@pytest.mark.parametrize("n,c", [(10, 64), (33, 20), (100, 1)])
def test_rows_by_index(nests, n, c):
    """Catalogue G11."""
    v = 12
    run = nests(GATHER.format(w=buffer(v, c), i=buffer(n, dtype="i64"), o=buffer(n, c), n=n, c=c, v=v))
    w, idx, o = torch.randn(v, c), torch.randint(-v, v, (n,)), torch.zeros(n, c)
    run(w, idx, o)
    assert torch.equal(o, w[idx])
    idx[n // 2] = v
    with pytest.raises(RuntimeError, match="index out of range"):
        run(w, idx, o)


def test_equal_nests_share_a_kernel(nests):
    b = buffer(50)
    one = """loop.nest (%i = 50) outs(%oo = {o} : {b}) {{
        %a = loop.load {x}[%i] : {b} -> f32
        %c = arith.addf %a, %a : f32
        loop.store %c, %oo[%i] : f32, {b}
      }}"""
    first, second = (one.format(x=x, o=o, b=b) for x, o in (("%x", "%y"), ("%y", "%z")))
    text = f"func.func @forward(%x : {b}, %y : {b}, %z : {b}) {{ {first} {second} func.return }}"
    run = nests(text)
    assert run.kernels == ["k0"]
    x, y, z = torch.randn(50), torch.zeros(50), torch.zeros(50)
    run(x, y, z)
    assert torch.equal(z, x * 4)


def test_captured_scalars(nests):
    b = buffer(50)
    text = f"""
    func.func @forward(%x : {b}, %o : {b}, %n : index, %v : f64) {{
      loop.nest (%i = 50) outs(%oo = %o : {b}) {{
        %a = loop.load %x[%i] : {b} -> f32
        %w = arith.truncf %v : f64 to f32
        %k = loop.index %n + %i : i64
        %f = arith.sitofp %k : i64 to f32
        %c = arith.mulf %a, %w : f32
        %d = arith.addf %c, %f : f32
        loop.store %d, %oo[%i] : f32, {b}
      }}
      func.return
    }}"""
    import ctypes

    x, o = torch.randn(50), torch.zeros(50)
    nests(text)(x, o, 7, ctypes.c_double(2.5))
    assert torch.allclose(o, x * 2.5 + torch.arange(50) + 7)


def test_complex_numbers_are_moved(nests):
    b, t = buffer(9, 20, dtype="complex<f32>"), buffer(20, 9, dtype="complex<f32>")
    text = f"""
    func.func @forward(%x : {b}, %o : {t}) {{
      loop.nest (%i = 20, %j = 9) outs(%oo = %o : {t}) {{
        %a = loop.load %x[%j, %i] : {b} -> complex<f32>
        loop.store %a, %oo[%i, %j] : complex<f32>, {t}
      }}
      func.return
    }}"""
    x, o = torch.randn(9, 20, dtype=torch.complex64), torch.zeros(20, 9, dtype=torch.complex64)
    nests(text)(x, o)
    assert torch.equal(o, x.t())


@pytest.mark.spread
@pytest.mark.parametrize("step", [2, 3, 4, 5, 6, 7, 8, 9])
@pytest.mark.parametrize("dtype,torch_dtype", [("f32", torch.float32), ("f64", torch.float64), ("i16", torch.int16), ("i8", torch.int8)])
def test_steps_between_lanes(nests, step, dtype, torch_dtype):
    n = 150
    x, o = buffer(n, step, dtype=dtype), buffer(n, dtype=dtype)
    run = nests(f"""
func.func @forward(%x : {x}, %o : {o}) {{
  loop.nest (%i = {n}) outs(%oo = %o : {o}) {{
    %a = loop.load %x[%i, {step - 1}] : {x} -> {dtype}
    loop.store %a, %oo[%i] : {dtype}, {o}
  }}
  func.return
}}
""")
    values = torch.arange(n * step).reshape(n, step).to(torch_dtype)
    got = torch.zeros(n, dtype=torch_dtype)
    run(values, got)
    assert torch.equal(got, values[:, -1])
    whole = [line for line in run.text.splitlines() if "cpu.shuffle" in line]
    assert bool(whole) == (step <= (4 if dtype == "f64" else 8))
