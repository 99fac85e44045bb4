"""Pooling and its gradients: adaptive, fractional and by windows of one size."""

import pytest
import torch
from torch.nn import functional as F

from stepwell import counters


def with_gradient(fn):
    """A function of x that gives fn's results and the gradient of the first."""

    def split(x):
        results = fn(x)
        return (results[0], results[1:]) if isinstance(results, tuple) else (results, ())

    def program(x):
        first, pull, others = torch.func.vjp(split, x, has_aux=True)
        weights = torch.arange(first.numel()).reshape(first.shape).sin().to(first.dtype)
        return first, *others, *pull(weights)

    return program


ADAPTIVE = {
    "avg even": (lambda x: F.adaptive_avg_pool2d(x, (4, 2)), (2, 3, 8, 6)),
    "avg uneven": (lambda x: F.adaptive_avg_pool2d(x, (5, 7)), (2, 3, 8, 10)),
    "avg up": (lambda x: F.adaptive_avg_pool2d(x, (9, 4)), (3, 4, 4)),
    "avg 3d": (lambda x: F.adaptive_avg_pool3d(x, (2, 3, 5)), (2, 2, 4, 7, 6)),
    "max": (lambda x: F.adaptive_max_pool2d(x, (3, 4), return_indices=True), (2, 3, 8, 10)),
    "max up": (lambda x: F.adaptive_max_pool2d(x, (9, 4), return_indices=True), (2, 3, 4, 4)),
    "max 1d": (lambda x: F.adaptive_max_pool1d(x, 3, return_indices=True), (2, 3, 8)),
    "max 3d": (lambda x: F.adaptive_max_pool3d(x, (2, 3, 5), return_indices=True), (2, 2, 4, 7, 6)),
}


@pytest.mark.spread
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16))
@pytest.mark.parametrize("name", ADAPTIVE)
def test_adaptive(check, name, dtype):
    fn, shape = ADAPTIVE[name]
    # eager adds gradients up in bf16
    tolerance = {"rtol": 0.02, "atol": 0.004} if dtype == torch.bfloat16 else {}
    found = check(with_gradient(fn), torch.randn(shape).to(dtype), **tolerance)
    assert not found.counts.extern


@pytest.mark.parametrize("name", ("avg uneven", "max"))
def test_adaptive_with_symbolic_sizes(check, name):
    fn, shape = ADAPTIVE[name]
    found = check(with_gradient(fn), torch.randn(shape), dynamic=True, grow=False)
    assert not found.counts.extern


WINDOWS = {
    "avg": (lambda x: F.avg_pool2d(x, 2), (2, 3, 8, 6)),
    "avg overlapping": (lambda x: F.avg_pool2d(x, 3, 2, 1), (2, 3, 9, 10)),
    "avg ceil": (lambda x: F.avg_pool2d(x, (3, 4), (2, 3), (1, 0), ceil_mode=True), (2, 3, 8, 10)),
    "avg without pad": (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), (3, 9, 10)),
    "avg divisor": (lambda x: F.avg_pool2d(x, 3, 4, 1, divisor_override=5), (2, 3, 9, 10)),
    "avg 1d": (lambda x: F.avg_pool1d(x, 3, 2, 1), (2, 3, 9)),
    "avg 3d": (lambda x: F.avg_pool3d(x, 3, 2, 1, ceil_mode=True), (2, 2, 6, 7, 5)),
    "max": (lambda x: F.max_pool2d(x, 2, return_indices=True), (2, 3, 8, 6)),
    "max overlapping": (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), (2, 3, 9, 10)),
    "max apart": (lambda x: F.max_pool2d(x, 2, 3, return_indices=True), (2, 3, 9, 10)),
    "max dilated": (lambda x: F.max_pool2d(x, 3, 2, 1, dilation=2, return_indices=True), (2, 3, 12, 10)),
    "max ceil": (lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True, return_indices=True), (3, 8, 10)),
    "max large": (lambda x: F.max_pool2d(x, 9, 1, 4, return_indices=True), (2, 3, 12, 10)),
    "max 3d": (lambda x: F.max_pool3d(x, 2, 2, return_indices=True), (2, 2, 6, 7, 5)),
    "none in batch": (lambda x: F.max_pool2d(x, 2, return_indices=True), (0, 3, 8, 6)),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows(check, name):
    fn, shape = WINDOWS[name]
    found = check(with_gradient(fn), torch.randn(shape))
    assert not found.counts.extern


