"""Masks that a program computes: which calls of attention lose them, and that results stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from stepwell.lowering.fx.pre_grad.attention_masks import ATTENTION, simplify_masks

Mask = Callable[[torch.Tensor, torch.Tensor], Any]


def run(mask: Mask, dynamic: bool = False, length: int = 12, keys: int | None = None, **given: Any) -> list[tuple[bool, bool]]:
    """Compile attention under `mask(query, positions)`, compare with eager, and say of each call whether it has a mask and is causal."""
    torch._dynamo.reset()
    found: list[tuple[bool, bool]] = []

    def backend(gm: torch.fx.GraphModule, _: Any) -> Any:
        simplify_masks(gm)
        gm.graph.lint()
        for node in gm.graph.nodes:
            if node.target is ATTENTION:
                found.append((node.kwargs.get("attn_mask") is not None, bool(node.kwargs.get("is_causal"))))
        return gm.forward

    def attend(q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(q, k, k, attn_mask=mask(q, positions), **given)

    torch.manual_seed(0)
    q, k = torch.randn(2, 3, length, 8), torch.randn(2, 3, keys or length, 8)
    positions = torch.arange(length)
    got = torch.compile(attend, backend=backend, dynamic=dynamic)(q, k, positions)
    torch.testing.assert_close(got, attend(q, k, positions), rtol=1e-5, atol=1e-5)
    return found


def rows(q: torch.Tensor) -> torch.Tensor:
    return torch.arange(q.shape[-2])


def everything(q: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return ((rows(q) + 0)[None, None, :, None] >= 0).expand(q.shape[0], -1, q.shape[-2], q.shape[-2])


def causal(q: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return rows(q).view(1, 1, 1, -1) <= rows(q)[:, None]


def packed(q: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """As transformers does it for texts that may be packed into one row."""
    n = q.shape[-2]
    position_ids = rows(q).unsqueeze(0).expand(q.shape[0], -1)
    part = (torch.diff(position_ids, prepend=position_ids[:, :1] - 1, dim=-1) != 1).cumsum(-1)
    b, i, j = torch.arange(q.shape[0])[:, None, None, None], rows(q)[None, None, :, None], rows(q)[None, None, None, :]
    result = i.new_ones((), dtype=torch.bool)
    result = result & (part[b, i] == part[b, j]).to(q.device)
    return (result & (position_ids[b, j] <= position_ids[b, i])).expand(q.shape[0], -1, n, n)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("mask", "is_causal"), [(everything, False), (causal, True), (packed, True)])
def test_known_masks_go(mask: Mask, is_causal: bool, dynamic: bool) -> None:
    assert run(mask, dynamic) == [(False, is_causal)]


@pytest.mark.parametrize(
    ("mask", "want"),
    [
        (lambda q, p: torch.ones(12, 12, dtype=torch.bool).tril(), (False, True)),
        (lambda q, p: ~torch.triu(torch.ones(12, 12, dtype=torch.bool), diagonal=1), (False, True)),
        (lambda q, p: torch.full((12, 12), True), (False, False)),
        (lambda q, p: (rows(q)[:, None] * 2 + 1 >= 2 * rows(q)) | torch.zeros(12, 12, dtype=torch.bool), (False, True)),
        (lambda q, p: torch.logical_not(rows(q)[:, None] < rows(q)[None]).contiguous(), (False, True)),
        (lambda q, p: rows(q)[None].transpose(0, 1) > rows(q) - 1, (False, True)),
        (lambda q, p: (rows(q)[1:, None] >= rows(q)[1:]).new_ones(12, 1), (False, False)),
        (lambda q, p: torch.ones(12, 12, dtype=torch.bool).tril(1), (True, False)),
        (lambda q, p: rows(q)[:, None] <= rows(q), (True, False)),
        (lambda q, p: rows(q)[:, None] > rows(q) - 3, (True, False)),
        (lambda q, p: rows(q)[None, :].expand(12, -1) >= 3, (True, False)),
        (lambda q, p: p[:, None] >= p, (True, False)),
        (lambda q, p: (rows(q)[:, None] >= rows(q)) & (p >= 0), (True, False)),
        (lambda q, p: torch.ones(12, 12).tril().log(), (True, False)),
        (lambda q, p: rows(q)[:, None].expand(12, 12)[rows(q), :] >= rows(q), (True, False)),
        (lambda q, p: torch.ones(12, 6, dtype=torch.int64).view(torch.int32) >= 1, (True, False)),
    ],
)  # fmt: skip
def test_which_masks(mask: Mask, want: tuple[bool, bool]) -> None:
    assert run(mask) == [want]


def test_other_numbers_of_keys_keep_the_mask() -> None:
    assert run(lambda q, p: rows(q)[:, None] >= torch.arange(20), keys=20) == [(True, False)]
    assert run(lambda q, p: (torch.arange(20) >= 0).expand(12, 20), keys=20) == [(False, False)]


def overwritten(q: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    mask = torch.ones(12, 12, dtype=torch.bool)
    mask[:, 5:7] = False
    return mask


def overwritten_view(q: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    mask = torch.ones(1, 12, 12, dtype=torch.bool)
    mask[0].transpose(0, 1)[3].fill_(False)
    return mask


def shifted_in_place(q: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    here = rows(q)
    here -= 4
    return (here >= 0)[None].expand(12, 12)


@pytest.mark.parametrize("mask", [overwritten, overwritten_view, shifted_in_place])
def test_what_is_written_to_is_unknown(mask: Mask) -> None:
    assert run(mask) == [(True, False)]


def test_an_update_of_other_tensors_changes_nothing() -> None:
    def mask(q: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        (q * rows(q)[:, None]).relu_()
        return causal(q, _)

    assert run(mask) == [(False, True)]


def test_positional_arguments_and_scale() -> None:
    torch._dynamo.reset()

    def attend(q: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(q, q, q, torch.ones(6, 6, dtype=torch.bool), 0.0, False, scale=0.3)

    q = torch.randn(1, 2, 6, 8)
    torch.testing.assert_close(torch.compile(attend, backend="stepwell")(q), attend(q))


def test_gradients() -> None:
    torch._dynamo.reset()
    q, k, v = (torch.randn(2, 3, 40, 16, requires_grad=True) for _ in range(3))

    def loss(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mask = everything(q, q) & causal(q, q)
        return scaled_dot_product_attention(q, k, v, attn_mask=mask).square().sum()

    want = torch.autograd.grad(loss(q, k, v), (q, k, v))
    got = torch.autograd.grad(torch.compile(loss, backend="stepwell")(q, k, v), (q, k, v))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
