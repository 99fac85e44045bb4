"""Incomplete gamma functions and the zeta function of the CPU target against sums in many digits."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from cpu_kernels import RUNNABLE, build, elementwise, run

mpmath = pytest.importorskip("mpmath")

NAMES = ("igamma", "igammac", "zeta")
TORCH: dict[str, Callable[..., torch.Tensor]] = {
    "igamma": torch.special.gammainc, "igammac": torch.special.gammaincc, "zeta": torch.special.zeta,
}  # fmt: skip
TYPES = ((torch.float32, "f", 2e-7), (torch.float64, "d", 1e-12))


@cache
def lower_and_upper(a: Any, x: Any) -> tuple[Any, Any]:
    """By the power series, in as many digits as cancel."""
    a, x = mpmath.mpf(a), mpmath.mpf(x)
    term = total = mpmath.mpf(1)
    k = a
    while term > total * mpmath.mpf(10) ** -110:
        k += 1
        term *= x / k
        total += term
    value = mpmath.exp(a * mpmath.log(x) - x - mpmath.loggamma(a + 1)) * total
    return value, 1 - value


@cache
def zeta(s: Any, q: Any) -> Any:
    s, q = mpmath.mpf(s), mpmath.mpf(q)
    total = mpmath.mpf(0)
    for _ in range(160):
        total += q**-s
        q += 1
    total += q ** (1 - s) / (s - 1) + q**-s / 2
    term = s * q ** (-s - 1)
    for k in range(1, 20):
        total += term * mpmath.bernoulli(2 * k) / mpmath.factorial(2 * k)
        term *= (s + 2 * k - 1) * (s + 2 * k) / q**2
    return total


def points(name: str) -> list[tuple[float, float]]:
    if name == "zeta":
        found = [(s, q) for s in (1.001, 1.5, 2.0, 3.0, 7.5, 20.0, 99.5) for q in (1e-3, 0.3, 1.0, 1.3, 8.9, 9.0, 50.0, 1e6)]
        return found + [(s, q) for s in (2.0, 3.0, 8.0, 11.0) for q in (-0.25, -0.5, -1.3, -10.1, -99.9, -150.25)]
    sizes = (1e-8, 0.3, 0.9, 1.05, 5.0, 9.99, 10.01, 19.9, 20.0, 80.0, 200.0)
    found = [(a, a * r) for a in sizes for r in (1e-6, 0.3, 0.69, 0.71, 0.999, 1.0, 1.01, 1.29, 1.31, 2.0)]
    return found + [(a, x) for a in sizes for x in (1e-6, 0.1, 0.5, 0.51, 1.09, 1.11, 12.0)]


def exact(name: str, x: float, y: float) -> Any:
    return zeta(x, y) if name == "zeta" else lower_and_upper(x, y)[name == "igammac"]


@pytest.fixture(scope="module", params=RUNNABLE)
def compiled(request):
    text = [
        elementwise(f"{name}_{tag}{lanes}", f"%r = cpu.math {name} %a, %b : {{A}}", [dtype] * 2, dtype, lanes)
        for name in NAMES
        for dtype, tag, _ in TYPES
        for lanes in (0, 2, 12, 16)
    ]
    return request.param, build("".join(text), request.param)


@pytest.mark.parametrize("name", NAMES)
def test_accuracy(compiled, name: str) -> None:
    isa, library = compiled
    for dtype, tag, limit in TYPES:
        x, y = torch.tensor(points(name), dtype=dtype).unbind(1)
        with mpmath.workdps(120):
            want = torch.tensor([float(exact(name, *p)) for p in zip(x.tolist(), y.tolist(), strict=True)], dtype=torch.float64)
        counted = (want.abs() > 10 * torch.finfo(dtype).tiny) & (want.abs() < torch.finfo(dtype).max)
        for lanes in (0, 16):
            got = run(library, f"{name}_{tag}{lanes}", [x.contiguous(), y.contiguous()], dtype, lanes).double()
            error = torch.where(counted, (got - want).abs() / want.abs(), 0.0)
            at = int(error.nan_to_num(nan=9.0).argmax())
            assert error[at] <= limit, f"{isa} {dtype} x{lanes}: {name}({x[at]}, {y[at]}) gave {got[at]}, not {want[at]}: {error[at]:.2g}"


@pytest.mark.parametrize("name", NAMES)
def test_edges_are_those_of_torch(compiled, name: str) -> None:
    """But that NaN gives NaN, and that the zeta function of an infinite exponent is its limit."""
    _, library = compiled
    inf, nan = float("inf"), float("nan")
    values = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -2.5, inf, -inf, nan, 1e-30, 20.0]
    for dtype, tag, _ in TYPES:
        x, y = (t.reshape(-1).contiguous() for t in torch.meshgrid(*[torch.tensor(values, dtype=dtype)] * 2, indexing="ij"))
        want = TORCH[name](x, y)
        if name == "zeta":
            want[(x == inf) & (y > 1)] = torch.where(y == inf, nan, 0.0)[(x == inf) & (y > 1)].to(dtype)
        want[x.isnan() | y.isnan()] = nan
        if name != "zeta":
            want[(x == 0) & (y == 0)] = nan
        elif (want[x == 1] == inf).any():
            want[x == 1] = inf
        for lanes in (0, 2, 12, 16):
            got = run(library, f"{name}_{tag}{lanes}", [x, y], dtype, lanes)
            wrong = ~torch.isclose(got, want, rtol=1e-5, atol=2e-30, equal_nan=True)
            assert not wrong.any(), (dtype, lanes, x[wrong], y[wrong], got[wrong], want[wrong])
