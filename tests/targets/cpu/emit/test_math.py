"""math and cpu.math of the CPU target: accuracy in ulp against f64 (or 40 digits), special values, every instruction
set."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from cpu_kernels import RUNNABLE, bits_equal, build, elementwise, float_samples, int_samples, run

from stepwell.tools.interpret.remainders import fmod

F32, F64 = torch.float32, torch.float64

# name: (operation, reference on f64, greatest error in f32 ulp)
UNARY: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor], float]] = {
    "exp": ("math.exp %a", torch.exp, 1.5),
    "exp2": ("math.exp2 %a", torch.exp2, 1.5),
    "expm1": ("math.expm1 %a", torch.expm1, 2),
    "log": ("math.log %a", torch.log, 1),
    "log2": ("math.log2 %a", torch.log2, 1.5),
    "log10": ("math.log10 %a", torch.log10, 1.5),
    "log1p": ("math.log1p %a", torch.log1p, 1),
    "sin": ("math.sin %a", torch.sin, 4),
    "cos": ("math.cos %a", torch.cos, 4),
    "tan": ("math.tan %a", torch.tan, 4),
    "sinh": ("math.sinh %a", torch.sinh, 3),
    "cosh": ("math.cosh %a", torch.cosh, 3),
    "tanh": ("math.tanh %a", torch.tanh, 7),
    "asin": ("math.asin %a", torch.asin, 4),
    "acos": ("math.acos %a", torch.acos, 4),
    "atan": ("math.atan %a", torch.atan, 4),
    "asinh": ("math.asinh %a", torch.asinh, 3),
    "acosh": ("math.acosh %a", torch.acosh, 3),
    "atanh": ("math.atanh %a", torch.atanh, 3),
    "erf": ("math.erf %a", torch.erf, 7),
    "sqrt": ("math.sqrt %a", torch.sqrt, 0.5),
    "rsqrt": ("math.rsqrt %a", torch.rsqrt, 1.6),
    "cbrt": ("math.cbrt %a", lambda x: torch.from_numpy(np.cbrt(x.numpy())), 4),
    "sigmoid": ("cpu.math sigmoid %a", torch.sigmoid, 3),
    "erfc": ("cpu.math erfc %a", torch.erfc, 4),
    "lgamma": ("cpu.math lgamma %a", torch.lgamma, 12),
    "exp10": ("cpu.math exp10 %a", lambda x: torch.pow(torch.tensor(10.0, dtype=F64), x), 4),
}
EXACT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "absf": torch.abs,
    "ceil": torch.ceil,
    "floor": torch.floor,
    "trunc": torch.trunc,
    "roundeven": torch.round,
}
BINARY: dict[str, tuple[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor], float]] = {
    "atan2": ("math.atan2 %a, %b", torch.atan2, 4),
    "powf": ("math.powf %a, %b", torch.pow, 2),
    "copysign": ("math.copysign %a, %b", torch.copysign, 0),
    "hypot": ("cpu.math hypot %a, %b", torch.hypot, 4),
    "fmod": ("cpu.math fmod %a, %b", fmod, 0),
}
WIDTHS = (0, 3, 32)


def error_in_ulp(got: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """|got - exact| in units of the last place of the result, denormals counted in the smallest normal's; infinities
    and NaN must agree exactly (error inf where they do not)."""
    info = torch.finfo(dtype)
    rounded = exact.to(dtype).double()
    unit = torch.exp2(torch.floor(torch.log2(rounded.abs().clamp(info.tiny, info.max)))) * info.eps
    error = (got.double() - exact).abs() / unit
    # Where the exact value rounds to infinity, the largest finite number is one ulp away.
    special = rounded.isnan() | rounded.isinf()
    agrees = (got.double() == rounded) | (got.isnan() & rounded.isnan())
    return torch.where(special, torch.where(agrees, 0.0, torch.inf), error.nan_to_num(nan=torch.inf))


def spelled(operation: str) -> str:
    return f"%r = {operation} : {{A}}"


@pytest.fixture(scope="module", params=RUNNABLE)
def compiled(request):
    isa = request.param
    text = []
    for name, (operation, _, _) in {**UNARY, **{n: (f"math.{n} %a", f, 0) for n, f in EXACT.items()}}.items():
        for dtype, tag in ((F32, "f"), (F64, "d")):
            for lanes in WIDTHS:
                text.append(elementwise(f"{name}_{tag}{lanes}", spelled(operation), [dtype], dtype, lanes))
    for name, (operation, _, _) in BINARY.items():
        for dtype, tag in ((F32, "f"), (F64, "d")):
            for lanes in WIDTHS:
                text.append(elementwise(f"{name}_{tag}{lanes}", spelled(operation), [dtype] * 2, dtype, lanes))
    return isa, build("".join(text), isa)


def arguments(dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(11)
    moderate = (torch.rand(400, generator=generator, dtype=F64) * 2 - 1) * torch.tensor(
        [1.0, 5.0, 20.0, 90.0], dtype=F64
    ).repeat(100)
    return torch.cat([float_samples(dtype), moderate.to(dtype)])


def test_tanh_of_small_numbers(compiled) -> None:
    """Softcapped scores are such: as exact as a library's."""
    isa, library = compiled
    x = torch.linspace(-0.7, 0.7, 4096)
    for lanes in WIDTHS:
        error = error_in_ulp(run(library, f"tanh_f{lanes}", [x], F32, lanes), torch.tanh(x.double()), F32).max()
        assert error <= 2 if "sse" in str(isa) else error < 1, (isa, lanes, error)


