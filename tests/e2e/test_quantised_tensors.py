"""Quantising inside of compiled graphs: tensors of torch's quantised types, the operators of pt2e, and training with rounded floats."""

import logging

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import stepwell

pytestmark = pytest.mark.filterwarnings("ignore:.*quantiz.*:UserWarning", "ignore::DeprecationWarning")
quantised_types = pytest.mark.skipif(
    torch.__version__ < (2, 12), reason="Dynamo of torch 2.11 has no fake tensors of quantised types, whatever the backend is"
)


def _quantised(x, scale=0.1, zero_point=10, dtype=torch.quint8):
    return torch.quantize_per_tensor(x, scale, zero_point, dtype)


def _check(fn, *args, dynamic=None):
    """Compiled as one graph, bit for bit as eager."""
    torch._dynamo.reset()
    expected = fn(*args)
    before = stepwell.counters["graphs"]
    got = torch.compile(fn, backend="stepwell", fullgraph=True, dynamic=dynamic, options={"numerics": "eager"})(*args)
    _same(got, expected)
    return stepwell.counters["graphs"] - before


def _same(got, expected):
    if isinstance(expected, (tuple, list)):
        for one, other in zip(got, expected, strict=True):
            _same(one, other)
        return
    assert got.dtype == expected.dtype and got.stride() == expected.stride() and got.requires_grad == expected.requires_grad
    if expected.is_quantized:
        assert got.q_scale() == expected.q_scale() and got.q_zero_point() == expected.q_zero_point()
        got, expected = got.int_repr(), expected.int_repr()
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def _wraps(dtype, zero_point):
    """Whether eager gives the largest integer for the smallest floats: torch 2.14 adds the zero point to 32 bits, which overflows."""
    return dtype != torch.qint32 and _quantised(torch.tensor([-float("inf")]), 1.0, zero_point, dtype).int_repr().item() > 0


@quantised_types
@pytest.mark.parametrize("dtype", [torch.quint8, torch.qint8, torch.qint32])
@pytest.mark.parametrize("scale, zero_point", [(0.1, 10), (1 / 3, 7), (2e-9, -3), (4.0, 0)])
def test_integers_are_rounded_and_limited_as_in_eager(dtype, scale, zero_point):
    zero_point = abs(zero_point) if dtype == torch.quint8 else zero_point
    x = torch.randn(64, 16) * 30
    x[0, :6] = torch.tensor([float("inf"), -float("inf"), 1e30, -1e30, 0.25, -0.0])
    if _wraps(dtype, zero_point):
        compiled = torch.compile(lambda x: _quantised(x, scale, zero_point, dtype).dequantize(), backend="stepwell")
        assert compiled(x).min() == (torch.iinfo(torch.int8).min - zero_point) * torch.tensor(scale)
        x.clamp_(min=-(2.0**30) * scale)
    assert _check(lambda x: _quantised(x, scale, zero_point, dtype).dequantize(), x) == 1


@quantised_types
@pytest.mark.parametrize("dtype", [torch.quint8, torch.qint8, torch.qint32])
@pytest.mark.parametrize("zero_point", [1, 2])
def test_halves_are_rounded_as_in_eager(dtype, zero_point):
    """Builds of torch add the zero point before or after they round."""
    assert _check(lambda x: _quantised(x, 1.0, zero_point, dtype).dequantize(), torch.arange(-21, 21) * 0.5) == 1


@quantised_types
def test_scale_and_zero_point_that_are_tensors():
    def fn(x, scale, zero_point):
        return torch.quantize_per_tensor(x * 2, scale, zero_point, torch.qint8).dequantize() + 1

    assert _check(fn, torch.randn(5, 7), torch.tensor(0.1), torch.tensor(3)) == 1


