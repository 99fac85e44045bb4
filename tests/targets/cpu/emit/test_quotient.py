"""Division by a splat without the divider gives the bits of the division."""

from __future__ import annotations

import pytest
import torch
from cpu_kernels import RUNNABLE, TYPES, bits_equal, build, float_samples, parse

from stepwell.targets.cpu.emit.module import emit_module
from stepwell.targets.cpu.features import target

SIZES = {torch.float32: 64, torch.float64: 16}


def kernel(dtype: torch.dtype, constant: float | None = None) -> str:
    v = f"vector<{SIZES[dtype]}x{TYPES[dtype]}>"
    divisor = (
        f"%d = arith.constant dense<{constant:.9e}> : {v}"
        if constant is not None
        else f"%s = cpu.load %q[%zero] : {TYPES[dtype]}\n  %d = cpu.splat %s : {v}"
    )
    return f"""
cpu.kernel @k(%x : !cpu.ptr, %q : !cpu.ptr, %y : !cpu.ptr, %n : i64) {{
  %zero = arith.constant 0 : i64
  %step = arith.constant {SIZES[dtype]} : i64
  {divisor}
  scf.for %i = %zero to %n step %step : i64 {{
    %a = cpu.load %x[%i] : {v}
    %r = arith.divf %a, %d : {v}
    cpu.store %r, %y[%i] : {v}
  }}
  cpu.return
}}"""


def numerators(dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(23)
    kind = torch.int32 if dtype == torch.float32 else torch.int64
    info = torch.iinfo(kind)
    anything = torch.randint(info.min, info.max, (2000,), generator=generator, dtype=torch.int64).to(kind).view(dtype)
    x = torch.cat([float_samples(dtype), torch.rand(2000, generator=generator, dtype=dtype), anything])
    return torch.cat([x, x[: -x.numel() % 64]])


@pytest.mark.spread
@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("dtype", list(SIZES))
def test_every_quotient_has_the_bits_of_the_division(isa: str, dtype: torch.dtype) -> None:
    library = build(kernel(dtype), isa)
    x = numerators(dtype)
    y = torch.empty_like(x)
    divisors = torch.cat([float_samples(dtype), numerators(dtype)[-200:]])
    for divisor in divisors:
        library.call("k", x, divisor.reshape(1), y, x.numel())
        expected = x / divisor
        same = (y == expected) & (torch.signbit(y) == torch.signbit(expected)) | y.isnan() & expected.isnan()
        # Numerators and quotients so small that the remainder is lost are a unit of the last place off;
        # next to overflow the scaled numerator may become infinite first.
        info = torch.finfo(dtype)
        small = torch.minimum(x.abs(), expected.abs()) < info.tiny / info.eps**2
        near = (y - expected).abs() <= (expected.abs() * info.eps).clamp_min(2 * info.tiny * info.eps)
        wrong = ~(same | small & near | (expected.abs() > info.max / 16))
        at = int(wrong.int().argmax())
        assert not wrong.any(), (
            f"{x[at].item()!r} / {divisor.item()!r} gave {y[at].item()!r}, not {expected[at].item()!r} ({isa})"
        )


@pytest.mark.parametrize("constant", [3.0, -0.7, 2.0, 768.0, 1e-30, 1e30])
def test_constant_divisors(constant: float) -> None:
    for dtype in SIZES:
        library = build(kernel(dtype, constant))
        x = numerators(dtype)
        y = torch.empty_like(x)
        library.call("k", x, x, y, x.numel())
        expected = x / torch.tensor(constant, dtype=dtype)
        info = torch.finfo(dtype)
        keep = (torch.minimum(expected.abs(), x.abs()) > info.tiny / info.eps) | (expected == 0) | expected.isnan()
        assert bits_equal(y[keep], expected[keep]), (dtype, constant)


def test_the_divider_is_used_once_outside_of_the_loop() -> None:
    text = emit_module(parse(kernel(torch.float32)), target("avx512"))
    assert text.count("fdiv") == 1 and "fdiv float" in text
    assert "fdiv contract <64 x float>" in emit_module(parse(kernel(torch.float32)), target("avx2"))
