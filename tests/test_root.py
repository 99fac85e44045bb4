"""The public names of `import stepwell`."""

from __future__ import annotations

import subprocess
import sys

import pytest

import stepwell


def test_importing_stepwell_imports_nothing_heavy():
    code = (
        "import sys, stepwell; print([m for m in ('torch', 'xdsl', 'llvmlite', 'sympy', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", stepwell.__all__)
def test_public_name_loads_and_is_listed(name):
    assert getattr(stepwell, name) is getattr(stepwell, name)
    assert name in dir(stepwell)


def test_unknown_name():
    with pytest.raises(AttributeError, match="module 'stepwell' has no attribute 'registr_pass'"):
        stepwell.registr_pass  # noqa: B018


def test_counters_stay_the_same_object_when_reset():
    before = stepwell.counters
    stepwell.reset_counters()
    assert stepwell.counters is before
    assert before["graphs"] == 0
