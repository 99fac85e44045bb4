"""Functions of f32 without a vector library against doubles: within an ulp, and as C has them at the corners."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from cpu_kernels import RUNNABLE, elementwise, parse

from stepwell.targets.cpu.emit.module import emit_module
from stepwell.targets.cpu.features import target
from stepwell.targets.cpu.jit import load_text

CORNERS = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.0, -3.0, 8.0, 1e-45, 1e-38, 3e38, float("inf"), float("-inf"), float("nan"), 1000.0]


def ulps(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """The distance in units in the last place of the rounded result; 0 where both are the same NaN or infinity."""
    rounded = want.float()
    same = (got == rounded) | (got.isnan() & rounded.isnan())
    spacing = torch.tensor(np.spacing(rounded.abs().numpy())).double()
    return torch.where(same, 0.0, (got.double() - want).abs() / spacing)


def computed(name: str, isa: str, *inputs: torch.Tensor) -> torch.Tensor:
    lanes, f32 = 32, torch.float32
    names = ", ".join(f"%{letter}" for letter in "ab"[: len(inputs)])
    types = ", ".join(f"{{{letter}}}" for letter in "AB"[: len(inputs)])
    operation = {"sin": "math.sin", "cos": "math.cos", "pow": "math.powf"}[name]
    body = f"%r = {operation} {names} : {types.split(', ')[0]}"
    wanted = replace(target(isa), vector_library=False)
    text = emit_module(parse(elementwise("k", body, [f32] * len(inputs), f32, lanes)), wanted)
    assert "Sleef" not in text and "own" in text
    out = torch.empty_like(inputs[0])
    load_text(text, wanted=wanted).call("k", *inputs, out, inputs[0].numel())
    return out


@pytest.mark.spread
@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("name", ["sin", "cos"])
def test_functions_of_one_number(name, isa):
    torch.manual_seed(0)
    few = torch.tensor(CORNERS * 2)
    angles = torch.cat([torch.randn(4096) * 3, torch.rand(4096) * 2e6 - 1e6, torch.rand(992) * 1e30])
    x = torch.cat([few, angles])
    got, want = computed(name, isa, x), getattr(torch, name)(x.double())
    assert float(ulps(got, want).max()) <= 1.0


@pytest.mark.parametrize("isa", RUNNABLE)
def test_powers(isa):
    torch.manual_seed(0)
    x, y = (v.flatten() for v in torch.meshgrid(torch.tensor(CORNERS), torch.tensor([*CORNERS, 0.1, -2.5]), indexing="ij"))
    more = 8192 - x.numel()
    x, y = torch.cat([x, torch.randn(more).exp()]), torch.cat([y, torch.randn(more) * 20])
    got, want = computed("pow", isa, x, y), torch.pow(x.double(), y.double())
    assert float(ulps(got, want).max()) <= 1.0
