"""Bytes of stepwell and of Inductor, counted by the same rules."""

from __future__ import annotations

import pytest

from stepwell.tools.bench.bytes import compare

pytestmark = pytest.mark.long

KERNELS = """
import torch
from torch.nn import functional as F

def softmax(device):
    return lambda x: torch.softmax(x, -1), (torch.randn(32, 64, device=device),)

def product(device):
    return lambda x, w: torch.relu(x @ w), (torch.randn(48, 80, device=device), torch.randn(80, 96, device=device))

def broken(device):
    raise RuntimeError("no such kernel")

CASES = {"softmax": (softmax,), "product": (product,), "broken": (broken,)}
"""

MODELS = """
import torch

def build(size, grow=False):
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 8)), (torch.randn(4, 16),), {}

MODELS = {"mlp": build}
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cases")
    (folder / "kernels_to_count.py").write_text(KERNELS)
    (folder / "models_to_count.py").write_text(MODELS)
    return compare(str(folder / "kernels_to_count.py"), str(folder / "models_to_count.py"), [])


def test_a_fused_kernel_reads_and_writes_once_in_both(found):
    row = found["cases"]["softmax"]
    for backend in ("stepwell", "inductor"):
        assert row[backend] == {"kernels": 2 * 32 * 64 * 4, "calls": 0, "graphs": 1}


def test_a_product_counts_operands_and_results_in_both(found):
    row = found["cases"]["product"]
    whole = (48 * 80 + 80 * 96 + 48 * 96) * 4
    for backend in ("stepwell", "inductor"):
        assert row[backend]["calls"] >= whole
        assert row[backend]["kernels"] + row[backend]["calls"] <= whole + 2 * 48 * 96 * 4


def test_forward_and_backward_of_a_model_are_counted(found):
    row = found["cases"]["model mlp"]
    assert row["stepwell"]["graphs"] == row["inductor"]["graphs"] == 2
    assert found["totals"]["model"]["inductor"]["calls"] == row["inductor"]["calls"] > 0


def test_a_case_that_fails_does_not_end_the_others(found):
    assert "no such kernel" in found["cases"]["broken"]["stepwell"]["error"]
    assert "broken" not in found["above"]
