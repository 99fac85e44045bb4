"""Special functions of the CPU target against mpmath and torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from cpu_kernels import RUNNABLE, build, elementwise, run

from stepwell.dialects.cpu import MATH_FUNCTIONS
from stepwell.targets.cpu.emit.math import FUNCTIONS

mpmath = pytest.importorskip("mpmath")

NAMES = ("i0", "i0e", "i1", "i1e", "digamma", "erfinv", "ndtri", "erfcx", "log_ndtr")

EXACT: dict[str, Callable] = {
    "i0": lambda x: mpmath.besseli(0, x),
    "i0e": lambda x: mpmath.exp(-abs(x)) * mpmath.besseli(0, x),
    "i1": lambda x: mpmath.besseli(1, x),
    "i1e": lambda x: mpmath.exp(-abs(x)) * mpmath.besseli(1, x),
    "digamma": mpmath.digamma,
    "erfinv": mpmath.erfinv,
    "ndtri": lambda p: mpmath.sqrt(2) * mpmath.erfinv(2 * p - 1),
    "erfcx": lambda x: mpmath.exp(x * x) * mpmath.erfc(x),
    "log_ndtr": lambda x: (
        mpmath.log1p(-mpmath.erfc(x / mpmath.sqrt(2)) / 2)
        if x > 0
        else mpmath.log(mpmath.erfc(-x / mpmath.sqrt(2)) / 2)
    ),
}
TORCH: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "i0": torch.special.i0, "i0e": torch.special.i0e, "i1": torch.special.i1, "i1e": torch.special.i1e,
    "digamma": torch.digamma, "erfinv": torch.erfinv, "ndtri": torch.special.ndtri, "erfcx": torch.special.erfcx,
    "log_ndtr": torch.special.log_ndtr,
}  # fmt: skip


def points(name: str) -> torch.Tensor:
    if name in ("erfinv", "ndtri"):
        middle = torch.linspace(0.01, 0.98, 25, dtype=torch.float64)
        edge = torch.tensor([1e-3, 1e-6, 1e-12, 1e-20, 1e-30], dtype=torch.float64)
        return torch.cat([middle, edge, -middle, -edge] if name == "erfinv" else [middle, edge, 1 - edge[:2]])
    if name == "digamma":
        return torch.tensor(
            [0.01, 0.3, 1.0, 1.4616, 2.0, 5.5, 9.99, 10.0, 50.0, 1e6, -0.5, -1.3, -4.75, -10.2], dtype=torch.float64
        )
    large = torch.tensor(
        [7.99, 8.0, 8.01, 20.0, 25.0] + ([] if name in ("erfcx",) else [60.0, 85.0]), dtype=torch.float64
    )
    middle = torch.tensor([1e-8, 0.1, 0.5, 1.0, 2.0, 3.75, 5.0], dtype=torch.float64)
    return torch.cat([middle, large, -middle] + ([-large[:1]] if name == "erfcx" else [-large]))


@pytest.fixture(scope="module", params=RUNNABLE)
def compiled(request):
    text = [
        elementwise(f"{name}_{tag}{lanes}", f"%r = cpu.math {name} %a : {{A}}", [dtype], dtype, lanes)
        for name in NAMES
        for dtype, tag in ((torch.float32, "f"), (torch.float64, "d"))
        for lanes in (0, 16)
    ]
    return request.param, build("".join(text), request.param)


def test_accuracy(compiled) -> None:
    isa, library = compiled
    wrong = []
    with mpmath.workdps(60):
        for name in NAMES:
            for dtype, tag, limit in ((torch.float32, "f", 5e-6), (torch.float64, "d", 3e-14)):
                x = points(name).to(dtype)
                if name in ("i0", "i1") and dtype == torch.float32:
                    x = x[x.abs() < 86]
                exact = torch.tensor([float(EXACT[name](mpmath.mpf(v))) for v in x.tolist()], dtype=torch.float64)
                for lanes in (0, 16):
                    got = run(library, f"{name}_{tag}{lanes}", [x], dtype, lanes).double()
                    scale = exact.abs().clamp_min(1.0) if name == "digamma" else exact.abs()  # it crosses zero
                    error = (got - exact).abs() / scale.clamp_min(torch.finfo(dtype).tiny)
                    at = int(error.nan_to_num(nan=9.0).argmax())
                    if not error[at] <= limit:
                        wrong.append(
                            f"{name} {dtype} x{lanes}: {x[at]!r} gave {got[at]!r}, not {exact[at]!r}: {error[at]:.2g}"
                        )
    assert not wrong, f"on {isa}:\n" + "\n".join(wrong)


@pytest.mark.parametrize("name", ["i0", "i1", "i0e", "i1e"])
def test_bessel_functions_against_the_errors_of_torch(compiled, name: str) -> None:
    """Root mean squares over ranges; both are about half a unit in the last place."""
    _, library = compiled
    for dtype, tag in ((torch.float32, "f"), (torch.float64, "d")):
        for low, high in ((0.0, 1.0), (1.0, 4.0), (4.0, 8.0), (8.0, 80.0)):
            x = torch.linspace(low + 0.003, high, 160, dtype=dtype)
            with mpmath.workdps(40):
                values = [EXACT[name](mpmath.mpf(v)) for v in x.tolist()]
                exact = torch.tensor([float(v) for v in values], dtype=torch.float64)
                rest = torch.tensor([float(v - mpmath.mpf(float(v))) for v in values], dtype=torch.float64)

            def error(got: torch.Tensor, exact=exact, rest=rest) -> float:
                return float((((got.double() - exact) - rest) / exact).square().mean().sqrt())

            ours, theirs = error(run(library, f"{name}_{tag}16", [x], dtype, 16)), error(TORCH[name](x))
            assert ours <= (1.1 if dtype == torch.float32 else 1.3) * theirs, (name, dtype, low, ours, theirs)


def test_bessel_functions_overflow_where_their_values_do(compiled) -> None:
    _, library = compiled
    for name in ("i0", "i1"):
        for dtype, tag, x in ((torch.float32, "f", 91.0), (torch.float64, "d", 712.0)):
            exact = float(EXACT[name](mpmath.mpf(x)))
            for lanes in (0, 16):
                got = run(library, f"{name}_{tag}{lanes}", [torch.tensor([x, -x, x + 3], dtype=dtype)], dtype, lanes)
                sign = -1 if name == "i1" else 1
                assert got[0].item() == pytest.approx(exact, rel=5e-6 if tag == "f" else 3e-14)
                assert got[1] == sign * got[0] and got[2] == float("inf")


def test_erfcx_is_infinite_where_the_square_overflows(compiled) -> None:
    _, library = compiled
    for dtype, tag in ((torch.float32, "f"), (torch.float64, "d")):
        x = torch.tensor([-27.0, -88.0, -1e3, -1e30], dtype=dtype)
        for lanes in (0, 16):
            assert run(library, f"erfcx_{tag}{lanes}", [x], dtype, lanes).isinf().all()


def test_special_values_are_those_of_torch(compiled) -> None:
    isa, library = compiled
    inf, nan = float("inf"), float("nan")
    for name in NAMES:
        for dtype, tag in ((torch.float32, "f"), (torch.float64, "d")):
            x = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, inf, -inf, nan, -1e-20, 1e-20], dtype=dtype)
            expected = TORCH[name](x)
            for lanes in (0, 16):
                got = run(library, f"{name}_{tag}{lanes}", [x], dtype, lanes)
                assert torch.allclose(got, expected, rtol=1e-5, atol=0, equal_nan=True), (
                    name,
                    dtype,
                    lanes,
                    isa,
                    got,
                    expected,
                )


def test_every_function_of_the_dialect_has_code() -> None:
    """M19"""
    assert set(MATH_FUNCTIONS) <= set(FUNCTIONS)


def test_ldexp() -> None:
    library = build(elementwise("k", "%r = cpu.math ldexp %a, %b : {A}", [torch.float32] * 2, torch.float32, 16))
    x = torch.tensor([1.0, 0.75, -3.0, 1e-30, 5.0])
    n = torch.tensor([3.0, -2.0, 0.0, 100.0, 127.0])
    assert torch.equal(run(library, "k", [x, n], torch.float32, 16), torch.ldexp(x, n))
