"""Linear and cubic interpolation and their gradients as tables of taps."""

import itertools
import re

import pytest
import torch
from torch.nn import functional as F

import stepwell.lowering.fx.pre_grad.whole_operators  # noqa: F401 - defines the operator of a gradient

A = torch.ops.aten

PLAIN = (("upsample_linear1d", 1), ("upsample_bilinear2d", 2), ("upsample_trilinear3d", 3), ("upsample_bicubic2d", 2))
WIDE = (("_upsample_bilinear2d_aa", 2), ("_upsample_bicubic2d_aa", 2))
SIZES = (((5, 6, 4), (10, 12, 8)), ((5, 6, 4), (3, 6, 7)), ((7, 1, 3), (2, 4, 1)), ((1, 9, 2), (1, 2, 5)))
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def _forward(name, size, align, scales):
    return lambda x: getattr(A, name).default(x, size, align, *scales)


def _backward(name, size, inner, align, scales):
    return lambda g: getattr(A, f"{name}_backward").default(g, size, [*g.shape[:2], *inner], align, *scales)


def _plain_rule(found):
    assert not found.counts.extern, found.counts.names


@pytest.mark.parametrize(("name", "spatial"), PLAIN + WIDE)
def test_values_and_gradients(check, name, spatial):
    """Up, down, from and to one element, with corners aligned or not."""
    for (inner, outer), align in itertools.product(SIZES, (False, True)):
        inner, outer, scales = inner[:spatial], list(outer[:spatial]), [None] * spatial
        _plain_rule(check(_forward(name, outer, align, scales), torch.randn(2, 3, *inner), **CLOSE))
        _plain_rule(check(_backward(name, outer, inner, align, scales), torch.randn(2, 3, *outer), **CLOSE))


@pytest.mark.parametrize(("name", "spatial"), PLAIN + WIDE)
def test_scales(check, name, spatial):
    """A factor that the caller gave takes the place of the ratio of the sizes."""
    for factor in (2.0, 1.7, 0.6):
        inner = (5, 7, 4)[:spatial]
        outer, scales = [int(s * factor) for s in inner], [factor] * spatial
        _plain_rule(check(_forward(name, outer, False, scales), torch.randn(1, 2, *inner), **CLOSE))
        _plain_rule(check(_backward(name, outer, inner, False, scales), torch.randn(1, 2, *outer), **CLOSE))


def test_a_scale_that_does_not_fit_the_sizes_is_a_call(check):
    found = check(_backward("upsample_linear1d", [9], (3,), False, [1.0]), torch.randn(1, 2, 9))
    assert found.counts.names["extern"]["aten.upsample_linear1d_backward.default"] == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_dtypes(check, dtype):
    x, g = torch.randn(2, 3, 5, 6).to(dtype), torch.randn(2, 3, 9, 4).to(dtype)
    close = {torch.float64: (1e-7, 1e-7), torch.float16: (1e-2, 1e-2), torch.bfloat16: (3e-2, 3e-2)}[dtype]
    for name in ("upsample_bilinear2d", "upsample_bicubic2d"):
        found = check(_forward(name, [9, 4], False, [None] * 2), x, rtol=close[0], atol=close[1])
        _plain_rule(found)
        if dtype != torch.float16:  # the library has no gradient in f16 on every processor
            _plain_rule(check(_backward(name, [9, 4], (5, 6), False, [None] * 2), g, rtol=close[0], atol=close[1]))


def test_layouts_and_empties(check):
    last = torch.randn(2, 3, 5, 6).to(memory_format=torch.channels_last)
    for x in (last, torch.randn(2, 3, 6, 5).transpose(2, 3), torch.randn(0, 3, 5, 6)):
        check(_forward("upsample_bilinear2d", [7, 9], False, [None] * 2), x, **CLOSE)
        check(_forward("_upsample_bicubic2d_aa", [2, 9], False, [None] * 2), x, **CLOSE)
    grad = torch.randn(2, 3, 7, 9).to(memory_format=torch.channels_last)
    check(_backward("upsample_bicubic2d", [7, 9], (5, 6), True, [None] * 2), grad, **CLOSE)


@pytest.mark.spread
@pytest.mark.parametrize(("name", "spatial"), PLAIN + WIDE)
@pytest.mark.parametrize("align", [False, True])
def test_symbolic_sizes(check, name, spatial, align):
    """One graph for other sizes too: the number of taps is an expression where a kernel is widened."""

    def resized(x):
        size = [n * 2 - 1 if k % 2 == 0 else n // 2 for k, n in enumerate(x.shape[2:])]
        return getattr(A, name).default(x, size, align, *([None] * spatial))

    def gradient(g):
        inner = [n // 2 if k % 2 == 0 else n * 2 for k, n in enumerate(g.shape[2:])]
        return torch.ops.stepwell.interpolate_backward(g, name, g.shape[2:], [*g.shape[:2], *inner], align, [None] * spatial)

    for fn in (resized, gradient):
        _plain_rule(check(fn, torch.randn(2, 3, *(8, 6, 10)[:spatial]), dynamic=True, **CLOSE))


@pytest.mark.parametrize("dynamic", (False, True))
@pytest.mark.parametrize(("factor", "first"), ((2.0, 3), (1.5, 3), (0.5, 2)))
def test_the_dimension_that_gathers_comes_before_others_grow(tmp_path, dynamic, factor, first):
    """And after they shrink, whether the sizes are known or those of an example."""

    def resize(x):
        return F.interpolate(x, scale_factor=factor, mode="bilinear")

    torch._dynamo.reset()
    run, x = torch.compile(resize, backend="stepwell", dynamic=dynamic, options={"debug": str(tmp_path)}), torch.randn(2, 3, 8, 12)
    torch.testing.assert_close(run(x), resize(x), **CLOSE)
    (text,) = (path.read_text() for path in tmp_path.glob("*/0_import.mlir"))
    assert re.findall(r"nd\.index .* \{dims = (\[.*?\])", text)[0] == f"[{first}]"


def test_integers_are_a_call(check):
    x = torch.randint(0, 255, (1, 3, 6, 6), dtype=torch.uint8)
    found = check(_forward("_upsample_bicubic2d_aa", [3, 9], False, [None] * 2), x)
    assert found.counts.extern == 1


@pytest.mark.spread
@pytest.mark.parametrize("dynamic", (False, True))
@pytest.mark.parametrize("antialias", (False, True))
@pytest.mark.parametrize("mode", ("bilinear", "bicubic"))
def test_pictures_are_resized_as_in_eager(mode, antialias, dynamic):
    """Of uint8 torch's decompositions are up to 120 of 255 off where a factor is given."""

    def resize(x):
        options = {"mode": mode, "antialias": antialias}
        by_factors = [F.interpolate(x, scale_factor=f, **options) for f in (2.9, (0.7, 1.3))]
        return [*by_factors, F.interpolate(x, (5, 17), **options)]

    plane, picture = torch.randint(0, 256, (2, 3, 9, 8)), torch.randint(0, 256, (1, 7, 6, 3)).permute(0, 3, 1, 2)
    for x in (plane.to(torch.uint8), picture.to(torch.uint8)):
        torch._dynamo.reset()
        got, wanted = torch.compile(resize, backend="stepwell", dynamic=dynamic, fullgraph=True)(x), resize(x)
        assert [y.stride() for y in got] == [y.stride() for y in wanted]
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)
