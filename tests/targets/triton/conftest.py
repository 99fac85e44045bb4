"""Triton for these tests: the installed one, or the one in the folder that STEPWELL_TEST_TRITON names."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

if folder := os.environ.get("STEPWELL_TEST_TRITON"):
    sys.path.insert(0, folder)

SAMPLES = Path(__file__).parent / "samples"


@pytest.fixture
def triton():
    """Triton, or a skip."""
    return pytest.importorskip("triton", reason="Triton is not installed (the extra 'gpu')")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache folder of the test's own."""
    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def read():
    """`read(name)`: the module of a sample, or of a text."""
    from xdsl.context import Context

    from stepwell.dialects import load_dialects
    from stepwell.passes.manager.verify import verify_ir
    from stepwell.tools.ir_parser import parse_file

    def parse(name: str):
        path = SAMPLES / name
        text = name if "\n" in name else path.read_text()
        module, _ = parse_file(text, "text" if "\n" in name else str(path), load_dialects(Context()))
        verify_ir(module)
        return module

    return parse
