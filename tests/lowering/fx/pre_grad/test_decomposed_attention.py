"""Attention that a program spells out: which forms become a call, and that values and gradients stay."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from stepwell.lowering.fx.pre_grad import decomposed_attention
from stepwell.lowering.fx.pre_grad.attention_masks import ATTENTION
from stepwell.lowering.fx.pre_grad.decomposed_attention import call_attention

INF = float("-inf")


def triangle(q: Tensor, least: int = 1) -> Tensor:
    return torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).triu(least)


def places(q: Tensor) -> Tensor:
    i = torch.arange(q.shape[-2], device=q.device)
    return i[:, None] >= i[None, :]


CAUSAL = {
    "nanogpt": lambda q, k, v: ((q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5).masked_fill(triangle(q), INF).softmax(-1) @ v,
    "where": lambda q, k, v: torch.matmul(torch.softmax(torch.where(places(q), q @ k.mT / 4.0, INF), dim=-1), v),
    "not visible": lambda q, k, v: F.softmax((q @ k.mT).masked_fill(~places(q), INF), dim=3) @ v,
    "least number": lambda q, k, v: F.softmax((0.5 * (q @ k.mT)).masked_fill(triangle(q), torch.finfo(q.dtype).min), -1) @ v,
    "shape of scores": lambda q, k, v: (q @ k.mT).masked_fill(triangle(q)[None, None].expand(2, 3, -1, -1), INF).softmax(-1) @ v,
}
PLAIN = {
    "no mask": lambda q, k, v: (q @ k.transpose(2, 3) / math.sqrt(16)).softmax(dim=-1) @ v,
    "permuted": lambda q, k, v: torch.matmul(F.softmax(torch.matmul(q, k.permute(0, 1, 3, 2)), dim=-1), v),
    "in 32 bits": lambda q, k, v: F.softmax(q @ k.mT * 0.3, dim=-1, dtype=torch.float32).to(q.dtype) @ v,
    "dropout of nothing": lambda q, k, v: F.dropout((q @ k.mT).softmax(-1), 0.5, training=False) @ v,
    "a mask that hides nothing": lambda q, k, v: (q @ k.mT).masked_fill(triangle(q, 12), INF).softmax(-1) @ v,
}
KEPT = {
    "weights are wanted": lambda q, k, v: (lambda w: (w @ v, w))((q @ k.mT).softmax(-1)),
    "another mask": lambda q, k, v: (q @ k.mT).masked_fill(triangle(q, 2), INF).softmax(-1) @ v,
    "nothing visible": lambda q, k, v: (q @ k.mT).masked_fill(triangle(q, -20), INF).softmax(-1) @ v,
    "a finite number": lambda q, k, v: (q @ k.mT).masked_fill(triangle(q), -5.0).softmax(-1) @ v,
    "an argument as mask": lambda q, k, v: (q @ k.mT).masked_fill(v[0, 0, :, :1] > 0, INF).softmax(-1) @ v,
    "another dimension": lambda q, k, v: (q @ k.mT).softmax(-2) @ v,
    "keys as they are": lambda q, k, v: (q @ k.reshape(2, 3, 16, 12)).softmax(-1) @ v,
    "a tensor as scale": lambda q, k, v: (q @ k.mT * q.sum()).softmax(-1) @ v,
    "scores are added to": lambda q, k, v: (q @ k.mT + v[..., :12]).softmax(-1) @ v,
    "an update in between": lambda q, k, v: (lambda s, w: (w.mul_(2), s.softmax(-1) @ w)[1])(q @ k.mT, v.detach() * 1 + 0 * v),
    "rounded scores": lambda q, k, v: torch.div(q @ k.mT, 2.0, rounding_mode="floor").softmax(-1) @ v,
    "longer values": lambda q, k, v: (q @ k.mT).softmax(-1) @ torch.cat([v, v], -1),
    "broadcast heads": lambda q, k, v: (q @ k[:, :1].mT).softmax(-1) @ v,
}


def compiled(function: Any, dynamic: bool = False, backend: str = "eager", dtype: torch.dtype = torch.float32) -> list[bool]:
    """Compares with eager, gradients too; of each call of attention whether it is causal."""
    torch._dynamo.reset()
    calls: list[bool] = []

    def note(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        call_attention(gm, {"cpu"}, {torch.float32, torch.bfloat16})
        gm.graph.lint()
        calls.extend(bool(n.kwargs["is_causal"]) for n in gm.graph.nodes if n.target is ATTENTION)
        return torch._dynamo.lookup_backend(backend)(gm, inputs)

    torch.manual_seed(0)
    q, k, v = ((torch.randn(2, 3, 12, 16) * 2).to(dtype).requires_grad_() for _ in range(3))
    want = function(q, k, v)
    got = torch.compile(function, backend=note, dynamic=dynamic)(q, k, v)
    want, got = (t if isinstance(t, tuple) else (t,) for t in (want, got))
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 5e-2, "atol": 5e-2}
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True, **tolerance)
        assert a.stride() == b.stride()
    seeds = [torch.randn_like(t) for t in want]
    for a, b in zip(torch.autograd.grad(got, (q, k, v), seeds), torch.autograd.grad(want, (q, k, v), seeds), strict=True):
        torch.testing.assert_close(a, b, equal_nan=True, **tolerance)
    return calls


@pytest.fixture(autouse=True)
def from_few_scores_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decomposed_attention, "MIN_GPU_SCORES", 1)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", [*CAUSAL, *PLAIN])
def test_one_call(name: str, dynamic: bool) -> None:
    if dynamic and name in ("nanogpt", "a mask that hides nothing", "shape of scores"):
        pytest.skip("sizes that are symbols decide about a scale or a mask")
    assert compiled({**CAUSAL, **PLAIN}[name], dynamic) == [name in CAUSAL]


@pytest.mark.parametrize("name", KEPT)
def test_what_stays(name: str) -> None:
    assert compiled(KEPT[name]) == []


def test_sixteen_bits_through_the_compiler() -> None:
    assert compiled(CAUSAL["nanogpt"], backend="stepwell", dtype=torch.bfloat16) == [True]


def test_views_of_the_result() -> None:
    """A kernel's result may lie otherwise than a product."""

    def heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return CAUSAL["nanogpt"](q, k, v).view(6, 12, 16).transpose(0, 1)

    assert compiled(heads, backend="stepwell") == [True]


