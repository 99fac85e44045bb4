"""What backward keeps of a maximum over windows: one byte that says which element of the window it is."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from stepwell import counters
from stepwell.lowering.fx.joint import max_pool_offsets
from stepwell.lowering.fx_to_nd.rules import pooling_backward

WINDOWS = {
    "2": {"kernel_size": 2},
    "3, 2, 1": {"kernel_size": 3, "stride": 2, "padding": 1},
    "3, 1": {"kernel_size": 3, "stride": 1},
    "two of each": {"kernel_size": (3, 2), "stride": (2, 3), "padding": (1, 0)},
    "dilated": {"kernel_size": 3, "stride": 2, "padding": 1, "dilation": (2, 3)},
    "with gaps": {"kernel_size": 2, "stride": 3},
    "to the end": {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    "11": {"kernel_size": 11, "stride": 4, "padding": 5},
}


@pytest.fixture(autouse=True)
def _forget():
    torch._dynamo.reset()
    counters.clear()


@pytest.fixture(params=["chosen by strides", "gathered"])
def way(request, monkeypatch):
    """A gradient is scattered on a CPU where rows are vectors; elsewhere, and on other devices, it is gathered."""
    if request.param == "gathered":
        monkeypatch.setattr(pooling_backward, "scatters", lambda b: False)


@pytest.fixture
def kept(saved_tensors):
    """Types and sizes of what forward keeps for backward, a list for each graph."""
    return saved_tensors(lambda made, given: [(t.dtype, tuple(t.shape)) for t in {**given, **made}.values()])


def _check(fn, x, dynamic=None, **options):
    compiled = torch.compile(fn, backend="stepwell", dynamic=dynamic, options={"cache": "off", **options})
    for one in [x, torch.cat([x, x.flip(-1)], -1)] if dynamic else [x]:
        got_x, want_x = one.detach().clone().requires_grad_(), one.detach().clone().requires_grad_()
        got, want = compiled(got_x), fn(want_x)
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
        weights = torch.randn_like(want)
        got.backward(weights)
        want.backward(weights)
        assert got_x.grad.stride() == want_x.grad.stride()
        torch.testing.assert_close(got_x.grad, want_x.grad, equal_nan=True)


@pytest.mark.spread
@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_gradients(windows, memory_format, way, kept):
    torch.manual_seed(0)
    x = torch.randint(-4, 4, (2, 3, 13, 12)).float().to(memory_format=memory_format)
    _check(lambda x: F.max_pool2d(x, **WINDOWS[windows]), x)
    assert [dtype for dtype, _ in kept[0]] == [torch.int8] and not counters["fallback"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_types(dtype, way):
    _check(lambda x: F.max_pool2d(x, 2, 2), torch.randn(2, 3, 8, 6).to(dtype))


def test_volumes_images_alone_and_gaps(way, kept):
    torch.manual_seed(0)
    _check(lambda x: F.max_pool3d(x, 2, 2, 1), torch.randn(2, 2, 5, 6, 7))
    _check(lambda x: F.max_pool2d(x, 3, 2, 1), torch.randn(3, 7, 8))
    _check(lambda x: F.max_pool2d(x, 3, 2, 1), torch.randn(2, 6, 14, 8)[:, ::2, ::2])
    assert all(dtype == torch.int8 for graph in kept for dtype, _ in graph)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_sizes_that_are_symbols(memory_format, way, kept):
    _check(lambda x: F.max_pool2d(x, 3, 2, 1), torch.randn(2, 3, 9, 8).to(memory_format=memory_format), dynamic=True)
    assert {dtype for dtype, _ in kept[0]} == {torch.int8}


def test_small_and_empty_images(way):
    _check(lambda x: F.max_pool2d(x, 3, 2, 1), torch.randn(2, 3, 1, 1))
    _check(lambda x: F.max_pool2d(x, 2, 2), torch.randn(0, 3, 4, 4))


def test_windows_of_infinities_and_nan(way):
    """A window as low as its padding gives its gradient to its first element, one with a NaN to that."""
    x = torch.full((1, 2, 6, 7), -torch.inf)
    x[0, 1, 3, 2] = torch.nan
    for windows in ("3, 2, 1", "dilated", "to the end"):
        torch._dynamo.reset()
        _check(lambda x, w=windows: F.max_pool2d(x, **WINDOWS[w]), x)


def test_a_network_keeps_less_than_its_pool_reads(kept):
    """ResNet's stem: the rectified values are computed again, positions are bytes."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(8, 4, 1))
    torch.compile(net, backend="stepwell", options={"cache": "off"})(torch.randn(2, 3, 16, 16)).sum().backward()
    large = [entry for entry in kept[0] if len(entry[1]) == 4 and entry[1][0] == 2 and entry[1][1] == 8]
    assert sorted(large, key=str) == [(torch.float32, (2, 8, 16, 16)), (torch.float32, (2, 8, 8, 8)), (torch.int8, (2, 8, 8, 8))]


def test_positions_that_the_program_reads_stay(kept):
    def both(x):
        y, at = F.max_pool2d(x, 2, return_indices=True)
        return y * 2, at

    x = torch.randn(1, 2, 6, 6, requires_grad=True)
    y, at = torch.compile(both, backend="stepwell", options={"cache": "off"})(x)
    assert torch.equal(at, both(x)[1]) and torch.int8 not in {dtype for dtype, _ in kept[0]}


def test_operators_left_to_the_library_stay(kept):
    _check(lambda x: F.max_pool2d(x, 2), torch.randn(2, 3, 6, 6), fallback=["aten.max_pool2d_with_indices"])
    assert torch.int8 not in {dtype for dtype, _ in kept[0]}


@pytest.mark.spread
@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("sizes", [(2, 3, 13, 12), (3, 13, 12)], ids=str)
def test_the_operators_themselves(windows, sizes):
    """What runs where a graph is not compiled: as torch's, and as their fake kernels say."""
    x = torch.randn(sizes, requires_grad=True)
    values = F.max_pool2d(x, **WINDOWS[windows])
    given = {"kernel_size": (), "stride": (), "padding": 0, "dilation": 1, "ceil_mode": False} | WINDOWS[windows]
    numbers = max_pool_offsets._windows(2, *given.values())
    got, offsets = max_pool_offsets.max_pool_with_offsets(x.detach(), *numbers)
    assert torch.equal(got, values) and offsets.dtype == torch.int8
    weights = torch.randn_like(values)
    args = (weights, offsets, list(sizes), *numbers[:-1], False)
    torch.testing.assert_close(max_pool_offsets.max_pool_offsets_backward(*args), torch.autograd.grad(values, x, weights)[0])
    torch.library.opcheck(max_pool_offsets.max_pool_with_offsets, (x.detach(), *numbers), test_utils="test_faketensor")
    torch.library.opcheck(max_pool_offsets.max_pool_offsets_backward, args, test_utils="test_faketensor")
