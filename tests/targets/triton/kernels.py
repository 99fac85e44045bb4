"""Kernels in Triton's language whose IR lies in samples/; they are here so that it can be made again.

    python tests/targets/triton/kernels.py tests/targets/triton/samples

writes what the installed Triton makes of them: `NAME.VERSION.ttir`, and for some `NAME.VERSION.source.ttir`, the IR
before Triton's first passes, with calls and every location.
"""

import re
import sys
from pathlib import Path

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def vector_add(x, y, out, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    i = pid * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    tl.store(out + i, tl.load(x + i, mask=m) + tl.load(y + i, mask=m, other=0.0), mask=m)


@triton.jit
def softmax_rows(x, out, stride, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, BLOCK)
    m = j < cols
    v = tl.load(x + row * stride + j, mask=m, other=float("-inf"), eviction_policy="evict_first").to(tl.float32)
    v = tl.exp(v - tl.max(v, 0))
    tl.store(out + row * stride + j, (v / tl.sum(v, 0)).to(out.dtype.element_ty), mask=m, cache_modifier=".cs")


@triton.jit
def layernorm_loop(x, w, b, out, cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x += row * cols
    out += row * cols
    total = tl.zeros([BLOCK], tl.float32)
    square = tl.zeros([BLOCK], tl.float32)
    for start in range(0, cols, BLOCK):
        j = start + tl.arange(0, BLOCK)
        v = tl.load(x + j, mask=j < cols, other=0.0).to(tl.float32)
        total += v
        square += v * v
    mean = tl.sum(total, 0) / cols
    var = tl.sum(square, 0) / cols - mean * mean
    rstd = tl.rsqrt(var + eps)
    for start in tl.range(0, cols, BLOCK, num_stages=2):
        j = start + tl.arange(0, BLOCK)
        m = j < cols
        v = tl.load(x + j, mask=m, other=0.0, eviction_policy="evict_last").to(tl.float32)
        y = (v - mean) * rstd * tl.load(w + j, mask=m) + tl.load(b + j, mask=m)
        tl.store(out + j, y, mask=m)


@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pm = tl.program_id(0)
    pn = tl.program_id(1)
    rm = pm * BM + tl.arange(0, BM)
    rn = pn * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        kk = k * BK + rk
        av = tl.load(a + rm[:, None] * K + kk[None, :], mask=(rm[:, None] < M) & (kk[None, :] < K), other=0.0)
        bv = tl.load(b + kk[:, None] * N + rn[None, :], mask=(kk[:, None] < K) & (rn[None, :] < N), other=0.0)
        acc = tl.dot(av, bv, acc)
    tl.store(c + rm[:, None] * N + rn[None, :], acc.to(tl.float16), mask=(rm[:, None] < M) & (rn[None, :] < N))


@triton.jit
def _welford(m1, s1, n1, m2, s2, n2):
    d = m2 - m1
    n = n1 + n2
    r = tl.where(n == 0.0, 0.0, n2 / n)
    return m1 + d * r, s1 + s2 + d * d * n1 * r, n


@triton.jit
def welford_rows(x, mean, var, rows, cols, R: tl.constexpr, C: tl.constexpr):
    i = tl.program_id(0) * R + tl.arange(0, R)
    j = tl.arange(0, C)
    m = (i[:, None] < rows) & (j[None, :] < cols)
    v = tl.load(x + i[:, None] * cols + j[None, :], mask=m, other=0.0)
    mu, s, n = tl.reduce((v, tl.zeros_like(v), m.to(tl.float32)), 1, _welford)
    tl.store(mean + i, mu, mask=i < rows)
    tl.store(var + i, s / n, mask=i < rows)


@triton.jit
def scans(x, total, top, back, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i)
    tl.store(total + i, tl.cumsum(v, 0))
    tl.store(top + i, tl.associative_scan(v, 0, triton.language.standard._elementwise_max))
    tl.store(back + i, tl.cumsum(v, 0, reverse=True))


@triton.jit
def argmax_rows(x, where, top, cols, C: tl.constexpr):
    row = tl.program_id(0)
    j = tl.arange(0, C)
    v = tl.load(x + row * cols + j, mask=j < cols, other=float("-inf"))
    t, w = tl.max(v, 0, return_indices=True)
    tl.store(where + row, w.to(tl.int64))
    tl.store(top + row, t)


@triton.jit
def gather_histogram(x, index, out, counts, N: tl.constexpr, BINS: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i)
    k = tl.load(index + i)
    tl.store(out + i, tl.gather(v, k, 0))
    tl.store(counts + tl.arange(0, BINS), tl.histogram(k, BINS, mask=i < N - 3))


@triton.jit
def atomics(x, index, total, top, low, flag, old, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    m = i < n
    v = tl.load(x + i, mask=m)
    k = tl.load(index + i, mask=m)
    tl.atomic_add(total + k, v, mask=m, sem="relaxed")
    tl.atomic_max(top + k, v, mask=m)
    tl.atomic_min(low + k, k, mask=m, sem="release", scope="cta")
    before = tl.atomic_cas(flag, 0, tl.program_id(0) + 1)
    tl.store(old + tl.program_id(0), before)
    tl.atomic_xchg(flag + 1, tl.program_id(0))


@triton.jit
def dropout(x, out, n, p, seed, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    v = tl.load(x + i, mask=m)
    keep = tl.rand(seed, i) > p
    tl.store(out + i, tl.where(keep, v / (1 - p), 0.0), mask=m)


@triton.jit
def library(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    b = tl.load(y + i)
    v = libdevice.pow(a, b) + libdevice.tanh(a) + tl.erf(b) + libdevice.isnan(a).to(tl.float32)
    tl.store(out + i, v)


@triton.jit
def inline_assembly(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    v = tl.inline_asm_elementwise("shf.l.wrap.b32 $0, $1, $1, 4;", "=r,r", [a], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(out + i, v)


@triton.jit
def checks(x, index, out, n, size, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    k = tl.load(index + i, mask=i < n, other=0)
    k = tl.where(k < 0, k + size, k)
    tl.device_assert((k >= 0) & (k < size), "index out of bounds")
    tl.device_print("k: ", k, size)
    tl.store(out + i, tl.load(x + k), mask=i < n)


@triton.jit
def shapes(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    b = tl.load(y + i)
    j = tl.join(a, b)
    p, q = tl.split(j * 2.0)
    c = tl.interleave(p, q)
    d = tl.reshape(c, (N // 2, 4))
    e = tl.trans(d)
    f = tl.permute(tl.reshape(e, (2, 2, N // 2)), (2, 0, 1))
    g = tl.reshape(f, (2 * N,))
    h = tl.cat(g, g, can_reorder=True)
    r = tl.sum(tl.reshape(g, (2, N)), 0)
    tl.store(out + i, r + tl.sum(h, 0))
    tl.store(out + N + tl.arange(0, 2 * N), g)


@triton.jit
def sorting(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.sort(tl.load(x + i)))
    tl.store(out + N + i, tl.flip(tl.load(x + i), 0))


@triton.jit
def descriptors(x, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    a = tl.make_tensor_descriptor(x, [M, N], [N, 1], [BM, BN])
    b = tl.make_tensor_descriptor(out, [M, N], [N, 1], [BM, BN])
    i = tl.program_id(0) * BM
    j = tl.program_id(1) * BN
    b.store([i, j], a.load([i, j]) * 2.0)


@triton.jit
def conversions(x, half, byte, whole, bits, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i)
    tl.store(half + i, v.to(tl.float16, fp_downcast_rounding="rtz"))
    tl.store(byte + i, tl.clamp(v, -400.0, 400.0).to(tl.float8e4nv))
    tl.store(whole + i, tl.sqrt_rn(tl.abs(v)).to(tl.int64) + tl.floor(tl.div_rn(v, 3.0)).to(tl.uint8))
    tl.store(bits + i, v.to(tl.int32, bitcast=True) >> 3)


@triton.jit(noinline=True)
def _step(v, scale):
    return v * scale + 1


@triton.jit
def control(x, out, n, limit, scale, FLAG: tl.constexpr):
    pid = tl.program_id(0)
    v = tl.load(x + pid)
    count = 0
    while v < limit:
        v = _step(v, scale)
        count += 1
    if count > 2:
        v = -v
        tl.store(out + n + pid, count)
    elif pid == tl.num_programs(0) - 1:
        v = 0.5
    tl.store(out + pid, v)


@triton.jit
def block_pointers(x, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    a = tl.make_block_ptr(x, (M, N), (N, 1), (tl.program_id(0) * BM, 0), (BM, BN), (1, 0))
    total = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, N, BN):
        total += tl.load(a, boundary_check=(0, 1), padding_option="zero")
        a = tl.advance(a, (0, BN))
    o = tl.program_id(0) * BM + tl.arange(0, BM)
    tl.store(out + o, tl.sum(total, 1), mask=o < M)


@triton.jit
def pointer_table(table, out, n, BLOCK: tl.constexpr):
    which = tl.program_id(0)
    p = tl.load(table + which).to(tl.pointer_type(tl.float32))
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    tl.store(out + which * n + i, tl.load(p + i, mask=m), mask=m)


@triton.jit
def _pair(a, b):
    return a + b, a * b


@triton.jit
def extras(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    b = tl.load(y + i)
    c, d = tl.map_elementwise(_pair, a, b)
    most = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    tl.store(out + i, tl.fdiv(c, d) + tl.fma(a, b, c) + most + tl.sigmoid(a))
    tl.store(out + N + i, (a.to(tl.bfloat16) + 1).to(tl.float32), eviction_policy="evict_first")


@triton.jit
def rows_of_descriptor(x, out, index, M, N):
    a = tl.make_tensor_descriptor(x, [M, N], [N, 1], [1, 32])
    b = tl.make_tensor_descriptor(out, [M, N], [N, 1], [1, 32])
    c = tl.make_tensor_descriptor(out, [M, N], [N, 1], [8, 32])
    rows = tl.load(index + tl.arange(0, 8))
    v = a.gather(rows, 0)
    b.scatter(v, rows, 0)
    c.atomic_add([0, 0], v)


@triton.jit
def dot_scaled(a, sa, b, sb, out):
    i = tl.arange(0, 128)
    k = tl.arange(0, 64)
    j = tl.arange(0, 2)
    av = tl.load(a + i[:, None] * 64 + k[None, :])
    bv = tl.load(b + k[:, None] * 128 + i[None, :])
    s = tl.load(sa + i[:, None] * 2 + j[None, :])
    t = tl.load(sb + i[:, None] * 2 + j[None, :])
    tl.store(out + i[:, None] * 128 + i[None, :], tl.dot_scaled(av, s, "e4m3", bv, t, "e5m2"))


@triton.jit
def dot_tf32(a, b, out, N: tl.constexpr):
    i = tl.arange(0, N)
    o = i[:, None] * N + i[None, :]
    tl.store(out + o, tl.dot(tl.load(a + o), tl.load(b + o), input_precision="tf32x3"))


@triton.jit
def integers(x, y, out, n, N: tl.constexpr):
    i = tl.arange(0, N).to(tl.int64)
    a = tl.load(x + i)
    b = tl.load(y + i)
    tl.store(out + i, a // b)
    tl.store(out + N + i, a % b)
    tl.store(out + 2 * N + i, (a >> 2) ^ (b << 1) | tl.minimum(a, b))
    tl.store(out + 3 * N + i, tl.where(a > b, tl.umulhi(a, b), a & b))


KERNELS = {
    "vector_add": (vector_add, "*fp32 *fp32 *fp32 i32", {"BLOCK": 256}, "x y out n"),
    "softmax_rows": (softmax_rows, "*bf16 *bf16 i32 i32", {"BLOCK": 128}, "x out stride"),
    "layernorm_loop": (layernorm_loop, "*fp16 *fp32 *fp32 *fp16 i32 fp32", {"BLOCK": 64}, "x w b out"),
    "matmul": (matmul, "*fp16 *fp16 *fp16 i32 i32 i32", {"BM": 32, "BN": 32, "BK": 16}, "a b c"),
    "welford_rows": (welford_rows, "*fp32 *fp32 *fp32 i32 i32", {"R": 4, "C": 64}, ""),
    "scans": (scans, "*fp32 *fp32 *fp32 *fp32", {"N": 64}, ""),
    "argmax_rows": (argmax_rows, "*fp32 *i64 *fp32 i32", {"C": 64}, ""),
    "gather_histogram": (gather_histogram, "*fp32 *i32 *fp32 *i32", {"N": 64, "BINS": 64}, ""),
    "atomics": (atomics, "*fp32 *i32 *fp32 *fp32 *i32 *i32 *i32 i32", {"N": 32}, ""),
    "dropout": (dropout, "*fp32 *fp32 i32 fp32 i32", {"BLOCK": 128}, "x out"),
    "library": (library, "*fp32 *fp32 *fp32", {"N": 64}, ""),
    "inline_assembly": (inline_assembly, "*i32 *i32", {"N": 64}, ""),
    "checks": (checks, "*fp32 *i64 *fp32 i32 i32", {"N": 32}, ""),
    "shapes": (shapes, "*fp32 *fp32 *fp32", {"N": 32}, ""),
    "sorting": (sorting, "*fp32 *fp32", {"N": 16}, ""),
    "extras": (extras, "*fp32 *fp32 *fp32", {"N": 64}, ""),
    "rows_of_descriptor": (rows_of_descriptor, "*fp32 *fp32 *i32 i32 i32", {}, ""),
    "dot_scaled": (dot_scaled, "*fp8e4nv *u8 *fp8e5 *u8 *fp32", {}, ""),
    "descriptors": (descriptors, "*fp32 *fp32 i32 i32", {"BM": 16, "BN": 32}, "x out N"),
    "conversions": (conversions, "*fp32 *fp16 *fp8e4nv *i64 *i32", {"N": 64}, ""),
    "control": (control, "*fp32 *fp32 i32 fp32 fp32", {"FLAG": 1}, ""),
    "block_pointers": (block_pointers, "*fp32 *fp32 i64 i64", {"BM": 8, "BN": 16}, ""),
    "pointer_table": (pointer_table, "*u64 *fp32 i32", {"BLOCK": 32}, "out"),
    "dot_tf32": (dot_tf32, "*fp32 *fp32 *fp32", {"N": 16}, ""),
    "integers": (integers, "*i32 *i32 *i32 i32", {"N": 64}, ""),
}
"""Name -> (kernel, types of its arguments, constants, arguments divisible by 16)."""

SOURCES = ("control", "dropout", "layernorm_loop", "welford_rows")
NEEDS = {"rows_of_descriptor": 100, "dot_scaled": 100}


def compiled(name):
    """What Triton makes of a kernel for sm_90 (or what it needs)."""
    from triton.backends.compiler import GPUTarget

    kernel, types, constants, divisible = KERNELS[name]
    names = kernel.arg_names
    signature = {**dict(zip(names, types.split(), strict=False)), **{k: "constexpr" for k in constants}}
    attributes = {(names.index(a),): [["tt.divisibility", 16]] for a in divisible.split()}
    source = triton.compiler.ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    target = GPUTarget("cuda", NEEDS.get(name, 90), 32)
    return triton.compile(source, target=target, options={"num_warps": 4, "sanitize_overflow": False, "debug": name == "checks"})


def main(folder):
    """Write the samples of this version."""
    version = ".".join(triton.__version__.split(".")[:2])
    for name in KERNELS:
        try:
            made = compiled(name).asm
        except triton.compiler.errors.CompilationError as error:
            print(f"{name}: not with Triton {version}: {str(error).splitlines()[-1]}")
            continue
        for stage, suffix in (("ttir", ""), ("source", ".source")):
            if stage == "source" and name not in SOURCES:
                continue
            text = re.sub(r'"[^"]*/([^"/]+\.py)"', r'"\1"', made[stage])
            (folder / f"{name}.{version}{suffix}.ttir").write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
