"""Kernels that Triton made of @triton.jit functions, run by the interpreter of `tt` and compared with torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from xdsl.context import Context

from stepwell.dialects import load_dialects
from stepwell.tools.interpret.tt.run import KernelError, run_kernel
from stepwell.tools.ir_parser import parse_file

FOLDER = Path(__file__).parents[3] / "targets" / "triton" / "samples"


def sample(name: str):
    module, _ = parse_file((FOLDER / name).read_text(), name, load_dialects(Context()))
    return module


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def close(got, expected, tolerance=1e-5):
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def test_pointwise_with_a_tail():
    x, y, out = torch.randn(600), torch.randn(600), torch.full((600,), 7.0)
    run_kernel(sample("vector_add.3.9.ttir"), [x, y, out, 592], [3])
    close(out[:592], (x + y)[:592])
    assert bool((out[592:] == 7).all())


@pytest.mark.parametrize("name", ["softmax_rows.3.6.ttir", "softmax_rows.3.9.ttir"])
def test_softmax_with_strides(name):
    x = torch.randn(5, 128, dtype=torch.bfloat16)
    out = torch.zeros_like(x)
    run_kernel(sample(name), [x, out, 128, 100], [5])
    close(out[:, :100].float(), torch.softmax(x[:, :100].float(), 1), 1e-2)
    assert not bool(out[:, 100:].any())


@pytest.mark.parametrize("name", ["layernorm_loop.3.6.ttir", "layernorm_loop.3.9.ttir", "layernorm_loop.3.9.source.ttir"])
def test_loops_and_calls(name):
    x, w, b = torch.randn(3, 150).half(), torch.randn(150), torch.randn(150)
    out = torch.zeros_like(x)
    run_kernel(sample(name), [x, w, b, out, 150, 1e-5], [3])
    close(out.float(), torch.nn.functional.layer_norm(x.float(), (150,), w, b), 5e-3)


def test_matrix_product():
    a, b = torch.randn(40, 50).half(), torch.randn(50, 70).half()
    c = torch.zeros(40, 70).half()
    run_kernel(sample("matmul.3.9.ttir"), [a, b, c, 40, 70, 50], [2, 3])
    close(c.float(), a.float() @ b.float(), 2e-2)
    a, b = torch.randn(16, 16), torch.randn(16, 16)
    c = torch.zeros(16, 16)
    run_kernel(sample("dot_tf32.3.9.ttir"), [a, b, c], [1])
    close(c, a @ b)


@pytest.mark.parametrize("name", ["welford_rows.3.9.ttir", "welford_rows.3.9.source.ttir"])
def test_reductions_of_several_values(name):
    x = torch.randn(6, 50)
    mean, var = torch.zeros(6), torch.zeros(6)
    run_kernel(sample(name), [x, mean, var, 6, 50], [2])
    close(mean, x.mean(1))
    close(var, x.var(1, correction=0))


def test_argmax_takes_the_first():
    x = torch.randn(4, 60)
    x[1, 7] = x[1, 30] = 9
    where, top = torch.zeros(4, dtype=torch.int64), torch.zeros(4)
    run_kernel(sample("argmax_rows.3.9.ttir"), [x, where, top, 60], [4])
    close(top, x.max(1).values)
    assert where.tolist() == x.argmax(1).tolist() and int(where[1]) == 7


def test_scans():
    x = torch.randn(64)
    outs = [torch.zeros(64) for _ in range(3)]
    run_kernel(sample("scans.3.9.ttir"), [x, *outs], [1])
    close(outs[0], x.cumsum(0))
    close(outs[1], x.cummax(0).values)
    close(outs[2], x.flip(0).cumsum(0).flip(0))


@pytest.mark.parametrize("name", ["gather_histogram.3.6.ttir", "gather_histogram.3.9.ttir"])
def test_gather_and_histogram(name):
    x, index = torch.randn(64), torch.randint(0, 64, (64,), dtype=torch.int32)
    out, counts = torch.zeros(64), torch.zeros(64, dtype=torch.int32)
    run_kernel(sample(name), [x, index, out, counts], [1])
    close(out, x[index.long()])
    assert counts.tolist() == torch.bincount(index[:61], minlength=64).tolist()


def test_atomics():
    x, index = torch.randn(50), torch.randint(0, 4, (50,), dtype=torch.int32)
    total, top = torch.zeros(4), torch.full((4,), -100.0)
    low, flag = torch.full((4,), 100, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    old = torch.full((2,), -1, dtype=torch.int32)
    run_kernel(sample("atomics.3.9.ttir"), [x, index, total, top, low, flag, old, 50], [2])
    where = index.long()
    close(total, torch.zeros(4).index_add(0, where, x))
    close(top, torch.full((4,), -100.0).scatter_reduce(0, where, x, "amax"))
    assert low.tolist() == [0, 1, 2, 3]
    assert flag.tolist() == [1, 1] and old.tolist() == [0, 1]


def philox(seed: int, offsets: range) -> list[int]:
    """The first word of Philox 4x32-10 for each offset, written down from the paper."""
    out = []
    for offset in offsets:
        c, k = [offset, 0, 0, 0], [seed & 0xFFFFFFFF, seed >> 32]
        for _ in range(10):
            a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
            k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
        out.append(c[0])
    return out


@pytest.mark.parametrize("name", ["dropout.3.9.ttir", "dropout.3.9.source.ttir"])
def test_random_numbers(name):
    x, out = torch.randn(150), torch.zeros(150)
    run_kernel(sample(name), [x, out, 150, 0.3, 1234], [2])
    words = torch.tensor(philox(1234, range(150)))
    words = torch.where(words >= 2**31, words - 2**32, words)
    keep = torch.where(words < 0, -words - 1, words).float() * 4.6566127342e-10 > 0.3
    close(out, torch.where(keep, x / 0.7, torch.zeros(())))
    assert 0 < int(keep.sum()) < 150


def test_library_functions():
    x, y = torch.rand(64) + 0.1, torch.randn(64)
    x[3] = float("nan")
    out = torch.zeros(64)
    run_kernel(sample("library.3.9.ttir"), [x, y, out], [1])
    close(out, torch.pow(x, y) + torch.tanh(x) + torch.erf(y) + torch.isnan(x))


def test_assembly_needs_a_function():
    x = torch.randint(-(2**31), 2**31 - 1, (64,), dtype=torch.int32)
    out = torch.zeros_like(x)
    module = sample("inline_assembly.3.9.ttir")
    with pytest.raises(KernelError, match=r"kernels\.py:\d+.*assembly cannot be interpreted: 'shf"):
        run_kernel(module, [x, out], [1])

    def rotate(v):
        wide = v.long() & 0xFFFFFFFF
        return ((wide << 4 | wide >> 28) & 0xFFFFFFFF).to(torch.int32)

    run_kernel(module, [x, out], [1], functions={"shf.l.wrap.b32 $0, $1, $1, 4;": rotate})
    assert out.tolist() == rotate(x).tolist()


def test_asserts_and_prints():
    x, out = torch.randn(10), torch.zeros(32)
    index = torch.randint(-10, 10, (32,))
    module = sample("checks.3.9.ttir")
    printed = run_kernel(module, [x, index, out, 32, 10], [1])
    close(out, x[index])
    assert printed[0].startswith("pid (0, 0, 0) ") and "k: " in printed[0]
    index[5] = 10
    with pytest.raises(KernelError, match=r"'tt\.assert' op: does not hold: index out of bounds \(program 0, 0, 0\)"):
        run_kernel(module, [x, index, out, 32, 10], [1])


def test_shapes():
    x, y, out = torch.randn(32), torch.randn(32), torch.zeros(96)
    run_kernel(sample("shapes.3.9.ttir"), [x, y, out], [1])
    c = torch.stack([x * 2, y * 2], -1).reshape(-1)
    g = c.reshape(16, 4).T.reshape(2, 2, 16).permute(2, 0, 1).reshape(-1)
    close(out[:32], g.reshape(2, 32).sum(0) + 2 * g.sum(), 1e-4)
    close(out[32:], g)


def test_sorting():
    x, out = torch.randn(16), torch.zeros(32)
    run_kernel(sample("sorting.3.9.ttir"), [x, out], [1])
    close(out, torch.cat([x.sort().values, x.flip(0)]))


def test_extras():
    x, y, out = torch.randn(64), torch.randn(64), torch.zeros(128)
    run_kernel(sample("extras.3.9.ttir"), [x, y, out], [1])
    close(out[:64], (x + y) / (x * y) + x * y + x + y + torch.maximum(x, y) + torch.sigmoid(x), 1e-4)
    close(out[64:], (x.bfloat16() + 1).float())


@pytest.mark.parametrize("name", ["descriptors.3.6.ttir", "descriptors.3.9.ttir"])
def test_descriptors_end_at_their_tensors(name):
    x, out = torch.randn(20, 48), torch.zeros(20, 48)
    run_kernel(sample(name), [x, out, 20, 48], [2, 2])
    close(out, x * 2)


@pytest.mark.parametrize("name", ["rows_of_descriptor.3.6.ttir", "rows_of_descriptor.3.9.ttir"])
def test_rows_of_descriptors(name):
    x, out = torch.randn(20, 32), torch.zeros(20, 32)
    rows = torch.tensor([3, 1, 19, 7, 12, 15, 11, 17], dtype=torch.int32)
    run_kernel(sample(name), [x, out, rows, 20, 32], [1])
    expected = torch.zeros(20, 32)
    expected[rows.long()] = x[rows.long()]
    expected[:8] += x[rows.long()]
    close(out, expected)


def test_block_pointers():
    x, out = torch.randn(12, 40), torch.zeros(12)
    run_kernel(sample("block_pointers.3.6.ttir"), [x, out, 12, 40], [2])
    close(out, x.sum(1), 1e-4)


def test_conversions():
    x = torch.cat([torch.randn(60) * 30, torch.tensor([1e4, -1e4, 448.5, -0.0])])
    half, byte = torch.zeros(64).half(), torch.zeros(64).to(torch.float8_e4m3fn)
    whole, bits = torch.zeros(64, dtype=torch.int64), torch.zeros(64, dtype=torch.int32)
    run_kernel(sample("conversions.3.9.ttir"), [x, half, byte, whole, bits], [1])
    assert bool((half.float().abs() <= x.abs()).all())
    close(half.float(), x, 1e-3)
    close(byte.float(), x.clamp(-400, 400).to(torch.float8_e4m3fn).float())
    assert bits.tolist() == (x.view(torch.int32) >> 3).tolist()
    positive = x > 0
    expected = x.sqrt().to(torch.int64) + (x / 3).floor().clamp(0, 255).to(torch.int64)
    assert whole[positive].tolist() == expected[positive].tolist()


@pytest.mark.parametrize("name", ["control.3.9.ttir", "control.3.9.source.ttir"])
def test_control_flow(name):
    x, out = torch.tensor([1.0, 20.0, 6.0]), torch.full((6,), -1.0)
    run_kernel(sample(name), [x, out, 3, 10.0, 1.5], [3])
    assert out.tolist() == [-(((1 * 1.5 + 1) * 1.5 + 1) * 1.5 + 1) * 1.5 - 1, 20.0, 0.5, 4.0, -1.0, -1.0]


def test_tables_of_pointers():
    tensors = [torch.randn(40) for _ in range(3)]
    table = torch.tensor([t.data_ptr() for t in tensors])
    out = torch.zeros(120)
    run_kernel(sample("pointer_table.3.9.ttir"), [table, out, 40], [3, 2], reachable=tensors)
    close(out, torch.cat(tensors))


def test_integers():
    x = torch.randint(-(2**31), 2**31 - 1, (64,), dtype=torch.int32)
    y = torch.randint(1, 1000, (64,), dtype=torch.int32) * torch.tensor([1, -1]).repeat(32).int()
    out = torch.zeros(256, dtype=torch.int32)
    run_kernel(sample("integers.3.9.ttir"), [x, y, out, 0], [1])
    quotient, rest, mixed, high = out.reshape(4, 64)
    assert quotient.tolist() == torch.div(x, y, rounding_mode="trunc").tolist()
    assert rest.tolist() == torch.fmod(x, y).tolist()
    assert mixed.tolist() == ((x >> 2) ^ (y << 1) | torch.minimum(x, y)).tolist()
    words = [((a & 0xFFFFFFFF) * (b & 0xFFFFFFFF)) >> 32 for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    words = [w - 2**32 if w >= 2**31 else w for w in words]
    assert high.tolist() == torch.where(x > y, torch.tensor(words).int(), x & y).tolist()


def test_scaled_products():
    a, b = torch.randn(128, 64).to(torch.float8_e4m3fn), torch.randn(64, 128).to(torch.float8_e5m2)
    s, t = (torch.randint(125, 130, (128, 2)).to(torch.uint8) for _ in range(2))
    out = torch.zeros(128, 128)
    run_kernel(sample("dot_scaled.3.9.ttir"), [a, s, b, t, out], [1])

    def scale(v):
        return torch.exp2(v.float() - 127).repeat_interleave(32, 1)

    close(out, (a.float() * scale(s)) @ (b.float() * scale(t).T), 1e-3)


# Mistakes.


def test_accesses_outside_of_the_tensors():
    x, y, out = torch.randn(500), torch.randn(600), torch.zeros(600)
    with pytest.raises(KernelError, match=r"kernels\.py:\d+.*'tt\.load' op: 4 bytes at byte 2000 of a tensor of 2000"):
        run_kernel(sample("vector_add.3.9.ttir"), [x, y, out, 600], [3])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([torch.zeros(4)] * 3, "takes 4 arguments, got 3"),
        ([torch.zeros(4), torch.zeros(4), 3, 4], "argument 2 is a pointer, pass a tensor"),
        ([torch.zeros(4), torch.zeros(4), torch.zeros(4).half(), 4], "argument 2 points to f32, got a tensor of"),
        ([torch.zeros(4)] * 4, "argument 3 is a scalar, got a tensor"),
    ],
)
def test_arguments_that_do_not_fit(arguments, message):
    with pytest.raises(KernelError, match=message):
        run_kernel(sample("vector_add.3.9.ttir"), arguments, [1])


def test_every_function_of_the_device_library_is_known():
    """Those that kernels of ours call, by the names of mem-to-tt."""
    from stepwell.lowering.mem_to_tt.body import LIBRARY
    from stepwell.tools.interpret.tt.ops import _LIBRARY

    assert set(LIBRARY.values()) <= set(_LIBRARY)
    x = torch.tensor([0.3, 0.7, 1.0])
    for name, expected in (
        ("cyl_bessel_i1", torch.special.i1(x)),
        ("normcdfinv", torch.special.ndtri(x)),
        ("cbrt", x ** (1 / 3)),
        ("exp10", 10**x),
    ):
        close(_LIBRARY[name](x), expected)


def test_tensors_that_overlap():
    """A kernel reaches all of both, through either of them."""
    memory = torch.arange(20.0)
    whole, view, out = memory[:15], memory[5:20], torch.zeros(15)
    run_kernel(sample("vector_add.3.9.ttir"), [whole, view, out, 15], [1])
    close(out, memory[:15] + memory[5:])


def test_a_loop_with_a_step_that_does_not_count_up():
    text = """tt.func public @k(%p: !tt.ptr<f32>, %step: i64) {
  %low = arith.constant 0 : i64
  %high = arith.constant 4 : i64
  %v = arith.constant 1.0 : f32
  scf.for %i = %low to %high step %step : i64 {
    tt.store %p, %v : !tt.ptr<f32>
  }
  tt.return
}"""
    module, _ = parse_file(text, "loop.mlir", load_dialects(Context()))
    run_kernel(module, [torch.zeros(1), 2], [1])
    for step in (0, -3):
        with pytest.raises(KernelError, match=rf"loop.mlir:5:3: .*'scf.for'.*its step is {step}; a loop counts up, by 1 or more"):
            run_kernel(module, [torch.zeros(1), step], [1])
