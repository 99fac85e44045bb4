"""Files of earlier versions of the format open forever. A change that these tests refuse needs a new version beside the old one."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import stepwell

FILES = Path(__file__).with_name("files")


def test_version_1():
    """Written by release 0.1.0: `stepwell.export({"step": (Model(), (x, table))}, targets=["cpu-v3"])`, of the model below."""
    loaded = stepwell.load(FILES / "version-1.stepwell")
    assert loaded.native and loaded.target == "cpu-v3" and loaded.entries == ("step",)
    weights = {name: value.clone() for name, value in loaded.weights.items()}
    x, table = torch.randn(5, 6), {"scale": torch.tensor(2.0)}
    want = F.gelu(F.linear(x, weights["layer.weight"], weights["layer.bias"])) * 2 + 1
    found = loaded.step(x, table)
    assert sorted(found) == ["calls", "y"] and found["calls"][0].item() == 1 and found["calls"][1] == 5
    torch.testing.assert_close(found["y"], want)
    assert loaded.step(x, table)["calls"][0].item() == 2
    loaded.reset()
    assert loaded.step(x[:2], table)["calls"][0].item() == 1
    with pytest.raises(TypeError, match="argument 'x', dimension 0, is 9; the package was exported for 0 to 8"):
        loaded.step(torch.randn(9, 6), table)


def test_version_1_without_native_entries(monkeypatch):
    monkeypatch.setenv("STEPWELL_HOST", "python")
    loaded = stepwell.load(FILES / "version-1.stepwell")
    assert not loaded.native
    assert loaded.step(torch.randn(5, 6), {"scale": torch.tensor(2.0)})["calls"][1] == 5