@quantised_types
def test_results_that_are_quantised():
    """Also with the integers asked for behind the graph, which breaks there."""
    x = torch.randn(4, 3, 5)
    for dynamic in (None, True):  # torch has no fake kernel that dequantises symbolic sizes
        assert _check(lambda x: (_quantised(x * 2), x + 1, torch.relu(_quantised(x))), x, dynamic=dynamic) == 1
    assert _check(lambda x, s, z: torch.quantize_per_tensor(x, s, z, torch.qint8), x, torch.tensor(0.3), torch.tensor(-4)) == 1
    compiled = torch.compile(lambda x: _quantised(x * 2).int_repr() + 1, backend="stepwell")
    torch.testing.assert_close(compiled(x), _quantised(x * 2).int_repr() + 1)


@quantised_types
def test_what_moves_them():
    def fn(x):
        q = _quantised(x)
        a, b = q.chunk(2, 1)
        return (
            q.view(-1)[::2].dequantize(), q.t().dequantize(), torch.dequantize(q[1:, None]),
            a.dequantize(), b.transpose(0, 1).contiguous().dequantize(), q.reshape(2, -1).permute(1, 0).relu().dequantize(),
        )  # fmt: skip

    assert _check(fn, torch.randn(6, 8)) == 1
    assert _check(lambda x: _quantised(x).dequantize(), torch.randn(0, 3)) == 1


@quantised_types
def test_memory_formats():
    x = torch.randn(2, 3, 6, 4).to(memory_format=torch.channels_last)
    assert _check(lambda x: (_quantised(x), _quantised(x).dequantize()), x) == 1
    assert _check(lambda x: (_quantised(x.t()), _quantised(x.t()).dequantize()), torch.randn(3, 5)) == 1


@quantised_types
def test_largest_of_windows():
    x = torch.randn(2, 3, 8, 8)
    assert _check(lambda x: F.max_pool2d(_quantised(x), 3, stride=2, padding=1).dequantize(), x) == 1


@quantised_types
def test_no_gradient_goes_through():
    x = torch.randn(4, 5, requires_grad=True)
    assert _check(lambda x: _quantised(x).dequantize(), x) == 1
    compiled = torch.compile(lambda x: (_quantised(x).dequantize() * x).sum(), backend="stepwell")
    (got,) = torch.autograd.grad(compiled(x), x)
    torch.testing.assert_close(got, _quantised(x).dequantize())


@quantised_types
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.cat([_quantised(x), _quantised(x)]).dequantize(),
        lambda x: _quantised(x).mean(-1).dequantize(),
        lambda x: torch.sigmoid(_quantised(x)).dequantize(),
        lambda x: F.relu(_quantised(x), inplace=True).dequantize(),
        lambda x: _quantised(x)[:, ::2],
        lambda x: _quantised(x) == _quantised(x),
    ],
    ids=["cat", "mean", "sigmoid", "in place", "view returned", "compared"],
)
def test_the_rest_runs_without_being_compiled(fn, caplog):
    with caplog.at_level(logging.WARNING, logger="stepwell"):
        assert _check(fn, torch.randn(4, 6)) == 0
    assert "quantised" in caplog.text


def test_wrong_types_raise_as_in_eager():
    with pytest.raises(RuntimeError, match="(?i)float"):
        torch.compile(lambda x: _quantised(x).dequantize(), backend="stepwell")(torch.randn(3).double())


def test_converted_models():
    """A model that torch.ao.quantization converted: quantised tensors go from graph to graph."""
    from torch.ao.quantization import QConfigMapping, get_default_qconfig
    from torch.ao.quantization.quantize_fx import convert_fx, convert_to_reference_fx, prepare_fx

    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(4 * 36, 5)
    ).eval()
    x = torch.randn(2, 3, 8, 8)
    for convert in (convert_fx, convert_to_reference_fx):
        prepared = prepare_fx(net, QConfigMapping().set_global(get_default_qconfig("x86")), (x,))
        prepared(x)
        model = convert(prepared)
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(model, backend="stepwell")(x), model(x))


# ---- integers as common tensors (pt2e), and floats that are rounded for training


def _operators():
    import torch.ao.quantization.fx._decomposed  # noqa: F401 - defines them

    return torch.ops.quantized_decomposed


