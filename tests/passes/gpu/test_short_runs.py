"""Rows of few elements side by side (groups of channels-last channels): each place of a run is a reduction of its own, against eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import stepwell
from stepwell.passes.gpu import gpu_split_reduction as split
from stepwell.passes.gpu import short_runs
from stepwell.targets.target import isolated
from stepwell.tools.interpret.target import InterpretedTarget

BF16 = torch.bfloat16


@pytest.fixture
def runs(monkeypatch):
    """The bytes of each run that was found, in a list; rows of 64 elements are long."""
    torch._dynamo.reset()
    found: list[int] = []
    ask = split.short_run

    def asked(*args):
        run = ask(*args)
        if run is not None:
            found.append(run.bytes)
        return run

    monkeypatch.setattr(split, "short_run", asked)
    monkeypatch.setattr(short_runs, "REDUCTION_TILE_ELEMENTS", 64)
    with isolated():
        stepwell.register_target(InterpretedTarget, replace=True)
        yield found
    torch._dynamo.reset()


def pixels(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Images, channels-last."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)
    return x.to(memory_format=torch.channels_last)


def check(function, *args, **tolerance: float) -> None:
    expected = function(*args)
    got = torch.compile(function, backend="stepwell", dynamic=False)(*args)
    torch.testing.assert_close(got, expected, check_stride=True, **tolerance)


def group_norm(x, w, b):
    return F.silu(F.group_norm(x, 4, w, b))


@pytest.mark.parametrize("channels", [8, 12, 40])
def test_group_norms(runs, channels):
    check(group_norm, pixels(2, channels, 9, 8), torch.rand(channels) + 1, torch.rand(channels), rtol=1e-4, atol=1e-5)
    assert runs == [channels]  # a quarter of the channels, of four bytes


def test_any_number_of_images_and_pixels(runs):
    w, b = torch.rand(12) + 1, torch.rand(12)
    compiled = torch.compile(group_norm, backend="stepwell")
    for shape in ((2, 12, 9, 8), (3, 12, 5, 7), (5, 12, 3, 20), (2, 12, 2, 2)):
        x = pixels(*shape)
        for dim in (0, 2, 3):
            torch._dynamo.mark_dynamic(x, dim)
        torch.testing.assert_close(compiled(x, w, b), group_norm(x, w, b), check_stride=True, rtol=1e-4, atol=1e-5)
    assert runs == [12]


@pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float64])
def test_types(runs, dtype):
    check(group_norm, pixels(2, 12, 9, 8, dtype=dtype), *(torch.ones(12, dtype=dtype) for _ in "wb"), rtol=3e-2, atol=3e-2)
    assert runs == [3 * dtype.itemsize]


@pytest.mark.parametrize("name", ["sum", "amax", "mean", "logsumexp", "var", "argmin"])
def test_kinds(runs, name):
    def reduced(x):
        groups = x.view(x.shape[0], 4, 3, *x.shape[2:])
        return groups.flatten(2).argmin(2) if name == "argmin" else getattr(torch, name)(groups, (2, 3, 4))

    x = pixels(2, 12, 9, 8)
    for one in (x, torch.where(x > 1.5, torch.nan, x)):
        check(reduced, one, equal_nan=True, rtol=1e-4, atol=1e-5)
    assert runs or name == "argmin"  # a flattened row has no loop of its own for its runs


def test_gradients(runs):
    x, w, b = pixels(2, 12, 9, 8), torch.rand(12) + 1, torch.rand(12)
    gradients = []
    for function in (group_norm, torch.compile(group_norm, backend="stepwell", dynamic=False)):
        leaves = [t.clone().requires_grad_() for t in (x, w, b)]
        (function(*leaves) * torch.arange(8)).sum().backward()
        gradients.append([leaf.grad for leaf in leaves])
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
    assert runs


@pytest.mark.parametrize("shape", [(2, 12, 0, 8), (0, 12, 9, 8), (1, 4, 1, 1), (2, 4, 9, 8)])
def test_empty_and_single(runs, shape):
    check(lambda x: x.view(shape[0], 4, shape[1] // 4, *shape[2:]).sum((2, 3, 4)), pixels(*shape))
    assert not runs


def test_long_and_contiguous_rows_stay(runs):
    """Channels of 128 bytes and more, and rows by rows."""
    check(lambda x: F.group_norm(x, 2), pixels(2, 64, 9, 8), rtol=1e-4, atol=1e-5)
    check(lambda x: F.group_norm(x, 2), pixels(2, 12, 9, 8).contiguous(), rtol=1e-4, atol=1e-5)
    assert not runs