def test_where_it_is_left() -> None:
    """On other devices, in other types, and for few scores."""
    torch._dynamo.reset()
    seen: list[int] = []

    def note(gm: torch.fx.GraphModule, _: Any) -> Any:
        seen.append(call_attention(gm))
        seen.append(call_attention(gm, {"cpu"}))
        decomposed_attention.MIN_GPU_SCORES = 145
        seen.append(call_attention(gm, {"cpu"}, {torch.float32}))
        decomposed_attention.MIN_GPU_SCORES = 144
        seen.append(call_attention(gm, {"cpu"}, {torch.float32}))
        return gm.forward

    q = torch.randn(2, 3, 12, 16)
    torch.compile(CAUSAL["where"], backend=note)(q, q, q)
    assert seen == [0, 0, 0, 1]
    seen.clear()
    torch.compile(PLAIN["no mask"], backend=note)(q, q, q)  # no gradient: nd-attention's
    assert seen == [0, 0, 0, 0]


@pytest.mark.parametrize(
    "options, expected",
    [({}, 1), ({"numerics": "eager"}, 0), ({"fallback_random": True}, 0), ({"disable_passes": ["nd-attention"]}, 0)],
    ids=["default", "numerics", "fallback_random", "disable_passes"],
)
def test_options(options: dict[str, Any], expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    asked: list[Any] = []
    monkeypatch.setattr(decomposed_attention, "call_attention", asked.append)
    q = torch.randn(2, 3, 12, 16)
    torch.compile(CAUSAL["where"], backend="stepwell", options={"cache": "off", **options})(q, q, q)
    assert len(asked) == expected


def test_deterministic_algorithms(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradients of the library's attention are not the same every time."""
    torch.use_deterministic_algorithms(True)
    try:
        test_options({}, 0, monkeypatch)
    finally:
        torch.use_deterministic_algorithms(False)
