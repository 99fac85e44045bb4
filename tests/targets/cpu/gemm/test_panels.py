"""Products whose right factor is stored in panels, against float64."""

from __future__ import annotations

import ctypes
from functools import cache

import pytest
import torch

from stepwell.dialects.support.gemm_types import PANEL_BYTES, PANEL_UNIT_BYTES
from stepwell.targets.cpu import jit
from stepwell.targets.cpu.features import is_runnable, target
from stepwell.targets.cpu.gemm.driver import GemmSpec, isa_for, shared_gemm_module
from stepwell.targets.cpu.gemm.spec import ISAS, Shape
from stepwell.targets.cpu.library import spec_of

POINTER, INT = ctypes.c_void_p, ctypes.c_int64
SIZES = [(1, 70, 5), (2, 64, 64), (7, 200, 33), (13, 130, 900), (50, 33, 17), (200, 96, 1), (6, 500, 1600), (3, 70, 0)]


@cache
def compiled(dtype, target_name, trans_a):
    columns = PANEL_BYTES // {"f32": 4, "f64": 8}[dtype]
    spec = GemmSpec(dtype, trans_a=trans_a, isa=isa_for(target(target_name)).name, panels=columns)
    library = jit.load_text(shared_gemm_module(spec), wanted=target(target_name))
    function = library.function(spec.shared_symbol, *[POINTER] * 3, *[INT] * 10, *[POINTER] * 3)
    function.library = library
    return function, columns


def in_panels(b, columns):
    rows, n = b.shape
    panels = -(-n // columns)
    return torch.nn.functional.pad(b, (0, panels * columns - n)).reshape(rows, panels, columns).permute(1, 0, 2).contiguous()


@pytest.mark.parametrize(
    "target_name", ["host", pytest.param("avx2", marks=pytest.mark.spread), pytest.param("generic-sse", marks=pytest.mark.spread)]
)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("trans_a", [False, True])
def test_values(dtype, trans_a, target_name):
    if target_name != "host" and not is_runnable(target(target_name)):
        pytest.skip(f"this machine does not run {target_name}")
    kind = {"f32": torch.float32, "f64": torch.float64}[dtype]
    function, columns = compiled(dtype, target_name, trans_a)
    for m, n, k in SIZES:
        torch.manual_seed(m)
        a, b, bias = torch.randn(m, k, dtype=kind), torch.randn(k, n, dtype=kind), torch.randn(n, dtype=kind)
        c = torch.full((m, n), float("nan"), dtype=kind)
        want = a.double() @ b.double() + bias.double()
        left, packed = a.t().contiguous() if trans_a else a, in_panels(b, columns)
        pointers = (t.data_ptr() for t in (left, packed, c))
        function(*pointers, m, n, k, m if trans_a else k, 0, n, 1, 0, 0, 0, bias.data_ptr(), None, None)
        torch.testing.assert_close(c.double(), want, atol=1e-12 * (k + 1) if dtype == "f64" else 2e-5 * (k + 1) ** 0.5, rtol=1e-4)


@cache
def compiled_bytes(dtype, kind, target_name):
    spec = GemmSpec(dtype, isa=isa_for(target(target_name)).name, b=kind, panels=PANEL_BYTES // PANEL_UNIT_BYTES)
    library = jit.load_text(shared_gemm_module(spec), wanted=target(target_name))
    function = library.function(spec.shared_symbol, *[POINTER] * 3, *[INT] * 10, *[POINTER] * 3)
    function.library = library
    return function


def bytes_in_panels(b):
    terms, n = b.shape
    units, panels = -(-terms // 4), -(-n // 64)
    filled = torch.nn.functional.pad(b, (0, panels * 64 - n, 0, units * 4 - terms))
    return filled.reshape(units, 4, panels, 64).permute(2, 0, 3, 1).contiguous()


OTHERS = [pytest.param(name, marks=pytest.mark.spread) for name in ("avx512", "avx2", "generic-sse")]


@pytest.mark.parametrize("target_name", ["host", *OTHERS])
@pytest.mark.parametrize("dtype, kind", [("u8", "i8"), ("i8", "i8"), ("i8", "u8")])
def test_bytes(dtype, kind, target_name):
    if target_name != "host" and not is_runnable(target(target_name)):
        pytest.skip(f"this machine does not run {target_name}")
    function, kinds = compiled_bytes(dtype, kind, target_name), {"i8": torch.int8, "u8": torch.uint8}
    for m, n, k in [*SIZES, (9, 100, 3203)]:
        torch.manual_seed(m)
        a, b = (torch.randint(0, 256, size).to(kinds[x]) for x, size in ((dtype, (m, k)), (kind, (k, n))))
        bias, c = torch.randint(-99, 99, (n,), dtype=torch.int32), torch.full((m, n), 7, dtype=torch.int32)
        packed = bytes_in_panels(b)
        function(*(t.data_ptr() for t in (a, packed, c)), m, n, k, k, 0, n, 1, 0, 0, 0, bias.data_ptr(), None, None)
        assert torch.equal(c, (a.int() @ b.int()) + bias)


def test_panels_have_whole_tiles_of_every_instruction_set():
    for isa in ISAS:
        assert PANEL_BYTES // 4 % Shape(GemmSpec("f32", isa=isa)).width == 0
        spec = GemmSpec("f32", isa=isa, panels=PANEL_BYTES // 4, windows=True)
        assert spec_of(spec.shared_symbol) == spec


def test_halves_are_not_stored_in_panels():
    for wrong in ({"dtype": "bf16"}, {"trans_b": True}, {"panels": 24, "isa": "avx512"}, {"b": "i8"}, {"dtype": "u8", "trans_b": True}):
        with pytest.raises(ValueError, match="panels are a multiple"):
            GemmSpec(**{"panels": 64, **wrong})
