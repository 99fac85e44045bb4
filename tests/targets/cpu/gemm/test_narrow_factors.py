"""Products of bytes, and of floats with narrower numbers, against float64: over layouts, instruction sets and sizes."""

from __future__ import annotations

import ctypes
from functools import cache
from itertools import product

import pytest
import torch

from stepwell.targets.cpu import jit
from stepwell.targets.cpu.features import is_runnable, target
from stepwell.targets.cpu.gemm.driver import GemmSpec, gemm_module, isa_for, shared_gemm_module
from stepwell.targets.cpu.library import spec_of

TORCH = {
    "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i8": torch.int8, "u8": torch.uint8, "i32": torch.int32
}  # fmt: skip
KINDS = [
    ("i8", "i8", ""), ("u8", "i8", ""), ("i8", "u8", ""), ("f32", "i8", ""), ("f32", "u8", ""), ("f32", "bf16", ""), ("f32", "f16", ""),
    ("bf16", "i8", "f32"), ("bf16", "u8", ""), ("f16", "i8", "f32"),
]  # fmt: skip
LAYOUTS = list(product((False, True), (False, True)))
SHAPES = [
    *((1, 64, 64), (1, 33, 200), (2, 5, 33), (4, 24, 1030), (6, 1, 70)),
    *((8, 129, 257), (11, 100, 64), (13, 130, 70), (3, 4, 0), (70, 70, 3077)),
]
ROUNDING = {"f32": 1e-6, "bf16": 4e-3, "f16": 5e-4, "i32": 0}
POINTER, INT = ctypes.c_void_p, ctypes.c_int64


@cache
def compiled(spec: GemmSpec, target_name: str):
    library = jit.load_text(shared_gemm_module(spec), wanted=target(target_name))
    function = library.function(spec.shared_symbol, *[POINTER] * 3, *[INT] * 10, *[POINTER] * 3)
    function.library = library
    return function


def numbers(kind: str, *sizes: int) -> torch.Tensor:
    """A matrix with gaps between its rows; bytes of the whole range."""
    room = (sizes[0], sizes[1] + 3)
    dtype = TORCH[kind]
    if dtype.is_floating_point:
        return torch.randn(room).to(dtype)[:, : sizes[1]]
    info = torch.iinfo(dtype)
    return torch.randint(info.min, info.max + 1, room).to(dtype)[:, : sizes[1]]


def check(spec: GemmSpec, target_name: str = "host", shapes=SHAPES) -> None:
    torch.manual_seed(0)
    for m, n, k in shapes:
        a = numbers(spec.dtype, *((k, m) if spec.trans_a else (m, k)))
        b = numbers(spec.b_type, *((n, k) if spec.trans_b else (k, n)))
        room = torch.full((m, n + 3), 7).to(TORCH[spec.c_type])
        bias = torch.randint(-9, 9, (n,)).to(TORCH[spec.bias_type])
        pointers = (t.data_ptr() for t in (a, b, room))
        strides = (t.stride(0) for t in (a, b, room))
        compiled(spec, target_name)(*pointers, m, n, k, *strides, 1, 0, 0, 0, bias.data_ptr(), None, None)
        left, right = (x.double().mT if turned else x.double() for x, turned in ((a, spec.trans_a), (b, spec.trans_b)))
        bound = ROUNDING[spec.c_type] * (left.abs() @ right.abs() + bias.double().abs())
        error = (room[:, :n].double() - left @ right - bias.double()).abs()
        assert (error <= bound).all(), f"{spec.symbol} {m}x{n}x{k}: {error.max()}"
        assert (room[:, n:] == 7).all(), f"{spec.symbol} {m}x{n}x{k} wrote beyond a row"


@pytest.mark.spread
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("a, b, out", KINDS)
def test_every_layout_and_kind_on_this_machine(a, b, out, layout):
    check(GemmSpec(a, out, trans_a=layout[0], trans_b=layout[1], isa=isa_for(target()).name, b=b))


