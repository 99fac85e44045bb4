"""The generated matrix multiplication against float64, over types, layouts, instruction sets, sizes and threads."""

from __future__ import annotations

import ctypes
import random
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
import torch

from stepwell.targets.cpu import jit
from stepwell.targets.cpu.features import is_runnable, target
from stepwell.targets.cpu.gemm.driver import GemmSpec, declarations, gemm_function, gemm_module, isa_for, scratch_bytes, shared_gemm_module
from stepwell.targets.cpu.gemm.spec import ISAS

TORCH = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}
ROUNDING = {"f32": 2e-6, "f64": 1e-14, "bf16": 8e-3, "f16": 1e-3}
SHAPES = (
    *((1, 1, 1), (1, 70, 33), (2, 3, 5), (5, 64, 16), (8, 128, 100), (7, 65, 1), (6, 64, 0), (13, 17, 19)),
    *((50, 130, 77), (41, 200, 801), (100, 67, 1700), (3, 2100, 50), (1, 2100, 51), (49, 33, 64)),
)
POINTER, INT = ctypes.c_void_p, ctypes.c_int64
EPILOGUE_TYPE = ctypes.CFUNCTYPE(None, POINTER, INT, INT, INT, INT, INT, POINTER, INT)


@cache
def compiled(spec: GemmSpec, target_name: str = "host"):
    symbol, text = gemm_module(spec)
    library = jit.load_text(text, wanted=target(target_name))
    function = library.function(symbol, *[POINTER] * 3, *[INT] * 10, *[POINTER] * 4, INT)
    function.library = library
    return function


