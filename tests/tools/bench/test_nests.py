"""bench nests: kernels that are one nest, and the reasons of what stays apart."""

from __future__ import annotations

import pytest

from stepwell.tools.bench.nests import KERNELS, nests


@pytest.mark.parametrize("name", KERNELS)
def test_one_nest_each(name, capsys):
    graphs = nests(None, None, [name])[name]
    for graph in graphs:
        assert (graph["nests"], graph["contractions"], graph["apart"]) == (1, 0, []), graph
    assert f"{name}, graph 1" in capsys.readouterr().out


def test_reasons_of_what_stays_apart(tmp_path, capsys):
    file = tmp_path / "models.py"
    file.write_text(
        "import torch\n"
        "parts = [layer for _ in range(2) for layer in (torch.nn.Linear(8, 8), torch.nn.LayerNorm(8))]\n"
        "MODELS = {'two': lambda size: (torch.nn.Sequential(*parts), (torch.randn(4, 8),), {})}\n"
    )
    forward, backward = nests(None, str(file), [])["two"]
    assert forward["nests"] == 2 and forward["contractions"] == 2 and not forward["apart"]
    assert backward["nests"] == 2
    for first, second, reason, size in backward["apart"]:
        assert first and second and reason and size >= 0
    assert "two, graph 2 (backward): 2 nests" in capsys.readouterr().out