def _per_token(x):
    q = _operators()
    scales, points = q.choose_qparams_per_token_asymmetric(x, torch.int8)
    integers = q.quantize_per_token(x, scales, points, -128, 127, torch.int8)
    return scales, points, integers, q.dequantize_per_token(integers, scales, points, -128, 127, torch.int8, torch.float32)


def _groups(x):
    q = _operators()
    scales, points = x.abs().reshape(6, 2, 4).amax(-1) / 7, torch.zeros(6, 2, dtype=torch.int32)
    integers = q.quantize_per_channel_group(x, scales, points, -8, 7, torch.int8, 4)
    return integers, q.dequantize_per_channel_group(integers, scales, points, -8, 7, torch.int8, 4, torch.float32)


def _limits_as_tensors(x):
    q, numbers = _operators(), (torch.tensor(0.1), torch.tensor(3), torch.tensor(-100), torch.tensor(100), torch.int8)
    integers = q.quantize_per_tensor.tensor2(x, *numbers)
    return integers, q.dequantize_per_tensor.tensor2(integers, *numbers)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: _operators().choose_qparams.tensor(x, -128, 127, 1e-6, torch.int8),
        lambda x: _operators().choose_qparams_symmetric.tensor(x, -128, 127, 1e-6, torch.uint8),
        lambda x: _operators().choose_qparams_per_token(x, torch.int8),
        _per_token,
        _groups,
        _limits_as_tensors,
    ],
    ids=["range", "symmetric range", "range of rows", "rows", "groups", "limits as tensors"],
)
def test_operators_of_quantised_models_are_arithmetic(fn):
    _operators()
    calls = stepwell.counters["extern"]
    assert _check(fn, torch.randn(6, 8) * 3) == 1
    assert stepwell.counters["extern"] == calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_floats_rounded_for_training(dtype):
    """Values and gradients, of whole tensors and channels, with observers that switch themselves on and off."""
    x = (torch.randn(5, 16) * 30).to(dtype)
    points = torch.randint(-3, 4, (5,), dtype=torch.int32)

    def fn(x):
        whole = torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -128, 127)
        tensors = torch.fake_quantize_per_tensor_affine(x, torch.tensor(0.2), torch.tensor(-2, dtype=torch.int32), -128, 127)
        channels = torch.fake_quantize_per_channel_affine(x, torch.linspace(0.1, 0.3, 5), points, 0, -128, 127)
        return whole + tensors * 2 + channels

    calls = stepwell.counters["extern"]
    assert _check(fn, x) == 1
    grads = []
    for run in (fn, torch.compile(fn, backend="stepwell")):
        leaf = x.clone().requires_grad_()
        run(leaf).sum().backward()
        grads.append(leaf.grad)
    assert torch.equal(*grads)
    assert stepwell.counters["extern"] == calls


def test_observers_switch_rounding_on_and_off():
    from torch.ao.quantization import FakeQuantize

    torch.manual_seed(0)
    module = FakeQuantize(quant_min=-128, quant_max=127, dtype=torch.qint8)
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="stepwell")
    for enabled in (True, False, True):
        (module.enable_fake_quant if enabled else module.disable_fake_quant)()
        x = torch.randn(4, 9)
        got, before = compiled(x), module.scale.clone()
        module.disable_observer()
        torch.testing.assert_close(got, module(x))
        assert torch.equal(module.scale, before)
        module.enable_observer()


@pytest.mark.filterwarnings("ignore")
def test_cn_09_weights_packed_by_the_library():
    """CN-09, N34: a model quantised dynamically calls the library with packed weights, objects of C++ that Dynamo does not trace."""
    model = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4))
    model = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    x = torch.randn(3, 16)
    stepwell.reset_counters()
    torch.testing.assert_close(torch.compile(lambda x: model(x * 2).exp(), backend="stepwell")(x), model(x * 2).exp())
    assert stepwell.counters["graphs"] and not stepwell.counters["fallback"]
