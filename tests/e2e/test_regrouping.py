"""Scans and reductions are regrouped; that never makes infinite, NaN or 0 what eager's order leaves finite.

The rows are near the ends of the range: sums that cancel, products whose factors alone would overflow or underflow."""

from __future__ import annotations

import math
import sys
from fractions import Fraction

import pytest
import torch

import stepwell
from stepwell.passes.gpu import gpu_split_scan as split_scan
from stepwell.passes.gpu.tiles import rules as config
from stepwell.passes.manager.pipelines import TARGETS
from stepwell.targets.target import isolated
from stepwell.tools.interpret.target import InterpretedTarget

F32, F64 = torch.float32, torch.float64
LARGEST = {F32: 3e38, F64: 1.5e308}
LARGE = {F32: 1e30, F64: 1e250}
SMALL = {F32: 1e-30, F64: 1e-250}
MIDDLE = {F32: 1e13, F64: 1e100}


def rows(n: int, dtype: torch.dtype) -> torch.Tensor:
    """A row for each danger, of n elements."""
    most, large, small, middle = (table[dtype] for table in (LARGEST, LARGE, SMALL, MIDDLE))

    def row(*pattern: float) -> torch.Tensor:
        return torch.tensor(pattern, dtype=dtype).repeat(-(-n // len(pattern)))[:n].clone()

    found = [row(most, -most), row(most, most, -most, -most), row(-most, most, most, -most), row(most), row(large, small), row(large)]
    found += [row(most, -most).sort()[0], row(large, small).sort()[0], row(large, small).sort(descending=True)[0], row(small)]
    zero_first, zero_later, recovers, late = row(large), row(large), row(1.0), row(1.0)
    zero_first[0] = zero_later[n // 2] = 0
    recovers[0], recovers[1:6] = small, middle
    late[0], late[-6:-1] = small, middle
    special = torch.linspace(-1, 1, n, dtype=dtype)
    special[1], special[n // 2] = float("-inf"), float("inf")
    return torch.stack([*found, zero_first, zero_later, recovers, late, torch.linspace(0.5, 1, n, dtype=dtype) * most, special])


def assert_no_less_finite(got: torch.Tensor, want: torch.Tensor) -> None:
    """Where eager is finite so is the result, and near, unless eager has underflowed to 0; it is NaN only where eager is."""
    got, want = got.double(), want.double()
    finite = torch.isfinite(want)
    assert not (torch.isnan(got) & ~torch.isnan(want)).any()
    assert torch.isfinite(got[finite]).all()
    finite &= want != 0
    torch.testing.assert_close(got[finite], want[finite], rtol=1e-3, atol=0)


def scans(x: torch.Tensor) -> list[torch.Tensor]:
    t = x.t().contiguous()
    return [f(a, dim) for f in (torch.cumsum, torch.cumprod, torch.logcumsumexp) for a, dim in ((x, 1), (t, 0))]


def products(x: torch.Tensor) -> list[torch.Tensor]:
    t = x.t().contiguous()
    return [x.prod(1), t.prod(0), x[2].prod(), x.abs().prod(1)]


def exact_products(x: torch.Tensor) -> torch.Tensor:
    """Of each row, rounded once."""
    found = []
    for row in x.tolist():
        exact = math.prod(map(Fraction, row)) if all(map(math.isfinite, row)) else math.prod(row)
        found.append(float(exact) if abs(exact) < sys.float_info.max else math.inf if exact > 0 else -math.inf)
    return torch.tensor(found, dtype=F64).to(x.dtype)


class ShortTiles(InterpretedTarget):
    """The pipeline of a GPU with scans in parts, in the interpreter."""

    name = "short_tiles"
    stages = {
        stage: tuple("gpu-split-scan{programs=24}" if one == "gpu-split-scan" else one for one in passes)
        for stage, passes in TARGETS["gpu"].items()
    }


@pytest.fixture(params=["one program", "blocks", "parts"])
def gpu(request, fresh, monkeypatch):
    """A GPU whose programs scan a row at once, block after block, or in parts side by side."""
    if request.param != "one program":
        monkeypatch.setattr(config, "SCANNED_STEP_ELEMENTS", 8)
        monkeypatch.setattr(config, "LONG_ROW_STEP_ELEMENTS", 8)
    if request.param == "parts":
        monkeypatch.setattr(split_scan, "LONG_ROW_STEP_ELEMENTS", 8)
        monkeypatch.setattr(split_scan, "MIN_SPEEDUP", 0.0)
    with isolated():
        stepwell.register_target(ShortTiles if request.param == "parts" else InterpretedTarget, replace=True)
        yield request.param


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("n", [5, 77])
def test_products(fresh, compiled, dtype, n):
    x = rows(n, dtype)
    exact = exact_products(x)
    got = compiled(products)(x)
    for found, want in zip(got, [exact, exact, exact[2], exact.abs()], strict=True):
        torch.testing.assert_close(found, want, rtol=1e-4, atol=0, equal_nan=True)


def test_products_on_a_gpu(gpu, compiled):
    x = rows(77, F32)
    exact = exact_products(x)
    for found in compiled(lambda x, t: (x.prod(1), t.prod(0)))(x, x.t().contiguous()):
        torch.testing.assert_close(found, exact, rtol=1e-4, atol=0, equal_nan=True)


@pytest.mark.parametrize("dim", [0, 1])
def test_scans_on_a_gpu(gpu, compiled, dim):
    x = rows(67, F32) if dim else rows(67, F32).t().contiguous()

    def scan(x):
        return x.cumsum(dim), x.cumprod(dim)

    for got, want in zip(compiled(scan)(x), scan(x), strict=True):
        assert_no_less_finite(got, want)


def test_the_last_of_equal_extremes_counts_on_a_gpu(gpu, compiled):
    """Blocks are joined in an order of the hardware's own; NaN is an extreme, and the last of them counts."""
    x = torch.randint(-2, 3, (6, 67), generator=torch.Generator().manual_seed(0)).float()
    x[1], x[2, 3:] = float("-inf"), 0
    x[3, 11::7] = float("nan")

    def extremes(x):
        return *x.cummax(1), *x.cummin(1), x.long().cummax(1)[1], x.t().contiguous().cummax(0)[1]

    for got, want in zip(compiled(extremes)(x), extremes(x), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def test_products_of_f64_on_a_gpu(gpu, compiled):
    x = rows(40, F64)
    assert_no_less_finite(compiled(lambda x: x.cumprod(1))(x), x.cumprod(1))


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("n", [5, 16, 77])
def test_scans(fresh, compiled, dtype, n):
    x = rows(n, dtype)
    for got, want in zip(compiled(scans)(x), scans(x), strict=True):
        assert_no_less_finite(got, want)


def test_scans_of_any_length(fresh, compiled):
    run = compiled(scans, dynamic=True)
    for n in (40, 21):
        x = rows(n, F32)
        for got, want in zip(run(x), scans(x), strict=True):
            assert_no_less_finite(got, want)


def test_the_first_product_counts(fresh, compiled):
    """As in the report: factors behind a 0, and a running product that comes back from 1e-30."""
    x = torch.tensor([[0.0, 1e30, 1e30, 2.0, 3.0, 1.0], [1e-30, *[1e13] * 5]], requires_grad=True)
    got, want = compiled(lambda x: x.cumprod(1))(x), torch.compile(lambda x: x.cumprod(1), backend="aot_eager")(x)
    torch.testing.assert_close(got, x.cumprod(1))
    weights = torch.full_like(want, 1e-3)
    for a, b in zip(torch.autograd.grad(got, x, weights), torch.autograd.grad(want, x, weights), strict=True):
        assert_no_less_finite(a, b)


def means(x: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
    normed = torch.nn.functional.layer_norm(x, x.shape[-1:], weight)
    return [normed, torch.nn.functional.group_norm(x.view(1, x.shape[0], -1), x.shape[0]), torch.var_mean(x, -1)[1]]


def large_rows(n: int) -> torch.Tensor:
    """Rows whose sums overflow, while their means do not."""
    return torch.tensor([2.0**127, -(2.0**127), 2.0**120, 1.0])[:, None].expand(4, n).contiguous()


@pytest.mark.parametrize("n", [37, 9000])
def test_means_of_large_numbers(fresh, compiled, n):
    x, weight = large_rows(n), torch.ones(n)
    for got, want in zip(compiled(means)(x, weight), means(x.double(), weight.double()), strict=True):
        torch.testing.assert_close(got, want.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", [1e25, 1e-25])
@pytest.mark.parametrize("dtype", [F32, torch.bfloat16])
def test_deviations_whose_squares_are_beyond_the_range(fresh, compiled, dtype, scale):
    def deviations(x):
        return x.std(), x.std(-1), x.std(0, correction=0, keepdim=True), *torch.std_mean(x, (0, 1))

    x = (torch.randn(5, 700, generator=torch.Generator().manual_seed(0)) * scale).to(dtype)
    torch.testing.assert_close(compiled(deviations)(x), deviations(x), rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=0)


def test_means_of_any_length(fresh, compiled):
    run = compiled(means, dynamic=True)
    for n in (40, 21):
        x, weight = large_rows(n), torch.ones(n)
        for got, want in zip(run(x, weight), means(x.double(), weight.double()), strict=True):
            torch.testing.assert_close(got, want.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dynamic", [False, True])
def test_means_on_a_gpu(fresh, compiled, dynamic):
    x, weight = large_rows(70), torch.ones(70)
    with isolated():
        stepwell.register_target(InterpretedTarget, replace=True)
        got = compiled(means, dynamic=dynamic)(x, weight)
    for one, want in zip(got, means(x.double(), weight.double()), strict=True):
        torch.testing.assert_close(one, want.float(), rtol=1e-5, atol=1e-5)
