"""Loops of two or three iterations that are stored side by side are written out, and stored as whole vectors."""

from __future__ import annotations

import pytest
import torch

import stepwell

LAST = torch.channels_last


def _jammed() -> int:
    return stepwell.counters["passes"].get("loop-schedule", {}).get("num-jammed", 0)


def _padded(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(x, (1, 0, 2, 1), value=2.0).contiguous(memory_format=LAST)


def _bytes(x: torch.Tensor) -> torch.Tensor:
    return x.mul(9).round().clamp(0, 255).to(torch.uint8).contiguous(memory_format=LAST)


def _unpadded(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).contiguous(memory_format=LAST)


@pytest.mark.parametrize(
    "fn,shape,dtype,dynamic,jammed",
    [
        (_padded, (2, 3, 5, 40), torch.float32, (0, 3), 1),
        (_bytes, (1, 3, 7, 130), torch.float32, (), 1),
        (_unpadded, (2, 2, 3, 19), torch.float64, (2,), 1),
        (_unpadded, (1, 3, 1, 33), torch.bfloat16, (), 1),
        (_unpadded, (1, 5, 3, 33), torch.float32, (), 0),  # transposed in tiles
        (_unpadded, (2, 3, 4, 1), torch.float32, (), 0),  # rows are shorter than a vector
    ],
)
def test_channels_side_by_side(fn, shape, dtype, dynamic, jammed):
    torch._dynamo.reset()
    x = torch.randn(shape).to(dtype)
    for size in dynamic:
        torch._dynamo.mark_dynamic(x, size)
    before = _jammed()
    got, want = torch.compile(fn, backend="stepwell", options={"cache": "off"})(x), fn(x)
    assert torch.equal(got, want) and got.stride() == want.stride()
    assert _jammed() - before == jammed


def test_updates_of_what_is_read_are_left_alone():
    def update(x: torch.Tensor) -> torch.Tensor:
        x.copy_(x.flip(1) * 2)
        return x

    x = torch.randn(1, 3, 4, 40).contiguous(memory_format=LAST)
    want = update(x.clone(memory_format=torch.preserve_format))
    assert torch.equal(torch.compile(update, backend="stepwell", dynamic=False)(x), want)