def run(spec, a, b, c, bias=None, threads=1, epilogue=None, context=None, target_name="host"):
    """Call the body with the strides of these tensors, each [rows, columns] or [batch, rows, columns] as stored."""
    m, k = (a.shape[-1], a.shape[-2]) if spec.trans_a else (a.shape[-2], a.shape[-1])
    n = b.shape[-2] if spec.trans_b else b.shape[-1]
    batches = max(t.shape[0] if t.dim() == 3 else 1 for t in (a, b))
    # NaN in the scratch memory: what is read must have been written.
    scratch = torch.full((scratch_bytes(spec, threads) // 4 + 16,), float("nan"))
    strides = [t.stride(0) if t.dim() == 3 else 0 for t in (a, b, c)]
    compiled(spec, target_name)(
        *(t.data_ptr() for t in (a, b, c)),
        *(m, n, k),
        *(t.stride(-2) for t in (a, b, c)),
        batches,
        *strides,
        bias.data_ptr() if bias is not None else None,
        ctypes.cast(epilogue, POINTER) if epilogue is not None else None,
        context,
        scratch.data_ptr(),
        threads,
    )


def operands(spec: GemmSpec, m: int, n: int, k: int, batch: tuple[int, ...] = ()):
    """A and B as the spec stores them, with gaps between rows, and the exact product in float64."""
    dtype = TORCH[spec.dtype]
    a = torch.randn(*batch, m, k, dtype=torch.float64).to(dtype)
    b = torch.randn(*batch, k, n, dtype=torch.float64).to(dtype)
    exact = a.double() @ b.double()

    def stored(x: torch.Tensor, transposed: bool) -> torch.Tensor:
        x = x.mT if transposed else x
        room = torch.full((*x.shape[:-1], x.shape[-1] + 3), float("nan"), dtype=dtype)
        room[..., : x.shape[-1]] = x
        return room[..., : x.shape[-1]]

    return stored(a, spec.trans_a), stored(b, spec.trans_b), exact


def assert_near(c: torch.Tensor, exact: torch.Tensor, spec: GemmSpec, k: int, note: str) -> None:
    bound = ROUNDING[spec.c_type] * max(1.0, exact.abs().max().item() if exact.numel() else 0.0) * max(k, 1) ** 0.25
    error = (c.double() - exact).abs().max().item() if exact.numel() else 0.0
    assert error <= bound, f"{spec.symbol} {note}: error {error}, bound {bound}"


def host_spec(dtype: str = "f32", **fields) -> GemmSpec:
    return GemmSpec(dtype, isa=isa_for(target()).name, **fields)


def sweep(spec: GemmSpec, target_name: str, shapes=SHAPES) -> None:
    torch.manual_seed(0)
    for m, n, k in shapes:
        a, b, exact = operands(spec, m, n, k)
        bias = torch.randn(n).to(TORCH[spec.bias_type])
        room = torch.full((m, n + 3), 7.0, dtype=TORCH[spec.c_type])
        run(spec, a, b, room[:, :n], bias, target_name=target_name)
        assert_near(room[:, :n], exact + bias.double(), spec, k, f"{m}x{n}x{k}")
        assert (room[:, n:] == 7).all(), f"{spec.symbol} {m}x{n}x{k} wrote beyond a row"


LAYOUTS = [(False, False), (False, True), (True, False), (True, True)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_long_sums_are_joined_from_short_ones(layout):
    """A weight's gradient sums over all tokens: it loses far less than one sum that goes on through all of them."""
    torch.manual_seed(0)
    spec, k = host_spec(trans_a=layout[0], trans_b=layout[1]), 4096
    a, b, exact = operands(spec, 32, 32, k)
    c = torch.empty(32, 32)
    run(spec, a, b, c)
    through = torch.zeros(32, 32)
    rows, columns = (a.mT if layout[0] else a), (b.mT if layout[1] else b)
    for i in range(k):
        through += torch.outer(rows[:, i], columns[i])
    error, worst = ((x.double() - exact).square().mean().sqrt() for x in (c, through))
    assert error < 0.6 * worst


@pytest.mark.spread
@pytest.mark.parametrize("dtype", TORCH)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_and_type_on_this_machine(dtype, layout):
    sweep(host_spec(dtype, trans_a=layout[0], trans_b=layout[1]), "host")


@pytest.mark.spread
@pytest.mark.parametrize(
    "target_name, isa", [("generic-sse", "generic"), ("avx2", "avx2"), ("avx512", "avx512"), ("host", "avx512_bf16")]
)
@pytest.mark.parametrize("dtype, trans_a, trans_b", [("f32", 0, 1), ("bf16", 1, 0), ("bf16", 0, 1), ("f16", 0, 0)])
def test_other_instruction_sets(target_name, isa, dtype, trans_a, trans_b):
    if not is_runnable(target(target_name)) or (isa == "avx512_bf16" and not target().has("avx512bf16")):
        pytest.skip(f"this machine has no {isa}")
    sweep(GemmSpec(dtype, trans_a=bool(trans_a), trans_b=bool(trans_b), isa=isa), target_name, SHAPES[3:])


def test_neon_assembles():
    for dtype in TORCH:
        _, text = gemm_module(GemmSpec(dtype, trans_b=True, isa="neon"))
        assert jit.compile_text(text, wanted=target("neon"))


@pytest.mark.parametrize("dtype, trans_b", [("f32", False), ("f32", True), ("bf16", True)])
def test_random_sizes(dtype, trans_b):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    torch.manual_seed(seed)
    spec = host_spec(dtype, trans_b=trans_b)
    for _ in range(25):
        m, n, k = (rng.choice([rng.randrange(1, 20), rng.randrange(1, 300)]) for _ in range(3))
        a, b, exact = operands(spec, m, n, k)
        c = torch.empty(m, n, dtype=TORCH[spec.c_type])
        run(spec, a, b, c)
        assert_near(c, exact, spec, k, f"{m}x{n}x{k} (seed {seed})")


@pytest.mark.parametrize("sizes", [(0, 5, 7), (5, 0, 7), (0, 0, 0)])
def test_nothing_to_do_touches_nothing(sizes):
    m, n, k = sizes
    spec = host_spec()
    run(spec, torch.zeros(m, k), torch.zeros(k, n), torch.zeros(m, n))


def test_no_depth_gives_bias_or_zeros():
    spec = host_spec()
    c, bias = torch.ones(3, 70), torch.randn(70)
    run(spec, torch.zeros(3, 0), torch.zeros(0, 70), c)
    assert (c == 0).all()
    run(spec, torch.zeros(3, 0), torch.zeros(0, 70), c, bias)
    assert (c == bias).all()


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_last_columns_are_as_many_as_there_are(dtype):
    """Tiles end with half a vector, or with a part of one; strips of 8 rows are two of 4, computed by tiles of 6."""
    spec = host_spec(dtype)
    for n in (3, 4, 5, 8, 9, 12, 21, 24, 28, 33, 40, 57, 63, 72):
        a, b, exact = operands(spec, 14, n, 850)
        c = torch.randn(14, n + 20, dtype=TORCH[dtype])
        before = c.clone()
        run(spec, a, b, c[:, :n])
        assert_near(c[:, :n], exact, spec, 850, f"{n} columns")
        assert torch.equal(c[:, n:], before[:, n:])


@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_batches_and_broadcast_operands(trans_b, threads):
    spec = host_spec(trans_b=trans_b)
    a, b, exact = operands(spec, 64, 64, 32, (8,))
    c = torch.empty(8, 64, 64)
    run(spec, a, b, c, threads=threads)
    assert_near(c, exact, spec, 32, "batch")
    shared = a[0]
    run(spec, shared, b, c, threads=threads)
    exact = (shared.double() @ (b.mT if trans_b else b).double()).double()
    assert_near(c, exact, spec, 32, "one A for all")


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("shape", [(300, 260, 200), (700, 40, 300), (20, 3000, 300), (1, 3000, 300)])
def test_threads_share_the_work(dtype, shape):
    m, n, k = shape
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for trans_b in (False, True):
            spec = host_spec(dtype, trans_b=trans_b)
            a, b, exact = operands(spec, m, n, k)
            c = torch.empty(m, n, dtype=TORCH[dtype])
            run(spec, a, b, c, threads=3)
            assert_near(c, exact, spec, k, f"{shape}")
    finally:
        torch.set_num_threads(before)


def test_call_from_inside_a_parallel_region():
    jit.load_process_libraries()
    spec = host_spec(trans_b=True)
    a, b, exact = operands(spec, 256, 256, 256)
    results = [torch.empty(256, 256) for _ in range(2)]
    compiled(spec)
    region = ctypes.CFUNCTYPE(None, POINTER)
    gomp = ctypes.CDLL(None)
    number = gomp.omp_get_thread_num

    def body(_):
        run(spec, a, b, results[number()], threads=2)

    gomp.GOMP_parallel.argtypes = [region, POINTER, ctypes.c_uint, ctypes.c_uint]
    gomp.GOMP_parallel(region(body), None, 2, 0)
    for c in results:
        assert_near(c, exact, spec, 256, "nested")


class Seen:
    """An epilogue in Python: what it was called with, and `change(tile, row0, col0)` on a float32 view of the tile."""

    def __init__(self, change):
        self.parts: list[tuple[int, int, int, int, int]] = []
        self.change = change
        self.function = EPILOGUE_TYPE(self)

    def __call__(self, context, batch, row0, row1, col0, col1, tile, ld):
        self.parts.append((batch, row0, row1, col0, col1))
        size = (row1 - row0 - 1) * ld + col1 - col0
        flat = torch.frombuffer((ctypes.c_float * size).from_address(tile), dtype=torch.float32)
        self.change(flat.as_strided((row1 - row0, col1 - col0), (ld, 1)), batch, row0, col0)


EPILOGUE_SHAPES = [(1, 200, 50), (5, 70, 1300), (64, 300, 96), (250, 90, 1700)]


@pytest.mark.spread
@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("shape", EPILOGUE_SHAPES)
def test_epilogue_changes_c_in_place(trans_b, shape):
    m, n, k = shape
    spec = host_spec(trans_b=trans_b)
    a, b, exact = operands(spec, m, n, k, (2,))
    c, bias = torch.empty(2, m, n), torch.randn(n)
    seen = Seen(lambda tile, *_: tile.relu_())
    run(spec, a, b, c, bias, epilogue=seen.function)
    assert_near(c, (exact + bias.double()).relu(), spec, k, f"{shape}")
    covered = sum((r1 - r0) * (c1 - c0) for _, r0, r1, c0, c1 in seen.parts)
    assert covered == 2 * m * n and len(set(seen.parts)) == len(seen.parts)


@pytest.mark.spread
@pytest.mark.parametrize(
    "spec", [host_spec("f32", tile=True, trans_b=True), host_spec("bf16"), host_spec("bf16", tile=True)]
)
@pytest.mark.parametrize("shape", EPILOGUE_SHAPES)
def test_epilogue_stores_from_a_scratch_tile(spec, shape):
    m, n, k = shape
    a, b, exact = operands(spec, m, n, k)
    untouched = torch.full((m, n), 7.0, dtype=TORCH[spec.c_type])
    result = torch.full((n, m), 7.0)

    def store_transposed(tile, batch, row0, col0):
        result[col0 : col0 + tile.shape[1], row0 : row0 + tile.shape[0]] = (tile * 2).T

    run(spec, a, b, untouched, epilogue=Seen(store_transposed).function)
    assert_near(result.T, exact * 2, GemmSpec("f32"), k, f"{shape}")
    assert (untouched == 7).all()


def test_infinities_and_nan_stay_in_their_rows_and_columns():
    for dtype in ("f32", "bf16"):
        for trans_b in (False, True):
            spec = host_spec(dtype, trans_b=trans_b)
            a, b, _ = operands(spec, 9, 70, 33)
            a[4, 32] = float("inf")
            (b[5, 3] if trans_b else b[3, 5]).fill_(float("nan"))
            c = torch.empty(9, 70, dtype=TORCH[dtype])
            run(spec, a, b, c)
            bad = ~c.isfinite()
            assert bad[4].all() and bad[:, 5].all() and bad.sum() == 70 + 9 - 1


def test_results_in_another_type():
    for dtype, out in (("bf16", "f32"), ("f16", "f32"), ("bf16", "f16")):
        sweep(host_spec(dtype, trans_b=True, out=out), "host", SHAPES[:10])


def test_bf16_results_round_like_torch():
    # No products: the bfloat instructions flush denormals, the conversion of the result must not.
    values = torch.tensor([1.0, 1.00390625, 1.01171875, 1e-40, -1e-40, 3.4e38, float("inf"), float("nan"), -0.0])
    c = torch.empty(9, 9, dtype=torch.bfloat16)
    spec = host_spec("bf16", trans_b=True, bias="f32")
    run(spec, torch.zeros(9, 0).bfloat16(), torch.zeros(9, 0).bfloat16(), c, values)
    expected = values.to(torch.bfloat16).expand(9, 9)
    assert torch.equal(c.isnan(), expected.isnan())
    assert torch.equal(c.nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"dtype": "i4"}, "gemm: dtype is 'i4', expected one of f32, bf16, f16, f64, i8, u8"),
        ({"isa": "mmx"}, f"gemm: isa is 'mmx', expected one of {', '.join(ISAS)}"),
        ({"dtype": "f32", "out": "f64"}, "gemm: A and B of f32 cannot give C of f64 with a bias of f32"),
        ({"dtype": "u8", "b": "u8"}, "gemm: B is of u8, expected one of i8 beside A of u8"),
        ({"dtype": "i8", "out": "f32"}, "gemm: A and B of i8 cannot give C of f32 with a bias of i32"),
    ],
)
def test_a_wrong_spec_is_refused(fields, message):
    with pytest.raises(ValueError) as error:
        GemmSpec(**fields)
    assert str(error.value) == message