def test_logarithms_of_powers_are_exact(compiled) -> None:
    isa, library = compiled
    for base, exponents in ((2.0, torch.arange(-149.0, 128.0)), (10.0, torch.arange(0.0, 11.0))):
        x = (base ** exponents.double()).float()
        for lanes in WIDTHS:
            got = run(library, f"log{base:.0f}_f{lanes}", [x], F32, lanes)
            assert torch.equal(got, exponents), (isa, base, lanes)


def test_functions_of_one_operand(compiled) -> None:
    isa, library = compiled
    wrong = []
    for dtype, tag in ((F32, "f"), (F64, "d")):
        x = arguments(dtype)
        for name, (_, reference, limit) in UNARY.items():
            exact = reference(x.double())
            for lanes in WIDTHS:
                got = run(library, f"{name}_{tag}{lanes}", [x], dtype, lanes)
                error = error_in_ulp(got, exact, dtype)
                # References in f64 carry errors of their own, and larger where their arguments are huge.
                allowed = limit if dtype == F32 else max(limit, 64.0 if name == "lgamma" else 8.0)
                if name in ("asinh", "acosh"):  # Sleef squares its argument
                    error[x.abs() > torch.finfo(dtype).max ** 0.5] = 0
                if name in ("sinh", "cosh"):  # Sleef (and so torch) overflows a little early
                    error[got.isinf() & (exact.abs() > torch.finfo(dtype).max / 2)] = 0
                if name == "sigmoid":  # saturates where it would become denormal
                    error[(got.double() - exact).abs() < 2e-38] = 0
                at = int(error.argmax())
                if error[at] > allowed:
                    wrong.append(
                        f"{name} {dtype} x{lanes}: {x[at].item()!r} gave {got[at].item()!r}, "
                        f"not {exact[at].item()!r}: {error[at]:.3g} ulp"
                    )
    assert not wrong, f"on {isa}:\n" + "\n".join(wrong)


def test_functions_that_round_exactly(compiled) -> None:
    isa, library = compiled
    for dtype, tag in ((F32, "f"), (F64, "d")):
        x = arguments(dtype)
        for name, reference in EXACT.items():
            for lanes in WIDTHS:
                assert bits_equal(run(library, f"{name}_{tag}{lanes}", [x], dtype, lanes), reference(x)), (
                    name,
                    dtype,
                    lanes,
                    isa,
                )


def test_functions_of_two_operands(compiled) -> None:
    isa, library = compiled
    wrong = []
    for dtype, tag in ((F32, "f"), (F64, "d")):
        a, b = float_samples(dtype, 1), float_samples(dtype, 2)
        x = torch.cat([a.roll(s) for s in range(0, 26, 3)])
        y = torch.cat([b] * len(range(0, 26, 3)))
        for name, (_, reference, limit) in BINARY.items():
            exact = reference(x.double(), y.double())
            keep = torch.ones_like(x, dtype=torch.bool)
            if name == "powf" and dtype == F32:
                keep = exact.abs() < 3e38
            for lanes in WIDTHS:
                got = run(library, f"{name}_{tag}{lanes}", [x, y], dtype, lanes)
                error = torch.where(keep, error_in_ulp(got, exact, dtype), 0.0)
                allowed = limit if dtype == F32 else max(limit, 4.0)
                at = int(error.argmax())
                if error[at] > allowed:
                    wrong.append(
                        f"{name} {dtype} x{lanes}: ({x[at].item()!r}, {y[at].item()!r}) gave {got[at].item()!r}, "
                        f"not {exact[at].item()!r}"
                    )
    assert not wrong, f"on {isa}:\n" + "\n".join(wrong)


