"""What the tests of the explorer look at, compiled once."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from stepwell.passes.cost.machine.cpu import flat
from stepwell.tools.explore.main import explore


def _load(name):
    """A file beside this one as a module."""
    spec = importlib.util.spec_from_file_location(f"explorer_{name}", Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def programs():
    return _load("programs")


def _explored(case):
    torch._dynamo.reset()
    fn, *args = case()
    return explore(fn, *args, machine=flat(gflops=100.0, memory_gbs=10.0, cache_gbs=50.0, threads=2))


@pytest.fixture(scope="session")
def scores(programs):
    """A product, an activation and a softmax in training."""
    return _explored(programs.scores_case)


@pytest.fixture(scope="session")
def block(programs):
    """A block of a transformer in training."""
    return _explored(programs.block_case)


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """Chromium, where there is one."""
    chromium = _load("chromium")
    if chromium.executable() is None:
        pytest.skip("there is no Chromium on this machine")
    made = chromium.Chromium(tmp_path_factory.mktemp("chromium"))
    yield made
    made.close()
