"""gpu-split-scan: scans in parts, run by the interpreter of `tt` with thresholds for small tensors, against eager."""

from __future__ import annotations

import math

import pytest
import torch

import stepwell
from stepwell.passes.gpu import gpu_split_scan as split_scan
from stepwell.passes.gpu.tiles import rules as config
from stepwell.passes.manager.pipelines import TARGETS
from stepwell.targets.target import isolated
from stepwell.tools.interpret.target import InterpretedTarget

BF16 = torch.bfloat16
SHAPES = [((131,), 0), ((64,), 0), ((3, 67), 1), ((2, 64), -1), ((67, 5), 0), ((131, 3), 0), ((2, 70, 3), 1)]


class ShortParts(InterpretedTarget):
    """The pipeline with parts of some eight elements."""

    name = "short_parts"
    stages = {
        stage: tuple("gpu-split-scan{programs=24}" if one == "gpu-split-scan" else one for one in passes)
        for stage, passes in TARGETS["gpu"].items()
    }


@pytest.fixture
def splits(monkeypatch):
    """How many nests were split, in a list."""
    torch._dynamo.reset()
    found: list[object] = []
    rewrite = split_scan._Split.rewrite
    monkeypatch.setattr(split_scan._Split, "rewrite", lambda self: (found.append(self), rewrite(self))[1])
    monkeypatch.setattr(split_scan, "LONG_ROW_STEP_ELEMENTS", 8)
    monkeypatch.setattr(split_scan, "MIN_SPEEDUP", 0.0)
    monkeypatch.setattr(config, "SCANNED_STEP_ELEMENTS", 8)
    with isolated():
        stepwell.register_target(ShortParts, replace=True)
        yield found
    torch._dynamo.reset()


def numbers(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Many equal ones among them."""
    g = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-3, 4, shape, generator=g).to(dtype)


def specials(shape: tuple[int, ...]) -> torch.Tensor:
    """NaN and both infinities among others, -inf first."""
    x = numbers(shape)
    chance = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    x[chance < 0.06] = math.nan
    x[(chance > 0.06) & (chance < 0.1)] = math.inf
    x[..., :20] = -math.inf
    return x


def check(function, *args, dynamic: bool = False, **tolerance: float) -> None:
    expected = function(*[a.clone() for a in args])
    torch.testing.assert_close(torch.compile(function, backend="stepwell", dynamic=dynamic)(*args), expected, equal_nan=True, **tolerance)


@pytest.mark.spread
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"])
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
def test_kinds(splits, name, shape, dim):
    """A22"""

    def scan(x):
        return getattr(torch, name)(x, dim)

    check(scan, numbers(shape) / 2)
    assert len(splits) == 1
    check(scan, specials(shape))


@pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool])
def test_types(splits, dtype):
    def scans(x):
        return x.cumsum(0), x.cummax(0), x.cummin(0)[1], x.cumprod(0)

    check(scans, numbers((131,), dtype), rtol=2e-2, atol=1e-2)
    assert len(splits) >= 3


@pytest.mark.parametrize("size", [0, 1, 7, 8, 31, 32, 33, 200])
def test_one_kernel_for_all_sizes(splits, size):
    def scans(x):
        return (x * 2).cumsum(0) + 1, torch.logcumsumexp(x, 0)

    compiled = torch.compile(scans, backend="stepwell", dynamic=True)
    for n in (100, size):
        x = numbers((n,))
        torch.testing.assert_close(compiled(x), scans(x))
    assert splits


def assigned(x):
    """Reads behind what it stores to."""
    y = x * 1
    y[:-1] = y[1:].cumsum(0)
    return y


@pytest.mark.spread
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.flip(0).cumsum(0).flip(0),
        lambda x: (x.abs() + 1).cumsum(0).sqrt() - x,
        lambda x: x.clone().cumsum_(0),
        lambda x: (x.cumsum(0), x.cumprod(0), x.sum(0), x.mean() * 2),
        lambda x: x.softmax(0).cumsum(0),
        lambda x: x.t().cumsum(-1) if x.dim() == 2 else x[::2].cumsum(0),
        lambda x: torch.arange(x.shape[0])[((x > 0).long().cumsum(0) - 1).clamp(0)],
        lambda x: x.cumsum(0)[torch.arange(x.shape[0]) % 3],
        assigned,
    ],
)
@pytest.mark.parametrize("shape", [(131,), (128,), (70, 5)])
def test_around_scans(splits, function, shape):
    check(function, numbers(shape))
    check(function, numbers(shape), dynamic=True)
    assert splits or shape == (70, 5)  # where gpu-fission may leave more in the nest, as columns are few


@pytest.mark.parametrize("name", ["cumsum", "cummax", "logcumsumexp"])
def test_gradients(splits, name):
    def scan(x):
        found = getattr(torch, name)(x, 0)
        return found[0] if name == "cummax" else found

    x = numbers((131,))
    weights = torch.arange(131) / 100
    gradients = []
    for function in (scan, torch.compile(scan, backend="stepwell")):
        leaf = x.clone().requires_grad_()
        (function(leaf) * weights).sum().backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(*gradients)
    assert splits


def test_as_for_an_h200():
    torch._dynamo.reset()
    with isolated():
        stepwell.register_target(InterpretedTarget, replace=True)
        check(lambda x: x.cumsum(0), numbers((70001,)))
        check(lambda x: (x.cumsum(0), x.cummax(0)[1]), numbers((8192, 8)))
    torch._dynamo.reset()
