"""Inference graphs are called without AOTAutograd's wrapper where that has nothing to do, traced now or taken from the disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import stepwell
from stepwell.tools.backend import torch_backend


def compiled(function, *given):
    """The function compiled and called once."""
    torch._dynamo.reset()
    run = torch.compile(function, backend="stepwell", options={"cache": "off"})
    run(*given)
    return run


def wrappers_called(run, *given):
    """Whether a function of torch's runtime wrappers takes part in a call."""
    files = set()
    sys.setprofile(lambda frame, event, arg: files.add(frame.f_code.co_filename) if event == "call" else None)
    try:
        run(*given)
    finally:
        sys.setprofile(None)
    return any(name.endswith("runtime_wrappers.py") for name in files)


def softmax(x):
    return torch.softmax(x * 2, 1)


def update(x):
    x.add_(1)
    return x * 2


def view(x):
    return x.t(), x + 1


def same(x):
    y = x + 1
    return y, y.view(-1)


def check_calls(run, function, plain):
    """Calls take part in torch's wrappers or not, and do what the function does."""
    assert wrappers_called(run, torch.randn(3, 4)) != plain
    for _ in range(2):
        x = torch.randn(3, 4)
        y = x.clone()
        torch.testing.assert_close(run(x), function(y))
        torch.testing.assert_close(x, y)


CALLS = [(softmax, True), (update, False), (view, False), (same, True)]


@pytest.mark.parametrize("function, plain", CALLS)
def test_calls(function, plain):
    check_calls(compiled(function, torch.randn(3, 4)), function, plain)


@pytest.mark.long
def test_calls_of_graphs_from_the_disk(tmp_path):
    """In processes of their own, where no other test has told the compiler anything."""
    program = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import {Path(__file__).stem} as t; t.run_cached()"
    variables = {**os.environ, "STEPWELL_CACHE_DIR": str(tmp_path), "STEPWELL_CACHE": "on"}
    for hits in (0, len(CALLS)):
        run = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True)
        assert run.stdout.split() == [str(hits)], run.stderr


def run_cached():
    """All calls once more, and how many graphs were found."""
    for function, plain in CALLS:
        run = torch.compile(function, backend="stepwell")
        run(torch.randn(3, 4))
        check_calls(run, function, plain)
    print(stepwell.counters["aot_cache_hits"])


def test_the_mode_of_gradients_comes_back():
    """A graph without gradients, called where they are on and where they are off; after a failure, too."""
    run = compiled(lambda x, k: x[k] * 2, torch.randn(5, 3), torch.tensor([1, 2]))
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            result = run(torch.randn(5, 3), torch.tensor([0, 4]))
            assert torch.is_grad_enabled() == enabled and not result.requires_grad
            with pytest.raises(IndexError):
                run(torch.randn(5, 3), torch.tensor([0, 5]))
            assert torch.is_grad_enabled() == enabled
    weight = torch.randn(5, 3, requires_grad=True)
    run(weight, torch.tensor([1, 1])).sum().backward()
    assert weight.grad[1].tolist() == [4.0] * 3


def test_a_torch_that_knows_other_things_of_a_graph(monkeypatch):
    """Its wrapper stays where it is."""

    def unknown(metadata):
        raise AttributeError("num_outputs_aliased")

    monkeypatch.setattr(torch_backend, "is_plain", unknown)
    run = compiled(softmax, torch.randn(3, 4))
    assert wrappers_called(run, torch.randn(3, 4)) and not stepwell.counters["recovered"]


def test_under_autocast():
    def product(x, w):
        return x @ w

    x, w = torch.randn(4, 8), torch.randn(8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        run = compiled(product, x, w)
        for _ in range(2):
            torch.testing.assert_close(run(x, w), product(x, w), atol=0.1, rtol=0.1)
            assert run(x, w).dtype == torch.bfloat16
    assert run(x, w).dtype == torch.float32
