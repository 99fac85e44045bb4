"""Weights that are constants lie as convolutions and products of ours read them, and as they came where others do."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from stepwell.lowering.fx.post_grad.freezing import fold

aten = torch.ops.aten


def folded(function, *args, mode="fake", **options):
    """The folded graph of a function whose second argument is a constant, the constant, and what is shown to its reader."""
    gm = make_fx(function, tracing_mode=mode)(*args)
    weight = [n for n in gm.graph.nodes if n.op == "placeholder"][1]
    shown, place = next((u, k) for u in weight.users for k, a in enumerate(u.args) if a is weight)
    while shown.target not in (aten.convolution.default, aten.mm.default, aten.addmm.default):
        shown, place = next((u, k) for u in shown.users for k, a in enumerate(u.args) if a is shown)
    fold(gm, {weight: args[1]}, **options)
    (node,) = [n.args[place] for n in gm.graph.nodes if n.target is shown.target]
    source = node
    while source.op != "get_attr" and source.op != "placeholder":
        source = source.args[0]
    gm.recompile()
    return gm, getattr(gm, source.target) if source.op == "get_attr" else None, node


def convolved(weight, groups=1, transposed=False, mode="fake", size=20, batch=2):
    def function(x, w):
        return (aten.convolution(x, w, None, [1, 1], [0, 0], [1, 1], transposed, [0, 0], groups),)

    channels = 32 if groups == 2 or transposed else weight.shape[0] if groups > 1 else weight.shape[1]
    image = torch.randn(batch, channels, size, size)
    return (*folded(function, image, weight, mode=mode), image)


def test_a_depthwise_weight_has_its_channels_side_by_side():
    weight = torch.randn(32, 1, 3, 3)
    _, held, node, _ = convolved(weight, groups=32)
    assert torch.equal(held, weight) and node.meta["val"].stride() == held.stride()
    assert held.permute(2, 3, 1, 0).is_contiguous()
    assert weight.is_contiguous()


@pytest.mark.parametrize("columns, panels", [(64, 1), (128, 2), (240, 4), (48, 1)])
@pytest.mark.parametrize("window", [1, 3])
def test_a_convolution_has_panels(columns, panels, window):
    weight = torch.randn(columns, 32, window, window)
    gm, held, node, image = convolved(weight)
    assert held.shape == (panels, window, window, 32, 64) and held.is_contiguous()
    assert node.meta["val"].shape == weight.shape and node.meta["val"].stride(0) == 1
    torch.testing.assert_close(gm(image, None)[0], torch.nn.functional.conv2d(image, weight))
    assert not held.permute(1, 2, 3, 0, 4).reshape(window, window, 32, -1)[..., columns:].any()


def test_few_columns_stay_side_by_side_without_panels():
    """A panel that is emptier than half is memory for nothing."""
    weight = torch.randn(24, 32, 1, 1)
    _, held, _, _ = convolved(weight)
    assert held.shape == weight.shape and held.permute(2, 3, 1, 0).is_contiguous()


def test_one_pixel_meets_a_weight_by_rows():
    """What is computed of pooled channels (squeeze and excite)."""
    weight = torch.randn(128, 32, 1, 1)
    _, held, _, _ = convolved(weight, size=1, batch=1)
    assert held.shape == weight.shape and held.permute(2, 3, 1, 0).is_contiguous()
    assert convolved(weight, size=1)[1].dim() == 5


@pytest.mark.parametrize("name", ["transposed", "of few channels", "grouped"])
def test_what_the_library_computes_stays(name):
    weight = {
        "transposed": torch.randn(32, 64, 1, 1),
        "of few channels": torch.randn(1, 32, 1, 1), "grouped": torch.randn(64, 16, 1, 1),
    }[name]  # fmt: skip
    _, held, _, _ = convolved(weight, 2 if name == "grouped" else 1, name == "transposed")
    assert held.shape == weight.shape and held.is_contiguous()


def linear(x, w):
    return (aten.mm(x, w.t()),)


def linear_with_bias(x, w):
    return (aten.addmm(x.sum(0, keepdim=True)[:, :1], x, w.t()),)


def multiplied_and_read(x, w):
    weight = w.t()
    return aten.mm(x, weight), aten.mul(weight, x[:1].t())


@pytest.mark.parametrize("function", [linear, linear_with_bias])
def test_a_product_has_panels(function):
    x, weight = torch.randn(8, 96), torch.randn(200, 96)
    gm, held, node = folded(function, x, weight, own_product=lambda m, n, k: (m, n, k) == (8, 200, 96))
    assert held.shape == (4, 96, 64) and node.meta["val"].shape == (96, 200)
    torch.testing.assert_close(gm(x, None), function(x, weight))


@pytest.mark.parametrize("name", ["a row", "of the library", "small", "of float64", "read by others"])
def test_other_products_have_weights_as_they_came(name):
    x, weight = torch.randn(1 if name == "a row" else 8, 96), torch.randn(8 if name == "small" else 200, 96)
    if name == "of float64":
        x, weight = x.double(), weight.double()
    function = multiplied_and_read if name == "read by others" else linear
    _, held, _ = folded(function, x, weight, own_product=lambda m, n, k: name != "of the library")
    assert held.numel() == weight.numel() and held.dim() == 2


def test_without_a_word_on_products_these_are_left_alone():
    assert folded(linear, torch.randn(8, 96), torch.randn(200, 96))[1].dim() == 2


def test_sizes_that_are_symbols_leave_windows_to_the_library():
    """A product reads windows of known places only; pixels it reads of any."""
    for window, in_panels in ((3, False), (1, True)):
        weight = torch.randn(64, 32, window, window)
        _, held, _, _ = convolved(weight, mode="symbolic")
        assert held is None or (held.dim() == 5) is in_panels


@pytest.mark.parametrize("zero", [0, 3])
def test_a_weight_of_bytes_stays_bytes_by_rows_of_channels(zero):
    """Even where floats of it would be few; zero points that are 0 are not subtracted."""
    weight, zeros = torch.randint(-128, 128, (32, 16, 3, 3), dtype=torch.int8), torch.full((32, 1, 1, 1), zero, dtype=torch.int32)

    def function(x, w, z):
        return (aten.convolution(x, (w.int() - z).float() * 0.1, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),)

    x = torch.randn(2, 16, 9, 9)
    gm = make_fx(function, tracing_mode="fake")(x, weight, zeros)
    _, *known = [n for n in gm.graph.nodes if n.op == "placeholder"]
    fold(gm, dict(zip(known, (weight, zeros), strict=True)))
    gm.recompile()
    held = [value for value in gm.buffers() if value.dim() == 4 and value.shape[1] > 1]
    assert [value.dtype for value in held] == [torch.int8] and held[0].permute(0, 2, 3, 1).is_contiguous()
    assert any(n.target is aten.sub.Tensor for n in gm.graph.nodes) is bool(zero)
    torch.testing.assert_close(gm(x, None, None), function(x, weight, zeros), atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("dims, groups", [((700, 1, 5, 5), 700), ((16, 3, 3, 3), 1)], ids=["depthwise", "small"])
def test_bytes_that_are_multiplied_as_floats_become_floats_by_channels(dims, groups):
    weight = torch.randint(-128, 128, dims, dtype=torch.int8)

    def function(x, w):
        return (aten.convolution(x, w.float() * 0.1, None, [1, 1], [0, 0], [1, 1], False, [0, 0], groups),)

    gm = make_fx(function, tracing_mode="fake")(torch.randn(1, dims[1] * groups, 33, 33), weight)
    fold(gm, {[n for n in gm.graph.nodes if n.op == "placeholder"][1]: weight})
    (held,) = gm.buffers()
    assert held.dtype == torch.float32 and held.permute(2, 3, 1, 0).is_contiguous()


def quantised_linear(x, w):
    return (aten.mm(x.float() * 0.5, (w.float() * 0.1).t()),)


def integer_product(x, w):
    return (aten._int_mm(x.view(torch.int8), w.t()),)


@pytest.mark.parametrize("function", [quantised_linear, integer_product])
@pytest.mark.parametrize("rows, columns, depth, panels", [(32, 128, 96, (2, 24, 64, 4)), (24, 200, 88, (4, 22, 64, 4)), (1, 128, 96, None)])
def test_bytes_that_bytes_are_multiplied_by_lie_in_panels(function, rows, columns, depth, panels):
    x, weight = torch.randint(0, 128, (rows, depth), dtype=torch.uint8), torch.randint(-128, 128, (columns, depth), dtype=torch.int8)
    gm = make_fx(function, tracing_mode="fake")(x, weight)
    (_, known) = [n for n in gm.graph.nodes if n.op == "placeholder"]
    fold(gm, {known: weight}, own_product=lambda m, n, k: False)
    gm.recompile()
    (held,) = gm.buffers()
    assert held.shape == (panels or held.shape) and (held.dim() == 4) is (panels is not None)
    if rows > 16:
        torch.testing.assert_close(gm(x, None), function(x, weight))


@pytest.mark.parametrize("name", ["floats", "few columns", "read by others", "signs"])
def test_bytes_that_no_product_of_ours_reads_stay(name):
    x = torch.randn(8, 96) if name == "floats" else torch.randint(0, 128, (8, 96), dtype=torch.uint8)
    weight = torch.randint(0, 128, (16 if name == "few columns" else 128, 96), dtype=torch.uint8 if name == "signs" else torch.int8)

    def function(x, w):
        return *quantised_linear(x, w), w * x[0].to(torch.int8) if name == "read by others" else x

    gm = make_fx(function, tracing_mode="fake")(x, weight)
    (_, known) = [n for n in gm.graph.nodes if n.op == "placeholder"]
    fold(gm, {known: weight}, own_product=lambda m, n, k: True)
    assert all(value.dim() < 4 for value in gm.buffers())
