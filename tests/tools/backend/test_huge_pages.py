"""Constants of frozen graphs lie in huge pages, where the system has them; values stay."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import stepwell
from stepwell.tools.backend import frozen
from stepwell.tools.backend.huge_pages import collapse_pages, huge_page_bytes


def in_huge_pages(first: int, end: int) -> int:
    """Bytes in huge pages of the mappings that a range of addresses lies in."""
    total, overlaps = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if span := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            overlaps = int(span[1], 16) < end and first < int(span[2], 16)
        elif overlaps and line.startswith("AnonHugePages:"):
            total += int(line.split()[1]) * 1024
    return total


def test_values_and_addresses_stay():
    x = torch.arange(3 << 20)
    want, address = x.clone(), x.data_ptr()
    size = collapse_pages([x, x[5:], torch.zeros(3), torch.empty(0), torch.empty(4 << 20, device="meta")])
    assert torch.equal(x, want) and x.data_ptr() == address
    if not size:
        pytest.skip("this system puts no pages together")
    assert size % huge_page_bytes() == 0 and size <= x.nbytes
    assert in_huge_pages(address, address + x.nbytes) >= size // 2, "a system short of memory takes single pages apart again"


def test_a_system_without_huge_pages_leaves_memory_alone(monkeypatch):
    monkeypatch.setattr("stepwell.tools.backend.huge_pages.huge_page_bytes", lambda: 0)
    assert collapse_pages([torch.zeros(4 << 20)]) == 0


def test_weights_of_a_frozen_graph_lie_in_huge_pages(monkeypatch):
    sizes = []
    monkeypatch.setattr(frozen, "collapse_pages", lambda tensors: sizes.append(collapse_pages(tensors)))
    torch._dynamo.reset()
    stepwell.reset_counters()
    model = nn.Linear(1536, 1024, bias=False).eval()
    x = torch.randn(1, 1536)
    with torch.no_grad():
        got = torch.compile(model, backend="stepwell", options={"freezing": True})(x)
        torch.testing.assert_close(got, model(x))
    assert stepwell.counters["fallback"] == 0 and len(sizes) == 1
    if not collapse_pages([torch.zeros(4 << 20)]):
        pytest.skip("this system puts no pages together")
    assert sizes[0] >= model.weight.nbytes - 2 * huge_page_bytes()
