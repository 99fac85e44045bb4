"""Interpolation comes out of tracing whole, with a gradient that is one operator."""

import copy

import pytest
import torch
import torch.nn.functional as F

import stepwell

SHAPES = {"linear": (2, 3, 8), "bilinear": (2, 3, 8, 6), "bicubic": (2, 3, 8, 6), "trilinear": (2, 3, 4, 6, 5)}


def _both(fn, *inputs, **options):
    """fn's results and gradients in eager and compiled; no call of the library may be left."""
    torch._dynamo.reset()
    compiled = torch.compile(fn, backend="stepwell", **options)
    before = dict(stepwell.counters)
    for args in inputs:
        ends = []
        for call in (fn, compiled):
            own = [copy.deepcopy(a) for a in args]
            result = call(*own)
            result.backward(torch.linspace(-1, 1, result.numel(), dtype=result.dtype).view_as(result))
            ends.append([result, *(a.grad for a in own)])
        for a, b in zip(*ends, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)
            assert a.stride() == b.stride()
    for kind in ("extern", "fallback"):
        assert stepwell.counters.get(kind, 0) == before.get(kind, 0)


def _leaf(shape, **options):
    return torch.randn(shape, **options).requires_grad_()


FACTORS = ({"scale_factor": 0.7}, {"scale_factor": 2}, {"scale_factor": 1.5, "recompute_scale_factor": True})


@pytest.mark.spread
@pytest.mark.parametrize("options", FACTORS, ids=str)
@pytest.mark.parametrize("mode", SHAPES)
def test_gradients(mode, options):
    torch.manual_seed(0)
    _both(lambda x: F.interpolate(x.sin(), mode=mode, **options), [_leaf(SHAPES[mode])])


@pytest.mark.parametrize("mode", ["linear", "bicubic", *(pytest.param(m, marks=pytest.mark.long) for m in ("bilinear", "trilinear"))])
def test_gradients_with_aligned_corners(mode):
    torch.manual_seed(0)
    _both(lambda x: F.interpolate(x, size=5, mode=mode, align_corners=True), [_leaf(SHAPES[mode])])


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_antialias(mode):
    torch.manual_seed(0)
    _both(lambda x: F.interpolate(x, size=(3, 9), mode=mode, antialias=True), [_leaf(SHAPES[mode])])


@pytest.mark.parametrize(("mode", "antialias"), [("linear", False), ("bilinear", False), ("bicubic", True), ("trilinear", False)])
def test_symbolic_sizes(mode, antialias):
    """One compilation for inputs of several sizes."""
    torch.manual_seed(0)
    shapes = [tuple(n + k for n in SHAPES[mode]) for k in range(3)]
    _both(
        lambda x: F.interpolate(x, scale_factor=2, mode=mode, antialias=antialias), *([_leaf(s)] for s in shapes), dynamic=True
    )


def test_old_names_and_modules():
    torch.manual_seed(0)
    up = torch.nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
    _both(lambda x: up(x) + F.upsample(x, scale_factor=2, mode="bilinear"), [_leaf((1, 2, 3, 4))])
    _both(lambda x: F.upsample_bilinear(x, scale_factor=2), [_leaf((1, 2, 3, 4))])


def test_what_is_not_a_float_or_transformed_stays_as_it_was():
    torch._dynamo.reset()
    image = torch.randint(0, 255, (1, 3, 6, 7), dtype=torch.uint8)

    def resized(x):
        return F.interpolate(x, scale_factor=2, mode="bilinear")

    assert (torch.compile(resized, backend="stepwell")(image).int() - resized(image).int()).abs().max() <= 1

    def tangent(x):
        return torch.func.jvp(resized, (x,), (x.cos(),))[1]

    x = torch.randn(1, 2, 4, 5)
    torch.testing.assert_close(torch.compile(tangent, backend="stepwell")(x), tangent(x))


def test_channels_last_stays():
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    _both(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), [x.requires_grad_()])


@pytest.mark.long
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_shuffled_channels_stay_last(dynamic, grad):
    shapes = {torch.channels_last: (2, 8, 4, 6), torch.channels_last_3d: (2, 8, 3, 4, 5), torch.contiguous_format: (2, 8, 4, 6)}
    for layout, shape in shapes.items():
        for size in (shape, (0, *shape[1:]), (1, 8, *(1 for _ in shape[2:]))):
            x = torch.randn(size).contiguous(memory_format=layout).requires_grad_(grad)
            for fn in (torch.nn.ChannelShuffle(2), lambda x: F.channel_shuffle(x * 2, 4) + 1):
                torch._dynamo.reset()
                got, want = torch.compile(fn, backend="stepwell", dynamic=dynamic)(x), fn(x)
                assert torch.equal(got, want) and (got.stride() == want.stride() or not got.numel())
                if grad:
                    given = torch.randn_like(want)
                    assert torch.equal(*(torch.autograd.grad(y, x, given)[0] for y in (got, want)))