def test_two_bodies_share_a_module():
    texts = [gemm_function(host_spec(trans_b=trans_b)) for trans_b in (False, True)]
    lines = {line for _, text in texts for line in declarations(text)}
    library = jit.load_text("\n".join([text for _, text in texts] + sorted(lines)))
    assert all(symbol in library for symbol, _ in texts)


def test_scratch_kept_by_the_module():
    spec = host_spec(trans_b=True)
    library = jit.load_text(shared_gemm_module(spec))
    function = library.function(spec.shared_symbol, *[POINTER] * 3, *[INT] * 10, *[POINTER] * 3)
    a, b, exact = operands(spec, 70, 90, 110)

    def multiply() -> torch.Tensor:
        c = torch.empty(70, 90)
        pointers = (t.data_ptr() for t in (a, b, c))
        function(*pointers, 70, 90, 110, *(t.stride(0) for t in (a, b, c)), 1, 0, 0, 0, None, None, None)
        return c

    with ThreadPoolExecutor(4) as pool:
        results = [*pool.map(lambda _: multiply(), range(40))]
    torch.set_num_threads(torch.get_num_threads() + 1)
    try:
        results.append(multiply())
    finally:
        torch.set_num_threads(torch.get_num_threads() - 1)
    for c in results:
        assert_near(c, exact, spec, 110, "kept scratch")


@pytest.mark.parametrize("trans_a", [False, True])
def test_long_sums_lose_little(trans_a):
    """Ranges of terms are added up by themselves: one sum through all of them would lose twice as much."""
    spec = GemmSpec("f32", trans_a=trans_a, isa=isa_for(target()).name)
    rng = torch.Generator().manual_seed(0)
    a, b = torch.randn(1024, 64, generator=rng), torch.randn(1024, 96, generator=rng)
    a, c = a if trans_a else a.T.contiguous(), torch.empty(64, 96)
    run(spec, a, b, c)
    want = (a.T if trans_a else a).double() @ b.double()
    assert (c - want).norm() < 3.2e-7 * want.norm()