@pytest.mark.parametrize("dilation", (1, 2))
@pytest.mark.parametrize("fill", (float("-inf"), torch.iinfo(torch.int32).min))
def test_windows_as_low_as_their_padding(check, dilation, fill):
    """The position is that of an element, the first of the window."""
    x = torch.full((2, 3, 9, 10), fill, dtype=torch.float32 if fill == float("-inf") else torch.int32)
    x[:, :, 5:, 6:] = 1
    pool = lambda x: F.max_pool2d(x, 3, 2, 1, dilation=dilation, ceil_mode=True, return_indices=True)  # noqa: E731
    check(with_gradient(pool) if x.is_floating_point() else pool, x)
    check(with_gradient(pool) if x.is_floating_point() else pool, x, dynamic=True)


@pytest.mark.parametrize("name", ("avg overlapping", "avg ceil", "max overlapping", "max dilated"))
def test_windows_of_symbolic_sizes(check, name):
    fn, shape = WINDOWS[name]
    found = check(with_gradient(fn), torch.randn(shape), dynamic=True)
    assert not found.counts.extern


def test_gradients_keep_the_layout_of_the_input(check):
    x = torch.randn(2, 4, 9, 8).to(memory_format=torch.channels_last)
    check(with_gradient(lambda x: F.max_pool2d(x, 3, 2, 1)), x)
    check(with_gradient(lambda x: F.avg_pool2d(x, 3, 2, 1)), x)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
@pytest.mark.parametrize("spatial", (2, 3))
def test_fractional(check, spatial, dtype):
    torch.manual_seed(3)
    shape = (2, 3, 9, 11) if spatial == 2 else (2, 2, 7, 9, 8)
    samples = torch.rand(2, shape[1], spatial, dtype=dtype)
    pool = F.fractional_max_pool2d if spatial == 2 else F.fractional_max_pool3d
    for out in (4, 1):
        found = check(
            with_gradient(lambda x, out=out: pool(x, 2, out, return_indices=True, _random_samples=samples)),
            torch.randn(shape, dtype=dtype),
        )
        assert not found.counts.extern


@pytest.mark.parametrize("spatial", (2, 3))
def test_fractional_with_numbers_of_more_batches(check, spatial):
    torch.manual_seed(3)
    pool = F.fractional_max_pool2d if spatial == 2 else F.fractional_max_pool3d
    samples = torch.rand(3, 4, spatial)
    for shape in ((2, 4), (4,)):
        x = torch.randn(*shape, *(5, 6, 7)[:spatial])
        check(lambda x: pool(x, 2, 3, return_indices=True, _random_samples=samples), x)


@pytest.mark.parametrize("dynamic", [False, True])
def test_unpooled_maxima_and_their_gradients(dynamic):
    torch._dynamo.reset()
    counters.clear()

    def plane(x):
        y, at = F.max_pool2d(x, 2, return_indices=True)
        return F.max_unpool2d(y * 2, at, 2, output_size=x.shape[-2:])

    def volume(x):
        y, at = F.max_pool3d(x, 2, return_indices=True)
        return F.max_unpool3d(y * 2, at, 2, output_size=x.shape[-3:])

    compiled = [torch.compile(fn, backend="stepwell", dynamic=dynamic) for fn in (plane, volume)]
    inputs = [(plane, compiled[0], (2, 3, 7, 8)), (plane, compiled[0], (4, 6, 9)), (volume, compiled[1], (2, 3, 4, 5, 6))]
    for fn, run, sizes in inputs:
        x, z = (torch.randn(sizes, generator=torch.Generator().manual_seed(0)).requires_grad_() for _ in range(2))
        got, want = run(x), fn(z)
        assert torch.equal(got, want)
        (got**2).sum().backward()
        (want**2).sum().backward()
        torch.testing.assert_close(x.grad, z.grad)
    assert not counters["fallback"]