@pytest.mark.parametrize("isa", RUNNABLE)
def test_sign_of_zero_saturation_and_nan(isa: str) -> None:
    names = ("exp", "expm1", "tanh", "erf", "sin", "sinh", "asinh", "atan", "sqrt", "log1p", "cbrt", "sigmoid")
    text = "".join(
        elementwise(f"{n}{lanes}", spelled(UNARY[n][0]), [F32], F32, lanes) for n in names for lanes in (0, 16)
    )
    library = build(text, isa)
    x = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-40, -1e-40])
    for name in names:
        expected = UNARY[name][1](x)
        for lanes in (0, 16):
            got = run(library, f"{name}{lanes}", [x], F32, lanes)
            if name == "sigmoid":
                assert torch.allclose(got, expected, atol=2e-38, equal_nan=True)
                continue
            assert bits_equal(got[:5], expected[:5]), (name, lanes, got, expected)
            assert torch.allclose(got[5:], expected[5:], rtol=1e-6, atol=3e-45, equal_nan=True), (
                name,
                lanes,
                got,
                expected,
            )
    large = torch.tensor([9.1, 10.0, 50.0, 1e10, 3e38])
    for name in ("tanh", "erf"):
        assert run(library, f"{name}16", [large], F32, 16).eq(1).all()
        assert run(library, f"{name}16", [-large], F32, 16).eq(-1).all()


@pytest.mark.parametrize("isa", RUNNABLE)
def test_low_precision_functions_round_once(isa: str) -> None:
    types = (torch.float16, torch.bfloat16)
    text = "".join(
        elementwise(f"{name}_{i}", spelled(operation), [t], t, 16)
        for i, t in enumerate(types)
        for name, operation in (("exp", "math.exp %a"), ("floor", "math.floor %a"), ("sqrt", "math.sqrt %a"))
    )
    library = build(text, isa)
    for i, t in enumerate(types):
        x = float_samples(t)
        assert bits_equal(run(library, f"floor_{i}", [x], t, 16), torch.floor(x))
        assert bits_equal(run(library, f"sqrt_{i}", [x], t, 16), torch.sqrt(x))
        exact = torch.exp(x.double())
        assert error_in_ulp(run(library, f"exp_{i}", [x], t, 16), exact, t).max() <= 0.51


def test_integer_functions() -> None:
    text = []
    for t, tag in ((torch.int32, "i"), (torch.int64, "l"), (torch.int8, "b")):
        for lanes in (0, 16):
            text.append(elementwise(f"ipowi_{tag}{lanes}", "%r = math.ipowi %a, %b : {A}", [t, t], t, lanes))
            for op in ("ctpop", "ctlz", "cttz"):
                text.append(elementwise(f"{op}_{tag}{lanes}", f"%r = math.{op} %a : {{A}}", [t], t, lanes))
    library = build("".join(text))
    for t, tag in ((torch.int32, "i"), (torch.int64, "l"), (torch.int8, "b")):
        width = torch.iinfo(t).bits
        x = int_samples(t)
        unsigned = [v % 2**width for v in x.tolist()]
        a = torch.tensor([0, 1, -1, 2, -2, 3, -3, 5, 7, 10, 1, -1, 2, 0], dtype=t)
        b = torch.tensor([0, 5, 3, 6, 5, 4, 3, 0, 1, 2, -3, -3, -2, 3], dtype=t)
        for lanes in (0, 16):
            assert torch.equal(run(library, f"ipowi_{tag}{lanes}", [a, b], t, lanes), torch.pow(a, b)), (t, lanes)
            assert run(library, f"ctpop_{tag}{lanes}", [x], t, lanes).tolist() == [v.bit_count() for v in unsigned]
            assert run(library, f"ctlz_{tag}{lanes}", [x], t, lanes).tolist() == [
                width - v.bit_length() for v in unsigned
            ]
            trailing = [width if v == 0 else (v & -v).bit_length() - 1 for v in unsigned]
            assert run(library, f"cttz_{tag}{lanes}", [x], t, lanes).tolist() == trailing


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -2, 5, 100])
def test_powers_with_a_known_integer_exponent(exponent: int) -> None:
    body = f"%e = arith.constant {exponent} : i32\n%r = math.fpowi %a, %e : {{A}}, i32"
    library = build(elementwise("k", body, [F32], F32, 0))
    x = torch.tensor([0.5, -1.5, 2.0, 3.0, -0.0, 1.01])
    assert torch.allclose(run(library, "k", [x], F32, 0), x.double().pow(exponent).float(), rtol=2e-6)


def test_nextafter_is_exact() -> None:
    library = build(elementwise("k", "%r = cpu.math nextafter %a, %b : {A}", [F32] * 2, F32, 16))
    a = torch.tensor([1.0, -1.0, 1e10, 3.0, 1e-3])
    b = torch.tensor([2.0, -2.0, 0.0, 3.0, -1.0])
    assert bits_equal(run(library, "k", [a, b], F32, 16), torch.nextafter(a, b))
