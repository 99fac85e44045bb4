"""AOT-03: values of normalisations and activations that backward computes again instead of reading what forward saved."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from stepwell import counters
from stepwell.lowering.fx.joint import recomputable


class Block(nn.Module):
    def __init__(self, norm: nn.Module, activation):
        super().__init__()
        self.conv, self.norm, self.after = nn.Conv2d(4, 8, 3, padding=1), norm, nn.Conv2d(8, 4, 3, padding=1)
        self.activation = activation

    def forward(self, x):
        return self.after(self.activation(self.norm(self.conv(x))))


NORMS = {
    "batch": lambda: nn.BatchNorm2d(8),
    "batch, no running statistics": lambda: nn.BatchNorm2d(8, track_running_stats=False),
    "batch, no weight": lambda: nn.BatchNorm2d(8, affine=False),
    "group": lambda: nn.GroupNorm(2, 8),
    "group, no weight": lambda: nn.GroupNorm(4, 8, affine=False),
    "layer": lambda: nn.LayerNorm([8, 6, 5]),
}
ACTIVATIONS = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gate": lambda y: y * torch.sigmoid(y.mean((2, 3), keepdim=True)),
    **{f.__name__: f for f in (F.hardswish, F.leaky_relu, F.elu, F.selu, F.mish, F.hardsigmoid, F.hardtanh, F.relu6, F.softplus)},
    "celu": lambda y: F.celu(y, 1.5),
    "elu, three numbers": lambda y: torch.ops.aten.elu(y, 1.5, 0.75, 1.25),
    "elu of the result": lambda y: F.elu_(y.clone(), 0.7),
    "tanhshrink": F.tanhshrink,
    "logsigmoid": F.logsigmoid,
    "prelu": nn.PReLU(8),
    "rectified twice": lambda y: F.relu(F.relu(y) * 2 - 0.5),
}
"""Each followed by a convolution, whose gradient reads what comes of it as a whole."""

SIDES = {f.__name__: f for f in (F.relu, F.leaky_relu, F.hardtanh, F.relu6, F.hardsigmoid)} | {
    "threshold": lambda y: F.threshold(y, 0.2, -1.0)
}
"""Their gradients ask only which side of a threshold a value is on."""


@pytest.fixture(autouse=True)
def _forget():
    torch._dynamo.reset()


@pytest.fixture
def kept(saved_tensors):
    """Tensors of some size that forward keeps for backward, parameters and what is passed in not counted, a list for each graph."""
    return saved_tensors(lambda made, given: [t for t in made.values() if t.dim() > 1 and t.numel() >= 40])


def _check(net: nn.Module, x: torch.Tensor, dynamic: bool | None = None, **options: str) -> None:
    """Values, gradients, buffers and strides as eager's, in a second size too where sizes are symbols."""
    reference = copy.deepcopy(net)
    given_options: dict[str, Any] = {"cache": "off", **options}
    compiled = torch.compile(net, backend="stepwell", dynamic=dynamic, options=given_options)
    tolerance = {torch.bfloat16: 5e-2, torch.float16: 1e-2, torch.float32: 1e-4, torch.float64: 1e-9}[x.dtype]
    for one in [x, torch.cat([x, x.flip(0)])] if dynamic else [x]:
        given, expected = one.detach().clone().requires_grad_(), one.detach().clone().requires_grad_()
        got, want = compiled(given), reference(expected)
        assert got.stride() == want.stride()
        weights = torch.randn_like(want)
        got.backward(weights)
        want.backward(weights)
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
        for p, q in zip([given, *net.parameters()], [expected, *reference.parameters()], strict=True):
            assert p.grad is not None and q.grad is not None and p.grad.stride() == q.grad.stride()
            torch.testing.assert_close(p.grad, q.grad, rtol=10 * tolerance, atol=10 * tolerance)
        for p, q in zip(net.buffers(), reference.buffers(), strict=True):
            torch.testing.assert_close(p, q, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("norm", NORMS)
def test_forward_keeps_one_tensor_less(norm, kept):
    torch.manual_seed(0)
    _check(Block(NORMS[norm](), F.silu), torch.randn(3, 4, 6, 5))
    assert [len(graph) for graph in kept] == [2]  # what the normalisation reads, and what the second convolution reads


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(activation, kept):
    torch.manual_seed(0)
    counters.clear()
    _check(Block(nn.BatchNorm2d(8), ACTIVATIONS[activation]), torch.randn(3, 4, 6, 5))
    assert [len(graph) for graph in kept] == [2] and counters["recomputable"] >= 1


class Perceptron(nn.Module):
    """An activation between what backward reads as a whole, twice."""

    def __init__(self, activation):
        super().__init__()
        self.before, self.after, self.activation = nn.Linear(8, 16), nn.Linear(16, 4), activation

    def forward(self, x):
        return self.after(self.activation(self.activation(self.before(x) + 1) * 0.5) + 0.25)


@pytest.mark.spread
@pytest.mark.parametrize("activation", SIDES)
@pytest.mark.parametrize(("dtype", "dynamic"), [(torch.float32, None), (torch.float32, True), (torch.float64, None)], ids=str)
def test_one_byte_tells_the_side_of_a_threshold(activation, dtype, dynamic, kept):
    torch.manual_seed(0)
    net = Perceptron(SIDES[activation]).to(dtype)
    _check(net, torch.randn(12, 8, dtype=dtype), dynamic=dynamic)
    types = [t.dtype for t in kept[0]]
    assert types.count(torch.bool) == 2 and types.count(dtype) == 1  # and what the second product reads


@pytest.mark.parametrize("activation", ["elu", "celu", "prelu", "mish", "tanhshrink"])
def test_a_chain_keeps_its_input(activation, kept):
    torch.manual_seed(0)
    act = nn.PReLU() if activation == "prelu" else ACTIVATIONS[activation]
    _check(Perceptron(act), torch.randn(12, 8))
    assert len(kept[0]) == 2  # what the first product gives, and what the second reads


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gated_halves(dtype, kept):
    torch.manual_seed(0)

    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.after = nn.Linear(8, 32), nn.Linear(16, 4)

        def forward(self, x):
            return self.after(F.glu(self.before(x) * 2) + 1)

    _check(Gated().to(dtype), torch.randn(12, 8, dtype=dtype))
    assert sorted(t.numel() for t in kept[0]) == [12 * 16, 12 * 32]


@pytest.mark.parametrize("activation", [*SIDES, "elu", "celu", "hardswish", "elu, three numbers"])
def test_edges_of_activations_and_odd_numbers(activation):
    """Bit for bit what backward gives where the operator is left whole: at thresholds, for infinities and NaN."""
    values = [-torch.inf, -7.0, -3.0, -1.0, -0.0, 0.0, 0.2, 1.0, 3.0, 6.0, 7.0, torch.inf, torch.nan]
    x = torch.tensor(values * 3)
    act = SIDES.get(activation) or ACTIVATIONS[activation]

    def twice(x):
        return act(act(x) * 1.5).sum()

    grads = []
    for spell in (recomputable.spell_out_recomputable, lambda *given: 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(recomputable, "spell_out_recomputable", spell)
            torch._dynamo.reset()
            given = x.clone().requires_grad_()
            torch.compile(twice, backend="stepwell", options={"cache": "off"})(given).backward()
            grads.append(given.grad)
    torch.testing.assert_close(grads[0], grads[1], rtol=0, atol=0, equal_nan=True)


def test_a_view_is_not_kept_beside_what_it_is_of(kept):
    torch.manual_seed(0)

    class Products(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(8, 16)

        def forward(self, x):
            y = torch.tanh(self.first(x))
            return torch.bmm(y.transpose(1, 2), y)

    _check(Products(), torch.randn(3, 5, 8))
    assert sorted(tuple(t.shape) for t in kept[0]) == [(3, 5, 16), (15, 8)]


def test_a_detached_result_is_one_of_its_own():
    def f(x):
        y = torch.tanh(x)
        return y, y.detach(), y.transpose(0, 1)

    x = torch.randn(3, 4, requires_grad=True)
    y, z, t = torch.compile(f, backend="stepwell", options={"cache": "off"})(x)
    assert y.requires_grad and not z.requires_grad and t.stride() == (1, 4)
    (y + t.T).sum().backward()
    torch.testing.assert_close(x.grad, 2 * (1 - torch.tanh(x) ** 2))


@pytest.mark.parametrize("norm", ["batch", "group", "layer"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_types(norm, dtype, kept):
    """Statistics that torch rounds to 16 bits are computed apart, so that values come from the exact ones."""
    torch.manual_seed(0)
    _check(Block(NORMS[norm](), F.silu).to(dtype), torch.randn(3, 4, 6, 5).to(dtype))
    assert [len(graph) for graph in kept] == [2]


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_sizes_that_are_symbols(norm, kept):
    torch.manual_seed(0)
    _check(Block(NORMS[norm](), F.silu), torch.randn(3, 4, 6, 5), dynamic=True)
    assert [len(graph) for graph in kept] == [2]


@pytest.mark.parametrize("sizes", [(2, 4, 1, 1), (1, 4, 3, 2)], ids=str)
def test_small_images(sizes):
    torch.manual_seed(0)
    for norm in (nn.BatchNorm2d(8), nn.GroupNorm(2, 8)):
        _check(Block(norm, F.silu), torch.randn(sizes))


def test_images_without_elements():
    _check(Block(nn.GroupNorm(2, 8), F.silu), torch.randn(0, 4, 3, 2))


def test_channels_last_and_gaps(kept):
    torch.manual_seed(0)
    for norm in ("batch", "group"):
        _check(Block(NORMS[norm](), F.silu), torch.randn(3, 4, 6, 5).to(memory_format=torch.channels_last))
        _check(Block(NORMS[norm](), F.silu), torch.randn(3, 8, 6, 10)[:, ::2, :, ::2])


def test_numerics_of_eager():
    torch.manual_seed(0)
    _check(Block(nn.BatchNorm2d(8), F.hardswish).bfloat16(), torch.randn(3, 4, 6, 5).bfloat16(), numerics="eager")


def test_what_backward_needs_in_memory_is_kept():
    """A convolution's gradient reads its input as a whole: nothing is spelt out for it, nor where backward does not read the values."""
    torch.manual_seed(0)
    counters.clear()
    _check(Block(nn.BatchNorm2d(8), lambda y: y), torch.randn(3, 4, 6, 5))
    _check(Block(nn.BatchNorm2d(8), F.relu), torch.randn(3, 4, 6, 5))
    assert "recomputable" not in counters


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("affine", [True, False])
def test_running_statistics(dtype, affine, kept):
    """Values by them come from the input and two small tensors."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(8, affine=affine)
    norm.running_mean.uniform_(-1, 1), norm.running_var.uniform_(0.5, 2)
    _check(Block(norm, F.silu).to(dtype).eval(), torch.randn(3, 4, 6, 5).to(dtype))
    assert [len(graph) for graph in kept] == [2]  # what the normalisation reads, and what the second convolution reads


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("wanted", [(False, False), (False, True), (True, False)], ids=str)
def test_a_frozen_normalisation_keeps_nothing(wanted, memory_format, kept):
    """The gradient of its input is a product; the input is needed for that of the weight only."""

    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.norm, self.after = nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3)
            self.norm.running_var.uniform_(0.5, 2)
            self.norm.weight.requires_grad_(wanted[0]), self.norm.bias.requires_grad_(wanted[1])

        def forward(self, x):
            return self.after(self.norm(self.before(x)))

    torch.manual_seed(0)
    net = Frozen().eval()
    frozen = [p for p in (net.norm.weight, net.norm.bias) if not p.requires_grad]
    x = torch.randn(3, 4, 6, 5).to(memory_format=memory_format)
    got, want = (copy.deepcopy(net) for _ in range(2))
    results = []
    for f, one in ((torch.compile(got, backend="stepwell", options={"cache": "off"}), got), (want, want)):
        given = x.clone(memory_format=torch.preserve_format).requires_grad_()
        y = f(given)
        y.square().sum().backward()
        results.append([y, given.grad, *(p.grad for p in one.parameters() if p.requires_grad)])
    assert len(frozen) == 2 - sum(wanted)
    for a, b in zip(*results, strict=True):
        assert a.stride() == b.stride()
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert [len(graph) for graph in kept] == [2 if wanted[0] else 1]
