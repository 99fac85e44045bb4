"""The page of operators: what it says of some, and that it is current."""

import subprocess
import sys

import pytest
import torch

from stepwell.tools.docs import operators


@pytest.fixture(scope="module", name="lines")
def all_lines():
    return {line.name: line for line in operators.operators()}


def test_treatments(lines):
    """M01"""
    assert (lines["aten.add"].treatment, lines["aten.add"].by) == ("rule", "pointwise")
    assert lines["aten.add"].dtypes == "b i h f c"
    assert lines["aten.linalg_qr"].by == "linear algebra"
    assert lines["aten.linalg_qr"].dtypes == "\\| f c"
    assert lines["aten._foreach_add"].treatment == "ours"
    assert lines["aten.logit_backward"].treatment in ("torch's", "rule")
    assert (lines["aten.digamma"].gpu, lines["aten.exp"].gpu) == ("library call", "=")
    assert "aten.add_" not in lines  # written operands
    assert "aten.conv2d" not in lines  # torch takes it apart


def test_what_the_page_counts_as_library_is_no_fallback(lines):
    """The word `fallback` of the page is the compiler's own."""
    from stepwell.lowering.fx_to_nd.calls.externs import is_fallback

    for name, targets in operators.packets().items():
        line = lines.get(name)
        if line is not None and not line.partly and line.treatment in ("library", "fallback"):
            assert is_fallback(targets[0]) == (line.treatment == "fallback"), name


def test_the_page_is_current():
    """X02: In a process of its own: other tests define operators."""
    version = torch.__version__.partition("+")[0]
    if f"with torch {version};" not in operators.PAGE.read_text():
        pytest.skip(f"the page was not written with torch {version}")
    done = subprocess.run([sys.executable, "-m", "stepwell.tools.docs.operators", "--check"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
