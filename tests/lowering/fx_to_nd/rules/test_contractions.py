"""Matrix products, convolutions, pooling, resampling, attention."""

import pytest
import torch
from torch.nn import functional as F


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_products(check, dtype):
    """N27, OP-15"""
    a, b = torch.randn(2, 3, 4).to(dtype), torch.randn(2, 4, 5).to(dtype)

    def products(a, b):
        return (
            a @ b, a[0] @ b[1], torch.mv(a[0], b[0, :, 0]), torch.dot(b[0, 0], b[1, 1]), torch.addmm(a[0] @ b[0], a[1],
            b[1], beta=0.5, alpha=2), torch.baddbmm(a @ b, a, b, beta=0), torch.addmv(a[0, :, 0], a[0], b[0, :, 0]),
            torch.addbmm(a[0] @ b[0], a, b), torch.outer(a[0, 0], b[0, 0]), F.linear(a, b[0].t()),
            torch.einsum("bij,bjk->bik", a, b), F.linear(a, b[0].t(), b[0, 0]),
        )  # fmt: skip

    check(products, a, b, **({"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {}))


def test_products_of_integers_are_library_calls(check):
    assert check(lambda a: a @ a, torch.arange(9).reshape(3, 3)).counts.extern == 1


def test_products_of_symbolic_sizes(check):
    check(lambda a, b: (a @ b, F.linear(a, b.t())), torch.randn(3, 4), torch.randn(4, 5), dynamic=True)


def test_empty_products(check):
    check(lambda a, b: (a @ b, b @ a), torch.randn(3, 0), torch.randn(0, 3))


@pytest.mark.parametrize("form", (torch.contiguous_format, torch.channels_last))
def test_convolutions(check, form):
    """N28"""
    x, w = torch.randn(2, 4, 8, 8).to(memory_format=form), torch.randn(6, 2, 3, 3).to(memory_format=form)

    def convolutions(x, w, b):
        return (
            F.conv2d(x, w, b, stride=2, padding=1, groups=2),
            F.conv2d(x, w, None, dilation=2, groups=2),
            F.conv_transpose2d(x, w[:4], None, 2, 1, output_padding=1, groups=2),
        )

    check(convolutions, x, w, torch.randn(6))
    check(lambda x, w: F.conv1d(x, w, padding="same"), torch.randn(2, 3, 9), torch.randn(4, 3, 3))


def test_convolution_backward(check):
    backward = torch.func.grad(lambda x, w: F.conv2d(x, w, padding=1).pow(2).sum(), argnums=(0, 1))
    found = check(backward, torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3), rtol=1e-4, atol=1e-4)
    assert dict(found.counts.names["extern"]) == {"aten.convolution_backward.default": 1}


def test_pooling(check):
    """N18"""
    def pools(x):
        return (
            F.max_pool2d(x, 2), F.max_pool2d(x, 3, 2, 1, 2), F.max_pool2d(x, 3, 2, ceil_mode=True), *F.max_pool2d(x, 3,
            2, 1, return_indices=True), F.avg_pool2d(x, 2), F.avg_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 3, 2, 1,
            count_include_pad=False, ceil_mode=True), F.avg_pool2d(x, 2, divisor_override=3), F.avg_pool2d(x, 3, 2, 1,
            ceil_mode=True), F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(x, (3, 4)), F.adaptive_avg_pool2d(x, (2,
            5)), F.max_pool3d(x.unsqueeze(0), 2), F.avg_pool3d(x.unsqueeze(0), 2), F.avg_pool1d(x[0], 3, 2),
            F.max_pool1d(x[0], 2), F.adaptive_avg_pool1d(x[0], 4),
        )  # fmt: skip

    check(pools, torch.randn(2, 3, 9, 8))


def test_pooling_of_integers(check):
    x = torch.randint(-50, 50, (2, 3, 9, 8))
    check(lambda x: (F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), F.avg_pool2d(x, 2), F.max_pool2d(x, 2)), x)


def test_pooling_of_symbolic_sizes(check):
    check(
        lambda x: (*F.max_pool2d(x, 3, 2, 1, return_indices=True), F.avg_pool2d(x, 2)),
        torch.randn(2, 3, 9, 8),
        dynamic=True,
    )


def test_pooled_nan_wins(check):
    x = torch.randn(1, 1, 4, 4)
    x[0, 0, 1, 1] = torch.nan
    check(lambda x: F.max_pool2d(x, 2, return_indices=True), x)


def test_resampling(check):
    """N19"""
    def resample(x):
        return (
            F.interpolate(x, scale_factor=2), F.interpolate(x, size=(7, 5)), F.interpolate(x, size=(7, 5),
            mode="nearest-exact"), F.interpolate(x, scale_factor=1.5, mode="bilinear"), F.interpolate(x, size=(9, 9),
            mode="bilinear", align_corners=True), F.interpolate(x, size=(9, 9), mode="bicubic"), F.interpolate(x[0],
            scale_factor=2, mode="linear"),
        )  # fmt: skip

    check(resample, torch.randn(2, 3, 4, 6))
    check(lambda x: F.interpolate(x, scale_factor=2), torch.randn(2, 3, 4, 6), dynamic=True)
    check(torch.func.grad(lambda x: F.interpolate(x, scale_factor=2).pow(2).sum()), torch.randn(1, 2, 3, 4))


def test_doubling_is_a_view(imported):
    text = str(imported(lambda x: F.interpolate(x, scale_factor=2) + 1, torch.randn(2, 3, 4, 6)).module)
    assert "nd.view" in text and "nd.index" not in text


def test_nearest_sources_are_torch_s(check):
    """The rounding of the source index is f32's, for every pair of small sizes."""
    sizes = [(n, m) for n in (3, 5, 7, 12) for m in range(1, 40, 3)]
    lines = [torch.arange(float(n)).reshape(1, 1, n) for n, _ in sizes]
    check(lambda *xs: [F.interpolate(x, size=m) for x, (_, m) in zip(xs, sizes, strict=True)], *lines)
    check(
        lambda x: [F.interpolate(x, scale_factor=s) for s in (1.3, 1.7, 3, 0.6, 2.5)],
        torch.arange(11.0).reshape(1, 1, 11),
    )


def test_attention_is_a_library_call(check):
    q = torch.randn(2, 4, 8, 16)
    found = check(lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), q)
    assert found.counts.extern == 1 and found.counts.fallback == 0


def test_convolutions_keep_the_strides_of_both_sides(imported):
    x = torch.randn(2, 4, 8, 8).to(memory_format=torch.channels_last)
    text = str(imported(lambda x, w: F.relu(F.conv2d(x, w)), x, torch.randn(6, 4, 3, 3)).module)
    assert "layout = #nd.layout<[216, 1, 36, 6], 0>" in text
    assert "operand_layouts = [#nd.layout<[256, 1, 32, 4], 0>, #nd.layout<[36, 9, 3, 1], 0>]" in text
