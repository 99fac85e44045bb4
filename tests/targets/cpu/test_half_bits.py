"""16-bit floats by integer arithmetic: every value there is, and f32 around every place where rounding changes, as torch has them."""

from __future__ import annotations

import ctypes

import llvmlite.binding as llvm
import pytest
import torch

from stepwell.targets.cpu.gemm.ir import Function
from stepwell.targets.cpu.half_bits import Words, bf16_to_float, float_to_bf16, float_to_half, half_to_float

LANES = [0, 4]
BITS = torch.arange(1 << 16, dtype=torch.int32)


def converted(source: torch.Tensor, convert, lanes: int, of_float: bool) -> torch.Tensor:
    """32-bit values through a loop over vectors of `lanes`."""
    f = Function("convert", [("ptr", "src"), ("ptr", "dst"), ("i64", "count")], linkage="")
    words = Words(f.let, lanes)
    given, made = (words.type("float"), words.type("i32")) if of_float else (words.type("i32"), words.type("float"))
    with f.loop(0, "%count", max(lanes, 1)) as k:
        place = f.mul(k.i, 4)
        f.store(made, convert(words, f.load(given, f.at("%src", place))), f.at("%dst", place))
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(f.text()), llvm.Target.from_default_triple().create_target_machine())
    engine.finalize_object()
    result = torch.empty(source.shape, dtype=torch.int32 if of_float else torch.float32)
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(engine.get_function_address("convert"))
    call(source.data_ptr(), result.data_ptr(), source.numel())
    return result


@pytest.mark.spread
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize(("convert", "dtype"), [(half_to_float, torch.float16), (bf16_to_float, torch.bfloat16)])
def test_each_16_bit_float_as_f32(convert, dtype, lanes):
    want = BITS.to(torch.int16).view(dtype).float()
    torch.testing.assert_close(converted(BITS, convert, lanes, False), want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.spread
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize(("convert", "dtype"), [(float_to_half, torch.float16), (float_to_bf16, torch.bfloat16)])
def test_f32_at_and_around_each_16_bit_float_and_the_middles(convert, dtype, lanes):
    """Ties go to even, denormals are kept, what is too large is infinity."""
    each = BITS.to(torch.int16).view(dtype).float()
    middles = (each.double() + BITS.add(1).to(torch.int16).view(dtype).double()).div(2).float()
    around = [torch.nextafter(x, torch.tensor(to)) for x in (each, middles) for to in (float("-inf"), float("inf"))]
    source = torch.cat([each, middles, *around])
    got = converted(source, convert, lanes, True).to(torch.int16).view(dtype)
    want = source.to(dtype)
    assert torch.equal(got.isnan(), want.isnan())
    number = ~want.isnan()
    assert torch.equal(got[number].view(torch.int16), want[number].view(torch.int16))
