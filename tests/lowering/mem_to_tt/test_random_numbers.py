"""Random numbers of tiles: each number is that of its place in the stream, whatever axis of a tile it goes along."""

from __future__ import annotations

import pytest
import torch

import stepwell
from stepwell.dialects.support.philox import SEED_RANGE
from stepwell.lowering.fx.philox import random_numbers
from stepwell.tools.interpret.target import InterpretedTarget


@pytest.fixture(autouse=True)
def interpreted():
    stepwell.register_target(InterpretedTarget, replace=True)
    yield
    stepwell.unregister_target("interpreted")
    torch._dynamo.reset()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", [(37,), (5, 33), (130, 66), (64, 4), (2, 3, 5, 8)])
def test_numbers_of_places(shape, transposed):
    x = torch.zeros(shape)
    x = x.transpose(0, -1).contiguous().transpose(0, -1) if transposed else x
    torch.manual_seed(3)
    got = torch.compile(lambda x: torch.rand_like(x) + x, backend="stepwell", options={"cache": "off"})(x)
    torch.manual_seed(3)
    seed, start = torch.randint(*SEED_RANGE, (2,)).tolist()
    assert torch.equal(got, random_numbers("rand", seed, start & -16, x.numel()).reshape(shape))
