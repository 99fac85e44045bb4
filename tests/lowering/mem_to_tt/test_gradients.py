"""Every gradient of a transformer layer with embeddings and a loss, from the kernels of the GPU pipeline, against float64."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from support import lower

from stepwell.tools.interpret.loop import run_loop

WIDTH, HEADS, WORDS, BATCH, LENGTH = 16, 2, 19, 2, 5


def parameters() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"words": (WORDS, WIDTH), "places": (LENGTH, WIDTH)}
    shapes |= {"up": (4 * WIDTH, WIDTH), "up_bias": (4 * WIDTH,), "down": (WIDTH, 4 * WIDTH)}
    for name in ("query", "key", "value", "out"):
        shapes |= {name: (WIDTH, WIDTH), f"{name}_bias": (WIDTH,)}
    for name in ("first", "second"):
        shapes |= {f"{name}_norm": (WIDTH,), f"{name}_norm_bias": (WIDTH,)}
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) / shape[-1] ** 0.5 for name, shape in shapes.items()}


def loss(tokens: torch.Tensor, labels: torch.Tensor, p: dict[str, torch.Tensor]) -> torch.Tensor:
    def project(x, name):
        return F.linear(x, p[name], p[f"{name}_bias"])

    def norm(x, name):
        return F.layer_norm(x, (WIDTH,), p[f"{name}_norm"], p[f"{name}_norm_bias"])

    x = F.embedding(tokens, p["words"], padding_idx=0) + p["places"]
    q, k, v = (project(x, n).unflatten(-1, (HEADS, -1)).transpose(1, 2) for n in ("query", "key", "value"))
    weights = torch.softmax(q @ k.transpose(-1, -2) * (WIDTH // HEADS) ** -0.5, -1)
    x = norm(x + project((weights @ v).transpose(1, 2).flatten(2), "out"), "first")
    x = norm(x + F.linear(F.gelu(project(x, "up")), p["down"]), "second")
    return F.cross_entropy((x @ p["words"].t()).flatten(0, 1).float(), labels.flatten())


def gradients(tokens: torch.Tensor, labels: torch.Tensor, names: list[str], values: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    found = torch.func.grad(lambda p: loss(tokens, labels, p))(dict(zip(names, values, strict=True)))
    return tuple(found[name] for name in names)


@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.long), torch.bfloat16], ids=str)
def test_gradients_are_as_near_as_those_of_eager(dtype):
    generator = torch.Generator().manual_seed(1)
    tokens, labels = (torch.randint(0, WORDS, (BATCH, LENGTH), generator=generator) for _ in range(2))
    values = [value.to(dtype) for value in parameters().values()]
    inputs = [tokens, labels, *values]
    names = list(parameters())

    def step(tokens, labels, *values):
        return gradients(tokens, labels, names, values)

    imported = lower(step, *inputs, to="tt", target="gpu")
    found = run_loop(imported.module, [x.clone() for x in inputs], imported.constants, imported.objects)
    eager = gradients(tokens, labels, names, values)
    truth = gradients(tokens, labels, names, [value.double() for value in values])
    # the gradient of the bias of the keys is 0, as softmax does not see what all scores of a row share: what rounding
    # leaves of it is measured on the scale of its fellows
    floor = 1e-3 * max(want.norm().item() for want in truth)
    for name, got, plain, want in zip(names, found, eager, truth, strict=True):
        assert got.dtype == dtype and got.shape == want.shape
        scale = max(want.norm().item(), floor)
        error, own = ((value.double() - want).norm().item() / scale for value in (got, plain))
        assert error <= 2 * own + 10 * torch.finfo(dtype).eps, (name, error, own)
    assert truth[list(parameters()).index("key_bias")].norm() < 1e-6 * floor