@pytest.mark.spread
@pytest.mark.parametrize("target_name, isa", [("generic-sse", "generic"), ("avx2", "avx2"), ("avx512", "avx512"), ("host", "avx512_vnni")])
@pytest.mark.parametrize("a, b, out", KINDS)
def test_other_instruction_sets(target_name, isa, a, b, out):
    if not is_runnable(target(target_name)) or (isa == "avx512_vnni" and not target().has("avx512vnni")):
        pytest.skip(f"this machine has no {isa}")
    for trans_a, trans_b in LAYOUTS:
        check(GemmSpec(a, out, trans_a=trans_a, trans_b=trans_b, isa=isa, b=b), target_name, SHAPES[3:])


def test_neon_assembles():
    for a, b, out in KINDS:
        _, text = gemm_module(GemmSpec(a, out, trans_b=True, isa="neon", b=b))
        assert jit.compile_text(text, wanted=target("neon"))
    _, text = gemm_module(GemmSpec("bf16", trans_b=True, isa=isa_for(target("neon-dot")).name, b="i8"))
    assert "neon.sdot" in text
    assert jit.compile_text(text, wanted=target("neon-dot"))


@pytest.mark.parametrize("kind, steps", [("f32", 30), ("bf16", 22), ("f16", 22)])
def test_one_row_by_bytes_of_any_magnitude(kind, steps):
    """What a row is rounded to depends on its largest number; infinities and what is no number come through."""
    dtype, n, k = TORCH[kind], 40, 203
    torch.manual_seed(1)
    b = numbers("i8", n, k)
    b[b == 0] = 1
    spec = GemmSpec(kind, "f32", trans_b=True, isa=isa_for(target()).name, b="i8")

    def product_with(x):
        room = torch.full((1, n), 7.0)
        sizes = (1, n, k, k, b.stride(0), n, 1, 0, 0, 0)
        compiled(spec, "host")(x.data_ptr(), b.data_ptr(), room.data_ptr(), *sizes, None, None, None)
        return room[0]

    plain = torch.randn(k)
    outlier = plain.clone()
    outlier[77] = 5e3
    for x in (plain, outlier, plain * 1e-4, outlier * (torch.finfo(dtype).max / 1e9), torch.zeros(k)):
        x = x.to(dtype)
        exact = b.double() @ x.double()
        bound = (b.double().abs() @ x.double().abs()) * 1e-6 + x.abs().max().double() * 2.0**-steps * k * 128
        assert ((product_with(x).double() - exact).abs() <= bound).all()
    for value in (float("inf"), -float("inf"), float("nan")):
        x = plain.to(dtype)
        x[5] = value
        torch.testing.assert_close(product_with(x), b[:, 5] * value, equal_nan=True)


def test_symbols_name_what_they_are():
    for (a, b, out), layout in product(KINDS, LAYOUTS):
        spec = GemmSpec(a, out, trans_a=layout[0], trans_b=layout[1], isa="avx512_vnni", b=b)
        found = spec_of(spec.shared_symbol)
        assert isinstance(found, GemmSpec)
        assert (found.dtype, found.b_type, found.c_type, found.trans_b) == (a, b, spec.c_type, layout[1])


def test_sums_of_bytes_wrap_and_are_exact_at_their_limits():
    """The least bytes everywhere: 128 is added to them, and taken off again."""
    spec = GemmSpec("i8", trans_b=True, isa=isa_for(target()).name)
    for m in (1, 3, 40):
        a, b = torch.full((m, 5000), -128, dtype=torch.int8), torch.full((70, 5000), -128, dtype=torch.int8)
        c = torch.empty(m, 70, dtype=torch.int32)
        compiled(spec, "host")(a.data_ptr(), b.data_ptr(), c.data_ptr(), m, 70, 5000, 5000, 5000, 70, 1, 0, 0, 0, None, None, None)
        assert (c == 5000 * 128 * 128).all()
