"""AOT-03: values of normalisations and activations that backward computes again instead of reading what forward saved."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from stepwell import counters
from stepwell.lowering import recomputable
from stepwell.tools import torch_backend


class Block(nn.Module):
    def __init__(self, norm: nn.Module, activation):
        super().__init__()
        self.conv, self.norm, self.after = nn.Conv2d(4, 8, 3, padding=1), norm, nn.Conv2d(8, 4, 1)
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
ACTIVATIONS = {"silu": F.silu, "gelu": F.gelu, "hardswish": F.hardswish, "gate": lambda y: y * torch.sigmoid(y.mean((2, 3), keepdim=True))}


@pytest.fixture(autouse=True)
def _forget():
    torch._dynamo.reset()


@pytest.fixture
def saved(monkeypatch):
    """Tensors of 4 dimensions that forward keeps for backward, parameters and what is passed in not counted, a number for each graph."""
    numbers = []

    def partition(gm, inputs, **kwargs):
        forward, backward = original(gm, inputs, **kwargs)
        given = {n.name for n in forward.graph.nodes if n.op == "placeholder"}
        held = [n for n in backward.graph.nodes if n.op == "placeholder" and "tangents" not in n.name and n.name not in given]
        numbers.append(sum(n.meta["val"].numel() >= 100 for n in held if isinstance(n.meta.get("val"), torch.Tensor)))
        return forward, backward

    original = torch_backend.partition
    monkeypatch.setattr(torch_backend, "partition", partition)
    return numbers


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
def test_forward_keeps_one_tensor_less(norm, saved):
    torch.manual_seed(0)
    _check(Block(NORMS[norm](), F.silu), torch.randn(3, 4, 6, 5))
    assert saved == [2]  # what the normalisation reads, and what the second convolution reads


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(activation, saved):
    torch.manual_seed(0)
    counters.clear()
    _check(Block(nn.BatchNorm2d(8), ACTIVATIONS[activation]), torch.randn(3, 4, 6, 5))
    assert saved == [2] and counters["recomputable"] >= 1


@pytest.mark.parametrize("norm", ["batch", "group", "layer"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_types(norm, dtype, saved):
    """Statistics that torch rounds to 16 bits are computed apart, so that values come from the exact ones."""
    torch.manual_seed(0)
    _check(Block(NORMS[norm](), F.silu).to(dtype), torch.randn(3, 4, 6, 5).to(dtype))
    assert saved == [2]


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_sizes_that_are_symbols(norm, saved):
    torch.manual_seed(0)
    _check(Block(NORMS[norm](), F.silu), torch.randn(3, 4, 6, 5), dynamic=True)
    assert saved == [2]


@pytest.mark.parametrize("sizes", [(2, 4, 1, 1), (1, 4, 3, 2)], ids=str)
def test_small_images(sizes):
    torch.manual_seed(0)
    for norm in (nn.BatchNorm2d(8), nn.GroupNorm(2, 8)):
        _check(Block(norm, F.silu), torch.randn(sizes))


def test_images_without_elements():
    _check(Block(nn.GroupNorm(2, 8), F.silu), torch.randn(0, 4, 3, 2))


def test_channels_last_and_gaps(saved):
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


def test_evaluation_is_left_alone(monkeypatch):
    """With running statistics for its values a batch norm gives none to compute them from."""
    found = []
    original = recomputable.spell_out_recomputable
    monkeypatch.setattr(recomputable, "spell_out_recomputable", lambda gm: found.append(original(gm)) or found[-1])
    torch.manual_seed(0)
    _check(Block(nn.BatchNorm2d(8), F.silu).eval(), torch.randn(3, 4, 6, 5))
    assert found == [0]
