"""Loads, stores, gathers, scatters, atomics, scratch and shuffles of the CPU target."""

from __future__ import annotations

import pytest
import torch
from cpu_kernels import RUNNABLE, TYPES, build, elementwise, float_samples, int_samples, parse, run

from stepwell.targets.cpu.emit.module import emit_module
from stepwell.targets.cpu.features import target
from stepwell.targets.cpu.jit import assembly

DTYPES = list(TYPES)


def samples(dtype: torch.dtype, count: int) -> torch.Tensor:
    made = float_samples(dtype) if dtype.is_floating_point else int_samples(dtype)
    return made.repeat(-(-count // made.numel()))[:count].clone()


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


@pytest.mark.spread
@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("lanes", [1, 4, 16, 64])
def test_masked_loads_and_stores_touch_only_their_lanes(isa: str, lanes: int) -> None:
    text = []
    for i, dtype in enumerate(DTYPES):
        v = f"vector<{lanes}x{TYPES[dtype]}>"
        text.append(f"""
cpu.kernel @copy{i}(%x : !cpu.ptr, %fill : !cpu.ptr, %y : !cpu.ptr, %z : !cpu.ptr, %n : i64) {{
  %zero = arith.constant 0 : i64
  %m = cpu.lanes %n : i64 to vector<{lanes}xi1>
  %f = cpu.load %fill[%zero] : {v}
  %a = cpu.load %x[%zero], mask %m : {v}
  %b = cpu.load %x[%zero], mask %m else %f : {v}
  cpu.store %a, %y[%zero] : {v}
  cpu.store %b, %z[%zero], mask %m : {v}
  %c = arith.constant {lanes} : i64
  cpu.store %b, %z[%c] : {v}
  cpu.return
}}""")
    library = build("".join(text), isa)
    for i, dtype in enumerate(DTYPES):
        x, fill = samples(dtype, lanes), samples(dtype, lanes).flip(0).clone()
        for n in sorted({-1, 0, 1, lanes // 2, lanes - 1, lanes, lanes + 7, 2**40}):
            y = samples(dtype, lanes).roll(3)
            z = torch.cat([fill, fill])
            untouched = z.clone()
            library.call(f"copy{i}", x, fill, y, z, n)
            k = min(max(n, 0), lanes)
            assert same(y, torch.cat([x[:k], torch.zeros_like(x)[k:]])), (dtype, n)
            assert same(z[:lanes], torch.cat([x[:k], untouched[k:lanes]])), (dtype, n)
            assert same(z[lanes:], torch.cat([x[:k], fill[k:]])), (dtype, n)


@pytest.mark.spread
@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("offset", ["i64", "i32"])
def test_gather_and_scatter(isa: str, offset: str) -> None:
    lanes = 16
    text = []
    for i, dtype in enumerate(DTYPES):
        v, o = f"vector<{lanes}x{TYPES[dtype]}>", f"vector<{lanes}x{offset}>"
        text.append(f"""
cpu.kernel @k{i}(%x : !cpu.ptr, %i : !cpu.ptr, %fill : !cpu.ptr, %y : !cpu.ptr, %z : !cpu.ptr, %n : i64) {{
  %zero = arith.constant 0 : i64
  %m = cpu.lanes %n : i64 to vector<{lanes}xi1>
  %o = cpu.load %i[%zero] : {o}
  %f = cpu.load %fill[%zero] : {v}
  %a = cpu.gather %x[%o : {o}], mask %m else %f : {v}
  cpu.store %a, %y[%zero] : {v}
  cpu.scatter %f, %z[%o : {o}], mask %m : {v}
  cpu.return
}}""")
    library = build("".join(text), isa)
    generator = torch.Generator().manual_seed(5)
    for i, dtype in enumerate(DTYPES):
        x, fill, before = samples(dtype, 50), samples(dtype, lanes).flip(0).clone(), samples(dtype, 50).roll(9)
        index = torch.randint(
            0, 50, (lanes,), generator=generator, dtype=torch.int64 if offset == "i64" else torch.int32
        )
        for n in (0, 5, 16):
            y, z = torch.zeros(lanes, dtype=dtype), before.clone()
            library.call(f"k{i}", x, index, fill, y, z, n)
            expected = fill.clone()
            expected[:n] = x[index[:n].long()]
            assert same(y, expected), (dtype, n)
            expected = before.clone()
            for lane in range(n):  # in order: the highest lane wins
                expected[int(index[lane])] = fill[lane]
            assert same(z, expected), (dtype, n)


@pytest.mark.parametrize("isa", RUNNABLE)
def test_scalar_masks_guard_the_access(isa: str) -> None:
    library = build(
        """
cpu.kernel @k(%x : !cpu.ptr, %y : !cpu.ptr, %on : i1, %other : f32) {
  %zero = arith.constant 0 : i64
  %a = cpu.load %x[%zero], mask %on else %other : f32
  cpu.store %a, %y[%zero] : f32
  %b = cpu.load %x[%zero], mask %on : f32
  %one = arith.constant 1 : i64
  cpu.store %b, %y[%one], mask %on : f32
  cpu.return
}""",
        isa,
    )
    y = torch.full((2,), 7.0)
    library.call("k", torch.tensor([3.0]), y, True, 5.0)
    assert y.tolist() == [3.0, 3.0]
    y = torch.full((2,), 7.0)
    library.call("k", None, y, False, 5.0)  # a null pointer that is never read
    assert y.tolist() == [5.0, 7.0]


@pytest.mark.parametrize("isa", RUNNABLE)
def test_atomic_addition(isa: str) -> None:
    types = [t for t in DTYPES if t not in (torch.bool, torch.uint8)]
    text = "".join(
        f"""
cpu.kernel @k{i}(%x : !cpu.ptr, %y : !cpu.ptr) {{
  %zero = arith.constant 0 : i64
  %one = arith.constant 1 : i64
  %v = cpu.load %x[%zero] : {TYPES[t]}
  cpu.atomic_add %v, %y[%one] : {TYPES[t]}
  cpu.return
}}"""
        for i, t in enumerate(types)
    )
    library = build(text, isa)
    for i, t in enumerate(types):
        y = torch.tensor([1, 2, 3], dtype=t)
        library.call(f"k{i}", torch.tensor([5], dtype=t), y)
        assert y.tolist() == [1, 7, 3], t


@pytest.mark.parametrize("isa", RUNNABLE)
def test_scratch_addresses_and_copies(isa: str) -> None:
    library = build(
        """
cpu.kernel @k(%x : !cpu.ptr, %y : !cpu.ptr, %n : i64) {
  %zero = arith.constant 0 : i64
  %one = arith.constant 1 : i64
  %two = arith.constant 2 : i64
  %four = arith.constant 4 : i64
  scf.for %i = %zero to %n step %one : i64 {
    %t = cpu.local {bytes = 256 : i64, align = 64 : i64}
    %from = cpu.ptr_add %x[%i] : f32
    cpu.prefetch %from[%zero] : f32
    %bytes = arith.muli %four, %two : i64
    cpu.copy %t, %from, %bytes : i64
    %v = cpu.load %t[%zero] {alignment = 64 : i64} : vector<2xf32>
    %s = cpu.reduce add %v : vector<2xf32>
    cpu.store %s, %y[%i] : f32
  }
  cpu.return
}""",
        isa,
    )
    x = torch.arange(1001, dtype=torch.float32)
    y = torch.zeros(1000)
    library.call("k", x, y, 1000)
    assert torch.equal(y, x[:-1] + x[1:])


def test_streaming_stores_are_kept_only_where_they_are_one_instruction() -> None:
    text = """
cpu.kernel @k(%x : !cpu.ptr, %y : !cpu.ptr) {{
  %zero = arith.constant 0 : i64
  %v = cpu.load %x[%zero] : vector<32xf32>
  cpu.store %v, %y[%zero] {{nontemporal{}}} : vector<32xf32>
  cpu.return
}}"""
    wanted = target("avx512")
    aligned = assembly(emit_module(parse(text.format(", alignment = 64 : i64")), wanted), wanted)
    unaligned = assembly(emit_module(parse(text.format("")), wanted), wanted)
    assert aligned.count("vmovntps") == 2
    assert "movnt" not in unaligned


@pytest.mark.parametrize("isa", RUNNABLE)
def test_vector_operations(isa: str) -> None:
    library = build(
        """
cpu.kernel @k(%x : !cpu.ptr, %y : !cpu.ptr, %s : f32, %n : i64) {
  %c0 = arith.constant 0 : i64
  %c8 = arith.constant 8 : i64
  %c16 = arith.constant 16 : i64
  %c24 = arith.constant 24 : i64
  %c32 = arith.constant 32 : i64
  %c40 = arith.constant 40 : i64
  %v = cpu.load %x[%c0] : vector<8xf32>
  %a = cpu.shuffle %v [7, 6, 5, 4, 3, 2, 1, 0] : vector<8xf32>
  cpu.store %a, %y[%c0] : vector<8xf32>
  %b = cpu.shuffle %v, %a [0, 8, 1, 9, 2, 10, 3, 11] : vector<8xf32>
  cpu.store %b, %y[%c8] : vector<8xf32>
  %lo = cpu.slice %v {start = 0 : i64} : vector<8xf32> to vector<4xf32>
  %hi = cpu.slice %v {start = 4 : i64} : vector<8xf32> to vector<4xf32>
  %d = cpu.concat %hi, %lo : vector<4xf32>
  cpu.store %d, %y[%c16] : vector<8xf32>
  %e = cpu.extract %v[3] : vector<8xf32>
  %sp = cpu.splat %s : vector<8xf32>
  %f = cpu.insert %e, %sp[5] : vector<8xf32>
  cpu.store %f, %y[%c24] : vector<8xf32>
  %i = cpu.iota %n : vector<8xi64>
  %j = cpu.cast sitofp %i : vector<8xi64> to vector<8xf32>
  cpu.store %j, %y[%c32] : vector<8xf32>
  %k = cpu.iota : vector<8xi32>
  %l = cpu.cast sitofp %k : vector<8xi32> to vector<8xf32>
  %bc = vector.broadcast %s : f32 to vector<8xf32>
  %m = vector.fma %l, %bc, %v : vector<8xf32>
  cpu.store %m, %y[%c40] : vector<8xf32>
  cpu.return
}""",
        isa,
    )
    x = torch.arange(8, dtype=torch.float32) + 10
    y = torch.zeros(48)
    library.call("k", x, y, 0.5, 100)
    a, b, d, f, j, m = y.split(8)
    assert torch.equal(a, x.flip(0))
    assert torch.equal(b, torch.stack([x, x.flip(0)], 1).flatten()[:8])
    assert torch.equal(d, x.roll(4))
    assert f.tolist() == [0.5] * 5 + [13.0] + [0.5] * 2
    assert torch.equal(j, torch.arange(100, 108).float())
    assert torch.equal(m, torch.arange(8) * 0.5 + x)


@pytest.mark.spread
@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("lanes, dtype", [(1, "f32"), (4, "f64"), (8, "i32"), (16, "f32"), (16, "i8")])
def test_transpose(isa: str, lanes: int, dtype: str) -> None:
    v = f"vector<{lanes}x{dtype}>"
    offsets = "\n".join(f"%o{i} = arith.constant {i * lanes} : i64" for i in range(lanes))
    loads = "\n".join(f"%r{i} = cpu.load %x[%o{i}] : {v}" for i in range(lanes))
    stores = "\n".join(f"cpu.store %c{i}, %y[%o{i}] : {v}" for i in range(lanes))
    results = ", ".join(f"%c{i}" for i in range(lanes))
    rows = ", ".join(f"%r{i}" for i in range(lanes))
    library = build(
        f"cpu.kernel @k(%x : !cpu.ptr, %y : !cpu.ptr) {{\n{offsets}\n{loads}\n"
        f"{results} = cpu.transpose {rows} : {v}\n{stores}\ncpu.return\n}}",
        isa,
    )
    kind = {"f32": torch.float32, "f64": torch.float64, "i32": torch.int32, "i8": torch.int8}[dtype]
    x = torch.arange(lanes * lanes).to(kind).reshape(lanes, lanes)
    y = torch.zeros_like(x)
    library.call("k", x, y)
    assert torch.equal(y, x.t())


REDUCTIONS = {
    "add": torch.sum,
    "mul": torch.prod,
    "min": torch.amin,
    "max": torch.amax,
    "and": lambda x: torch.tensor(int_fold(x, lambda a, b: a & b)),
    "or": lambda x: torch.tensor(int_fold(x, lambda a, b: a | b)),
    "xor": lambda x: torch.tensor(int_fold(x, lambda a, b: a ^ b)),
}


def int_fold(x: torch.Tensor, combine) -> int:
    values = [int(v) for v in x.tolist()]
    total = values[0]
    for value in values[1:]:
        total = combine(total, value)
    return total


@pytest.mark.parametrize("isa", RUNNABLE)
def test_reductions(isa: str) -> None:
    text = []
    for i, t in enumerate(DTYPES):
        for kind in REDUCTIONS:
            if (
                t.is_floating_point
                and kind in ("and", "or", "xor")
                or t == torch.bool
                and kind in ("add", "mul", "min", "max")
            ):
                continue
            for lanes in (5, 16, 64):
                text.append(f"""
cpu.kernel @{kind}{i}_{lanes}(%x : !cpu.ptr, %y : !cpu.ptr) {{
  %c0 = arith.constant 0 : i64
  %v = cpu.load %x[%c0] : vector<{lanes}x{TYPES[t]}>
  %r = cpu.reduce {kind} %v : vector<{lanes}x{TYPES[t]}>
  cpu.store %r, %y[%c0] : {TYPES[t]}
  cpu.return
}}""")
    library = build("".join(text), isa)
    generator = torch.Generator().manual_seed(3)
    for i, t in enumerate(DTYPES):
        for kind, reference in REDUCTIONS.items():
            for lanes in (5, 16, 64):
                name = f"{kind}{i}_{lanes}"
                if name not in library or t == torch.uint8 and kind in ("min", "max"):
                    continue
                if t.is_floating_point:
                    x = (torch.rand(lanes, generator=generator) + 0.5).to(t)
                else:
                    x = torch.randint(0, 2 if t == torch.bool else 100, (lanes,), generator=generator).to(t)
                y = torch.zeros(1, dtype=t)
                library.call(name, x, y)
                expected = reference(x.double() if t.is_floating_point else x).to(t)
                if t.is_floating_point:
                    tolerance = 2e-2 if t.itemsize == 2 else 1e-5
                    assert torch.allclose(y[0].double(), expected.double(), rtol=tolerance), (name, t)
                else:
                    assert y[0] == expected, (name, t)


@pytest.mark.parametrize("isa", RUNNABLE)
def test_float_reductions_keep_nan(isa: str) -> None:
    library = build(
        "".join(
            f"""
cpu.kernel @{kind}(%x : !cpu.ptr, %y : !cpu.ptr) {{
  %c0 = arith.constant 0 : i64
  %v = cpu.load %x[%c0] : vector<16xf32>
  %r = cpu.reduce {kind} %v : vector<16xf32>
  cpu.store %r, %y[%c0] : f32
  cpu.return
}}"""
            for kind in ("min", "max", "add")
        ),
        isa,
    )
    for lane in range(16):
        x = torch.arange(16, dtype=torch.float32)
        x[lane] = float("nan")
        for kind in ("min", "max", "add"):
            y = torch.zeros(1)
            library.call(kind, x, y)
            assert y.isnan().all(), (kind, lane)
    y = torch.zeros(1)
    library.call("max", torch.full((16,), -float("inf")), y)
    assert y[0] == -float("inf")


def test_index_and_i64_are_the_same_thing() -> None:
    library = build(
        elementwise(
            "k",
            "%j = arith.index_cast %i : i64 to index\n%k = arith.index_cast %j : index to i64\n"
            "%r = arith.addi %a, %k : i64",
            [torch.int64],
            torch.int64,
            0,
        )
    )
    x = torch.arange(5)
    assert torch.equal(run(library, "k", [x], torch.int64, 0), x + torch.arange(5))
